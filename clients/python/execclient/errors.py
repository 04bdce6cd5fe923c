"""The tree of errors. Each error has a stable `code`.

    ExecServerError                exec_server_error
    ├── UnsupportedUrl             unsupported_url      the client does not support this URL
    ├── ConnectionFailed           connection_failed    the connection failed
    │   ├── DaemonNotRunning       daemon_not_running   no server is listening
    │   ├── EnvironmentOffline     environment_offline  no executor is connected to the relay for it
    │   │   └── PoolFull           pool_full            the executors of the pool take no further session
    │   ├── UntrustedServer        untrusted_server     the identity of the server is wrong
    │   │   └── WrongExecutor      wrong_executor       another executor is behind the relay
    │   ├── AccessDenied           access_denied        the server refuses the token, or the client
    │   └── InsecureToken          insecure_token       a token would cross a network unencrypted
    ├── ConnectionLost             connection_lost      an established connection was lost
    │   ├── OutcomeUnknown         outcome_unknown      a call may or may not have been carried out
    │   └── SessionLost            session_lost         the session could not be resumed
    ├── ExecutorClosed             executor_closed      a call after the end of the `async with`
    ├── ProtocolFault              protocol_fault       the server sent an invalid message
    ├── RequestTooLarge            request_too_large    the request does not fit one message
    ├── CallTimeout                call_timeout         no response within the limit
    ├── WaitTimeout                wait_timeout         a process outlasted the limit of a wait; it runs on
    ├── Unsupported                unsupported          this server cannot do that; nothing was sent
    ├── OutputGap                  output_gap           output was lost before it was read
    ├── NoSuchProcess              no_such_process      the daemon does not know the process
    ├── StdinUnavailable           stdin_unavailable    the process has no standard input
    ├── CommandFailed              command_failed       the exit code is not 0, and `check=True`
    ├── CommandNotRun              command_not_run      the sandbox failed before the command began
    ├── TransferFailed             transfer_failed      a file changed while it was copied
    ├── StreamFailed               stream_failed        a connection to a port has failed
    ├── WalkIncomplete             walk_incomplete      a tree exceeds the limits of one walk
    ├── PolicyError                policy_error         a file of rules cannot be used
    └── CallFailed                 call_failed          an error response; `wire_code` has its number
        ├── Refused                refused              -32600  the server refuses the request
        │   ├── LineTooLong        line_too_long        -32600  a terminal would cut a line of input
        │   └── SandboxRequired    sandbox_required     -32600  the daemon requires a sandbox
        ├── UnknownMethod          unknown_method       -32601
        ├── InvalidParams          invalid_params       -32602
        ├── SystemFailure          system_failure       -32603  a failed system call, a failed start
        ├── NotFound               not_found            -32004  the path or handle does not exist
        ├── SessionAttached        session_attached     -32010  the session has another connection
        └── ExecutorDraining       executor_draining    -32011  the executor opens no new sessions

Where Python has a class for an error, that is a base, too: `NotFound` is a `FileNotFoundError`, `CallTimeout`
a `TimeoutError`, `ConnectionLost` a `ConnectionError`, `SystemFailure` an `OSError`, and by its `errno` a
`FileNotFoundError`, `FileExistsError`, `PermissionError`, `IsADirectoryError` or `NotADirectoryError`. In a
traceback these are `StartMissing`, `AlreadyThere`, `StartDenied`, `Denied` (a `Refused`), `IsDirectory` and
`NotDirectory`, and a `CommandFailed` after a time limit is a `CommandTimedOut`. Do not import these: catch
the class of Python, or the base.

All errors can be pickled and copied, with their attributes and notes, but without causes and tracebacks.

The wire's codes: `docs/protocol.md`, "Error codes".
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from execprotocol import errors as wire

if TYPE_CHECKING:
    from execclient.results import RunResult, WalkEntry


_OS_ERROR = re.compile(r"\(os error (\d+)\)\Z")
"""The number of a failed system call in a message of the wire: `docs/protocol.md`, I1."""


SHOWN_BYTES, SHOWN_LINES = 1000, 8
"""How much of its error output the message of a failed command shows: the end."""


class ExecServerError(Exception):
    """The base of all errors of this package.

    Attributes:
        program: the program of the command, as given; None if the error is not about a command.
        path: the absolute path that the error is about, at the executor, or, for a socket or a file of rules,
            on this machine. For a start: the program, interpreter or folder that is missing or not
            accessible. None if there is none, or it is unknown.
        destination: of a copy or a rename at the executor, absolute; `path` is then the source.
        cwd: the working directory of the command.
        errno: of the failed system call, with the numbers of Linux; None if no system call failed.
    """

    code: ClassVar[str] = "exec_server_error"
    program: str | None = None
    path: str | None = None
    destination: str | None = None
    cwd: str | None = None
    errno: int | None = None

    def __str__(self) -> str:
        # OSError would replace the text if there is a path.
        return Exception.__str__(self)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _unpickled, (type(self), self.args), self.__dict__ | _os_members(self)

    def about(
        self,
        *,
        program: str | None = None,
        path: str | None = None,
        destination: str | None = None,
        cwd: str | None = None,
        errno: int | None = None,
    ) -> Self:
        """This error, with the given attributes that were unknown before."""
        self.program = self.program or program
        self.path = self.path or path
        self.destination = self.destination or destination
        self.cwd = self.cwd or cwd
        self.errno = self.errno or errno
        _set_os_members(self)
        return self

    def of_path(self, path: str) -> Self:
        """This error, about the path that the caller gave, in place of a temporary or an unknown one."""
        self.path, self.destination = path, None
        _set_os_members(self)
        return self


def _os_members(error: Exception) -> dict[str, object]:
    """The attributes that an OSError keeps outside of its `__dict__`."""
    if not isinstance(error, OSError):
        return {}
    return {name: getattr(error, name) for name in ("filename", "filename2", "strerror")}


def _set_os_members(error: ExecServerError) -> None:
    if isinstance(error, OSError):
        error.filename, error.filename2 = error.path, error.destination
        error.strerror = os.strerror(error.errno) if error.errno else None


def _unpickled(kind: type[ExecServerError], args: tuple[object, ...]) -> ExecServerError:
    """A pickled error, made without calling its `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class UnsupportedUrl(ExecServerError):
    """The client does not support the URL, or a parameter does not go with it."""

    code = "unsupported_url"


class ConnectionFailed(ExecServerError, ConnectionError):
    """The connection failed; the message says why."""

    code = "connection_failed"


class DaemonNotRunning(ConnectionFailed, ConnectionRefusedError):
    """No server is listening at the URL; the message says how to start a daemon."""

    code = "daemon_not_running"
    own_daemon: ClassVar[str] = 'connect("stdio:")'
    """What the message offers in place of a running daemon. The command line has words of its own for it."""


class EnvironmentOffline(ConnectionFailed):
    """No executor is connected to the relay for the environment at the moment.

    Attributes:
        environment_id: its name, or that of the pool.
    """

    code = "environment_offline"

    def __init__(self, message: str, environment_id: str) -> None:
        super().__init__(message)
        self.environment_id = environment_id


class PoolFull(EnvironmentOffline):
    """Each executor of the pool that matches has as many sessions as it takes, or is draining.

    `environment_id` is the name of the pool.
    """

    code = "pool_full"


class UntrustedServer(ConnectionFailed):
    """The server runs neither as the client's uid nor as root, or its certificate is not valid.

    No data was sent to the server.
    """

    code = "untrusted_server"


class WrongExecutor(UntrustedServer):
    """The key of the executor behind the relay is not the pinned one, or not the one of the first connection.

    Only the client's public key and the token were sent, and only to the relay.
    """

    code = "wrong_executor"


class AccessDenied(ConnectionFailed, PermissionError):
    """A WebSocket server, a relay or its executor refused the client; the message has reason and remedy.

    Attributes:
        status: of the HTTP response: 401 for the token, 403 for the origin or the destination of the client.
    """

    code = "access_denied"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class InsecureToken(ConnectionFailed):
    """The token would cross a network unencrypted. No data was sent; the message has the remedies."""

    code = "insecure_token"


class ConnectionLost(ExecServerError, ConnectionError):
    """The connection ended.

    Attributes:
        sent: whether the request had been sent.
    """

    code = "connection_lost"

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class OutcomeUnknown(ConnectionLost):
    """The connection was lost before the response, and the request must not be sent twice.

    The request may or may not have been executed. After a `start` with this error the client sends a
    terminate, so that no unknown process runs on.
    """

    code = "outcome_unknown"


class SessionLost(ConnectionLost):
    """The session could not be resumed: its processes are gone or not accessible. Connect anew."""

    code = "session_lost"


class ExecutorClosed(ExecServerError):
    """The executor was closed before the call, or during it."""

    code = "executor_closed"


class ProtocolFault(ExecServerError):
    """The server sent a message that violates the protocol."""

    code = "protocol_fault"


class RequestTooLarge(ExecServerError):
    """The request exceeds the 64 MiB of one message; no data was sent."""

    code = "request_too_large"


class CallTimeout(ExecServerError, TimeoutError):
    """No response within the limit. The request may still be executed."""

    code = "call_timeout"

    def __init__(self, method: str, seconds: float) -> None:
        super().__init__(f"{method}: no response within {seconds:g} s")
        self.method = method
        self.seconds = seconds


class WaitTimeout(ExecServerError, TimeoutError):
    """The awaited event did not happen within the limit. The process runs on."""

    code = "wait_timeout"


class Unsupported(ExecServerError):
    """The server does not serve an extension that the call needs. No request was sent.

    Attributes:
        extension: its name in `Executor.capabilities`.
    """

    code = "unsupported"

    def __init__(self, extension: str, remedy: str = "") -> None:
        super().__init__(
            f"the server does not serve {extension}: it is another server than execserver, or an older one"
            + (f"; {remedy}" if remedy else "")
        )
        self.extension = extension


class OutputGap(ExecServerError):
    """Output was lost before it could be delivered. The output after it is intact: continue to iterate.

    Attributes:
        lost_bytes: the number of bytes; None if the server did not report it.
        result: from `run` only: the result without the lost output.
    """

    code = "output_gap"

    def __init__(self, lost_bytes: int | None, result: RunResult | None = None) -> None:
        amount = "an unknown amount" if lost_bytes is None else f"{lost_bytes} bytes"
        super().__init__(f"{amount} of output were dropped before they could be delivered")
        self.lost_bytes = lost_bytes
        self.result = result


class NoSuchProcess(ExecServerError, ProcessLookupError):
    """The daemon does not know the process: it never ran, or the daemon has forgotten it after its end."""

    code = "no_such_process"


class StdinUnavailable(ExecServerError):
    """The process has no standard input: start it with `stdin=True` or `tty=True`."""

    code = "stdin_unavailable"


class CommandFailed(ExecServerError):
    """A command of `run(…, check=True)` did not exit with 0, or ran into a time limit.

    Attributes:
        result: of the command.
    """

    code = "command_failed"

    def __init__(self, program: str, result: RunResult) -> None:
        why = "ran into its time limit" if result.timed_out else f"exited with {result.exit_code}"
        super().__init__(f"{program} {why}{_end_of(result.stderr)}")
        self.program = program
        self.result = result


def _end_of(stderr: bytes) -> str:
    """The last lines of an error output, for a message."""
    text = stderr[-SHOWN_BYTES:].decode("utf-8", "replace").strip()
    lines = text.splitlines()[-SHOWN_LINES:]
    if len(lines) < 2:
        return f": {text}" if text else ""
    return "\n    ".join([":", *lines])


class CommandNotRun(ExecServerError):
    """The sandbox failed before the command began: the command did not run (statement C35)."""

    code = "command_not_run"


class TransferFailed(ExecServerError):
    """A file changed while it was copied, or the copy differs; the target is unchanged."""

    code = "transfer_failed"


class StreamFailed(ExecServerError, ConnectionError):
    """A connection to a port at the executor has failed; the message has the reason."""

    code = "stream_failed"


class WalkIncomplete(ExecServerError):
    """A tree has more directories or names than one walk returns.

    Attributes:
        entries: the first ones.
    """

    code = "walk_incomplete"

    def __init__(self, path: str, entries: list[WalkEntry]) -> None:
        super().__init__(f"{path}: more than one walk returns; these are the first {len(entries)} names")
        self.path = path
        self.entries = entries


class PolicyError(ExecServerError):
    """A file of rules cannot be used. None of its rules applies; do not run commands without them.

    Attributes:
        file: as named by the caller.
        line: counted from 1; None if the error is about the whole file.
        reason: the error, without the position.
    """

    code = "policy_error"

    def __init__(self, file: str, line: int | None, reason: str) -> None:
        super().__init__(f"{file}: {reason}" if line is None else f"{file}:{line}: {reason}")
        self.file = self.path = file
        self.line = line
        self.reason = reason


class CallFailed(ExecServerError):
    """The server responded with an error. The text of one about a file begins with its path at the executor.

    Attributes:
        method: of the wire.
        wire_code: the code in the response.
        message: the text in the response.
        reason: more about the cause, if it is known: of a failed start, the missing or blocking object.
        wire_name: the finer name of `wire_code`, such as `sandbox_required` (`docs/protocol.md`, J7); None if
            the server does not send it.
    """

    code = "call_failed"
    wire_name: str | None = None

    def __init_subclass__(cls, errnos: Iterable[int] = (), **others: Any) -> None:
        super().__init_subclass__(**others)
        for number in errnos:
            _BY_ERRNO[cls.__bases__[0], number] = cls

    def __init__(self, method: str, wire_code: int, message: str, reason: str | None = None) -> None:
        text = f"{message}: {reason}" if reason else message
        super().__init__(f"{method}: {text} ({wire_code})")
        self.method = method
        self.wire_code = wire_code
        self.message = message
        self.reason = reason
        self.about(errno=os_error_number(message))

    def __str__(self) -> str:
        text = super().__str__()
        if self.path is None or not self.method.startswith("fs/"):
            return text
        text = text.removeprefix(f"{self.method}: ").removesuffix(f" ({self.wire_code})")
        if f"`{self.path}`" in text:  # the server has named it
            return text
        return f"{self.path if self.destination is None else f'{self.path} -> {self.destination}'}: {text}"


_BY_ERRNO: dict[tuple[type, int], type[CallFailed]] = {}
"""Classes for one `errno`, by the class for all others and the number."""


class Refused(CallFailed):
    """The server understands the request and refuses it."""

    code = "refused"


class LineTooLong(Refused):
    """A terminal in canonical mode would drop a part of an input line of more than 4,095 bytes.

    Nothing of the request was written. `Process.write` has the ways out.
    """

    code = "line_too_long"


class SandboxRequired(Refused):
    """The daemon has the setting `require_sandbox`, and the request has no sandbox that limits files.

    Nothing was started or changed (`docs/protocol.md`, C8).
    """

    code = "sandbox_required"

    def __init__(self, method: str, wire_code: int, message: str, reason: str | None = None) -> None:
        super().__init__(method, wire_code, message, reason)
        # In place of the reason, which describes the form of the wire.
        remedy = (
            "use executor.fs.confined(WorkspaceWrite()) in place of executor.fs"
            if method.startswith("fs/")
            else "pass sandbox=ReadOnly() or sandbox=WorkspaceWrite()"
        )
        self.args = (f"{method}: {message}: {remedy} ({wire_code})",)


class UnknownMethod(CallFailed):
    """The server has no such method."""

    code = "unknown_method"


class InvalidParams(CallFailed):
    """The server could not decode the parameters; the message names the field."""

    code = "invalid_params"


class SystemFailure(CallFailed, OSError):
    """A system call failed at the server; also every failed start."""

    code = "system_failure"


class NotFound(CallFailed, FileNotFoundError):
    """The path or the handle does not exist."""

    code = "not_found"


class SessionAttached(CallFailed):
    """Another connection is attached to the session."""

    code = "session_attached"


class ExecutorDraining(CallFailed):
    """The executor drains: it opens no new sessions. Connect to another one, or try again later."""

    code = "executor_draining"


_BY_WIRE_CODE: dict[int, type[CallFailed]] = {
    wire.InvalidRequest.code: Refused,
    wire.MethodNotFound.code: UnknownMethod,
    wire.InvalidParams.code: InvalidParams,
    wire.InternalError.code: SystemFailure,
    wire.NotFound.code: NotFound,
    wire.SessionAttached.code: SessionAttached,
    wire.Draining.code: ExecutorDraining,
}


def call_failed(
    method: str, wire_code: int, message: str, data: Mapping[str, object] | None = None
) -> CallFailed:
    """The error for an error response.

    Args:
        method: of the request.
        wire_code: the code in the response.
        message: the text in the response.
        data: the details that execserver adds (`docs/protocol.md`, X15).
    """
    kind = _BY_WIRE_CODE.get(wire_code, CallFailed)
    name = None if data is None else data.get("code")
    kind = next((each for each in (LineTooLong, SandboxRequired) if each.code == name), kind)
    number = os_error_number(message)
    if number is not None:
        kind = _BY_ERRNO.get((kind, number), kind)
    reason, path = (None if data is None else data.get(name) for name in ("reason", "path"))
    error = kind(method, wire_code, message, reason if isinstance(reason, str) else None)
    error.wire_name = name if isinstance(name, str) else None
    return error.about(path=path if isinstance(path, str) else None)


def os_error_number(text: str) -> int | None:
    """The number of a failed system call at the end of a message of the wire; None if there is none."""
    found = _OS_ERROR.search(text)
    return None if found is None else int(found[1])


# Classes for one `errno` each, so that `except FileNotFoundError` catches a program or a file that is missing
# at the executor. They share the `code` of their first base; programs name that base or the class of Python.


class Denied(Refused, PermissionError, errnos=(errno.EACCES, errno.EPERM)):
    """The executor has no permission for the path."""


class StartDenied(SystemFailure, PermissionError, errnos=(errno.EACCES, errno.EPERM)):
    """There is no permission to use the program or its working directory."""


class StartMissing(SystemFailure, FileNotFoundError, errnos=(errno.ENOENT,)):
    """The program, its interpreter or its working directory does not exist."""


class AlreadyThere(SystemFailure, FileExistsError, errnos=(errno.EEXIST,)):
    """The path to create exists already."""


class IsDirectory(SystemFailure, IsADirectoryError, errnos=(errno.EISDIR,)):
    """The path is a directory, but a file is needed."""


class NotDirectory(SystemFailure, NotADirectoryError, errnos=(errno.ENOTDIR,)):
    """A part of the path is a file, but a directory is needed."""


class CommandTimedOut(CommandFailed, TimeoutError):
    """A command of `run(…, check=True)` ran into a time limit."""

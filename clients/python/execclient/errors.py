"""The one tree of errors, each with a stable `code`.

    ExecServerError                exec_server_error
    ├── UnsupportedUrl             unsupported_url      this version does not speak what the URL asks for
    ├── ConnectionFailed           connection_failed    no connection came about
    │   ├── DaemonNotRunning       daemon_not_running   nobody listens there
    │   ├── EnvironmentOffline     environment_offline  no executor is connected to the relay for it
    │   ├── UntrustedServer        untrusted_server     who listens there is not who it should be
    │   │   └── WrongExecutor      wrong_executor       another executor is behind the relay
    │   ├── AccessDenied           access_denied        the server wants another token, or none of us
    │   └── InsecureToken          insecure_token       a token would cross a network unencrypted
    ├── ConnectionLost             connection_lost      a connection that was there is gone
    │   ├── OutcomeUnknown         outcome_unknown      a call may or may not have been carried out
    │   └── SessionLost            session_lost         the session could not be resumed
    ├── ExecutorClosed             executor_closed      a call after the end of the `async with`
    ├── ProtocolFault              protocol_fault       the server sent what cannot be understood
    ├── RequestTooLarge            request_too_large    one message cannot hold the request
    ├── CallTimeout                call_timeout         no answer within the limit
    ├── WaitTimeout                wait_timeout         a process outlasted the limit of a wait; it goes on
    ├── Unsupported                unsupported          this server cannot do that; nothing was sent
    ├── OutputGap                  output_gap           output was dropped before it was seen
    ├── NoSuchProcess              no_such_process      the daemon does not know it, or no longer
    ├── StdinUnavailable           stdin_unavailable    the process was started without a standard input
    ├── CommandFailed              command_failed       another exit code than 0, and `check=True`
    ├── CommandNotRun              command_not_run      its sandbox broke before the command began
    ├── TransferFailed             transfer_failed      a file changed on its way, or arrived different
    ├── WalkIncomplete             walk_incomplete      a tree is larger than one walk may be
    ├── PolicyError                policy_error         a file of rules that cannot be used
    └── CallFailed                 call_failed          an error reply; `wire_code` has its number
        ├── Refused                refused              -32600  understood and refused
        ├── UnknownMethod          unknown_method       -32601
        ├── InvalidParams          invalid_params       -32602
        ├── SystemFailure          system_failure       -32603  a failed system call, a failed start
        ├── NotFound               not_found            -32004  a path or a handle that is not there
        └── SessionAttached        session_attached     -32010  the session has another connection

Those for which Python has a class are of that class, too: `NotFound` is a `FileNotFoundError`, `CallTimeout`
a `TimeoutError`, `ConnectionLost` a `ConnectionError`, `SystemFailure` an `OSError`, and by its `errno` a
`FileNotFoundError`, `FileExistsError`, `PermissionError`, `IsADirectoryError` or `NotADirectoryError`.

All can be pickled and copied, with their attributes and notes; causes and tracebacks stay behind, as always.

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
"""How the wire writes the number of a failed system call: `docs/protocol.md`, I1."""


class ExecServerError(Exception):
    """Whatever this package raises on its own account.

    Attributes:
        program: the command's program, as it was given; None where the error is not about one.
        path: the absolute path that it is about, at the executor or, of a socket or a file of rules, here;
            of a start the program, interpreter or folder that is missing or may not be used. None where there
            is none, or it is not known.
        cwd: the working directory of the command.
        errno: of the system call that failed, by the numbers of Linux; None where none did.
    """

    code: ClassVar[str] = "exec_server_error"
    program: str | None = None
    path: str | None = None
    cwd: str | None = None
    errno: int | None = None

    def __str__(self) -> str:
        # Not that of OSError, which has a text of its own as soon as there is a path.
        return Exception.__str__(self)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _remade, (type(self), self.args), self.__dict__ | _os_members(self)

    def about(
        self,
        *,
        program: str | None = None,
        path: str | None = None,
        cwd: str | None = None,
        errno: int | None = None,
    ) -> Self:
        """The same error, with what is given here and was not known yet."""
        self.program = self.program or program
        self.path = self.path or path
        self.cwd = self.cwd or cwd
        self.errno = self.errno or errno
        _tell_os_members(self, self.path, self.errno)
        return self


def _os_members(error: Exception) -> dict[str, object]:
    """What an OSError keeps outside of its `__dict__`."""
    if not isinstance(error, OSError):
        return {}
    return {name: getattr(error, name) for name in ("filename", "filename2", "strerror")}


def _tell_os_members(error: Exception, path: str | None, number: int | None) -> None:
    if isinstance(error, OSError):
        error.filename = path
        error.strerror = os.strerror(number) if number else None


def _remade(kind: type[ExecServerError], args: tuple[object, ...]) -> ExecServerError:
    """An error as it was pickled, without the parameters of its own `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class UnsupportedUrl(ExecServerError):
    """The URL is not one that this version connects to."""

    code = "unsupported_url"


class ConnectionFailed(ExecServerError, ConnectionError):
    """No connection came about; the message says why."""

    code = "connection_failed"


class DaemonNotRunning(ConnectionFailed, ConnectionRefusedError):
    """Nobody listens at the URL; the message says how to start a daemon."""

    code = "daemon_not_running"


class EnvironmentOffline(ConnectionFailed):
    """No executor is connected to the relay for the environment; one may be later.

    Attributes:
        environment_id: its name.
    """

    code = "environment_offline"

    def __init__(self, message: str, environment_id: str) -> None:
        super().__init__(message)
        self.environment_id = environment_id


class UntrustedServer(ConnectionFailed):
    """The server runs under another uid than ours or root's, or its certificate does not hold.

    Nothing was sent to it.
    """

    code = "untrusted_server"


class WrongExecutor(UntrustedServer):
    """The executor behind the relay has another key than the pinned one, or than the one before.

    Nothing but our own key and the token was shown, and those to the relay only.
    """

    code = "wrong_executor"


class AccessDenied(ConnectionFailed, PermissionError):
    """A WebSocket server refused the upgrade, or a relay or its executor us; the message has the reason
    and the way out.

    Attributes:
        status: of the HTTP response: 401 for the token, 403 for where we come from or want to go.
    """

    code = "access_denied"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class InsecureToken(ConnectionFailed):
    """A token would cross a network unencrypted. Nothing was sent; the message has the ways out."""

    code = "insecure_token"


class ConnectionLost(ExecServerError, ConnectionError):
    """The connection ended.

    Attributes:
        sent: whether the request had gone out by then.
    """

    code = "connection_lost"

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class OutcomeUnknown(ConnectionLost):
    """The connection was lost before the answer, and the request is not one that may be sent twice.

    It may or may not have been carried out. A `start` that ends like this is followed by a
    terminate, so that no process is left behind unseen.
    """

    code = "outcome_unknown"


class SessionLost(ConnectionLost):
    """The session could not be resumed: its processes are gone or out of reach. Connect anew."""

    code = "session_lost"


class ExecutorClosed(ExecServerError):
    """The executor was closed before the call, or during it."""

    code = "executor_closed"


class ProtocolFault(ExecServerError):
    """The server sent something that is not of the protocol."""

    code = "protocol_fault"


class RequestTooLarge(ExecServerError):
    """The request is larger than the 64 MiB that one message may have; nothing was sent."""

    code = "request_too_large"


class CallTimeout(ExecServerError, TimeoutError):
    """The answer did not come within the limit. The call may still be carried out."""

    code = "call_timeout"

    def __init__(self, method: str, seconds: float) -> None:
        super().__init__(f"{method}: no answer within {seconds:g} s")
        self.method = method
        self.seconds = seconds


class WaitTimeout(ExecServerError, TimeoutError):
    """What was waited for did not come within the limit. The process goes on."""

    code = "wait_timeout"


class Unsupported(ExecServerError):
    """The server does not serve an extension that the call needs. Nothing was sent.

    Attributes:
        extension: its name, as `Executor.capabilities` would have it.
    """

    code = "unsupported"

    def __init__(self, extension: str) -> None:
        super().__init__(
            f"the server does not serve {extension}: it is another server than execserver, or an older one"
        )
        self.extension = extension


class OutputGap(ExecServerError):
    """Output was dropped before it could be delivered. What follows it is intact: iterate on.

    Attributes:
        lost_bytes: how many bytes; None when the server did not say.
        result: from `run` only: all that there is, without the lost part.
    """

    code = "output_gap"

    def __init__(self, lost_bytes: int | None, result: RunResult | None = None) -> None:
        amount = "an unknown amount" if lost_bytes is None else f"{lost_bytes} bytes"
        super().__init__(f"{amount} of output were dropped before they could be delivered")
        self.lost_bytes = lost_bytes
        self.result = result


class NoSuchProcess(ExecServerError, ProcessLookupError):
    """The daemon does not know the process: it never ran, or closed longer ago than it is kept."""

    code = "no_such_process"


class StdinUnavailable(ExecServerError):
    """The process has no standard input to write to: start it with `stdin=True` or `tty=True`."""

    code = "stdin_unavailable"


class CommandFailed(ExecServerError):
    """A command of `run(…, check=True)` ended with another exit code than 0, or ran into a time limit.

    Attributes:
        result: all that came of it.
    """

    code = "command_failed"

    def __init__(self, program: str, result: RunResult) -> None:
        why = "ran into its time limit" if result.timed_out else f"exited with {result.exit_code}"
        last = result.stderr_text.strip().rpartition("\n")[2][:200]
        super().__init__(f"{program} {why}" + (f": {last}" if last else ""))
        self.program = program
        self.result = result


class CommandNotRun(ExecServerError):
    """The sandbox broke between the start and the command, which was never run (statement C35)."""

    code = "command_not_run"


class TransferFailed(ExecServerError):
    """A file changed while it was copied, or is not the same at both ends; the target is as it was."""

    code = "transfer_failed"


class WalkIncomplete(ExecServerError):
    """A tree has more directories or names than one walk gives.

    Attributes:
        entries: those that there are.
    """

    code = "walk_incomplete"

    def __init__(self, path: str, entries: list[WalkEntry]) -> None:
        super().__init__(f"{path}: more than one walk gives; these are the first {len(entries)} names")
        self.path = path
        self.entries = entries


class PolicyError(ExecServerError):
    """A file of rules cannot be used. None of its rules is in force; nothing should run in its place.

    Attributes:
        file: as it was named.
        line: the first is 1; None when it is about the whole file.
        reason: what is wrong, without the place.
    """

    code = "policy_error"

    def __init__(self, file: str, line: int | None, reason: str) -> None:
        super().__init__(f"{file}: {reason}" if line is None else f"{file}:{line}: {reason}")
        self.file = self.path = file
        self.line = line
        self.reason = reason


class CallFailed(ExecServerError):
    """The server answered with an error.

    Attributes:
        method: the wire's method.
        wire_code: the number in the reply.
        message: the text in the reply.
        reason: of a start that failed, what is missing or in the way, where the server says so.
    """

    code = "call_failed"

    def __init_subclass__(cls, errnos: Iterable[int] = (), **others: Any) -> None:
        super().__init_subclass__(**others)
        for number in errnos:
            _BY_ERRNO[cls.__bases__[0], number] = cls

    def __init__(self, method: str, wire_code: int, message: str, reason: str | None = None) -> None:
        told = f"{message}: {reason}" if reason else message
        super().__init__(f"{method}: {told} ({wire_code})")
        self.method = method
        self.wire_code = wire_code
        self.message = message
        self.reason = reason
        self.about(errno=os_error_number(message))


_BY_ERRNO: dict[tuple[type, int], type[CallFailed]] = {}
"""Classes that are for one `errno` only, by that and by the class for all others."""


class Refused(CallFailed):
    """The request is understood and refused."""

    code = "refused"


class UnknownMethod(CallFailed):
    """The server has no such method."""

    code = "unknown_method"


class InvalidParams(CallFailed):
    """The server could not decode the parameters; the message names the field."""

    code = "invalid_params"


class SystemFailure(CallFailed, OSError):
    """The operating system refused, at the server; also every start that failed."""

    code = "system_failure"


class NotFound(CallFailed, FileNotFoundError):
    """The path or the handle does not exist."""

    code = "not_found"


class SessionAttached(CallFailed):
    """The session belongs to a connection that the server believes to be alive."""

    code = "session_attached"


_BY_WIRE_CODE: dict[int, type[CallFailed]] = {
    wire.InvalidRequest.code: Refused,
    wire.MethodNotFound.code: UnknownMethod,
    wire.InvalidParams.code: InvalidParams,
    wire.InternalError.code: SystemFailure,
    wire.NotFound.code: NotFound,
    wire.SessionAttached.code: SessionAttached,
}


def call_failed(
    method: str, wire_code: int, message: str, data: Mapping[str, object] | None = None
) -> CallFailed:
    """The error of an error reply.

    Args:
        method: of the request.
        wire_code: the number in the reply.
        message: the text in the reply.
        data: what an execserver adds (`docs/protocol.md`, X15).
    """
    kind = _BY_WIRE_CODE.get(wire_code, CallFailed)
    number = os_error_number(message)
    if number is not None:
        kind = _BY_ERRNO.get((kind, number), kind)
    reason, path = (None if data is None else data.get(name) for name in ("reason", "path"))
    error = kind(method, wire_code, message, reason if isinstance(reason, str) else None)
    return error.about(path=path if isinstance(path, str) else None)


def os_error_number(text: str) -> int | None:
    """The number of a failed system call, as the wire writes it at the end of a text; None without one."""
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

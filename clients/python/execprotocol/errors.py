"""The wire's error codes, and the exceptions that carry them.

    RpcError                                   any error that becomes an error reply
    ├── ParseFailure    -32700 parse_error       bytes that are no JSON (JSON-RPC 2.0 dialect only)
    ├── InvalidRequest  -32600 invalid_request   wrong state, unknown process or session, a refused argument
    ├── MethodNotFound  -32601 method_not_found
    ├── InvalidParams   -32602 invalid_params    parameters that do not decode
    ├── InternalError   -32603 internal_error    I/O and spawn failures
    ├── NotFound        -32004 not_found         a path or a file handle that is not there
    ├── SessionAttached -32010 session_attached  the session belongs to another live connection
    └── Draining        -32011 draining          the executor opens no new sessions

The number is the wire's and coarse. The name beside it is for programs to match on, and finer where
one number stands for many things; a name never changes its meaning. Connections of the JSON-RPC 2.0
dialect get it in `data`, the Codex dialect has numbers and texts only.

`docs/protocol.md`, sections "Error codes" and "Standard JSON-RPC".
"""

from __future__ import annotations

import errno
import os

# Not from `typing`: without that module the fs worker starts in half the time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

NAMED_IN_BOTH_DIALECTS = frozenset(
    {
        *("pattern_refused", "glob_refused", "unknown_cursor", "search_differs", "search_ended"),
        *("search_unavailable", "search_failed", "unknown_watch"),
    }
)
"""Names of errors that clients tell apart: on a connection with extensions the Codex dialect has them, too
(X15)."""

PARSE_ERROR_ID = -1
"""The id of a reply to a message whose own id could not be read."""


class RpcError(Exception):
    """An error with a wire code. `message` is sent to the client verbatim."""

    code: ClassVar[int] = -32603
    default_name: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, name: str | None = None, field: str | None = None) -> None:
        """Args:
        message: a sentence for people.
        name: for programs, if the default name of the class is too coarse.
        field: the parameter at fault, by its name on the wire; nested members after dots.
        """
        super().__init__(message)
        self.message = message
        self.name = name or self.default_name
        self.field = field
        self.details: dict[str, str] = {}
        """What is known beyond the message. With it, `data` is in the Codex dialect too (X15)."""

    @property
    def has_data(self) -> bool:
        """Whether `data` is in the Codex dialect too, on a connection with extensions (X15)."""
        return bool(self.details) or self.name in NAMED_IN_BOTH_DIALECTS

    def data(self) -> dict[str, str]:
        """The `data` member of an error reply in the JSON-RPC 2.0 dialect."""
        named = {"code": self.name} if self.field is None else {"code": self.name, "field": self.field}
        return named | self.details


class ParseFailure(RpcError):
    """The bytes are not a JSON message."""

    code = -32700
    default_name = "parse_error"


class InvalidRequest(RpcError):
    """The request was understood and is refused."""

    code = -32600
    default_name = "invalid_request"


class MethodNotFound(RpcError):
    """There is no method of that name."""

    code = -32601
    default_name = "method_not_found"


class InvalidParams(RpcError):
    """The parameters do not decode; the message names the field."""

    code = -32602
    default_name = "invalid_params"


class InternalError(RpcError):
    """The operating system or the daemon failed."""

    code = -32603
    default_name = "internal_error"


class SpawnFailed(InternalError):
    """A program could not be started.

    Attributes:
        error: the system's error.
    """

    def __init__(self, error: OSError | ValueError) -> None:
        is_system = isinstance(error, OSError)
        text = os_error_text(error) if is_system else f"cannot start the process: {error}"  # type: ignore[arg-type]
        super().__init__(text, name="spawn_failed")
        self.error = error


class NotFound(RpcError):
    """The path or the file handle does not exist."""

    code = -32004
    default_name = "not_found"


class SessionAttached(RpcError):
    """The session is attached to another connection, and cannot be taken over."""

    code = -32010
    default_name = "session_attached"


class Draining(RpcError):
    """The executor drains: it opens no new sessions. The same request may succeed later, or elsewhere."""

    code = -32011
    default_name = "draining"


def start_cancelled(process_id: str) -> InvalidRequest:
    """For a start that was cancelled by a terminate."""
    return InvalidRequest(f"the start of process {process_id} was cancelled", name="start_cancelled")


def search_ended(reason: str = "`fs/endSearch` was called") -> InvalidRequest:
    """For a page of a search that was ended."""
    return InvalidRequest(f"the search was ended, because {reason}: search again", name="search_ended")


def start_differs(process_id: str, parameter: str) -> InvalidRequest:
    """For a start with `attach` whose parameters differ from those of the running process."""
    return InvalidRequest(
        f"process {process_id} was started with another `{parameter}`: repeat the start with the parameters "
        "of the first one to attach to it, or start under another processId",
        name="start_differs",
        field=parameter,
    )


def unknown_process(process_id: str) -> InvalidRequest:
    """For a process id that is unknown, or not known any more."""
    return InvalidRequest(f"unknown process id {process_id}", name="unknown_process", field="processId")


def start_unknown(process_id: str) -> InvalidRequest:
    """For a start with `attach`, if the parameters of the first start were not recorded."""
    return InvalidRequest(
        f"process {process_id} was started by a connection without extensions, which cannot be compared: "
        "read it, or start under another processId",
        name="start_differs",
        field="ifExists",
    )


# Errors of the operating system for which the *request* is at fault, not the disk.
_REFUSALS = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EINVAL: "invalid_argument",
}

_FAILURES = {
    errno.EEXIST: "already_exists",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EROFS: "read_only",
    errno.EMFILE: "too_many_open_files",
    errno.ENFILE: "too_many_open_files",
}


def os_error_text(error: OSError) -> str:
    """The text that clients match on: `No such file or directory (os error 2)`."""
    number = error.errno or 0
    return f"{os.strerror(number)} (os error {number})"


def file_error(error: OSError) -> RpcError:
    """The wire error of a failed file operation (`docs/protocol.md`, "I/O errors")."""
    if error.errno == errno.ENOENT:
        return NotFound(os_error_text(error))
    number = error.errno or 0
    if number in _REFUSALS:
        return InvalidRequest(os_error_text(error), name=_REFUSALS[number])
    return InternalError(os_error_text(error), name=_FAILURES.get(number, "io_error"))

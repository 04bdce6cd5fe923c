"""Which errors each method answers, for schemas and the reference. Nothing is decided here.

`docs/protocol.md`, section "Error codes"; the numbers and names are those of `execprotocol/errors.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from execprotocol.errors import (
    Draining,
    InternalError,
    InvalidParams,
    InvalidRequest,
    NotFound,
    RpcError,
    SessionAttached,
)
from execprotocol.methods import Method


@dataclass(frozen=True, slots=True)
class MethodError:
    """One error that a method may answer."""

    kind: type[RpcError]
    when: str
    """A sentence for people: what went wrong."""

    own_name: str | None = None

    @property
    def code(self) -> int:
        """The number on the wire."""
        return self.kind.code

    @property
    def name(self) -> str:
        """What programs match on; connections of the JSON-RPC 2.0 dialect get it in `data.code`."""
        return self.own_name or self.kind.default_name


ERRORS: dict[str, MethodError] = {
    "BadParams": MethodError(InvalidParams, "The parameters do not decode; the message names the member."),
    "NotReady": MethodError(
        InvalidRequest, "The handshake is not complete: `initialize`, then `initialized`, come first."
    ),
    "AlreadyInitialized": MethodError(
        InvalidRequest, "The connection has a session already; this request changed nothing."
    ),
    "UnknownSession": MethodError(
        InvalidRequest, "The session to resume is unknown or has expired.", "unknown_session"
    ),
    "SessionAttached": MethodError(
        SessionAttached, "The session to resume is attached to another connection that lives."
    ),
    "Draining": MethodError(
        Draining, "The executor drains and opens no new sessions; connect to another one, or try again later."
    ),
    "SandboxUnavailable": MethodError(
        InvalidRequest,
        "The sandbox context limits something, and nothing on this executor can enforce that; the message "
        "says what is missing.",
        "sandbox_unavailable",
    ),
    "SandboxRefused": MethodError(
        InvalidRequest,
        "This sandbox context cannot be enforced on this disk, or keeps from the request what it needs.",
        "sandbox_refused",
    ),
    "SandboxRequired": MethodError(
        InvalidRequest,
        "The setting `require_sandbox` is on, and the request has no sandbox that limits files.",
        "sandbox_required",
    ),
    "ProxyUnavailable": MethodError(
        InternalError, "The network proxy cannot be started; nothing is started."
    ),
    "ProcessExists": MethodError(
        InvalidRequest, "The process id is taken, by a process that runs or is still kept.", "process_exists"
    ),
    "StartDiffers": MethodError(
        InvalidRequest,
        "With `ifExists` `attach`: the process was started with other parameters, of which the message names "
        "one, or by a connection without extensions.",
        "start_differs",
    ),
    "StartCancelled": MethodError(
        InvalidRequest, "A `process/terminate` came before the process was started.", "start_cancelled"
    ),
    "Stopping": MethodError(
        InvalidRequest, "The daemon is stopping, or the session has ended: nothing is started.", "stopping"
    ),
    "SpawnFailed": MethodError(
        InternalError,
        "The operating system did not start the program; the message is its reason.",
        "spawn_failed",
    ),
    "UnknownProcess": MethodError(
        InvalidRequest, "The session has no process of that id, or no longer.", "unknown_process"
    ),
    "TtlAboveLimit": MethodError(
        InvalidRequest,
        "The daemon keeps no session for so long without a connection (`--max-session-ttl`).",
        "ttl_above_limit",
    ),
    "OtherSessionRefused": MethodError(
        InvalidRequest,
        "Another session is meant, and this connection came neither over a Unix socket nor with the "
        "credentials of `--ws-auth`.",
        "other_session_refused",
    ),
    "UnknownOtherSession": MethodError(
        InvalidRequest, "The session that is meant is unknown or has ended.", "unknown_session"
    ),
    "OwnProcess": MethodError(
        InvalidRequest,
        "The process is of the connection's own session: its events come without a subscription.",
        "own_process",
    ),
    "UnknownSeq": MethodError(
        InvalidRequest, "The process has not come as far as `afterSeq`: it is another one.", "unknown_seq"
    ),
    "NotInteractive": MethodError(
        InvalidRequest,
        "The size of the terminal is left to the owner of the process and to the latest interactive "
        "subscriber.",
        "not_interactive",
    ),
    "HasTerminal": MethodError(
        InvalidRequest,
        "The process is on a terminal, whose end of file is a byte to write: 0x04 at the start of a line.",
        "has_terminal",
    ),
    "LineTooLong": MethodError(
        InvalidRequest,
        "With `wholeLines`: the terminal would drop a part of a line; nothing was written.",
        "line_too_long",
    ),
    "NoTerminal": MethodError(
        InvalidRequest, "The process was started without `tty`, and has no size.", "no_terminal"
    ),
    "SignalDenied": MethodError(
        InvalidRequest,
        "The leader has become another user's process, which the daemon may not signal.",
        "permission_denied",
    ),
    "InputGone": MethodError(
        InternalError, "The process has ended, or too many bytes wait for it; nothing was written."
    ),
    "NotListening": MethodError(
        InvalidRequest,
        "No descendant of the session's processes listens on that port; the message names what does listen.",
        "not_listening",
    ),
    "AmbiguousListener": MethodError(
        InvalidRequest,
        "Several sockets fit: choose one by `address` or `ofProcess`; the message names them.",
        "ambiguous_listener",
    ),
    "ConnectFailed": MethodError(
        InternalError,
        "The listener did not accept the connection within 10 s; the message is the reason.",
        "connect_failed",
    ),
    "TooManyStreams": MethodError(
        InvalidRequest, "The session has 256 open streams already.", "too_many_streams"
    ),
    "PathNotFound": MethodError(NotFound, "The path, or a folder above it, does not exist."),
    "PermissionDenied": MethodError(
        InvalidRequest, "The daemon may not do that with the path.", "permission_denied"
    ),
    "InvalidArgument": MethodError(
        InvalidRequest, "The operating system refuses the request as invalid.", "invalid_argument"
    ),
    "ForeignPath": MethodError(
        InvalidRequest, "The URI is well formed but names no path of this host, such as one of another host."
    ),
    "InputOutput": MethodError(
        InternalError, "The operating system failed; the message is its reason with its number.", "io_error"
    ),
    "AlreadyExists": MethodError(InternalError, "Something is in the way of what is made.", "already_exists"),
    "IsADirectory": MethodError(
        InternalError, "The path is a directory, and a file is needed.", "is_a_directory"
    ),
    "NotADirectory": MethodError(
        InternalError, "A part of the path is a file, and a directory is needed.", "not_a_directory"
    ),
    "DirectoryNotEmpty": MethodError(
        InternalError, "The directory has something in it, and `recursive` is false.", "directory_not_empty"
    ),
    "NoSpace": MethodError(InternalError, "The disk or the quota is full.", "no_space"),
    "ReadOnly": MethodError(InternalError, "The file system cannot be written to.", "read_only"),
    "TooManyOpenFiles": MethodError(
        InternalError, "No further file can be opened on the executor at present.", "too_many_open_files"
    ),
    "NotAFile": MethodError(InvalidRequest, "The path is no regular file."),
    "TooLarge": MethodError(
        InvalidRequest, "The file is larger than the limit; read it by `fs/open` and `fs/readBlock`."
    ),
    "ReplyTooLarge": MethodError(
        InvalidRequest,
        "The reply would be above 64 MiB, the limit of a WebSocket message.",
        "reply_too_large",
    ),
    "BadBase64": MethodError(InvalidRequest, "`dataBase64` is no standard base64; nothing was written."),
    "BatchTooLarge": MethodError(
        InvalidRequest, "The contents of the batch, or `maxBytes`, are above 4 MiB; nothing is done."
    ),
    "EditsOverlap": MethodError(InvalidParams, "Two edits are of one place, by whatever names."),
    "EditConflict": MethodError(
        InvalidRequest,
        "Something is not as an edit expects it, or was changed meanwhile; nothing is changed.",
        "edit_conflict",
    ),
    "EditsHalfDone": MethodError(
        InternalError,
        "The edits could be carried out only in part, and what was done could not be undone yet; the daemon "
        "tries again when it starts next.",
        "edits_half_done",
    ),
    "WalkLimits": MethodError(InvalidRequest, "A limit of the walk is above its maximum, or is 0."),
    "CopyRefused": MethodError(
        InvalidRequest,
        "The source is a directory without `recursive`, a special file, or the destination itself, or the "
        "destination lies inside it.",
    ),
    "HandleRefused": MethodError(
        InvalidRequest, "The handle id is longer than 32 bytes, or 128 handles are open already."
    ),
    "HandleExists": MethodError(InvalidRequest, "The handle id is in use.", "handle_exists"),
    "UnknownHandle": MethodError(
        NotFound, "No handle of that id is open on this connection.", "unknown_handle"
    ),
    "BlockRefused": MethodError(
        InvalidRequest, "The block has no byte or more than 1048576, or ends beyond the largest offset."
    ),
    "HandleSandbox": MethodError(
        InvalidRequest, "The sandbox limits files, and the handle was not opened under that sandbox."
    ),
    "WatchRefused": MethodError(
        InvalidRequest, "The watch's id is empty or longer than 64 bytes, or an excluded name has a slash."
    ),
    "WatchExists": MethodError(InvalidRequest, "The watch's id is in use.", "watch_exists"),
    "WatchDiffers": MethodError(
        InvalidRequest,
        "The watch to attach to was begun with other parameters; the error names one.",
        "watch_differs",
    ),
    "TooManyWatches": MethodError(
        InvalidRequest, "The session has 32 watches already; end one by `fs/unwatch`.", "too_many_watches"
    ),
    "WatchLimit": MethodError(
        InvalidRequest,
        "A limit of inotify is used up; the error names the `sysctl` that raises it.",
        "watch_limit",
    ),
    "TooManyEntries": MethodError(
        InvalidRequest,
        "On a network mount or FUSE, the tree has more entries than are polled.",
        "too_many_entries",
    ),
    "UnknownWatch": MethodError(
        InvalidRequest,
        "No watch of that id is known: begin it again, and look at everything below its path.",
        "unknown_watch",
    ),
    "UnknownWatchCursor": MethodError(
        InvalidRequest,
        "The cursor is beyond the newest change; it is that of another watch.",
        "unknown_cursor",
    ),
    "SearchUnavailable": MethodError(
        InternalError,
        "The executor has no ripgrep, or for globs no wcmatch; the message says how to install it.",
        "search_unavailable",
    ),
    "PatternRefused": MethodError(
        InvalidRequest, "The pattern is not valid; the message says why.", "pattern_refused"
    ),
    "GlobRefused": MethodError(
        InvalidRequest, "A glob is not valid, or a name in `excludeDirs`.", "glob_refused"
    ),
    "UnknownCursor": MethodError(
        InvalidRequest,
        "The page cannot be had any more: the search has ended, or a later page was requested. Search again.",
        "unknown_cursor",
    ),
    "SearchDiffers": MethodError(
        InvalidRequest,
        "The open search of that cursor or `searchId` has other parameters; the message names one.",
        "search_differs",
    ),
    "SearchEnded": MethodError(
        InvalidRequest, "`fs/endSearch` has ended the search, or four newer ones.", "search_ended"
    ),
    "SearchFailed": MethodError(
        InternalError,
        "The program that searches was ended from outside or has failed; the message says how.",
        "search_failed",
    ),
    "RequestFailed": MethodError(
        InternalError, "The request got no whole answer: no connection, a broken answer, or no time left."
    ),
}
"""Every error by the key that the OpenRPC document has for it."""

_PATH = (
    "SandboxUnavailable",
    "SandboxRefused",
    "SandboxRequired",
    "ForeignPath",
    "PathNotFound",
    "PermissionDenied",
    "InvalidArgument",
)
_BATCH = ("SandboxUnavailable", "SandboxRefused", "SandboxRequired", "ForeignPath", "BatchTooLarge")
_SEARCH = (
    *_PATH,
    "SearchUnavailable",
    "GlobRefused",
    "UnknownCursor",
    "SearchDiffers",
    "SearchEnded",
    "SearchFailed",
)
_SYSTEM = ("NotADirectory", "TooManyOpenFiles", "InputOutput")
_CHANGE = ("ReadOnly", "NoSpace")
_OTHERS = ("OtherSessionRefused", "UnknownOtherSession")

_OF_METHOD: dict[str, tuple[str, ...]] = {
    "initialize": ("AlreadyInitialized", "UnknownSession", "SessionAttached", "Draining"),
    "process/start": (
        "SandboxUnavailable",
        "SandboxRefused",
        "SandboxRequired",
        "ProxyUnavailable",
        "ProcessExists",
        "StartDiffers",
        "StartCancelled",
        "Stopping",
        "SpawnFailed",
    ),
    "process/read": ("UnknownProcess", "ReplyTooLarge", *_OTHERS),
    "process/write": ("LineTooLong", "InputGone", *_OTHERS),
    "process/closeStdin": ("HasTerminal", "InputGone", *_OTHERS),
    "process/resize": ("UnknownProcess", "NoTerminal", *_OTHERS, "NotInteractive"),
    "process/signal": ("SignalDenied", *_OTHERS),
    "process/terminate": _OTHERS,
    "process/list": _OTHERS,
    "session/setTtl": ("TtlAboveLimit",),
    "process/subscribe": ("UnknownProcess", *_OTHERS, "OwnProcess", "UnknownSeq"),
    "port/list": _OTHERS,
    "port/open": (
        *_OTHERS,
        "ProcessExists",
        "NotListening",
        "AmbiguousListener",
        "ConnectFailed",
        "TooManyStreams",
        "StartCancelled",
        "Stopping",
        "SpawnFailed",
    ),
    "fs/readFile": (*_PATH, "NotAFile", "TooLarge", "ReplyTooLarge", *_SYSTEM),
    "fs/writeFile": (*_PATH, "BadBase64", "IsADirectory", *_CHANGE, *_SYSTEM),
    "fs/createDirectory": (*_PATH, "AlreadyExists", *_CHANGE, *_SYSTEM),
    "fs/getMetadata": (*_PATH, *_SYSTEM),
    "fs/canonicalize": (*_PATH, *_SYSTEM),
    "fs/readDirectory": (*_PATH, "ReplyTooLarge", *_SYSTEM),
    "fs/walk": (*_PATH, "WalkLimits", "ReplyTooLarge", *_SYSTEM),
    "fs/remove": (*_PATH, "DirectoryNotEmpty", "ReadOnly", *_SYSTEM),
    "fs/copy": (*_PATH, "CopyRefused", "AlreadyExists", "IsADirectory", *_CHANGE, *_SYSTEM),
    "fs/rename": (
        *_PATH,
        "AlreadyExists",
        "IsADirectory",
        "DirectoryNotEmpty",
        *_CHANGE,
        *_SYSTEM,
    ),
    "fs/install": (*_PATH, "NotAFile", "IsADirectory", *_CHANGE, *_SYSTEM),
    "fs/setMetadata": (*_PATH, "ReadOnly", *_SYSTEM),
    "fs/digest": (*_PATH, "NotAFile", *_SYSTEM),
    "fs/applyEdits": (
        *_PATH,
        "EditsOverlap",
        "EditConflict",
        "EditsHalfDone",
        "BadBase64",
        "NotAFile",
        "AlreadyExists",
        "IsADirectory",
        *_CHANGE,
        *_SYSTEM,
    ),
    "fs/putFiles": _BATCH,
    "fs/getFiles": _BATCH,
    "fs/search": (*_SEARCH, "PatternRefused", "NotAFile", *_SYSTEM),
    "fs/glob": (*_SEARCH, *_SYSTEM),
    "fs/open": (*_PATH, "HandleRefused", "HandleExists", "NotAFile", "IsADirectory", *_CHANGE, *_SYSTEM),
    "fs/readBlock": ("BlockRefused", "InvalidArgument", "UnknownHandle", "HandleSandbox", "InputOutput"),
    "fs/writeBlock": (
        "BlockRefused",
        "InvalidArgument",
        "UnknownHandle",
        "HandleSandbox",
        "NoSpace",
        "InputOutput",
    ),
    "fs/watch": (
        *_PATH,
        "WatchRefused",
        "WatchExists",
        "WatchDiffers",
        "TooManyWatches",
        "Stopping",
        "WatchLimit",
        "TooManyEntries",
        *_SYSTEM,
    ),
    "fs/watchRead": ("UnknownWatch", "UnknownWatchCursor"),
    "http/request": ("RequestFailed",),
}


def errors_of(method: Method) -> list[str]:
    """The keys in `ERRORS` of what a method may answer, the general ones first."""
    general = ["BadParams"]
    if method.family is not None and not method.open_to_all:
        general.append("NotReady")
    return [*general, *_OF_METHOD.get(method.name, ())]

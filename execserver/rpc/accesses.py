"""What each request uses, for the order of requests: its keys and paths. Pure.

`docs/protocol.md`, "Request scheduling".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from execserver.rpc.ordering import Access, Mode

if TYPE_CHECKING:
    from execprotocol import filesystem as fs
    from execprotocol import process

_SNAPSHOT = Access(Mode.SNAPSHOT, None)
_WATCH = (Access(Mode.EXCLUSIVE, "watch"),)

READING: Final = frozenset(
    {"fs/readFile", "fs/getMetadata", "fs/canonicalize", "fs/readDirectory", "fs/walk", "fs/digest"}
)
"""Methods that look at the one path they name."""

WRITING: Final = frozenset({"fs/writeFile", "fs/createDirectory", "fs/remove", "fs/setMetadata"})
"""Methods that change it."""


class AccessTable:
    """Knows the accesses of a connection's requests. It remembers the path of each handle that
    is open for writing, because a block written through it is a write of that path.
    """

    def __init__(self) -> None:
        self._handle_paths: dict[str, str] = {}
        self.session_id: str | None = None
        """The connection's own session, which a request may name or not."""

    def of(self, method: str, params: Any) -> tuple[Access, ...]:
        """The accesses of one request; none when it conflicts with nothing."""
        if method in READING:
            return (Access(Mode.READ, params.path),)
        if method in WRITING:
            return (Access(Mode.WRITE, params.path),)
        find = _FURTHER.get(method)
        return () if find is None else find(self, params)

    def of_copy(self, params: fs.CopyParams) -> tuple[Access, ...]:
        """Of `fs/copy`; what follows are those of the other methods."""
        return (Access(Mode.READ, params.source_path), Access(Mode.WRITE, params.destination_path))

    def of_rename(self, params: fs.RenameParams | fs.InstallParams) -> tuple[Access, ...]:
        """Both names change."""
        return (Access(Mode.WRITE, params.source_path), Access(Mode.WRITE, params.destination_path))

    def of_edits(self, params: fs.ApplyEditsParams) -> tuple[Access, ...]:
        """Every file that is edited, or whose mode is taken."""
        return tuple(_of_edits(params))

    def of_open(self, params: fs.OpenParams) -> tuple[Access, ...]:
        """The handle and its path."""
        if params.mode == "read":
            self._handle_paths.pop(params.handle_id, None)
            return (_handle(params.handle_id), Access(Mode.READ, params.path))
        self._handle_paths[params.handle_id] = params.path
        return (_handle(params.handle_id), Access(Mode.WRITE, params.path))

    def of_write_block(self, params: fs.WriteBlockParams) -> tuple[Access, ...]:
        """The handle, and the path that it was opened for."""
        handle = _handle(params.handle_id)
        path = self._handle_paths.get(params.handle_id)
        return (handle,) if path is None else (handle, Access(Mode.WRITE, path))

    def of_read_block(self, params: fs.ReadBlockParams) -> tuple[Access, ...]:
        """The handle."""
        return (_handle(params.handle_id),)

    def of_close(self, params: fs.CloseParams) -> tuple[Access, ...]:
        """The handle, whose path is forgotten."""
        self._handle_paths.pop(params.handle_id, None)
        return (_handle(params.handle_id),)

    def of_watch(self, _: fs.WatchMissingParams) -> tuple[Access, ...]:
        """The connection's one watch."""
        return _WATCH

    def of_start(self, params: process.StartParams) -> tuple[Access, ...]:
        """The name of the process, and all files as they are."""
        return (Access(Mode.EXCLUSIVE, ("process", params.process_id)), _SNAPSHOT)

    def of_input(self, params: process.WriteParams | process.CloseStdinParams) -> tuple[Access, ...]:
        """The process's standard input."""
        shared = self._of_process(params)
        return (shared, Access(Mode.EXCLUSIVE, ("stdin", shared.target)))

    def of_signal(self, params: process.SignalParams) -> tuple[Access, ...]:
        """Signals keep their order."""
        shared = self._of_process(params)
        if params.signal == "SIGKILL":
            # Nothing that goes before can save the process.
            return (shared,)
        return (shared, Access(Mode.EXCLUSIVE, ("signal", shared.target)))

    def of_process(self, params: process.ReadParams | process.ResizeParams) -> tuple[Access, ...]:
        """The process."""
        return (self._of_process(params),)

    def of_subscription(
        self, params: process.SubscribeParams | process.UnsubscribeParams
    ) -> tuple[Access, ...]:
        """The connection's subscription to it."""
        return (Access(Mode.EXCLUSIVE, ("subscription", params.session_id, params.process_id)),)

    def _of_process(self, params: _OfProcess) -> Access:
        if params.session_id is None or params.session_id == self.session_id:
            return Access(Mode.SHARED, ("process", params.process_id))
        return Access(Mode.SHARED, ("process", params.process_id, params.session_id))


_FURTHER: Final[dict[str, Callable[[AccessTable, Any], tuple[Access, ...]]]] = {
    "fs/copy": AccessTable.of_copy,
    "fs/rename": AccessTable.of_rename,
    "fs/install": AccessTable.of_rename,
    "fs/applyEdits": AccessTable.of_edits,
    "fs/open": AccessTable.of_open,
    "fs/writeBlock": AccessTable.of_write_block,
    "fs/readBlock": AccessTable.of_read_block,
    "fs/close": AccessTable.of_close,
    "fs/watchMissing": AccessTable.of_watch,
    "process/start": AccessTable.of_start,
    "process/write": AccessTable.of_input,
    "process/closeStdin": AccessTable.of_input,
    "process/signal": AccessTable.of_signal,
    "process/read": AccessTable.of_process,
    "process/resize": AccessTable.of_process,
    "process/subscribe": AccessTable.of_subscription,
    "process/unsubscribe": AccessTable.of_subscription,
}


def _of_edits(params: fs.ApplyEditsParams) -> Iterator[Access]:
    for edit in params.edits:
        yield Access(Mode.WRITE, edit.path)
        mode_from: str | None = getattr(edit, "mode_from", None)  # what removes a file has none
        if mode_from is not None:
            yield Access(Mode.READ, mode_from)


def _handle(handle_id: str) -> Access:
    return Access(Mode.EXCLUSIVE, ("handle", handle_id))


if TYPE_CHECKING:
    _OfProcess = (
        process.WriteParams
        | process.CloseStdinParams
        | process.ReadParams
        | process.SignalParams
        | process.ResizeParams
    )

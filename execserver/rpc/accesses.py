"""What each request uses, for the order of requests: its keys and paths. Pure.

`docs/protocol.md`, "Request scheduling".
"""

from __future__ import annotations

from collections.abc import Iterator

from execserver.protocol import filesystem as fs
from execserver.protocol import process
from execserver.protocol.model import Params
from execserver.rpc.ordering import Access, Mode

_SNAPSHOT = Access(Mode.SNAPSHOT, None)
_WATCH = (Access(Mode.EXCLUSIVE, "watch"),)

_WRITING = frozenset({"fs/writeFile", "fs/createDirectory", "fs/remove"})


class AccessTable:
    """Knows the accesses of a connection's requests. It remembers the path of each handle that
    is open for writing, because a block written through it is a write of that path.
    """

    def __init__(self) -> None:
        self._handle_paths: dict[str, str] = {}
        self.session_id: str | None = None
        """The connection's own session, which a request may name or not."""

    def of(self, method: str, params: Params) -> tuple[Access, ...]:
        """The accesses of one request; none when it conflicts with nothing."""
        if isinstance(params, fs.PathParams):
            mode = Mode.WRITE if method in _WRITING else Mode.READ
            return (Access(mode, params.path),)
        if isinstance(params, fs.CopyParams):
            return (Access(Mode.READ, params.source_path), Access(Mode.WRITE, params.destination_path))
        if isinstance(params, fs.RenameParams):
            return (Access(Mode.WRITE, params.source_path), Access(Mode.WRITE, params.destination_path))
        if isinstance(params, fs.ApplyEditsParams):
            return tuple(_of_edits(params))
        if isinstance(params, fs.OpenParams):
            return self._of_open(params)
        if isinstance(params, fs.WriteBlockParams):
            handle = _handle(params.handle_id)
            path = self._handle_paths.get(params.handle_id)
            return (handle,) if path is None else (handle, Access(Mode.WRITE, path))
        if isinstance(params, fs.ReadBlockParams):
            return (_handle(params.handle_id),)
        if isinstance(params, fs.CloseParams):
            self._handle_paths.pop(params.handle_id, None)
            return (_handle(params.handle_id),)
        if isinstance(params, fs.WatchMissingParams):
            return _WATCH
        if isinstance(params, process.StartParams):
            return (Access(Mode.EXCLUSIVE, ("process", params.process_id)), _SNAPSHOT)
        if isinstance(params, process.WriteParams | process.CloseStdinParams):
            shared = self._of_process(params)
            return (shared, Access(Mode.EXCLUSIVE, ("stdin", shared.target)))
        if isinstance(params, process.SignalParams):
            shared = self._of_process(params)
            if params.signal == "SIGKILL":
                # Nothing that goes before can save the process.
                return (shared,)
            return (shared, Access(Mode.EXCLUSIVE, ("signal", shared.target)))
        if isinstance(params, process.ReadParams | process.ResizeParams):
            return (self._of_process(params),)
        if isinstance(params, process.SubscribeParams | process.UnsubscribeParams):
            return (Access(Mode.EXCLUSIVE, ("subscription", params.session_id, params.process_id)),)
        return ()

    def _of_process(self, params: _OfProcess) -> Access:
        if params.session_id is None or params.session_id == self.session_id:
            return Access(Mode.SHARED, ("process", params.process_id))
        return Access(Mode.SHARED, ("process", params.process_id, params.session_id))

    def _of_open(self, params: fs.OpenParams) -> tuple[Access, ...]:
        if params.mode == "read":
            self._handle_paths.pop(params.handle_id, None)
            return (_handle(params.handle_id), Access(Mode.READ, params.path))
        self._handle_paths[params.handle_id] = params.path
        return (_handle(params.handle_id), Access(Mode.WRITE, params.path))


def _of_edits(params: fs.ApplyEditsParams) -> Iterator[Access]:
    for edit in params.edits:
        yield Access(Mode.WRITE, edit.path)
        if isinstance(edit, fs.WriteEdit) and edit.mode_from is not None:
            yield Access(Mode.READ, edit.mode_from)


def _handle(handle_id: str) -> Access:
    return Access(Mode.EXCLUSIVE, ("handle", handle_id))


_OfProcess = (
    process.WriteParams
    | process.CloseStdinParams
    | process.ReadParams
    | process.SignalParams
    | process.ResizeParams
)

"""The order of the requests of one connection: their accesses, and the requests that each one waits for. No
I/O.

A request runs when every *earlier, unfinished* request of the connection that it conflicts with is finished.
Its accesses (`ResourceAccess`) decide about conflicts:

- An *exclusive* access to a key conflicts with every access to that key.
- A *write* of a path conflicts with every access to a path that equals it, contains it or is contained in it
  (textually).
- A *snapshot* of everything (the start of a process sees the whole file system) conflicts with earlier
  writes, and no request waits for it.

Reads conflict with writes only. `docs/protocol.md`, "Request scheduling".

Of the requests with the same key or path, a new one waits for the last exclusive request and those after it,
because that one waits for all before it. So a thousand writes to one process are a chain, and none is
compared with all others. A request that ends before its turn (a cancelled start) leaves its place in the
chain to the requests that it waited for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from execprotocol import filesystem as fs
    from execprotocol import port, process, watch

MAX_DEPTH = 64
"""Levels of a path that the order distinguishes. A path may have two thousand: to remember each prefix for
each request would cost megabytes, and an unnecessary wait costs nothing."""

MAX_LEVELS = 10_000
"""Levels of all paths of a request that the order distinguishes: remembering them takes some 30 ms, in which
no other request is answered."""

READING: Final = frozenset(
    {
        "fs/readFile",
        "fs/getMetadata",
        "fs/canonicalize",
        "fs/readDirectory",
        "fs/walk",
        "fs/digest",
        "fs/search",
        "fs/glob",
    }
)
"""Methods that read the one path they name."""

WRITING: Final = frozenset({"fs/writeFile", "fs/createDirectory", "fs/remove", "fs/setMetadata"})
"""Methods that change the one path they name."""


class Mode(Enum):
    """How a request accesses a key or a path."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    READ = "read"
    WRITE = "write"
    SNAPSHOT = "snapshot"


class ResourceAccess(msgspec.Struct, frozen=True):
    """One access to a key (SHARED, EXCLUSIVE) or to a path (READ, WRITE)."""

    mode: Mode
    target: Hashable


class Ticket(msgspec.Struct, eq=False):
    """An unfinished request's place in the order."""

    accesses: tuple[ResourceAccess, ...]
    number: int
    blockers: int = 0
    blocked: list[Ticket] = msgspec.field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether the request waits for no other one."""
        return self.blockers == 0


class RequestOrder:
    """The unfinished requests of one connection."""

    def __init__(self) -> None:
        self._unfinished = 0
        self._admitted = 0
        self._by_key: dict[Hashable, _Users] = {}
        self._by_path: dict[str, _Users] = {}
        self._below: dict[str, _Users] = {}
        """Requests for any path strictly below this one."""
        self._writers: set[Ticket] = set()

    @property
    def unfinished(self) -> int:
        """How many requests are unfinished."""
        return self._unfinished

    @property
    def empty(self) -> bool:
        """Whether no request is unfinished, so that nothing can conflict."""
        return not self._unfinished

    def must_wait(self, accesses: Iterable[ResourceAccess]) -> bool:
        """Whether a request with these accesses would have to wait for an unfinished one."""
        return bool(self._conflicts(accesses))

    def add(self, accesses: tuple[ResourceAccess, ...]) -> Ticket:
        """Admit a request. It may run when its ticket is `ready`."""
        self._admitted += 1
        ticket = Ticket(accesses, self._admitted)
        for blocker in self._conflicts(accesses):
            _block(ticket, blocker)
        self._unfinished += 1
        for users, exclusive in self._places(accesses, create=True):
            users.add(ticket, exclusive)
        if any(access.mode is Mode.WRITE for access in accesses):
            self._writers.add(ticket)
        return ticket

    def finish(self, ticket: Ticket) -> list[Ticket]:
        """Remove a finished request. Returns the requests that may run now, in the order of their arrival."""
        self._unfinished -= 1
        for users, exclusive in self._places(ticket.accesses, create=False):
            users.discard(ticket, exclusive)
        self._writers.discard(ticket)
        self._forget_unused(ticket.accesses)
        if not ticket.ready:
            self._hand_over(ticket)
        ready = []
        for waiting in ticket.blocked:
            waiting.blockers -= 1
            if waiting.ready:
                ready.append(waiting)
        ready.sort(key=lambda each: each.number)  # `_hand_over` appends out of turn
        return ready

    def _hand_over(self, ticket: Ticket) -> None:
        """Let the requests that wait for one that never ran wait for those that it waited for, where they
        conflict.
        """
        # No request waits for a snapshot, so nothing is handed over for it.
        lasting = [access for access in ticket.accesses if access.mode is not Mode.SNAPSHOT]
        if not any(each.number < ticket.number for each in self._conflicts(lasting, chained=False)):
            return
        for waiting in dict.fromkeys(ticket.blocked):
            for blocker in self._conflicts(waiting.accesses, chained=False):
                if blocker.number < waiting.number:
                    _block(waiting, blocker)

    def _conflicts(self, accesses: Iterable[ResourceAccess], *, chained: bool = True) -> set[Ticket]:
        """The unfinished requests that conflict with these accesses; if `chained`, without those that they
        wait for themselves.
        """
        found: set[Ticket] = set()
        for access in accesses:
            if access.mode is Mode.SNAPSHOT:
                found |= self._writers
            elif access.mode in (Mode.SHARED, Mode.EXCLUSIVE):
                users = self._by_key.get(access.target)
                if users is not None:
                    found |= users.conflicts(access.mode is Mode.EXCLUSIVE, chained)
            else:
                found |= self._path_conflicts(
                    _shortened(str(access.target)), access.mode is Mode.WRITE, chained
                )
        return found

    def _path_conflicts(self, path: str, write: bool, chained: bool) -> set[Ticket]:
        found: set[Ticket] = set()
        # Requests for paths below this one do not wait for each other.
        if (users := self._below.get(path)) is not None:
            found |= users.conflicts(write, chained=False)
        for place in (path, *_parents(path)):
            if (users := self._by_path.get(place)) is not None:
                found |= users.conflicts(write, chained)
        return found

    def _places(self, accesses: Iterable[ResourceAccess], *, create: bool) -> Iterable[tuple[_Users, bool]]:
        for access in accesses:
            exclusive = access.mode in (Mode.EXCLUSIVE, Mode.WRITE)
            for table, key in self._entries(access):
                users = table.setdefault(key, _Users()) if create else table.get(key)
                if users is not None:
                    yield users, exclusive

    def _entries(self, access: ResourceAccess) -> Iterable[tuple[dict[Hashable, _Users], Hashable]]:
        if access.mode in (Mode.SHARED, Mode.EXCLUSIVE):
            yield self._by_key, access.target
        elif access.mode in (Mode.READ, Mode.WRITE):
            path = _shortened(str(access.target))
            yield self._by_path, path  # type: ignore[misc]
            for parent in _parents(path):
                yield self._below, parent  # type: ignore[misc]

    def _forget_unused(self, accesses: Iterable[ResourceAccess]) -> None:
        for access in accesses:
            for table, key in self._entries(access):
                users = table.get(key)
                if users is not None and not users.shared and not users.exclusive:
                    del table[key]


class _Users:
    """The unfinished requests for one key or path."""

    __slots__ = ("_last", "_since", "exclusive", "shared")

    def __init__(self) -> None:
        self.shared: set[Ticket] = set()
        self.exclusive: set[Ticket] = set()
        self._last: Ticket | None = None
        """The last exclusive request; None once it is finished."""
        self._since: set[Ticket] = set()
        """Shared requests after it."""

    def add(self, ticket: Ticket, exclusive: bool) -> None:
        """Add a request that waits for those before it."""
        if exclusive:
            self.exclusive.add(ticket)
            self._last, self._since = ticket, set()
        else:
            self.shared.add(ticket)
            self._since.add(ticket)

    def discard(self, ticket: Ticket, exclusive: bool) -> None:
        """Remove a finished request."""
        if not exclusive:
            self.shared.discard(ticket)
            self._since.discard(ticket)
            return
        self.exclusive.discard(ticket)
        if ticket is self._last:
            self._last = None

    def conflicts(self, exclusive: bool, chained: bool) -> set[Ticket]:
        """The requests that conflict with another one; if `chained`, without those that they wait for
        themselves.
        """
        if chained and self._last is not None:
            return {self._last, *self._since} if exclusive else {self._last}
        return self.shared | self.exclusive if exclusive else self.exclusive


def _block(waiting: Ticket, blocker: Ticket) -> None:
    blocker.blocked.append(waiting)
    waiting.blockers += 1


def _parents(path: str) -> Iterable[str]:
    while path not in ("/", ""):
        path = path.rpartition("/")[0] or "/"
        yield path


def _shortened(path: str) -> str:
    """The path up to `MAX_DEPTH` levels: deeper ones count as their ancestor there."""
    if path.count("/") <= MAX_DEPTH:
        return path
    return "/".join(path.split("/", MAX_DEPTH + 1)[: MAX_DEPTH + 1])


# -- the accesses of each request

_SNAPSHOT = ResourceAccess(Mode.SNAPSHOT, None)
_WATCH = (ResourceAccess(Mode.EXCLUSIVE, "watch"),)
_PORT_WATCH = (ResourceAccess(Mode.EXCLUSIVE, "portWatch"),)


class AccessTable:
    """The accesses of a connection's requests, by method and parameters.

    Remembers the path of each handle that is open for writing, because a block written through it is a write
    of that path.
    """

    def __init__(self) -> None:
        self._handle_paths: dict[str, str] = {}
        self.session_id: str | None = None
        """The connection's own session, which a request may name or leave out."""

    def of(self, method: str, params: Any) -> tuple[ResourceAccess, ...]:
        """The accesses of one request; empty if it conflicts with no other."""
        if method in READING:
            return (ResourceAccess(Mode.READ, params.path),)
        if method in WRITING:
            return (ResourceAccess(Mode.WRITE, params.path),)
        find = _ACCESSES_OF.get(method)
        return () if find is None else find(self, params)

    def of_copy(self, params: fs.CopyParams) -> tuple[ResourceAccess, ...]:
        """The accesses of `fs/copy`; the methods below are for the other requests."""
        return (
            ResourceAccess(Mode.READ, params.source_path),
            ResourceAccess(Mode.WRITE, params.destination_path),
        )

    def of_rename(self, params: fs.RenameParams | fs.InstallParams) -> tuple[ResourceAccess, ...]:
        """Both names, which change."""
        return (
            ResourceAccess(Mode.WRITE, params.source_path),
            ResourceAccess(Mode.WRITE, params.destination_path),
        )

    def of_edits(self, params: fs.ApplyEditsParams) -> tuple[ResourceAccess, ...]:
        """Every file that is edited, or whose mode is copied."""
        return _bounded(tuple(_of_edits(params)))

    def of_put(self, params: fs.PutFilesParams) -> tuple[ResourceAccess, ...]:
        """Every path of a batch that is written."""
        return _bounded(tuple(ResourceAccess(Mode.WRITE, entry.path) for entry in params.entries))

    def of_get(self, params: fs.GetFilesParams) -> tuple[ResourceAccess, ...]:
        """Every path of a batch that is read."""
        return _bounded(tuple(ResourceAccess(Mode.READ, path) for path in params.paths))

    def of_open(self, params: fs.OpenParams) -> tuple[ResourceAccess, ...]:
        """The handle and its path."""
        if params.mode == "read":
            self._handle_paths.pop(params.handle_id, None)
            return (_handle(params.handle_id), ResourceAccess(Mode.READ, params.path))
        self._handle_paths[params.handle_id] = params.path
        return (_handle(params.handle_id), ResourceAccess(Mode.WRITE, params.path))

    def of_write_block(self, params: fs.WriteBlockParams) -> tuple[ResourceAccess, ...]:
        """The handle, and its path."""
        handle = _handle(params.handle_id)
        path = self._handle_paths.get(params.handle_id)
        return (handle,) if path is None else (handle, ResourceAccess(Mode.WRITE, path))

    def of_read_block(self, params: fs.ReadBlockParams) -> tuple[ResourceAccess, ...]:
        """The handle."""
        return (_handle(params.handle_id),)

    def of_close(self, params: fs.CloseParams) -> tuple[ResourceAccess, ...]:
        """The handle, whose path is forgotten."""
        self._handle_paths.pop(params.handle_id, None)
        return (_handle(params.handle_id),)

    def of_watch(self, _: fs.WatchMissingParams) -> tuple[ResourceAccess, ...]:
        """The connection's one watch."""
        return _WATCH

    def of_new_watch(self, params: watch.WatchParams) -> tuple[ResourceAccess, ...]:
        """The name of the watch; and its path, so that a later write is after the beginning of the watch."""
        name = ResourceAccess(Mode.EXCLUSIVE, ("watch", params.watch_id))
        return (name, ResourceAccess(Mode.READ, params.path))

    def of_old_watch(self, params: watch.WatchReadParams | watch.UnwatchParams) -> tuple[ResourceAccess, ...]:
        """The watch of that name. An `fs/unwatch` does not wait for a read, which it ends."""
        return (ResourceAccess(Mode.SHARED, ("watch", params.watch_id)),)

    def of_start(self, params: process.StartParams) -> tuple[ResourceAccess, ...]:
        """The name of the process, and all files as they are."""
        return (ResourceAccess(Mode.EXCLUSIVE, ("process", params.process_id)), _SNAPSHOT)

    def of_open_port(self, params: port.PortOpenParams) -> tuple[ResourceAccess, ...]:
        """The name of the stream, as that of a process."""
        return (ResourceAccess(Mode.EXCLUSIVE, ("process", params.process_id)),)

    def of_list_ports(self, params: port.PortListParams) -> tuple[ResourceAccess, ...]:
        """The connection's one watch of ports, if the request changes it."""
        return () if params.watch is None else _PORT_WATCH

    def of_input(self, params: process.WriteParams | process.CloseStdinParams) -> tuple[ResourceAccess, ...]:
        """The process's standard input."""
        shared = self._of_process(params)
        return (shared, ResourceAccess(Mode.EXCLUSIVE, ("stdin", shared.target)))

    def of_signal(self, params: process.SignalParams) -> tuple[ResourceAccess, ...]:
        """The process; signals but SIGKILL keep their order."""
        shared = self._of_process(params)
        if params.signal == "SIGKILL":
            # No earlier request can save the process.
            return (shared,)
        return (shared, ResourceAccess(Mode.EXCLUSIVE, ("signal", shared.target)))

    def of_process(self, params: process.ReadParams | process.ResizeParams) -> tuple[ResourceAccess, ...]:
        """The process."""
        return (self._of_process(params),)

    def of_subscription(
        self, params: process.SubscribeParams | process.UnsubscribeParams
    ) -> tuple[ResourceAccess, ...]:
        """The connection's subscription to it."""
        return (ResourceAccess(Mode.EXCLUSIVE, ("subscription", params.session_id, params.process_id)),)

    def _of_process(self, params: _OfProcess) -> ResourceAccess:
        if params.session_id is None or params.session_id == self.session_id:
            return ResourceAccess(Mode.SHARED, ("process", params.process_id))
        return ResourceAccess(Mode.SHARED, ("process", params.process_id, params.session_id))


_ACCESSES_OF: Final[dict[str, Callable[[AccessTable, Any], tuple[ResourceAccess, ...]]]] = {
    "fs/copy": AccessTable.of_copy,
    "fs/rename": AccessTable.of_rename,
    "fs/install": AccessTable.of_rename,
    "fs/applyEdits": AccessTable.of_edits,
    "fs/putFiles": AccessTable.of_put,
    "fs/getFiles": AccessTable.of_get,
    "fs/open": AccessTable.of_open,
    "fs/writeBlock": AccessTable.of_write_block,
    "fs/readBlock": AccessTable.of_read_block,
    "fs/close": AccessTable.of_close,
    "fs/watchMissing": AccessTable.of_watch,
    "fs/watch": AccessTable.of_new_watch,
    "fs/watchRead": AccessTable.of_old_watch,
    "fs/unwatch": AccessTable.of_old_watch,
    "process/start": AccessTable.of_start,
    "port/open": AccessTable.of_open_port,
    "port/list": AccessTable.of_list_ports,
    "process/write": AccessTable.of_input,
    "process/closeStdin": AccessTable.of_input,
    "process/signal": AccessTable.of_signal,
    "process/read": AccessTable.of_process,
    "process/resize": AccessTable.of_process,
    "process/subscribe": AccessTable.of_subscription,
    "process/unsubscribe": AccessTable.of_subscription,
}


def _bounded(accesses: tuple[ResourceAccess, ...]) -> tuple[ResourceAccess, ...]:
    """The accesses of a request for many paths. If they have too many levels, one access to the folder above
    all of them.
    """
    paths = [str(access.target) for access in accesses]
    if sum(map(_levels, paths)) <= MAX_LEVELS:
        return accesses
    writes = any(access.mode is Mode.WRITE for access in accesses)
    # What the first and the last one have in common, all in between have; `commonpath` would split them all.
    prefix = os.path.commonprefix([min(paths), max(paths)])  # noqa: RUF071 - cut at a slash
    above = prefix.rpartition("/")[0]
    return (ResourceAccess(Mode.WRITE if writes else Mode.READ, above or "/"),)


def _levels(path: str) -> int:
    return min(path.count("/"), MAX_DEPTH)


def _of_edits(params: fs.ApplyEditsParams) -> Iterator[ResourceAccess]:
    for edit in params.edits:
        yield ResourceAccess(Mode.WRITE, edit.path)
        mode_from: str | None = getattr(edit, "mode_from", None)  # a removal has none
        if mode_from is not None:
            yield ResourceAccess(Mode.READ, mode_from)


def _handle(handle_id: str) -> ResourceAccess:
    return ResourceAccess(Mode.EXCLUSIVE, ("handle", handle_id))


if TYPE_CHECKING:
    _OfProcess = (
        process.WriteParams
        | process.CloseStdinParams
        | process.ReadParams
        | process.SignalParams
        | process.ResizeParams
    )

"""In which order the requests of one connection run. A state object without I/O.

The rule: a request runs when every *earlier, unfinished* request of the connection that it
conflicts with is finished. What conflicts is said by `Access`es:

- an *exclusive* access to a key conflicts with every access to that key;
- a *write* of a path conflicts with every access to a path that equals it, contains it or is
  contained in it (textually);
- a *snapshot* of everything (the start of a process sees the whole file system) conflicts with
  earlier writes, and nothing waits for it.

Reads conflict with nothing but writes. `docs/protocol.md`, "Request scheduling".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum

import msgspec

MAX_DEPTH = 64
"""Levels of a path that are told apart. A path may have two thousand; remembering each of their
prefixes for each request would cost megabytes, and waiting a little too often costs nothing."""


class Mode(Enum):
    """How a request uses a key or a path."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    READ = "read"
    WRITE = "write"
    SNAPSHOT = "snapshot"


class Access(msgspec.Struct, frozen=True):
    """One use of one thing: a key for SHARED and EXCLUSIVE, a path for READ and WRITE."""

    mode: Mode
    target: Hashable


class Ticket(msgspec.Struct, eq=False):
    """An unfinished request's place in the order."""

    accesses: tuple[Access, ...]
    blockers: int = 0
    blocked: list[Ticket] = msgspec.field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether nothing earlier is in the way any more."""
        return self.blockers == 0


class RequestOrder:
    """The unfinished requests of one connection."""

    def __init__(self) -> None:
        self._unfinished = 0
        self._by_key: dict[Hashable, _Users] = {}
        self._by_path: dict[str, _Users] = {}
        self._below: dict[str, _Users] = {}
        """Users of any path strictly below this one."""
        self._writers: set[Ticket] = set()

    @property
    def unfinished(self) -> int:
        """How many requests are unfinished."""
        return self._unfinished

    @property
    def empty(self) -> bool:
        """Whether no request is unfinished, so that nothing can conflict."""
        return not self._unfinished

    def conflicts(self, accesses: Iterable[Access]) -> set[Ticket]:
        """The unfinished requests that one with these accesses would have to wait for."""
        found: set[Ticket] = set()
        for access in accesses:
            if access.mode is Mode.SNAPSHOT:
                found |= self._writers
            elif access.mode in (Mode.SHARED, Mode.EXCLUSIVE):
                users = self._by_key.get(access.target)
                if users is not None:
                    found |= users.all() if access.mode is Mode.EXCLUSIVE else users.exclusive
            else:
                found |= self._path_conflicts(_shortened(str(access.target)), write=access.mode is Mode.WRITE)
        return found

    def add(self, accesses: tuple[Access, ...]) -> Ticket:
        """Admit a request. It may run when its ticket is `ready`."""
        ticket = Ticket(accesses)
        for blocker in self.conflicts(accesses):
            blocker.blocked.append(ticket)
            ticket.blockers += 1
        self._unfinished += 1
        for users, exclusive in self._places(accesses, create=True):
            (users.exclusive if exclusive else users.shared).add(ticket)
        if any(access.mode is Mode.WRITE for access in accesses):
            self._writers.add(ticket)
        return ticket

    def finish(self, ticket: Ticket) -> list[Ticket]:
        """A request is finished. Returns those that may run now, in the order of their arrival."""
        self._unfinished -= 1
        for users, exclusive in self._places(ticket.accesses, create=False):
            (users.exclusive if exclusive else users.shared).discard(ticket)
        self._writers.discard(ticket)
        self._forget_unused(ticket.accesses)
        ready = []
        for waiting in ticket.blocked:
            waiting.blockers -= 1
            if waiting.ready:
                ready.append(waiting)
        return ready

    def _path_conflicts(self, path: str, *, write: bool) -> set[Ticket]:
        found: set[Ticket] = set()
        for users in (
            self._by_path.get(path),
            self._below.get(path),
            *(self._by_path.get(parent) for parent in _parents(path)),
        ):
            if users is not None:
                found |= users.all() if write else users.exclusive
        return found

    def _places(self, accesses: Iterable[Access], *, create: bool) -> Iterable[tuple[_Users, bool]]:
        for access in accesses:
            exclusive = access.mode in (Mode.EXCLUSIVE, Mode.WRITE)
            for table, key in self._entries(access):
                users = table.setdefault(key, _Users()) if create else table.get(key)
                if users is not None:
                    yield users, exclusive

    def _entries(self, access: Access) -> Iterable[tuple[dict[Hashable, _Users], Hashable]]:
        if access.mode in (Mode.SHARED, Mode.EXCLUSIVE):
            yield self._by_key, access.target
        elif access.mode in (Mode.READ, Mode.WRITE):
            path = _shortened(str(access.target))
            yield self._by_path, path  # type: ignore[misc]
            for parent in _parents(path):
                yield self._below, parent  # type: ignore[misc]

    def _forget_unused(self, accesses: Iterable[Access]) -> None:
        for access in accesses:
            for table, key in self._entries(access):
                users = table.get(key)
                if users is not None and not users.shared and not users.exclusive:
                    del table[key]


class _Users:
    """The unfinished requests that use one thing."""

    __slots__ = ("exclusive", "shared")

    def __init__(self) -> None:
        self.shared: set[Ticket] = set()
        self.exclusive: set[Ticket] = set()

    def all(self) -> set[Ticket]:
        return self.shared | self.exclusive


def _parents(path: str) -> Iterable[str]:
    while path not in ("/", ""):
        path = path.rpartition("/")[0] or "/"
        yield path


def _shortened(path: str) -> str:
    """A path for the order: what lies deeper than `MAX_DEPTH` counts as its ancestor there."""
    if path.count("/") <= MAX_DEPTH:
        return path
    return "/".join(path.split("/", MAX_DEPTH + 1)[: MAX_DEPTH + 1])

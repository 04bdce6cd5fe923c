"""In which order the requests of one connection run. A state object without I/O.

The rule: a request runs when every *earlier, unfinished* request of the connection that it
conflicts with is finished. What conflicts is said by `Access`es:

- an *exclusive* access to a key conflicts with every access to that key;
- a *write* of a path conflicts with every access to a path that equals it, contains it or is
  contained in it (textually);
- a *snapshot* of everything (the start of a process sees the whole file system) conflicts with
  earlier writes, and nothing waits for it.

Reads conflict with nothing but writes. `docs/protocol.md`, "Request scheduling".

Of those that use one thing, a request waits for the last exclusive one and what came after it: that one waits
for all before it. So a thousand writes to one process are a chain, and none is compared with all others. One
that is finished before its turn (a start that is cancelled) leaves its place in the chain to what it waited
for.
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
    number: int
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
        self._admitted = 0
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

    def must_wait(self, accesses: Iterable[Access]) -> bool:
        """Whether a request with these accesses would have to wait for an unfinished one."""
        return bool(self._conflicts(accesses))

    def add(self, accesses: tuple[Access, ...]) -> Ticket:
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
        """A request is finished. Returns those that may run now, in the order of their arrival."""
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
        ready.sort(key=lambda each: each.number)  # what was handed over came out of turn
        return ready

    def _hand_over(self, ticket: Ticket) -> None:
        """Let those that wait for one that never ran wait for what it waited for, if that concerns them."""
        # Nobody waits for a snapshot, so what it waited for concerns nobody.
        lasting = [access for access in ticket.accesses if access.mode is not Mode.SNAPSHOT]
        if not any(each.number < ticket.number for each in self._conflicts(lasting, chained=False)):
            return
        for waiting in dict.fromkeys(ticket.blocked):
            for blocker in self._conflicts(waiting.accesses, chained=False):
                if blocker.number < waiting.number:
                    _block(waiting, blocker)

    def _conflicts(self, accesses: Iterable[Access], *, chained: bool = True) -> set[Ticket]:
        """The unfinished requests that one with these accesses would have to wait for; if `chained`, without
        those that these wait for.
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
        # What lies below does not wait for each other.
        if (users := self._below.get(path)) is not None:
            found |= users.conflicts(write, chained=False)
        for place in (path, *_parents(path)):
            if (users := self._by_path.get(place)) is not None:
                found |= users.conflicts(write, chained)
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

    __slots__ = ("_last", "_since", "exclusive", "shared")

    def __init__(self) -> None:
        self.shared: set[Ticket] = set()
        self.exclusive: set[Ticket] = set()
        self._last: Ticket | None = None
        """The last exclusive one; None when it is finished."""
        self._since: set[Ticket] = set()
        """Shared ones that came after it."""

    def add(self, ticket: Ticket, exclusive: bool) -> None:
        """One more, which waits for those before it."""
        if exclusive:
            self.exclusive.add(ticket)
            self._last, self._since = ticket, set()
        else:
            self.shared.add(ticket)
            self._since.add(ticket)

    def discard(self, ticket: Ticket, exclusive: bool) -> None:
        """It is finished."""
        if not exclusive:
            self.shared.discard(ticket)
            self._since.discard(ticket)
            return
        self.exclusive.discard(ticket)
        if ticket is self._last:
            self._last = None

    def conflicts(self, exclusive: bool, chained: bool) -> set[Ticket]:
        """Those that another one conflicts with; if `chained`, without those that these wait for."""
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
    """A path for the order: what lies deeper than `MAX_DEPTH` counts as its ancestor there."""
    if path.count("/") <= MAX_DEPTH:
        return path
    return "/".join(path.split("/", MAX_DEPTH + 1)[: MAX_DEPTH + 1])

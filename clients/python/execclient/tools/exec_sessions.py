"""The commands that a model has left running, under the numbers it calls them by.

    free ──reserve──> reserved ──commit──> open ──release, or pruned by another's commit──> free
                          └──release──> free

Rules kept in this file:

1. A number belongs to one call at a time: whoever reserves it first has it, until it is released.
2. At most `limit` sessions are open. One more, and `commit` gives one back to be ended: the least recently
   used of those that have exited, else of all; never one of the `protected` most recently used ones.
3. Use is what a model does: starting a session and looking it up. There is no clock, only an order.
4. No I/O and nothing awaited: each method is one step for all tasks of a loop. Ending sessions is up to
   the caller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_SESSIONS = 64
"""More than any model keeps in mind, and 64 MiB of kept output at most."""

WARN_FROM = 60
"""A few starts before the first session is lost."""

PROTECTED = 8
"""What a model has just touched it means to go on with, even if it has exited."""

FIRST_ID, LAST_ID = 1_000, 99_999
"""Numbers of four and five digits: never taken for an exit code or a small count in the output."""

MAX_CHOSEN_ID = 2**31 - 1
"""What fits into the integers of every client."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Commit(Generic[T]):
    """What the opening of a session brought with it."""

    count: int
    """Sessions that are open now, this one included."""
    near_limit: bool
    """Whether the model should be warned."""
    pruned: tuple[int, T] | None
    """The session that had to make room: no longer here, and still to be ended."""


class SessionIdTaken(ValueError):
    """The number is another session's, or of a call that is just starting one."""

    def __init__(self, session_id: int) -> None:
        super().__init__(f"session id {session_id} is in use: choose another one, or leave the choice to us")
        self.session_id = session_id


class ExecSessions(Generic[T]):
    """The open sessions of one model.

    Args:
        has_exited: whether the process of a session has ended.
        limit: how many may be open.
        warn_from: from how many on `Commit.near_limit` is set.
        protected: how many of the most recently used are never pruned.
        choose: picks the numbers; a `random.Random` with a seed makes them repeatable.

    Raises:
        ValueError: a limit that leaves nothing to prune.
    """

    def __init__(
        self,
        has_exited: Callable[[T], bool],
        *,
        limit: int = MAX_SESSIONS,
        warn_from: int = WARN_FROM,
        protected: int = PROTECTED,
        choose: random.Random | None = None,
    ) -> None:
        if not 0 <= protected < limit <= LAST_ID - FIRST_ID:
            raise ValueError(f"limit is {limit}: it must be above the {protected} that are protected")
        self.limit = limit
        self._warn_from = warn_from
        self._protected = protected
        self._has_exited = has_exited
        self._choose = choose or random.SystemRandom()
        self._reserved: set[int] = set()
        self._open: dict[int, T] = {}
        """The least recently used one first."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """All open sessions, the least recently used one first; it is no use of them."""
        return iter(tuple(self._open.items()))

    def reserve(self, wanted: int | None = None) -> int:
        """Take a number for a session that is about to be started.

        Args:
            wanted: the caller's choice; None for a random one from 1,000 to 99,999.

        Raises:
            SessionIdTaken: somebody else has it.
            ValueError: it is not from 1 to 2^31 - 1.
        """
        if wanted is None:
            wanted = self._choose.randint(FIRST_ID, LAST_ID)
            while self._is_taken(wanted):
                wanted = self._choose.randint(FIRST_ID, LAST_ID)
        elif not 1 <= wanted <= MAX_CHOSEN_ID:
            raise ValueError(f"session id {wanted} is out of range: it is from 1 to {MAX_CHOSEN_ID}")
        elif self._is_taken(wanted):
            raise SessionIdTaken(wanted)
        self._reserved.add(wanted)
        return wanted

    def commit(self, session_id: int, session: T) -> Commit[T]:
        """Open the session for which the number was reserved.

        Raises:
            ValueError: it was not reserved.
        """
        if session_id not in self._reserved:
            raise ValueError(f"session id {session_id} was not reserved")
        pruned = self._prune() if len(self._open) >= self.limit else None
        self._reserved.remove(session_id)
        self._open[session_id] = session
        return Commit(len(self._open), len(self._open) >= self._warn_from, pruned)

    def use(self, session_id: int) -> T | None:
        """The session, now the most recently used one; None if there is none."""
        session = self._open.pop(session_id, None)
        if session is not None:
            self._open[session_id] = session
        return session

    def release(self, session_id: int, session: T | None = None) -> T | None:
        """Give the number back, reserved or open. Twice does no harm.

        Args:
            session_id: the number.
            session: only if it is this one's: another one may have got it since.

        Returns:
            The session, if there was one.
        """
        if session is not None:
            return self._open.pop(session_id) if self._open.get(session_id) is session else None
        self._reserved.discard(session_id)
        return self._open.pop(session_id, None)

    def is_open(self, session_id: int) -> bool:
        """Whether there is a session of that number; it is no use of it."""
        return session_id in self._open

    def _is_taken(self, session_id: int) -> bool:
        return session_id in self._open or session_id in self._reserved

    def _prune(self) -> tuple[int, T]:
        candidates = list(self._open)[: len(self._open) - self._protected]
        exited = (each for each in candidates if self._has_exited(self._open[each]))
        session_id = next(exited, candidates[0])
        return session_id, self._open.pop(session_id)

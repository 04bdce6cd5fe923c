"""The running commands of a model, by the numbers that the model uses.

    free ──reserve──> reserved ──commit──> open ──release, or pruned by another's commit──> free
                          └──release──> free

Rules kept in this file:

1. A number belongs to the call that reserved it, until it is released.
2. At most `limit` sessions are open. Above that, `commit` returns a session to end: the least recently used
   of those that have exited, else of all; never one of the `protected` most recently used ones.
3. A session is used when a model starts it or looks it up. There is no clock, only an order.
4. No I/O and no await: each method is atomic for the tasks of an event loop. The caller ends sessions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_SESSIONS = 64
"""More than a model keeps track of, with at most 64 MiB of output."""

WARN_FROM = 60
"""A few starts before the first session is ended."""

PROTECTED = 8
"""A model is likely to continue with the sessions that it just used, even if they have exited."""

FIRST_ID, LAST_ID = 1_000, 99_999
"""Numbers of four and five digits are not confused with exit codes or small numbers in the output."""

MAX_CHOSEN_ID = 2**31 - 1
"""Fits into the integers of every client."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Commit(Generic[T]):
    """The result of opening a session."""

    count: int
    """The number of open sessions, including this one."""
    near_limit: bool
    """Whether to warn the model."""
    pruned: tuple[int, T] | None
    """The session that was removed to make room; the caller must end it."""


class SessionIdTaken(ValueError):
    """The number belongs to another session, or to a call that is starting one."""

    def __init__(self, session_id: int) -> None:
        super().__init__(f"session id {session_id} is in use: choose another one, or none")
        self.session_id = session_id


class SessionTable(Generic[T]):
    """The open sessions of one model.

    Args:
        has_exited: whether the process of a session has ended.
        limit: the largest number of open sessions.
        warn_from: the number of sessions from which `Commit.near_limit` is set.
        protected: the number of most recently used sessions that are never pruned.
        choose: chooses the numbers; a `random.Random` with a seed makes them repeatable.

    Raises:
        ValueError: the limit leaves no session to prune.
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
        """In order of use, the least recently used first."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """All open sessions, the least recently used first. Does not count as use."""
        return iter(tuple(self._open.items()))

    def reserve(self, wanted: int | None = None) -> int:
        """Take a number for a session that is about to be started.

        Args:
            wanted: the caller's choice; None for a random number from 1,000 to 99,999.

        Raises:
            SessionIdTaken: the number is taken.
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
        """Open a session under a reserved number.

        Raises:
            ValueError: the number was not reserved.
        """
        if session_id not in self._reserved:
            raise ValueError(f"session id {session_id} was not reserved")
        pruned = self._prune() if len(self._open) >= self.limit else None
        self._reserved.remove(session_id)
        self._open[session_id] = session
        return Commit(len(self._open), len(self._open) >= self._warn_from, pruned)

    def use(self, session_id: int) -> T | None:
        """The session, which becomes the most recently used one; None if there is none."""
        session = self._open.pop(session_id, None)
        if session is not None:
            self._open[session_id] = session
        return session

    def release(self, session_id: int, session: T | None = None) -> T | None:
        """Release a number, reserved or open. May be called again.

        Args:
            session_id: the number.
            session: if given, release the number only if it still belongs to this session.

        Returns:
            The session, if there was one.
        """
        if session is not None:
            return self._open.pop(session_id) if self._open.get(session_id) is session else None
        self._reserved.discard(session_id)
        return self._open.pop(session_id, None)

    def is_open(self, session_id: int) -> bool:
        """Whether a session with the number is open. Does not count as use."""
        return session_id in self._open

    def _is_taken(self, session_id: int) -> bool:
        return session_id in self._open or session_id in self._reserved

    def _prune(self) -> tuple[int, T]:
        candidates = list(self._open)[: len(self._open) - self._protected]
        exited = (each for each in candidates if self._has_exited(self._open[each]))
        session_id = next(exited, candidates[0])
        return session_id, self._open.pop(session_id)

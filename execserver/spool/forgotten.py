"""The ends of processes that the daemon no longer keeps, for commands that ask for one later.

Their output is gone. The newest of each reason are kept for a day. A busy client, which ends many sessions,
does not displace the processes that a person has detached: their sessions expire, which is another reason.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Literal

import msgspec

KEPT_OF_A_REASON = 1000
"""Some 300 bytes each."""

MAX_ID_CHARACTERS = 256
"""Of a process id. A client may choose ids of megabytes, and a day of them would take all memory."""

KEPT_MS = 24 * 3600 * 1000
"""A day, after which a person rarely looks for a process."""

ForgettingReason = Literal["sessionExpired", "sessionEnded", "processExpired"]


class ForgottenProcess(msgspec.Struct, array_like=True, frozen=True, tag="forgotten-process"):
    """A process that is no longer kept, and why. Also a record of the ledger, of a compacted one only.

    Times are in milliseconds since 1970.
    """

    process_id: str
    session: str
    started_at_ms: int
    at_ms: int
    """When its session ended; with `processExpired`, when it was closed."""
    reason: ForgettingReason
    session_ttl_ms: int | None = None
    """How long its session was kept without a connection."""
    exit_code: int | None = None
    """None if the end of the session killed it."""
    cause: str | None = None
    """Why it ended; None as for `exit_code`."""


class ForgottenProcesses:
    """The newest `KEPT_OF_A_REASON` of each reason."""

    def __init__(self) -> None:
        self._kept: dict[ForgettingReason, deque[ForgottenProcess]] = {}

    def __iter__(self) -> Iterator[ForgottenProcess]:
        for kept in self._kept.values():
            yield from kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForgottenProcesses) and self._kept == other._kept

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, process: ForgottenProcess) -> None:
        """Add one that was forgotten after the others of its reason, unless its id is too long."""
        if len(process.process_id) > MAX_ID_CHARACTERS:
            return
        kept = self._kept.get(process.reason)
        if kept is None:
            kept = self._kept[process.reason] = deque(maxlen=KEPT_OF_A_REASON)
        kept.append(process)

    def recent(self) -> list[ForgottenProcess]:
        """Those of the last day (`KEPT_MS`), the oldest first; drops the others."""
        oldest = time.time() * 1000 - KEPT_MS
        for kept in self._kept.values():
            while kept and kept[0].at_ms < oldest:
                kept.popleft()
        return sorted(self, key=lambda process: process.at_ms)

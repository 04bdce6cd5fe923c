"""How output that comes in many small pieces is batched: delayed takes, and larger pipes for floods.

A child that writes 8 KiB at a time is slower than the server that reads it: each take brings one or two
pieces, and recording and sending them costs as much as for 128 KiB. Left alone for a tenth of a millisecond,
the child fills its pipe, and all of it becomes one chunk.

Rules kept in this file:

1. Only a flood is delayed: many takes in a row, each of a page at least, each just after the last.
2. A delay has to pay. When several in a row bring less than half as much again as an immediate take did, the
   child was waiting for an answer to its output: its output is taken at once for a good while.
3. No delay while clients send requests: a batch is sent in one go, and a small request waits for that. The
   caller checks this before it asks: a delay that is not taken would count as unsuccessful.
4. A full chunk means that there is more: no delay after it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from execserver.spool.spool import CHUNK_BYTES
from execserver.spool.system_calls import enlarge_pipe

DELAY_SECONDS: Final = 0.0001
"""How long a stream of 1 GB/s takes to fill a chunk. Measured against 50 and 200 µs: no worse than either."""

LEAST_BYTES: Final = 4096
"""A smaller take does not belong to a flood."""

_SMALL_BYTES: Final = 48 << 10
_QUICK_SECONDS: Final = 0.0005
"""A take so soon after the last one belongs to the same flood."""

FLOOD_PIPE_BYTES: Final = 256 << 10
"""Size of a pipe that was found full once: two takes, so that the child fills one while the other is recorded
and sent."""

MOST_LARGE_PIPES: Final = 64
"""Pipes of that size at a time: a quarter of what an ordinary user may have. Above the user's share the
kernel makes pipes of 8 KiB, also those that the commands create."""

_TAKES_OF_A_FLOOD: Final = 16
_TAKES_UNTIL_ANOTHER_TRIAL: Final = 256
_UNSUCCESSFUL_DELAYS: Final = 4


class OutputBatching:
    """Decides for one stream whether to delay the next take."""

    __slots__ = ("_before", "_delayed", "_taken_at", "_takes", "_unsuccessful")

    def __init__(self) -> None:
        self._taken_at = 0.0
        self._takes = 0
        """Small takes in a row."""
        self._before = 0
        """Bytes of the last take without a delay."""
        self._delayed = False
        self._unsuccessful = 0
        """Delays in a row that brought no more."""

    def delays_after(self, size: int, now: float) -> bool:
        """Whether to wait for `DELAY_SECONDS` after a take.

        Args:
            size: bytes of that take.
            now: seconds of a monotonic clock.
        """
        quick = now - self._taken_at < _QUICK_SECONDS
        self._taken_at = now
        if not quick or size < LEAST_BYTES or (size >= _SMALL_BYTES and not self._delayed):
            self._takes, self._delayed = min(self._takes, 0), False
            return False
        if self._delayed:
            self._unsuccessful = self._unsuccessful + 1 if 2 * size < 3 * self._before else 0
            if self._unsuccessful == _UNSUCCESSFUL_DELAYS:
                self._takes, self._delayed, self._unsuccessful = -_TAKES_UNTIL_ANOTHER_TRIAL, False, 0
            else:
                self._delayed = size % CHUNK_BYTES != 0
            return self._delayed
        self._takes += 1
        self._before = size
        self._delayed = self._takes >= _TAKES_OF_A_FLOOD
        return self._delayed


class LargePipes:
    """Enlarges the pipes of floods, up to a number for the whole daemon."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def enlarge(self, pipe: int) -> bool:
        """Make a pipe larger. Call `closed` when a pipe closes for which this returned True."""
        if self._count >= MOST_LARGE_PIPES:
            return False
        with suppress(OSError):
            enlarge_pipe(pipe, FLOOD_PIPE_BYTES)
            self._count += 1
            return True
        return False

    def closed(self) -> None:
        """Count one large pipe less."""
        self._count -= 1

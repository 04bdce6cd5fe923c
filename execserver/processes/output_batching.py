"""When output that comes in many small pieces is left to gather for a moment.

A child that writes 8 KiB at a time is overtaken by who takes it: each take brings a piece or two, and to
record and send that costs as much as for 128 KiB. Left alone for a tenth of a millisecond the child fills its
pipe, and all of it is one chunk.

Rules kept in this file:

1. Only a flood is left alone: many takes in a row, each of a page at least, each just after the last.
2. A rest has to pay. When several in a row bring less than half as much again as a take brought before,
   the child was held up by nothing but an answer (somebody who waits for what it says asks it): it is taken
   from at once for a good while.
3. Not while clients ask for something: what is gathered is sent in one go, and a small request waits for
   that. The caller knows it, and does not ask then: a rest that is not taken would count as one in vain.
4. Where a chunk was filled there is more: no rest after that.
"""

from __future__ import annotations

from typing import Final

from execserver.spool.spool import CHUNK_BYTES

REST_SECONDS: Final = 0.0001
"""What a stream of 1 GB/s takes to fill a chunk. Measured against 50 and 200 µs: no worse than either."""

LEAST_BYTES: Final = 4096
"""A take that brings less is none of a flood."""

_SMALL_BYTES: Final = 48 << 10
_QUICK_SECONDS: Final = 0.0005
"""What is taken so soon after the last take belongs to the same flood."""

_TAKES_OF_A_FLOOD: Final = 16
_TAKES_UNTIL_ANOTHER_TRIAL: Final = 256
_VAIN_RESTS: Final = 4


class Gathering:
    """How the output of one stream comes."""

    __slots__ = ("_before", "_rested", "_taken_at", "_takes", "_vain")

    def __init__(self) -> None:
        self._taken_at = 0.0
        self._takes = 0
        """Small ones in a row."""
        self._before = 0
        """Bytes of the last take that came without a rest."""
        self._rested = False
        self._vain = 0
        """Rests in a row that brought no more."""

    def rests_after(self, size: int, now: float) -> bool:
        """Whether the stream is left alone for `REST_SECONDS` after a take.

        Args:
            size: bytes that it brought.
            now: seconds of a clock that never goes back.
        """
        quick = now - self._taken_at < _QUICK_SECONDS
        self._taken_at = now
        if not quick or size < LEAST_BYTES or (size >= _SMALL_BYTES and not self._rested):
            self._takes, self._rested = min(self._takes, 0), False
            return False
        if self._rested:
            self._vain = self._vain + 1 if 2 * size < 3 * self._before else 0
            if self._vain == _VAIN_RESTS:
                self._takes, self._rested, self._vain = -_TAKES_UNTIL_ANOTHER_TRIAL, False, 0
            else:
                self._rested = size % CHUNK_BYTES != 0
            return self._rested
        self._takes += 1
        self._before = size
        self._rested = self._takes >= _TAKES_OF_A_FLOOD
        return self._rested

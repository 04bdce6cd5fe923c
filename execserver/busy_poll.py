"""Busy polling: keep the event loop awake for a moment, because the next message often follows at once.

A client that sends its next request as soon as it has an answer pays for two wake-ups each time, the server's
and its own: some 50 us each on a virtual machine, more than the work. A loop that turns instead of sleeping
saves one.

- `BusyPoll` waits for the message after a request that was answered at once.
- `LongPollWait` waits for the next `process/read` after one that had to wait. Such a client has slept, so it
  needs a tenth of a millisecond or two, and the server must not fall into a processor's deep sleep meanwhile.

Rules kept in this file:

1. A wait is bounded and delays no other connection: the loop serves all of them, it only does not sleep.
2. A client whose next message is late is waited for less and less often, down to one message of 256. So a
   client that rarely asks costs next to nothing, and neither does any client where all processors are busy.
3. With a single processor there is no waiting: the client needs it. Nor after several messages in one read:
   their sender does not wait for each answer, and more of them arrive together while the loop sleeps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Final

SINGLE_PROCESSOR: Final = len(os.sched_getaffinity(0)) == 1
"""Whether there is one processor only: busy waiting keeps the other side from its work."""

BUSY_POLL_SECONDS: Final = 60e-6
"""The longest wait after a message. A client that looks at an answer and asks again needs 10 to 40 us."""

LONG_POLL_WAIT_SECONDS: Final = 500e-6
"""The longest wait after a long poll. Nearly all clients that slept for 300 ms have asked again by then; half
of it lost the gain on a busy day, twice as much added none."""

_MAX_MISSES: Final = 8
"""Unsuccessful tries in a row after which the pauses grow no further."""


class Backoff:
    """Exponential back-off for optional busy-waiting: each occasion is taken while tries succeed, and fewer
    and fewer while they fail, down to one of 256.
    """

    __slots__ = ("_misses", "_pause")

    def __init__(self) -> None:
        self._misses = 0
        self._pause = 0
        """Occasions still to be skipped."""

    def is_due(self) -> bool:
        """Whether to try on this occasion. Call it once on each."""
        if self._pause:
            self._pause -= 1
            return False
        return True

    def tried(self, *, unsuccessful: bool) -> None:
        """Record the result of a try."""
        self._misses = min(self._misses + 1, _MAX_MISSES) if unsuccessful else 0
        self._pause = (1 << self._misses) - 1


class BusyPoll:
    """Waits for the next message of one connection if the ones before followed soon enough."""

    __slots__ = ("_awake", "_backoff", "_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._backoff = Backoff()
        self._until = 0.0
        """When the current wait ends; 0 if there was none after the last message."""
        self._awake = False
        """Whether the loop is kept from sleeping."""

    def served(self, began: float) -> None:
        """The only message of a read has been answered, or has begun to be worked on.

        Args:
            began: when it was read, on the clock of `perf_counter`.
        """
        if SINGLE_PROCESSOR:
            return
        if self._until:
            self._backoff.tried(unsuccessful=began > self._until)
            self._until = 0.0
        if not self._backoff.is_due():
            return
        self._until = perf_counter() + BUSY_POLL_SECONDS
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._awake = perf_counter() < self._until
        if self._awake:
            self._loop.call_soon(self._turn)


class LongPollWait:
    """Waits for the next long poll of one connection if the ones before followed soon enough.

    Each turn of the loop begins with a read from this client: its next message has often arrived by the time
    that the system call which sent the answer is over.

    Args:
        read_now: sends the answer if it has not left, and reads what has arrived from the client.
        reads: a number that grows with each arrival.
    """

    __slots__ = ("_awake", "_backoff", "_loop", "_read_now", "_reads", "_reads_before", "_until")

    def __init__(self, read_now: Callable[[], None], reads: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_now = read_now
        self._reads = reads
        self._backoff = Backoff()
        self._awake = False
        self._reads_before = 0
        self._until = 0.0

    def answered(self) -> None:
        """A poll that had to wait is being answered."""
        if SINGLE_PROCESSOR or self._awake or not self._backoff.is_due():
            return
        self._awake = True
        self._reads_before = self._reads()
        self._until = perf_counter() + LONG_POLL_WAIT_SECONDS
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        goes_on = False
        try:
            self._read_now()
            silent = self._reads() == self._reads_before
            goes_on = silent and perf_counter() < self._until
        finally:
            self._awake = goes_on
        if goes_on:
            self._loop.call_soon(self._turn)
        else:
            self._backoff.tried(unsuccessful=silent)

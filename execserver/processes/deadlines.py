"""When processes have to end: `timeoutMs` and `idleTimeoutMs` (`docs/protocol.md`, P17 to P19).

Rules kept in this file:

1. A deadline never passes early. Times are seconds of CLOCK_MONOTONIC, which a restart of the server does
   not change.
2. There is one timer for all processes, at the earliest deadline. Output and input only store a time
   (`Deadline.touch`); a deadline that moved is found out when its old place in the queue comes up.
3. A process that looks idle gets a moment more (`CONFIRM_SECONDS`): after a stop of the whole server the
   timer is served before the output that has been waiting, and that is a sign of life.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from typing import Literal

Passed = Literal["timeout", "idleTimeout"]

CONFIRM_SECONDS = 0.02
"""One turn of the loop takes less even when it is busy; nobody misses it."""

_LONGEST_SLEEP_SECONDS = 24 * 3600.0
"""Timers of the loop do not reach as far as 2^53 milliseconds; waking up once a day costs nothing."""

_SHORTEST_SLEEP_SECONDS = 0.001
"""The loop counts in milliseconds and may wake up some part of one too early."""

_FEW = 64
"""Entries of forgotten processes that are not worth a cleaning."""


class Deadline:
    """What one process has to keep.

    Args:
        ends_at: when it has to have ended, whatever it does; None for never.
        idle_seconds: how long it may be without output and input; None for ever.
        active_at: when it last had any: its start, or the moment a new server took it over.
    """

    __slots__ = ("active_at", "ends_at", "idle_seconds", "idle_since")

    def __init__(self, ends_at: float | None, idle_seconds: float | None, active_at: float) -> None:
        self.ends_at = ends_at
        self.idle_seconds = idle_seconds
        self.active_at = active_at
        self.idle_since: float | None = None
        """What `active_at` was when the process was found idle: still the same a moment later, it is."""

    def touch(self, now: float) -> None:
        """There was output or accepted input."""
        self.active_at = now

    def next_due(self) -> float:
        """When the first of the two passes, as things stand; infinite without any."""
        end = math.inf if self.ends_at is None else self.ends_at
        idle = math.inf if self.idle_seconds is None else self.active_at + self.idle_seconds
        if self.idle_since == self.active_at:
            idle += CONFIRM_SECONDS
        return min(end, idle)


class DeadlineQueue:
    """The deadlines of all processes, by the processes' numbers. Knows no clock and no loop."""

    def __init__(self) -> None:
        self._deadlines: dict[int, Deadline] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, number: int, deadline: Deadline) -> None:
        """Look after a process. Its number is used for no other one later."""
        due = deadline.next_due()
        if due != math.inf:
            self._deadlines[number] = deadline
            heapq.heappush(self._heap, (due, number))

    def forget(self, number: int) -> None:
        """The process has ended, or has none."""
        if self._deadlines.pop(number, None) is None:
            return
        if len(self._heap) > 2 * len(self._deadlines) + _FEW:
            # Thousands of short commands with long deadlines leave little else.
            self._heap = [entry for entry in self._heap if entry[1] in self._deadlines]
            heapq.heapify(self._heap)

    def wakes_at(self) -> float | None:
        """When to ask for `passed` again: never after a deadline, perhaps before. None for never."""
        while self._heap and self._heap[0][1] not in self._deadlines:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> list[tuple[int, Passed]]:
        """Take out the processes whose deadline has passed, each with the one that did."""
        found: list[tuple[int, Passed]] = []
        while self._heap and self._heap[0][0] <= now:
            _, number = heapq.heappop(self._heap)
            deadline = self._deadlines.get(number)
            if deadline is None:
                continue
            if deadline.next_due() > now:
                heapq.heappush(self._heap, (deadline.next_due(), number))
            elif deadline.ends_at is not None and deadline.ends_at <= now:
                del self._deadlines[number]
                found.append((number, "timeout"))
            elif deadline.idle_since != deadline.active_at:
                deadline.idle_since = deadline.active_at
                heapq.heappush(self._heap, (now + CONFIRM_SECONDS, number))
            else:
                del self._deadlines[number]
                found.append((number, "idleTimeout"))
        return found


class Deadlines:
    """The queue on a loop.

    Args:
        loop: whose timer is used.
        on_passed: called with the number of a process and the deadline that it has not kept, once.
        clock: monotonic seconds, the same across processes of this machine.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_passed: Callable[[int, Passed], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._loop = loop
        self._on_passed = on_passed
        self._queue = DeadlineQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, number: int, deadline: Deadline) -> None:
        """Look after a process; also one whose deadline has passed already."""
        self._queue.add(number, deadline)
        self._set_timer()

    def forget(self, number: int) -> None:
        """The process has ended. The timer stays: one that finds nothing is cheaper than setting another."""
        self._queue.forget(number)

    def close(self) -> None:
        """Let nothing pass any more; for the end of the daemon."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        wakes_at = self._queue.wakes_at()
        if wakes_at is None or wakes_at >= self._timer_at:
            return
        self.close()
        self._timer_at = wakes_at
        sleep = min(max(wakes_at - self.clock(), _SHORTEST_SLEEP_SECONDS), _LONGEST_SLEEP_SECONDS)
        self._timer = self._loop.call_later(sleep, self._look)

    def _look(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        passed = self._queue.passed(self.clock())
        self._set_timer()
        for number, which in passed:
            self._on_passed(number, which)

"""The time limits of processes, and their grace (`docs/protocol.md`, P17 to P19 and P24).

Rules kept in this file:

1. A deadline never passes early. Times are seconds of CLOCK_MONOTONIC, which a restart of the server does
   not change.
2. One timer serves all processes, at the earliest deadline. Output and input only store a time
   (`Deadline.touch`). The queue notices a postponed deadline when its old time comes.
3. A process that looks idle gets a little more time (`CONFIRM_SECONDS`): after the whole server was stopped,
   the timer runs before waiting output is read, and that output shows activity.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from typing import Literal

DeadlineKind = Literal["timeout", "idleTimeout"]

CONFIRM_SECONDS = 0.02
"""More than one turn of a busy loop, and too little to matter."""

_LONGEST_SLEEP_SECONDS = 24 * 3600.0
"""Timers of the loop do not reach as far as 2^53 milliseconds; waking up once a day is cheap."""

_SHORTEST_SLEEP_SECONDS = 0.001
"""The loop counts in milliseconds, and may wake up a fraction of one too early."""

_FEW = 64
"""Entries of forgotten processes that may stay in the queue."""


class Deadline:
    """The deadlines of one process.

    Args:
        ends_at: when the process has to end, whatever it does; None for no such deadline.
        idle_seconds: how long it may be without output and input; None for no limit.
        active_at: when it was last active: its start, or the takeover by a new server.
    """

    __slots__ = ("active_at", "ends_at", "idle_seconds", "idle_since")

    def __init__(self, ends_at: float | None, idle_seconds: float | None, active_at: float) -> None:
        self.ends_at = ends_at
        self.idle_seconds = idle_seconds
        self.active_at = active_at
        self.idle_since: float | None = None
        """The `active_at` at which the process looked idle. It is idle if that is the same a moment later."""

    def touch(self, now: float) -> None:
        """Record output or accepted input."""
        self.active_at = now

    def next_due(self) -> float:
        """When the first of the two passes, without further activity; infinite without any."""
        end = math.inf if self.ends_at is None else self.ends_at
        idle = math.inf if self.idle_seconds is None else self.active_at + self.idle_seconds
        if self.idle_since == self.active_at:
            idle += CONFIRM_SECONDS
        return min(end, idle)


class DeadlineQueue:
    """The deadlines of all processes, by the processes' numbers. Has no clock and no loop."""

    def __init__(self) -> None:
        self._deadlines: dict[int, Deadline] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, number: int, deadline: Deadline) -> None:
        """Add a process. Its number is never used for another one."""
        due = deadline.next_due()
        if due != math.inf:
            self._deadlines[number] = deadline
            heapq.heappush(self._heap, (due, number))

    def forget(self, number: int) -> None:
        """Remove a process, if it is there."""
        if self._deadlines.pop(number, None) is None:
            return
        if len(self._heap) > 2 * len(self._deadlines) + _FEW:
            # Thousands of short commands with long deadlines leave little else.
            self._heap = [entry for entry in self._heap if entry[1] in self._deadlines]
            heapq.heapify(self._heap)

    def wakes_at(self) -> float | None:
        """When to call `passed` again: at the next deadline, or before it. None without deadlines."""
        while self._heap and self._heap[0][1] not in self._deadlines:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> list[tuple[int, DeadlineKind]]:
        """Remove the processes whose deadline has passed; returns each with the kind of deadline."""
        found: list[tuple[int, DeadlineKind]] = []
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
        on_passed: called once with the number of a process and the kind of deadline that it missed.
        clock: monotonic seconds, the same across processes of this machine.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_passed: Callable[[int, DeadlineKind], None],
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
        """Add a process, also one whose deadline has passed already."""
        self._queue.add(number, deadline)
        self._set_timer()

    def forget(self, number: int) -> None:
        """Remove a process. The timer stays: a needless wake-up is cheaper than setting another timer."""
        self._queue.forget(number)

    def close(self) -> None:
        """Stop the timer; for the end of the daemon."""
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
        self._timer = self._loop.call_later(sleep, self._check)

    def _check(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        passed = self._queue.passed(self.clock())
        self._set_timer()
        for number, which in passed:
            self._on_passed(number, which)

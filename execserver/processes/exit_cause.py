"""Why a process ended (`docs/protocol.md`, X8). Pure, but for the look at the kernel's counter.

Rules kept in this file:

1. An exit status, or death by a signal other than SIGKILL, is the program's own: a kill that came too late
   killed nothing.
2. Death by SIGKILL is ours when we were about to send one. The reason is recorded *before* the kill, and the
   first reason counts.
3. Any other SIGKILL is the kernel's if it counted a kill for want of memory during the life of the process.
   The counter names no victim, so an unrelated `kill -9` in that time looks the same.
4. After a SIGTERM of ours at a time limit every end is for that limit: a program may catch the signal, clean
   up and exit with any status.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execprotocol.process import ExitCause


_KILLED = 128 + signal.SIGKILL
_LIMITS = frozenset({128 + signal.SIGXCPU, 128 + signal.SIGXFSZ})
_BY_SIGNAL = range(128 + 1, 128 + signal.NSIG)

_FRESH_SECONDS = 1.0
"""How old the last count may be when a process starts: reading the file of the whole machine takes 30 µs,
which is too much for each of a thousand starts a second."""

_MACHINE = "/proc/vmstat"
_MOST_BYTES = 64 << 10


def exit_cause(
    code: int,
    *,
    by_signal: bool,
    ending: ExitCause | None,
    oom_kills_before: int | None,
    oom_kills_now: int | None,
    launched: bool = False,
    warned: bool = False,
) -> ExitCause:
    """Decide why a process ended.

    Args:
        code: its exit code on the wire, 128 + N for death by signal N.
        by_signal: whether the process that was waited for died by a signal.
        ending: why *we* were about to kill it; `unknown` if a previous server may have been about to; None
            for neither.
        oom_kills_before: the kernel's count when it started; None when that is not known.
        oom_kills_now: the count after its death. Only used if `may_be_out_of_memory`.
        launched: whether it ran below a launcher, which reports death by signal N as the status 128 + N. A
            command that exits with such a status looks the same.
        warned: whether it was sent SIGTERM for `ending`.
    """
    if warned and ending is not None:
        return ending
    if not (by_signal or (launched and code in _BY_SIGNAL)):
        return "normal"
    if code in _LIMITS:
        return "limit"
    if code != _KILLED:
        return "signal"
    if ending is not None and ending != "unknown":
        return ending
    if oom_kills_before is not None and oom_kills_now is not None and oom_kills_now > oom_kills_before:
        return "outOfMemory"
    return ending or "signal"


def may_be_out_of_memory(code: int, ending: ExitCause | None) -> bool:
    """Whether the counter is needed to find the cause."""
    return code == _KILLED and ending in (None, "unknown")


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory: in our own cgroup and those below it if
    that is a version 2 cgroup with a memory controller, else on the whole machine. None if neither can be
    read. Takes up to 50 µs.
    """
    try:
        descriptor = os.open(_counter_file(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _MOST_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return _count_in(text)


class OomCounter:
    """The last count.

    Args:
        read: reads the count.
        clock: monotonic seconds.
    """

    def __init__(
        self, read: Callable[[], int | None] = oom_kills, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._looked_at = clock()
        self._seen = read()

    def before_start(self) -> int | None:
        """The count for a process that is about to start, at most a second old."""
        if self._clock() - self._looked_at > _FRESH_SECONDS:
            return self.look()
        return self._seen

    def look(self) -> int | None:
        """Read the count now."""
        self._looked_at = self._clock()
        self._seen = self._read()
        return self._seen


@cache
def _counter_file() -> str:
    """The file with the count. Cached: a service stays in its cgroup."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            own = cgroup_of(file.read())
    except OSError:
        return _MACHINE
    if own is not None:
        events = f"/sys/fs/cgroup{own.rstrip('/')}/memory.events"
        if os.access(events, os.R_OK):
            return events
    return _MACHINE


def cgroup_of(memberships: str) -> str | None:
    """The version 2 cgroup in the text of `/proc/PID/cgroup`; None without one."""
    for line in memberships.splitlines():
        if line.startswith("0::/"):
            return line.removeprefix("0::")
    return None


def _count_in(text: bytes) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        if name == b"oom_kill":
            return int(value)
    return None

"""Processor time and memory of processes, for `process/list` (`docs/protocol.md`, "Processes of other
sessions").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from execprotocol.process import ExitUsage

T = TypeVar("T")


class Usage(msgspec.Struct, frozen=True):
    """The use of a process together with its living descendants."""

    cpu_seconds: float
    """Time in user and system mode, including children that ended and were waited for."""
    rss_bytes: int
    """Resident memory; shared memory counts for each process."""
    count: int
    of_leaf: ExitUsage | None = None
    """That of a process with limits since its start."""


def measure(descendants: Mapping[int, Iterable[int]]) -> dict[int, Usage]:
    """The use of sets of processes; blocking. A process that ends meanwhile does not count."""
    import psutil  # slow to load, and rarely needed

    usage: dict[int, Usage] = {}
    for number, pids in descendants.items():
        cpu, rss, count = 0.0, 0, 0
        for pid in pids:
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    resident = process.memory_info().rss
            except psutil.Error:
                continue
            cpu += times.user + times.system + times.children_user + times.children_system
            rss += resident
            count += 1
        usage[number] = Usage(cpu, rss, count)
    return usage


class Meter(Generic[T]):
    """Measures in a thread, one pass at a time: requests that come during a pass share the next one.

    Args:
        measure: makes a pass; blocking.
    """

    def __init__(self, measure: Callable[[], T]) -> None:
        self._measure = measure
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def measured(self) -> T:
        """The result of a pass that begins after this call; raises what it raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._pass(self._running))
        # A request that is cancelled does not cancel the pass of the others.
        return await asyncio.shield(self._next)

    async def _pass(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await asyncio.get_running_loop().run_in_executor(None, self._measure)

"""What processes use, for `process/list` (`docs/protocol.md`, "Processes of other sessions")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """What a process and its living descendants use together."""

    cpu_seconds: float
    """Time in user and system mode, with that of their children which ended and were waited for."""
    rss_bytes: int
    """Resident memory; what they share counts for each."""
    count: int


def measure(members: Mapping[int, Iterable[int]]) -> dict[int, Usage]:
    """What some sets of processes use together; blocking. Whoever ends meanwhile does not count."""
    import psutil  # which only those pay for who ask

    usage: dict[int, Usage] = {}
    for number, pids in members.items():
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


class Meter:
    """Measures one pass at a time, in a thread: requests that come during a pass share the next one.

    Args:
        measure: makes a pass; blocking.
    """

    def __init__(self, measure: Callable[[], dict[int, Usage]]) -> None:
        self._measure = measure
        self._running: asyncio.Task[dict[int, Usage]] | None = None
        self._next: asyncio.Task[dict[int, Usage]] | None = None

    async def usage(self) -> dict[int, Usage]:
        """What every process uses at a time after this was called, by its number."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._pass(self._running))
        # Who gives up takes the result from nobody else.
        return await asyncio.shield(self._next)

    async def _pass(self, before: asyncio.Task[dict[int, Usage]] | None) -> dict[int, Usage]:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await asyncio.get_running_loop().run_in_executor(None, self._measure)

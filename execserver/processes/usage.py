"""What processes use, and what was asked to be run: for `process/list`.

`docs/protocol.md`, "Processes of other sessions".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping

import msgspec

MAX_KEPT_ARGV = 4096
"""Characters of a command line that are kept, each argument counting for one more. People want to know
what runs, not to have a script back; and it is in the ledger."""

_CUT = "…"


class Usage(msgspec.Struct, frozen=True):
    """What a process and its living descendants use together."""

    cpu_seconds: float
    """Time in user and system mode, with that of their children which ended and were waited for."""
    rss_bytes: int
    """Resident memory; what they share counts for each."""
    count: int


def bounded_argv(argv: list[str]) -> list[str]:
    """A command line as it is kept: cut at `MAX_KEPT_ARGV`, with an ellipsis for what is missing."""
    if sum(map(len, argv)) + len(argv) <= MAX_KEPT_ARGV:
        return argv
    kept: list[str] = []
    room = MAX_KEPT_ARGV
    for argument in argv:
        if len(argument) + 1 > room:
            kept.append(argument[: max(0, room - 1)] + _CUT)
            break
        kept.append(argument)
        room -= len(argument) + 1
    return kept


def kept_folder(path: str) -> str:
    """A native path as it is kept: bounded, and text; what is no UTF-8 in it becomes U+FFFD."""
    text = path if path.isascii() else os.fsencode(path).decode(errors="replace")
    return text if len(text) <= MAX_KEPT_ARGV else text[: MAX_KEPT_ARGV - 1] + _CUT


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

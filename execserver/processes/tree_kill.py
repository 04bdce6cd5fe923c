"""Signals to process trees: to every descendant of a process, of all processes, or of the service.

A full table of descriptors hides processes from a scan. Then the reserved descriptors are used, and what
fails all the same is repeated for a minute.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from execserver import descendants
from execserver.processes.process import ManagedProcess
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.usage import Usage, measure
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execserver.limits.leaves import Leaves

log = Logger()

T = TypeVar("T")

_ATTEMPTS = 120
_PAUSE_SECONDS = 0.5
"""A full table is usually full for a moment only; after a minute an operator has to help."""

_LAST_KILL_SECONDS = 2.0
_LAST_KILL_PAUSE_SECONDS = 0.1
"""Of the kill at the end of the service, which blocks."""


class TreeKiller:
    """Finds, signals and kills the descendants of a service.

    Args:
        instance: the service's number in ownership tags.
        protected: pids that are never killed: the daemon and its supervisor.
        reserved: descriptors for a full table.
    """

    def __init__(self, instance: int, protected: Collection[int], reserved: ReservedDescriptors) -> None:
        self._instance = instance
        self._protected = frozenset(protected)
        self._reserved = reserved
        self._tasks: set[asyncio.Task[Any]] = set()
        self.leaves: Leaves | None = None
        """The control groups of processes with limits, once there are any."""
        self.tagged = _may_tag(instance)
        """Whether processes bear ownership tags."""

    def tag(self, number: int) -> int | None:
        """The ownership tag of a process, or of the service itself (0); None without tags."""
        return descendants.tag_value(self._instance, number) if self.tagged else None

    # -- killing

    async def kill(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        """Kill every descendant of the processes with these numbers, in whatever session or group.

        Args:
            numbers: the processes' numbers.
            leaders: pids of those that still run: without tags they are the only way to find descendants.

        Returns:
            The pids that are alive after two seconds (a process in an uninterruptible wait).
        """
        measures.signals["tree"] += 1
        survivors = await self.kill_uncounted(numbers, leaders)
        measures.survivors += len(survivors)
        return survivors

    async def kill_uncounted(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        """The same for the server's own purposes: the metrics do not count it."""
        try:
            return await self._persist(partial(self._kill, numbers, leaders))
        except OSError:
            log.error("no descriptors to find processes with; what is left ends with the service")
            return sorted(leaders)

    def kill_later(self, *processes: ManagedProcess) -> None:
        """Kill processes and their descendants in the background."""
        numbers = [process.number for process in processes]
        self._kill_later(numbers, [process.pid for process in processes if process.running])

    def end_failed_start(self, number: int, pid: int) -> None:
        """Kill and reap a child that no session knows, with its descendants; blocking."""
        # By the tag: the child has perhaps run for a while, and a sandbox's launcher is not the command.
        try:
            with self._reserved.released():
                survivors = self._kill([number], [pid])
        except OSError as error:
            log.warning("no descriptors to find processes with", error=str(error))
            survivors = [pid]
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if survivors:
            # Not by the pid, which may be reused by now.
            self._kill_later([number], [])

    def kill_all(self) -> list[int]:
        """Kill every descendant of the service, blocking. Returns the survivors.

        Raises:
            OSError: no descriptors are available, not even the reserved ones.
        """
        until = time.monotonic() + _LAST_KILL_SECONDS
        while True:
            self._reserved.release()
            try:
                return descendants.kill_descendants(
                    self._instance, exclude=self._protected, roots=[os.getpid()]
                )
            except OSError:
                # Another thread took them, and may give them back.
                if time.monotonic() >= until:
                    raise
            time.sleep(_LAST_KILL_PAUSE_SECONDS)

    # -- signals and scans

    async def signal(self, process: ManagedProcess, number: int) -> bool:
        """Send a signal, not SIGKILL, to a process and its descendants; in a sandbox to everything inside.
        False when there is no such process.

        Raises:
            OSError: no descriptor was available for a minute.
        """
        passed: set[int] = set()
        child = process.leader.sandboxed_child if process.running else None
        if child is not None:
            setup = child.setup_pids()
            if setup is None:
                # As soon as there is a command; it has no descendants yet.
                return process.leader.signal_group(number)
            passed |= setup
        measures.signals["other"] += 1
        leaders = [process.pid] if process.running else []
        send = partial(
            descendants.signal_descendants,
            self._instance,
            process.number,
            number,
            exclude=self._protected,
            roots=() if self.tagged else leaders,
            passed=passed,
        )
        return bool(await self._persist(send))

    async def has_descendants(self, number: int) -> bool:
        """Whether a descendant of the process with this number lives, whose leader has ended."""
        find = partial(descendants.find_descendants, self._instance, number, exclude=self._protected)
        try:
            return self.tagged and bool(await self._reserved.run(find))
        except OSError:
            # No scan is possible, so perhaps.
            return True

    def open_leaves(self, groups: Iterable[int] = ()) -> Leaves:
        """The control groups of processes with limits. The first call may pass those of a previous server,
        as descriptors, which belong to the result.
        """
        if self.leaves is None:
            from execserver.limits.leaves import Leaves  # a late module

            self.leaves = Leaves(self._instance, self.own_pids)
            self.leaves.adopt(groups)
        return self.leaves

    def own_pids(self) -> set[int]:
        """The pids of the service: the daemon, its supervisor and all descendants; blocking.

        Raises:
            OSError: no descriptors are available.
        """
        roots = () if self.tagged else [os.getpid()]
        found = descendants.find_descendants(self._instance, exclude=self._protected, roots=roots)
        return found | self._protected

    def usage(self, leaders: dict[int, int]) -> dict[int, Usage]:
        """The present use of processes with their descendants, by number; blocking, for a thread.

        Args:
            leaders: the pids of those that run, by number.
        """
        return measure(self.descendants(leaders))

    def descendants(self, leaders: dict[int, int]) -> dict[int, set[int]]:
        """The pids of the living descendants of all processes, by number; blocking.

        Args:
            leaders: as for `usage`.

        Raises:
            OSError: no descriptors are available.
        """
        return descendants.descendants_by_number(self._instance, leaders, exclude=self._protected)

    def _kill(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        if self.leaves is not None:
            # At once, and whatever they have done to their tags.
            self.leaves.kill(numbers)
        roots = () if self.tagged else leaders
        return descendants.kill_descendants(self._instance, numbers, exclude=self._protected, roots=roots)

    def _kill_later(self, numbers: Collection[int], leaders: Collection[int]) -> None:
        task = asyncio.get_running_loop().create_task(self.kill(numbers, leaders))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _persist(self, work: Callable[[], T]) -> T:
        """Run blocking work, and repeat it while there are no descriptors for it.

        Raises:
            OSError: there were none for a minute.
        """
        for _ in range(_ATTEMPTS):
            try:
                return await self._reserved.run(work)
            except OSError as error:
                log.warning("no descriptors to find processes with", error=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _may_tag(instance: int) -> bool:
    try:
        descendants.set_own_tag(descendants.tag_value(instance))
    except descendants.TagUnavailableError as error:
        log.warning("descendants are told by their parents only", reason=str(error))
        return False
    return True

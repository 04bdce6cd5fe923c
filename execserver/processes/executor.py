"""What all processes of the daemon share: spawning, readiness, the output budget, membership."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import resource
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from execserver import membership
from execserver.processes.launch import LaunchPlan
from execserver.processes.output_log import OutputBudget, OutputLog
from execserver.processes.poller import DescriptorPoller
from execserver.processes.process import ManagedProcess
from execserver.processes.spawn import Spawner
from execserver.processes.stdin import InputBudget
from execserver.sandbox.sandboxes import Sandboxes
from execserver.telemetry.measures import measures

log = structlog.get_logger(__name__)

_RESERVED_DESCRIPTORS = 256
"""Kept free of processes: for connections, files, and the daemon itself."""

_KILL_ATTEMPTS = 120
_KILL_PAUSE_SECONDS = 0.5
"""A full table is usually full for a moment only; a minute of it is an operator's affair."""

_SPARE_DESCRIPTORS = 64
"""A scan of the processes needs one, each process that is killed another; they are killed in turns
when there are more."""

_DESCRIPTORS_A_PROCESS = 5
"""A pidfd, three pipe ends, and one for the moment of the spawn."""

_DESCRIPTORS_A_SANDBOX = 2
"""What its launcher reports, and a pidfd of the first process inside."""

SPAWNS_A_TURN = 4
"""A spawn blocks the loop for up to 0.6 ms while the child execs; after this many, other
requests have their turn."""


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """How much is kept, and for how long."""

    retained_output_bytes: int = 1 << 20
    daemon_output_bytes: int = 256 << 20
    process_ttl: float = 80.0
    """Seconds that a closed process stays readable. What the reference was measured to do."""


class SpareDescriptors:
    """Descriptors kept for the one thing that must work when the table is full: finding processes and
    killing them.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock = threading.Lock()
        # Not so many that a small table is full because of them.
        self._wanted = min(_SPARE_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.take()

    def take(self) -> None:
        """Hold as many as there are to be had, up to the number wanted."""
        with self._lock, contextlib.suppress(OSError):
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Give them up, for a moment."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())


class Executor:
    """Starts processes and looks after them once they are closed.

    Args:
        instance: the service's number in membership tags.
        protected: pids that are never killed: the daemon and its supervisor.
        spawner: how to start a child.
        limits: how much is kept, and for how long.
        sandboxes: who gets confinements back.
    """

    def __init__(
        self,
        instance: int,
        protected: Collection[int],
        spawner: Spawner,
        limits: ExecutorLimits,
        sandboxes: Sandboxes,
    ) -> None:
        self.limits = limits
        self._instance = instance
        self._protected = frozenset(protected)
        self._spawner = spawner
        self._sandboxes = sandboxes
        self._confined = 0
        """Live processes with a sandbox."""
        self._loop = asyncio.get_running_loop()
        self._poller = DescriptorPoller(self._loop)
        self._budget = OutputBudget(limits.daemon_output_bytes)
        self._input_budget = InputBudget()
        self._numbers = itertools.count(1)
        self._tagged = _may_tag(instance)
        self._spares = SpareDescriptors()
        self.spares_are_out = 0
        """Kills that need the spare descriptors right now: nothing else should take a descriptor."""
        self.stopping = False
        """Whether the service ends and nothing may be started any more."""
        self.live = 0
        """Processes that are not closed."""
        self._spawns_this_turn = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._retained: OrderedDict[int, tuple[float, Callable[[], None]]] = OrderedDict()
        """Closed processes by number, oldest first: when, and how, each is forgotten."""
        self._retention_timer: asyncio.TimerHandle | None = None

    @property
    def service_tag(self) -> int | None:
        """The membership tag of what belongs to the service and to no process; None without tags."""
        return self._tag(0)

    @property
    def retained_output_bytes(self) -> int:
        """Output kept for all processes."""
        return self._budget.held

    @property
    def queued_input_bytes(self) -> int:
        """Input accepted for processes that have not read it yet."""
        return self._input_budget.held

    # -- starting

    @property
    def can_spawn_now(self) -> bool:
        """Whether a spawn may happen in this turn of the loop."""
        return self._spawns_this_turn < SPAWNS_A_TURN and not self._turns

    async def wait_for_turn(self) -> None:
        """Wait, first come first served, until a spawn may happen."""
        while not self.can_spawn_now:
            turn = self._loop.create_future()
            self._turns.append(turn)
            await turn
            if self._spawns_this_turn < SPAWNS_A_TURN:
                return

    def start(
        self, process_id: str, plan: LaunchPlan, on_closed: Callable[[ManagedProcess], None]
    ) -> ManagedProcess:
        """Spawn.

        Raises:
            OSError: the program or the directory is missing, or the system is out of something;
                EMFILE when the daemon's own limit on processes is reached.
            ValueError: a NUL byte, or a variable name that cannot be.
        """
        soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = soft_limit - _RESERVED_DESCRIPTORS - self._confined * _DESCRIPTORS_A_SANDBOX
        if self.live >= max(1, room // _DESCRIPTORS_A_PROCESS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not self._spawns_this_turn:
            self._loop.call_soon(self._next_turn)
        self._spawns_this_turn += 1
        number = next(self._numbers)
        spawned = self._spawner.spawn(plan, self._tag(number))
        self.live += 1
        self._confined += plan.confinement is not None
        measures.processes_started += 1

        def closed(process: ManagedProcess) -> None:
            self.live -= 1
            on_closed(process)

        log = OutputLog(self.limits.retained_output_bytes, self._budget)
        return ManagedProcess(
            process_id,
            number,
            spawned,
            log,
            self._poller,
            self._input_budget,
            closed,
            plan.confinement,
            self._tag(number),
            self._left_sandbox,
        )

    def forget(self, process: ManagedProcess) -> None:
        """Release a process; the caller deals with its descendants."""
        if not process.closed:
            self.live -= 1
        self._retained.pop(process.number, None)
        process.release()

    # -- afterwards

    def retain(self, process: ManagedProcess, forget: Callable[[], None]) -> None:
        """Call `forget` when the time that a closed process is kept is over."""
        self._retained[process.number] = (time.monotonic() + self.limits.process_ttl, forget)
        if self._retention_timer is None:
            self._retention_timer = self._loop.call_later(self.limits.process_ttl, self._expire)

    async def kill(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        """Kill every descendant of the processes with these numbers, wherever it went.

        Args:
            numbers: the processes' numbers.
            leaders: pids of those that still run: all there is to go by when tags are not to be had.

        Returns:
            The pids that survived two seconds of it (a process in an uninterruptible wait).
        """
        measures.signals["tree"] += 1
        survivors = await self._kill_with_patience(numbers, leaders)
        measures.survivors += len(survivors)
        return survivors

    async def _kill_with_patience(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        for _ in range(_KILL_ATTEMPTS):
            with contextlib.suppress(OSError):
                return await self._loop.run_in_executor(None, self._kill, numbers, leaders)
            # The table is full. Only now: while the spares are out no connection is accepted, or those
            # that wait would take them first.
            self.spares_are_out += 1
            try:
                self._spares.release()
                return await self._loop.run_in_executor(None, self._kill, numbers, leaders)
            except OSError as error:
                log.warning("no descriptors to find processes with", error=str(error))
            finally:
                self._spares.take()
                self.spares_are_out -= 1
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
        log.error("no descriptors to find processes with; what is left ends with the service")
        return sorted(leaders)

    def kill_all(self) -> list[int]:
        """Kill every descendant of the service, blocking. Returns the survivors."""
        self._spares.release()
        return membership.kill_members(self._instance, exclude=self._protected, roots=[os.getpid()])

    def _tag(self, number: int) -> int | None:
        return membership.tag_value(self._instance, number) if self._tagged else None

    def _left_sandbox(self, process: ManagedProcess, unknown: bool) -> None:
        self._confined -= 1
        confinement = process.confinement
        if confinement is not None and confinement.releases_at_once and not unknown and not process.failure:
            self._sandboxes.release(confinement)
            # The exit itself has perhaps not been numbered yet.
            self._loop.call_soon(process.sandbox_ended)
        else:
            self._loop.run_in_executor(None, self._end_sandbox, process, unknown)

    def _end_sandbox(self, process: ManagedProcess, unknown: bool) -> None:
        """In a thread: nothing of a sandbox is left, neither a process nor a mount point."""
        if unknown:
            with contextlib.suppress(OSError):
                self._kill([process.number], [])
        if process.failure is not None:
            self._sandboxes.launch_failed()
        if process.confinement is not None:
            self._sandboxes.release(process.confinement)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server is ending
            self._loop.call_soon_threadsafe(process.sandbox_ended)

    def _kill(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        roots = () if self._tagged else leaders
        return membership.kill_members(self._instance, numbers, exclude=self._protected, roots=roots)

    def close(self) -> None:
        """Stop watching; for the end of the daemon."""
        if self._retention_timer is not None:
            self._retention_timer.cancel()
        self._poller.close()

    def _next_turn(self) -> None:
        self._spawns_this_turn = 0
        woken = 0
        while self._turns and woken < SPAWNS_A_TURN:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                woken += 1
        if self._turns:
            self._loop.call_soon(self._next_turn)

    def _expire(self) -> None:
        now = time.monotonic()
        self._retention_timer = None
        while self._retained:
            deadline, forget = next(iter(self._retained.values()))
            if deadline > now:
                self._retention_timer = self._loop.call_later(deadline - now, self._expire)
                return
            self._retained.popitem(last=False)
            forget()


def _may_tag(instance: int) -> bool:
    try:
        membership.set_own_tag(membership.tag_value(instance))
    except membership.TagUnavailableError as error:
        log.warning("descendants are told by their parents only", reason=str(error))
        return False
    return True

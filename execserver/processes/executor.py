"""All processes of the daemon: starting them, their shared context, and their ends."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from execserver.processes.deadlines import Deadline, DeadlineKind, Deadlines
from execserver.processes.exit_cause import OomCounter
from execserver.processes.output_log import OutputLog
from execserver.processes.poller import DescriptorPoller
from execserver.processes.process import ExecutorContext, ManagedProcess
from execserver.processes.process_limits import ProcessLimits
from execserver.processes.process_proxy import ProcessProxy, begin_in_sandbox
from execserver.processes.recovery_state import RecoveryState
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.retention import Retention
from execserver.processes.spawn import Spawned, Spawner
from execserver.processes.start_options import StartOptions
from execserver.processes.stdin import InputBudget
from execserver.processes.tree_kill import TreeKiller
from execserver.processes.usage import Usage
from execserver.spool.arena import ProcessIndex
from execserver.spool.forgotten import ForgottenProcesses
from execserver.spool.records import Started
from execserver.spool.spool import Spool, SpoolBudget
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from collections.abc import Collection

    from execprotocol.process import ExitCause
    from execserver.launch_spec import LaunchSpec
    from execserver.limits.leaf import Leaf
    from execserver.network.proxies import Proxy
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.sandboxes import Sandboxes


log = Logger()

_FREE_DESCRIPTORS = 256
"""Kept free of processes: for connections, files, and the daemon itself."""

_DESCRIPTORS_A_PROCESS = 10
"""A pidfd, up to five ends of pipes, the files of output and input, the control socket of a network proxy,
and one for the moment of the spawn."""

_DESCRIPTORS_A_SANDBOX = 18
"""The launcher's report, a pidfd of the first process inside, and the locks of eight mount points."""

SPAWNS_A_TURN = 4
"""A spawn blocks the loop for up to 0.6 ms while the child execs; after this many, other
requests have their turn."""


class ExecutorLimits(msgspec.Struct, frozen=True):
    """How much is kept, and for how long."""

    retained_output_bytes: int = 64 << 20
    spool_max_bytes: int = 2 << 30
    process_ttl: float = 80.0
    """Seconds that a closed process stays readable. What the reference was measured to do."""
    proxy_connections: int = 256
    """Connections at once through the network proxy of a process."""
    proxy_max_bytes: int | None = None
    """Bytes that the network proxy of a process may move; null for no limit."""


class Executor:
    """Starts processes, and ends those that reach a deadline.

    Args:
        instance: the service's number in ownership tags.
        protected: pids that are never killed: the daemon and its supervisor.
        spawner: starts a child.
        limits: how much is kept, and for how long.
        sandboxes: releases confinements.
        recovery: records the state for a new server.
        spool: where output is kept.
    """

    def __init__(
        self,
        instance: int,
        protected: Collection[int],
        spawner: Spawner,
        limits: ExecutorLimits,
        sandboxes: Sandboxes,
        recovery: RecoveryState,
        spool: Spool,
    ) -> None:
        self.recovery = recovery
        self.reserved = ReservedDescriptors()
        self.retention = Retention(limits.process_ttl, recovery.drop_data)
        self.forgotten = ForgottenProcesses()
        self.tree_killer = TreeKiller(instance, protected, self.reserved)
        self.next_number = 1
        """The number of the next process."""
        self.stopping = False
        """Whether the service ends and nothing may be started any more."""
        self.live = 0
        """Processes that are not closed."""
        self.limits = limits
        self.spawner = spawner
        self._sandboxes = sandboxes
        self._spool = spool
        self._loop = asyncio.get_running_loop()
        self._budget = SpoolBudget(spool.limits)
        self._context = ExecutorContext(
            DescriptorPoller(self._loop),
            InputBudget(),
            recovery,
            Deadlines(self._loop, self._deadline_passed),
            OomCounter(),
            self.reserved,
        )
        self._processes: dict[int, ManagedProcess] = {}
        """All that are not forgotten, by number."""
        self._confined = 0
        """Live processes with a sandbox."""
        self._spawns_this_turn = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._sandbox_ends: set[asyncio.Task[Any]] = set()

    @property
    def retained_output_bytes(self) -> int:
        """Output kept for all processes."""
        return self._budget.held

    @property
    def queued_input_bytes(self) -> int:
        """Input accepted for processes that have not read it yet."""
        return self._context.input_budget.held

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
        self,
        session_id: str,
        process_id: str,
        spec: LaunchSpec,
        options: StartOptions,
        on_closed: Callable[[ManagedProcess], None],
    ) -> ManagedProcess:
        """Spawn.

        Raises:
            OSError: the program or the directory is missing, or a resource (EMFILE: descriptors).
            ValueError: a NUL byte, or an invalid variable name.
        """
        spawned = self.spawn(number := self.take_number(), spec, options)
        return self.started(number, session_id, process_id, spec, options, on_closed, spawned)

    def take_number(self) -> int:
        """The number of the process that is started next."""
        self.next_number = (number := self.next_number) + 1
        return number

    def spawn(self, number: int, spec: LaunchSpec, options: StartOptions) -> Spawned:
        """Spawn a process that is not recorded yet; raises as `start`."""
        self._require_descriptors()
        if not self._spawns_this_turn:
            self._loop.call_soon(self._next_turn)
        self._spawns_this_turn += 1
        if options.confinement is not None:
            spec = options.confinement.wrap(spec, gated=True)
        undo = partial(self.tree_killer.end_failed_start, number)
        return self.spawner.spawn(spec, self.tree_killer.tag(number), undo)

    def started(
        self,
        number: int,
        session_id: str,
        process_id: str,
        spec: LaunchSpec,
        options: StartOptions,
        on_closed: Callable[[ManagedProcess], None],
        spawned: Spawned,
        leaf: Leaf | None = None,
    ) -> ManagedProcess:
        """Record a spawned process, and let it begin if it waits for that.

        Raises:
            OSError: it cannot be recorded, and is killed; likewise ValueError.
        """
        started, locks = options.record(number, session_id, process_id, spawned.pid, spec)
        oom = None if leaf is None else leaf.oom_events
        index, slots = self._record_start(started, spawned, locks, options.proxy, oom)
        # Only now: a command that a new server does not know must not have run.
        begin_in_sandbox(spawned, options.proxy, self.tree_killer.tag(number))
        measures.processes_started += 1
        limits = None if options.limits is None else ProcessLimits(options.limits, leaf)
        output = self.make_log(number, index)
        process = self.add(started, output, on_closed, options.confinement, limits, live=True)
        if options.proxy is not None:
            process.proxy = ProcessProxy(process, options.proxy)
        process.begin(spawned, slots)
        return process

    def _require_descriptors(self) -> None:
        """Raise OSError when a further process could fill the table of descriptors."""
        free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FREE_DESCRIPTORS
        free -= self._confined * _DESCRIPTORS_A_SANDBOX + self.retention.with_files
        if self.live >= max(1, free // _DESCRIPTORS_A_PROCESS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _record_start(
        self, started: Started, spawned: Spawned, locks: list[int], proxy: Proxy | None, oom: int | None
    ) -> tuple[ProcessIndex, list[int]]:
        """Make the process known to a new server. Returns its index and the slots with its descriptors."""
        number = started.number
        index: ProcessIndex | None = None
        try:
            index = self.recovery.arena.open(number)
            report = [fd for fd in (spawned.status, spawned.gate) if fd is not None]
            network = () if proxy is None else (proxy.fileno(),)
            return index, self.recovery.started(started, spawned.kept(), report, locks, network, oom)
        except (OSError, ValueError):
            # A process that a new server would not know must not run.
            self.tree_killer.end_failed_start(number, spawned.pid)
            spawned.close()
            self.recovery.forgotten(number, urgent=True)
            if index is not None:
                index.free()
            raise

    def _next_turn(self) -> None:
        self._spawns_this_turn = 0
        woken = 0
        while self._turns and woken < SPAWNS_A_TURN:
            if not (turn := self._turns.popleft()).done():
                turn.set_result(None)
                woken += 1
        if self._turns:
            self._loop.call_soon(self._next_turn)

    # -- the processes

    def make_log(self, number: int, index: ProcessIndex) -> OutputLog:
        """The log of a process, empty."""
        return OutputLog(
            index,
            self._spool,
            self._budget,
            self.limits.retained_output_bytes,
            partial(self.recovery.keep_data, number),
        )

    def add(
        self,
        started: Started,
        output: OutputLog,
        on_closed: Callable[[ManagedProcess], None],
        confinement: Confinement | None,
        limits: ProcessLimits | None,
        *,
        live: bool,
    ) -> ManagedProcess:
        """Make a process known by its number.

        Args:
            started: its record.
            output: its log.
            on_closed: called when it is closed.
            confinement: its sandbox.
            limits: of what it may use.
            live: whether it is not closed.
        """
        if live:
            self.live += 1
            self._confined += confinement is not None
        number = started.number
        process = self._processes[number] = ManagedProcess(
            started,
            output,
            self._context,
            partial(self._process_closed, on_closed),
            confinement,
            self.tree_killer.tag(number),
            self._left_sandbox,
            limits,
        )
        if limits is not None:
            limits.watch(self._context.poller, partial(self._kill_at_limit, process, "limit"))
        return process

    def processes(self) -> list[ManagedProcess]:
        """All processes that are not forgotten."""
        return [*self._processes.values()]

    def discard(self, number: int) -> None:
        """Remove a process that could not be inherited."""
        self._processes.pop(number, None)

    def forget(self, process: ManagedProcess) -> None:
        """Release a process; the caller deals with its descendants, unless they are still in their grace."""
        if process.leader.in_grace:
            self._kill_at_limit(process, "timeout")
        if not process.closed:
            self.live -= 1
        self.retention.forget(process.number)
        self._processes.pop(process.number, None)
        process.release()
        if process.limits is not None:
            process.limits.leave()

    def inherited_end(self, number: int, status: int) -> None:
        """The supervisor reports the end of a process that it has inherited."""
        process = self._processes.get(number)
        if process is None:
            self.recovery.unknown(number)
        else:
            process.leader.reported(status)

    def end_all_for(self, cause: ExitCause) -> None:
        """Record why all processes are about to be killed."""
        for process in self._processes.values():
            process.leader.end_for(cause)

    def expedite(self) -> None:
        """Answer all waiting reads now."""
        for process in self._processes.values():
            process.expedite()

    def usage(self) -> dict[int, Usage]:
        """The present use of each running process, by number; blocking, for a thread."""
        running = {each.number: each for each in self._processes.copy().values() if each.running}
        found = self.tree_killer.usage({number: each.pid for number, each in running.items()})
        for number, each in running.items():
            if each.limits is not None and number in found:
                found[number] = msgspec.structs.replace(found[number], of_leaf=each.limits.usage())
        return found

    def close(self) -> None:
        """Stop watching; for the end of the daemon."""
        self.retention.close()
        self._context.deadlines.close()
        self._context.poller.close()

    def _process_closed(self, on_closed: Callable[[ManagedProcess], None], process: ManagedProcess) -> None:
        self.live -= 1
        if process.limits is not None:
            process.limits.leave()
        on_closed(process)

    def _deadline_passed(self, number: int, kind: DeadlineKind) -> None:
        process = self._processes.get(number)
        if process is None:
            return
        which: ExitCause = kind
        if kind == "timeout" and process.limits is not None and process.limits.ends(process.started):
            which = "limit"
        if not process.leader.in_grace:
            if not process.running or (kind == "idleTimeout" and process.postpone_if_throttled()):
                return
            log.info("process ended by the daemon", process=process.process_id, cause=which)
            grace = process.started.grace
            if grace is not None and process.leader.warn(which, self._context.deadlines.clock() + grace):
                self.kill_after_grace(process)
                return
        self._kill_at_limit(process, which)

    def kill_after_grace(self, process: ManagedProcess) -> None:
        """Kill what is left of a process that was warned, and its descendants, when its grace is over."""
        deadlines = self._context.deadlines
        deadlines.forget(process.number)
        deadlines.add(process.number, Deadline(process.leader.kill_at, None, deadlines.clock()))

    def _kill_at_limit(self, process: ManagedProcess, which: ExitCause) -> None:
        process.leader.end_for(which, tree=True)
        self.tree_killer.kill_later(process)

    # -- the ends of sandboxes

    def _left_sandbox(self, process: ManagedProcess, unknown: bool) -> None:
        self._confined -= 1
        assert process.sandbox is not None
        confinement = process.sandbox.confinement
        if confinement.releases_at_once and not unknown and not process.failure:
            self._sandboxes.release(confinement)
            # The exit itself has perhaps not been numbered yet.
            self._loop.call_soon(process.sandbox_ended)
        else:
            task = self._loop.create_task(self._end_sandbox(process, confinement, unknown))
            self._sandbox_ends.add(task)
            task.add_done_callback(self._sandbox_ends.discard)

    async def _end_sandbox(self, process: ManagedProcess, confinement: Confinement, unknown: bool) -> None:
        """Wait until nothing of a sandbox is left, neither a process nor a mount point."""
        try:
            if unknown:
                await self.tree_killer.kill_uncounted([process.number], [])
        finally:
            # Also when the server ends meanwhile: mount points would stay.
            failed = process.failure is not None
            await self._loop.run_in_executor(None, self._release_sandbox, confinement, failed)
        process.sandbox_ended()

    def _release_sandbox(self, confinement: Confinement, failed: bool) -> None:
        """In a thread."""
        if failed:
            self._sandboxes.launch_failed()
        self._sandboxes.release(confinement)

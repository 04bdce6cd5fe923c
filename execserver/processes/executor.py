"""What all processes of the daemon share: spawning, readiness, the output budget, membership."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from execserver import descendants
from execserver.processes.deadlines import Deadlines, Passed
from execserver.processes.exit_cause import OomCounter
from execserver.processes.launch import LaunchPlan
from execserver.processes.output_log import OutputLog
from execserver.processes.poller import DescriptorPoller
from execserver.processes.process import ExecutorContext, ManagedProcess
from execserver.processes.recovery_state import RecoveredState, RecoveryState, Slots
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.spawn import Spawned, Spawner
from execserver.processes.start_options import StartOptions
from execserver.processes.stdin import InputBudget
from execserver.processes.usage import Usage, measure
from execserver.spool.arena import ProcessIndex
from execserver.spool.records import ProcessState, Started, State
from execserver.spool.spool import Spool, SpoolBudget
from execserver.supervisor.fd_store_protocol import DATA, MEMORY, PROCESS, SANDBOX
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import ExitCause
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.sandboxes import Sandboxes


log = Logger()

T = TypeVar("T")

_RESERVED_DESCRIPTORS = 256
"""Kept free of processes: for connections, files, and the daemon itself."""

_KILL_ATTEMPTS = 120
_KILL_PAUSE_SECONDS = 0.5
"""A full table is usually full for a moment only; a minute of it is an operator's affair."""

_LAST_KILL_SECONDS = 2.0
_LAST_KILL_PAUSE_SECONDS = 0.1
"""Of the last one of all, after which nobody tries again; it blocks."""

_DESCRIPTORS_A_PROCESS = 9
"""A pidfd, up to five ends of pipes, the files of output and input, and one for the moment of the spawn."""

_DESCRIPTORS_A_SANDBOX = 18
"""What its launcher reports, a pidfd of the first process inside, and the locks of eight mount points."""

_SHARE_OF_CLOSED = 4
"""One part in so many of the table is for the output of processes that are closed."""

SPAWNS_A_TURN = 4
"""A spawn blocks the loop for up to 0.6 ms while the child execs; after this many, other
requests have their turn."""


class ExecutorLimits(msgspec.Struct, frozen=True):
    """How much is kept, and for how long."""

    retained_output_bytes: int = 64 << 20
    spool_max_bytes: int = 2 << 30
    process_ttl: float = 80.0
    """Seconds that a closed process stays readable. What the reference was measured to do."""


class Executor:
    """Starts processes and looks after them once they are closed.

    Args:
        instance: the service's number in membership tags.
        protected: pids that are never killed: the daemon and its supervisor.
        spawner: how to start a child.
        limits: how much is kept, and for how long.
        sandboxes: who gets confinements back.
        recovery: what a successor is to know.
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
        self.limits = limits
        self.recovery = recovery
        self._instance = instance
        self._protected = frozenset(protected)
        self._spawner = spawner
        self._sandboxes = sandboxes
        self._confined = 0
        """Live processes with a sandbox."""
        self._loop = asyncio.get_running_loop()
        self._reserved = ReservedDescriptors()
        self._spool = spool
        self._budget = SpoolBudget(spool.limits)
        self._context = ExecutorContext(
            DescriptorPoller(self._loop),
            InputBudget(),
            recovery,
            Deadlines(self._loop, self._deadline_passed),
            OomCounter(),
            self._reserved,
        )
        self._processes: dict[int, ManagedProcess] = {}
        """All that are not forgotten, by number."""
        self._next_number = 1
        self._unfinished: list[int] = []
        """Numbers of processes of a dead server that were not inherited, and may run."""
        self._unfinished_locks: list[int] = []
        """What holds the mount points of their sandboxes."""
        self._overdue: set[asyncio.Task[Any]] = set()
        self._tagged = _may_tag(instance)
        self.reserved_in_use = 0
        """Kills that need the spare descriptors right now: nothing else should take a descriptor."""
        self.stopping = False
        """Whether the service ends and nothing may be started any more."""
        self.live = 0
        """Processes that are not closed."""
        self._spawns_this_turn = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._retained: OrderedDict[int, tuple[float, Callable[[], None]]] = OrderedDict()
        """Closed processes by number, oldest first: when, and how, each is forgotten."""
        self._with_files: OrderedDict[int, ManagedProcess] = OrderedDict()
        """Those of them whose output takes descriptors, likewise."""
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
        plan: LaunchPlan,
        on_closed: Callable[[ManagedProcess], None],
        options: StartOptions,
    ) -> ManagedProcess:
        """Spawn.

        Raises:
            OSError: the program or the directory is missing, or the system is out of something;
                EMFILE when the daemon's own limit on processes is reached.
            ValueError: a NUL byte, or a variable name that cannot be.
        """
        soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = soft_limit - _RESERVED_DESCRIPTORS - self._confined * _DESCRIPTORS_A_SANDBOX
        room -= len(self._with_files)
        if self.live >= max(1, room // _DESCRIPTORS_A_PROCESS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not self._spawns_this_turn:
            self._loop.call_soon(self._next_turn)
        self._spawns_this_turn += 1
        number = self._next_number
        self._next_number += 1
        spawned = self._spawner.spawn(plan, self._tag(number), partial(self._undo, number))
        confinement = plan.confinement
        description, locks = (None, []) if confinement is None else confinement.kept()
        started_at = time.monotonic()
        started = Started(
            number,
            session_id,
            process_id,
            spawned.pid,
            plan.tty,
            plan.pipe_stdin,
            started_at,
            None if options.timeout is None else started_at + options.timeout,
            options.idle_timeout,
            options.digests,
            description,
            options.argv,
            options.cwd,
            time.time_ns() // 1_000_000,
        )
        index: ProcessIndex | None = None
        try:
            index = self.recovery.arena.open(number)
            slots = self.recovery.started(started, spawned.kept(), spawned.status, locks)
        except (OSError, ValueError):
            # What a successor would not know must not run.
            self._undo(number, spawned.pid)
            spawned.close()
            self.recovery.forgotten(number, urgent=True)
            if index is not None:
                index.free()
            raise
        self._count(confinement, 1)
        measures.processes_started += 1
        log = self._make_log(number, index)
        process = self._make_process(started, log, on_closed, confinement)
        process.begin(spawned, slots)
        return process

    def _restore_log(
        self, number: int, index: ProcessIndex, disk: int | None, memory: int | None
    ) -> OutputLog:
        restore = partial(
            OutputLog.restore,
            index,
            self._spool,
            self._budget,
            self.limits.retained_output_bytes,
            partial(self.recovery.keep_data, number),
        )
        try:
            return restore(disk, memory)
        except (OSError, ValueError) as error:
            log.error("output is lost: its file cannot be used", number=number, reason=str(error))
            return restore(None, None)

    def _undo(self, number: int, pid: int) -> None:
        """End a child of which nobody will hear, and all that came of it, and reap it."""
        # By membership: it has perhaps run for a while, and a sandbox's launcher is not what it launched.
        try:
            with self._reserved.lent():
                survivors = self._kill([number], [pid])
        except OSError as error:
            log.warning("no descriptors to find processes with", error=str(error))
            survivors = [pid]
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if survivors:
            # No session knows the number, so nobody else would do it. Not by the pid, which can be another's.
            self._kill_later([number], [])

    def _make_log(self, number: int, index: ProcessIndex) -> OutputLog:
        return OutputLog(
            index,
            self._spool,
            self._budget,
            self.limits.retained_output_bytes,
            partial(self.recovery.keep_data, number),
        )

    def _make_process(
        self,
        started: Started,
        log: OutputLog,
        on_closed: Callable[[ManagedProcess], None],
        confinement: Confinement | None,
    ) -> ManagedProcess:
        number = started.number
        closed = partial(self._process_closed, on_closed)
        process = self._processes[number] = ManagedProcess(
            started, log, self._context, closed, confinement, self._tag(number), self._left_sandbox
        )
        return process

    def _process_closed(self, on_closed: Callable[[ManagedProcess], None], process: ManagedProcess) -> None:
        self.live -= 1
        on_closed(process)

    def _count(self, confinement: Confinement | None, by: int) -> None:
        self.live += by
        if confinement is not None:
            self._confined += by

    def forget(self, process: ManagedProcess) -> None:
        """Release a process; the caller deals with its descendants."""
        if not process.closed:
            self.live -= 1
        self._retained.pop(process.number, None)
        self._with_files.pop(process.number, None)
        self._processes.pop(process.number, None)
        process.release()

    # -- taking over

    def inherit(
        self, recovered: RecoveredState, on_closed: Callable[[str], Callable[[ManagedProcess], None]]
    ) -> dict[str, list[ManagedProcess]]:
        """Go on with the processes of a dead server; by session, oldest first.

        Args:
            recovered: what it left.
            on_closed: for a session id, what is called when one of its processes is closed.
        """
        inherited: dict[str, list[ManagedProcess]] = {}
        state = recovered.state
        for number, known in state.processes.items():
            slots, index = recovered.slots.pop(number, {}), recovered.indices.pop(number, None)
            ends = slots.pop(PROCESS, [])
            # Of one that was closed with its leader only the index tells (`records.Closed`).
            over = known.closed_at is not None or (index is not None and index.closed_seq is not None)
            if index is None or not (ends or over):
                log.info("process was not inherited", process=known.started.process_id, number=number)
                self._unfinished_locks += _locks(slots)
                _close_all([ends], slots.values())
                if index is not None:
                    self.recovery.arena.free(index)
                self._unfinished.append(number)
                continue
            try:
                process = self._inherit_one(known, ends, index, slots, on_closed(known.started.session))
            except Exception as error:
                # One process that cannot be gone on with must not be the end of all others.
                log.error("process could not be inherited", number=number, exc_info=error)
                self._processes.pop(number, None)
                self._unfinished.append(number)
                continue
            inherited.setdefault(known.started.session, []).append(process)
            _close_all(slots.values())
        for number, slots in recovered.slots.items():
            self._unfinished_locks += _locks(slots)
            _close_all(slots.values())
            self.recovery.unknown(number)
        for index in recovered.indices.values():
            self.recovery.arena.free(index)
        # A survivor of `kill_unfinished_starts` may bear the next one.
        self._next_number = state.highest + 2
        for number, status in recovered.exits.items():
            self.inherited_end(number, status)
        for process in [*self._processes.values()]:
            process.check()
        self._finish_kills(state)
        return inherited

    def _finish_kills(self, state: State) -> None:
        """What a dead server was about to kill it may have got no further than to stop."""
        trees = []
        for process in self._processes.values():
            known = state.processes[process.number]
            if process.running and known.ending is not None:
                log.info("process ended by the daemon", process=process.process_id, cause=known.ending)
                process.signal_group(signal.SIGKILL)
            # Of an ending for another reason than a request the records of older versions do not say it.
            whole = known.tree_ending or (process.running and known.ending not in (None, "terminated"))
            if whole:
                trees.append(process)
        if trees:
            self._kill_overdue(*trees)

    def _inherit_one(
        self,
        known: ProcessState,
        ends: list[int],
        index: ProcessIndex,
        slots: Slots,
        on_closed: Callable[[ManagedProcess], None],
    ) -> ManagedProcess:
        started, number = known.started, known.started.number
        disk, memory = (next(iter(slots.pop(slot, ())), None) for slot in (DATA, MEMORY))
        restored = self._restore_log(number, index, disk, memory)
        closed = known.closed_at is not None or restored.closed_seq is not None
        if closed and (ends or slots):
            # The server was killed before the supervisor let go of them.
            self.recovery.closed(number, slots, told=True, urgent=True)
        confinement = None
        if started.sandbox is not None and not closed:
            confinement = self._sandboxes.adopt(started.sandbox, _locks(slots))
        process = self._make_process(started, restored, on_closed, confinement)
        if ends and not closed:
            self._count(confinement, 1)
            process.inherit(known, Spawned.from_kept(started.pid, ends, tty=started.tty), slots)
        else:
            _close_all([ends])
            process.inherit(known, None, slots)
        return process

    async def kill_unfinished_starts(self, highest: int) -> None:
        """Kill what a dead server had begun to start, and nobody was told of: what `inherit` did not find
        complete, and whatever bears a number above `highest`, the last one that the ledger knows.
        """
        if self._tagged:
            if self._unfinished:
                await self._kill_with_patience(self._unfinished, [])
            await self._kill_with_patience(range(highest + 1, 1 << descendants.NUMBER_BITS), [])
        for number in self._unfinished:
            self.recovery.forgotten(number, urgent=True)
        self._unfinished.clear()
        if self._unfinished_locks:
            locks, self._unfinished_locks = self._unfinished_locks, []
            leftover = self._sandboxes.adopt(None, locks)
            self._loop.run_in_executor(None, self._sandboxes.release, leftover)

    def inherited_end(self, number: int, status: int) -> None:
        """The supervisor tells of the end of a process that it has inherited."""
        process = self._processes.get(number)
        if process is None:
            self.recovery.unknown(number)
        else:
            process.inherited_end(status)

    # -- afterwards

    def retain(self, process: ManagedProcess, forget: Callable[[], None], since: float | None = None) -> None:
        """Call `forget` when the time that a closed process is kept is over.

        Args:
            process: a closed one.
            forget: what is to be done.
            since: when it was closed (CLOCK_MONOTONIC, seconds), for the processes of a dead server, oldest
                first; None for now.
        """
        now = time.monotonic()
        until = (now if since is None else since) + self.limits.process_ttl
        self._retained[process.number] = (until, forget)
        self._retained.move_to_end(process.number)
        if process.log.has_files:
            self._with_files[process.number] = process
            self._spare_descriptors()
        if self._retention_timer is None:
            self._retention_timer = self._loop.call_later(max(0.0, until - now), self._expire)

    def _spare_descriptors(self) -> None:
        """Output that nobody may ask for must not take the place of commands: above a share of the table the
        oldest is dropped.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_CLOSED
        while len(self._with_files) > most:
            number, process = self._with_files.popitem(last=False)
            process.log.empty()
            self.recovery.drop_data(number)

    def _deadline_passed(self, number: int, which: Passed) -> None:
        process = self._processes.get(number)
        if (
            process is not None
            and process.running
            and not (which == "idleTimeout" and process.is_held_back())
        ):
            log.info("process ended by the daemon", process=process.process_id, cause=which)
            process.end_for(which, tree=True)
            self._kill_overdue(process)

    def _kill_overdue(self, *processes: ManagedProcess) -> None:
        numbers = [process.number for process in processes]
        self._kill_later(numbers, [process.pid for process in processes if process.running])

    def _kill_later(self, numbers: Collection[int], leaders: Collection[int]) -> None:
        self._keep(self._loop.create_task(self.kill(numbers, leaders)))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._overdue.add(task)
        task.add_done_callback(self._overdue.discard)

    def end_all_for(self, cause: ExitCause) -> None:
        """Remember why everything is about to be killed."""
        for process in self._processes.values():
            process.end_for(cause)

    def expedite(self) -> None:
        """Answer all waiting reads now."""
        for process in self._processes.values():
            process.expedite()

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

    async def signal_tree(self, process: ManagedProcess, number: int) -> bool:
        """Send a signal, not SIGKILL, to every descendant of a process and to itself; in a sandbox to
        everything in it. False when there was nobody.

        Raises:
            OSError: no descriptor could be had for a minute.
        """
        passed: set[int] = set()
        if process.running and process.inside is not None:
            setup_pids = process.inside.setup_pids()
            if setup_pids is None:
                # As soon as there is a command; it has no descendants yet.
                return process.signal_group(number)
            passed |= setup_pids
        measures.signals["other"] += 1
        leaders = [process.pid] if process.running else []
        send = partial(self._signal, process.number, leaders, number, passed)
        for _ in range(_KILL_ATTEMPTS):
            try:
                return bool(await self.run_with_reserved(send))
            except OSError as error:
                log.warning("no descriptors to find processes with", error=str(error))
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def has_descendants(self, process: ManagedProcess) -> bool:
        """Whether anything lives that came of a process whose leader has ended."""
        look = partial(descendants.find_descendants, self._instance, process.number, exclude=self._protected)
        try:
            return self._tagged and bool(await self.run_with_reserved(look))
        except OSError:
            # Nobody can look, so perhaps.
            return True

    def usage(self) -> dict[int, Usage]:
        """What each process that is not closed uses now, by number; blocking, for a thread."""
        processes = self._processes.copy().values()
        leaders = {process.number: process.pid for process in processes if process.running}
        return measure(descendants.descendants_by_number(self._instance, leaders, exclude=self._protected))

    def _signal(self, number: int, leaders: Collection[int], signal_number: int, passed: set[int]) -> int:
        roots = () if self._tagged else leaders
        exclude = self._protected
        return descendants.signal_descendants(
            self._instance, number, signal_number, exclude=exclude, roots=roots, passed=passed
        )

    async def _kill_with_patience(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        kill = partial(self._kill, numbers, leaders)
        for _ in range(_KILL_ATTEMPTS):
            try:
                return await self.run_with_reserved(kill)
            except OSError as error:
                log.warning("no descriptors to find processes with", error=str(error))
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
        log.error("no descriptors to find processes with; what is left ends with the service")
        return sorted(leaders)

    async def run_with_reserved(self, work: Callable[[], T]) -> T:
        """Do something in a thread; when the table of descriptors is full, again with those that are spared.

        Raises:
            OSError: it is full all the same.
        """
        with contextlib.suppress(OSError):
            return await self._loop.run_in_executor(None, work)
        # Only now: while the reserved are out no connection is accepted, or those that wait would take them
        # first.
        self.reserved_in_use += 1
        try:
            self._reserved.release()
            return await self._loop.run_in_executor(None, work)
        finally:
            self._reserved.take()
            self.reserved_in_use -= 1

    def use_reserved_descriptors(self) -> AbstractContextManager[None]:
        """Give up the spare descriptors for as long as this lasts: for what the loop does in one go."""
        return self._reserved.lent()

    def kill_all(self) -> list[int]:
        """Kill every descendant of the service, blocking. Returns the survivors.

        Raises:
            OSError: no descriptors could be had, not even those that are spared.
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

    def _tag(self, number: int) -> int | None:
        return descendants.tag_value(self._instance, number) if self._tagged else None

    def _left_sandbox(self, process: ManagedProcess, unknown: bool) -> None:
        self._confined -= 1
        confinement = process.confinement
        if confinement is not None and confinement.releases_at_once and not unknown and not process.failure:
            self._sandboxes.release(confinement)
            # The exit itself has perhaps not been numbered yet.
            self._loop.call_soon(process.sandbox_ended)
        else:
            self._keep(self._loop.create_task(self._end_sandbox(process, unknown)))

    async def _end_sandbox(self, process: ManagedProcess, unknown: bool) -> None:
        """Nothing of a sandbox is left, neither a process nor a mount point."""
        try:
            if unknown:
                await self._kill_with_patience([process.number], [])
        finally:
            # Also when the server ends meanwhile: mount points would stay.
            await self._loop.run_in_executor(None, self._give_back, process)
        process.sandbox_ended()

    def _give_back(self, process: ManagedProcess) -> None:
        """In a thread: what the sandbox of a process was made of."""
        if process.failure is not None:
            self._sandboxes.launch_failed()
        if process.confinement is not None:
            self._sandboxes.release(process.confinement)

    def _kill(self, numbers: Collection[int], leaders: Collection[int]) -> list[int]:
        roots = () if self._tagged else leaders
        return descendants.kill_descendants(self._instance, numbers, exclude=self._protected, roots=roots)

    def close(self) -> None:
        """Stop watching; for the end of the daemon."""
        if self._retention_timer is not None:
            self._retention_timer.cancel()
        self._context.deadlines.close()
        self._context.poller.close()

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


def _close_all(*groups: Iterable[Iterable[int]]) -> None:
    for group in groups:
        for descriptors in group:
            for fd in descriptors:
                os.close(fd)


def _locks(slots: Slots) -> list[int]:
    """What holds mount points; the slots are empty then."""
    locks: list[int] = []
    for slot in sorted(slots):
        if slot >= SANDBOX:
            locks += slots[slot]
            slots[slot] = []
    return locks


def _may_tag(instance: int) -> bool:
    try:
        descendants.set_own_tag(descendants.tag_value(instance))
    except descendants.TagUnavailableError as error:
        log.warning("descendants are told by their parents only", reason=str(error))
        return False
    return True

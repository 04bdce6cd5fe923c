"""How a new server continues with the processes of the previous one.

A process is inherited when the ledger, the index and the supervisor together have all of it. What was begun
and not completed is killed: no client was told of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from execserver import descendants
from execserver.processes.executor import Executor
from execserver.processes.output_log import OutputLog
from execserver.processes.process import ManagedProcess
from execserver.processes.process_limits import ProcessLimits
from execserver.processes.recovery_state import RecoveredState, Slots
from execserver.processes.spawn import Spawned
from execserver.spool.arena import ProcessIndex
from execserver.spool.records import ProcessState
from execserver.supervisor.fd_store_protocol import DATA, MEMORY, OOM, PROCESS, SANDBOX
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.sandboxes import Sandboxes

log = Logger()


class Takeover:
    """Takes over from a previous server, once.

    Args:
        executor: of the new server; it has started nothing yet.
        sandboxes: adopts the sandboxes of the processes.
        recovered: the state that the previous server left.
    """

    def __init__(self, executor: Executor, sandboxes: Sandboxes, recovered: RecoveredState) -> None:
        self.state = recovered.state
        self._executor = executor
        self._recovery = executor.recovery
        self._sandboxes = sandboxes
        self._recovered = recovered
        self._unfinished: list[int] = []
        """Numbers of processes that were not inherited, and may run."""
        self._unfinished_locks: list[int] = []
        """Descriptors that hold the mount points of their sandboxes."""

    def inherit(
        self, on_closed: Callable[[str], Callable[[ManagedProcess], None]]
    ) -> dict[str, list[ManagedProcess]]:
        """The processes by session, oldest first.

        Args:
            on_closed: for a session id, what is called when one of its processes is closed.
        """
        recovered, executor = self._recovered, self._executor
        if recovered.groups:
            executor.tree_killer.open_leaves(recovered.groups)
        inherited: dict[str, list[ManagedProcess]] = {}
        for number, known in self.state.processes.items():
            slots, index = recovered.slots.pop(number, {}), recovered.indices.pop(number, None)
            process = self._inherit(known, slots, index, on_closed)
            if process is not None:
                inherited.setdefault(known.started.session, []).append(process)
                _close_all(slots.values())
        for number, slots in recovered.slots.items():
            self._unfinished_locks += _take_locks(slots)
            _close_all(slots.values())
            self._recovery.unknown(number)
        for index in recovered.indices.values():
            self._recovery.arena.free(index)
        executor.forgotten = self.state.forgotten
        self._unfinished += sorted(self.state.launching)
        # A survivor of `kill_unfinished_starts` may bear the next one.
        executor.next_number = self.state.highest + 2
        for number, status in recovered.exits.items():
            executor.inherited_end(number, status)
        for process in executor.processes():
            process.leader.check()
        self._finish_kills()
        if (leaves := executor.tree_killer.leaves) is not None:
            leaves.leave_all_but([each.number for each in executor.processes() if not each.closed])
        return inherited

    async def kill_unfinished_starts(self) -> None:
        """Kill the starts that the previous server did not complete: those that `inherit` found incomplete,
        and every process with a number above the last one in the ledger.
        """
        tree_killer = self._executor.tree_killer
        if tree_killer.tagged:
            if self._unfinished:
                await tree_killer.kill_uncounted(self._unfinished, [])
            above = range(self.state.highest + 1, 1 << descendants.NUMBER_BITS)
            await tree_killer.kill_uncounted(above, [])
        for number in self._unfinished:
            self._recovery.forgotten(number, urgent=True)
        self._unfinished.clear()
        if self._unfinished_locks:
            locks, self._unfinished_locks = self._unfinished_locks, []
            leftover = self._sandboxes.adopt(None, locks)
            asyncio.get_running_loop().run_in_executor(None, self._sandboxes.release, leftover)

    def _inherit(
        self,
        known: ProcessState,
        slots: Slots,
        index: ProcessIndex | None,
        on_closed: Callable[[str], Callable[[ManagedProcess], None]],
    ) -> ManagedProcess | None:
        number = known.started.number
        ends = slots.pop(PROCESS, [])
        # Only the index tells of a process that was closed with its leader (`records.Closed`).
        over = known.closed_at is not None or (index is not None and index.closed_seq is not None)
        if index is None or not (ends or over):
            log.info("process was not inherited", process=known.started.process_id, number=number)
            self._unfinished_locks += _take_locks(slots)
            _close_all([ends, *slots.values()])
            if index is not None:
                self._recovery.arena.free(index)
            self._unfinished.append(number)
            return None
        try:
            return self._restore(known, ends, index, slots, on_closed(known.started.session))
        except Exception as error:
            # One broken process must not be the end of all others.
            log.error("process could not be inherited", number=number, exc_info=error)
            self._executor.discard(number)
            self._unfinished.append(number)
            return None

    def _restore(
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
            self._recovery.closed(number, slots, recorded=True, urgent=True)
        confinement = None
        if started.sandbox is not None and not closed:
            confinement = self._sandboxes.adopt(started.sandbox, _take_locks(slots))
        live = bool(ends) and not closed
        limits = self._restore_limits(known, slots, confinement)
        process = self._executor.add(started, restored, on_closed, confinement, limits, live=live)
        if live:
            process.inherit(known, Spawned.from_kept(started.pid, ends, tty=started.tty), slots)
        else:
            _close_all([ends])
            process.inherit(known, None, slots)
        return process

    def _restore_limits(
        self, known: ProcessState, slots: Slots, confinement: Confinement | None
    ) -> ProcessLimits | None:
        leaves = self._executor.tree_killer.leaves
        leaf = None if leaves is None else leaves.find(known.started.number)
        if leaf is not None:
            leaf.extra_pids = 0 if confinement is None else confinement.own_processes
            if slots.get(OOM):
                [leaf.oom_events] = slots[OOM]
                slots[OOM] = []
        return ProcessLimits.restored(known, leaf)

    def _restore_log(
        self, number: int, index: ProcessIndex, disk: int | None, memory: int | None
    ) -> OutputLog:
        try:
            return self._executor.make_log(number, index).restore(disk, memory)
        except (OSError, ValueError) as error:
            log.error("output is lost: its file cannot be used", number=number, reason=str(error))
            return self._executor.make_log(number, index).restore(None, None)

    def _finish_kills(self) -> None:
        """Repeat the kills that the previous server had begun: it may have stopped processes only."""
        trees = []
        for process in self._executor.processes():
            known = self.state.processes[process.number]
            if process.leader.in_grace:
                # Warned already: another SIGTERM makes some programs give up their cleaning.
                self._executor.kill_after_grace(process)
                continue
            if process.running and known.ending is not None:
                log.info("process ended by the daemon", process=process.process_id, cause=known.ending)
                process.leader.signal_group(signal.SIGKILL)
            # The records of older versions do not tell it of an ending for another reason than a request.
            if known.tree_ending or (process.running and known.ending not in (None, "terminated")):
                trees.append(process)
        if trees:
            self._executor.tree_killer.kill_later(*trees)


def _close_all(groups: Iterable[Iterable[int]]) -> None:
    for descriptors in groups:
        for fd in descriptors:
            os.close(fd)


def _take_locks(slots: Slots) -> list[int]:
    """The descriptors that hold mount points; their slots are empty then."""
    locks: list[int] = []
    for slot in sorted(slots):
        if slot >= SANDBOX:
            locks += slots[slot]
            slots[slot] = []
    return locks

"""Records state in the ledger and the supervisor's fd store, so that processes outlive the server
(`docs/explanation/reliability.md`).

Rules kept in this file:

1. No client is told of anything that a new server would not know: a record or a descriptor is in its place
   before the answer or the event that mentions it.
2. A process counts as started when it is in the ledger *and* its descriptors are kept; the ledger comes
   first. Starts are made one after the other, on the loop's thread, with rising numbers. So a process with
   the tag of a higher number was started by a server that died before it had recorded the start.
3. The supervisor closes a process's ends when the process is closed, and its files when it is forgotten.
4. Without memory for a record nothing begins and no input is accepted. Ends happen all the same: a process
   that cannot be killed, reaped or forgotten would be worse than a new server that does not know why.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from execserver.fault_points import reach
from execserver.processes.process_limits import ProcessLimits
from execserver.spool.arena import IndexArena, ProcessIndex
from execserver.spool.forgotten import ForgettingReason
from execserver.spool.ledger import Ledger
from execserver.spool.log_files import small_slot
from execserver.spool.records import (
    AnyRecord,
    Closed,
    Ending,
    Exited,
    Forgotten,
    Launching,
    NetworkAnswer,
    NetworkDecided,
    NetworkTarget,
    Resized,
    Service,
    SessionEnded,
    SessionEnding,
    SessionOpened,
    SessionTtl,
    Started,
    State,
    StdinClosed,
    Written,
)
from execserver.spool.small_files import SmallOutputs
from execserver.supervisor import fd_store_client, fd_store_protocol
from execserver.supervisor.fd_store_protocol import (
    ARENA,
    DATA,
    EVERY_SLOT,
    GROUPS,
    INPUT,
    LEDGER,
    MEMORY,
    NETWORK,
    OOM,
    PROCESS,
    SANDBOX,
    SERVICE,
    SMALL,
    STATUS,
)
from execserver.telemetry.logs import Logger

log = Logger()

_DROP_SECONDS = 0.05
_MANY_DROPS = 256
"""Drops are sent together: after so much time, or when there are so many."""

Slots = dict[int, list[int]]
"""Descriptors by slot."""


class SlotStore(Protocol):
    """The supervisor's store of descriptors (`supervisor/fd_store_client.py`)."""

    def keep(self, number: int, slot: int, descriptors: Sequence[int], *, urgent: bool = False) -> None:
        """Keep copies, in the place of the present content of the slot."""

    def release(self, number: int, *, urgent: bool = False) -> None:
        """Close everything under a number."""

    def drop(self, slots: Sequence[tuple[int, int]]) -> None:
        """Close the content of slots, each given as a number and a slot."""

    def reaped(self, number: int) -> None:
        """The end of an inherited process is recorded."""


class RecoveredState(msgspec.Struct):
    """The state that the previous server left."""

    state: State
    slots: dict[int, Slots] = msgspec.field(default_factory=dict)
    """The descriptors that the supervisor kept, by process number."""
    indices: dict[int, ProcessIndex] = msgspec.field(default_factory=dict)
    exits: dict[int, int] = msgspec.field(default_factory=dict)
    """The status (as `os.waitpid` gives it) of the processes that have ended since, by number."""
    groups: list[int] = msgspec.field(default_factory=list)
    """Descriptors of the service's control groups."""


class RecoveryState:
    """The ledger and the fd store, and the order of their updates."""

    def __init__(self, fd_store: SlotStore, ledger: Ledger, arena: IndexArena, small: SmallOutputs) -> None:
        self.arena = arena
        self.small_files = small
        self._fd_store = fd_store
        self._ledger = ledger
        self._compacting = False
        self._dropped: list[tuple[int, int]] = []
        self._drop_timer: asyncio.TimerHandle | None = None

    @classmethod
    def begin(cls, fd_store: SlotStore, cwd: str, provider_id: str) -> RecoveryState:
        """The state of the first server of a service.

        Raises:
            OSError: no descriptor or no memory is available.
        """
        recovery = cls(fd_store, Ledger.create(), IndexArena.create(), SmallOutputs.create())
        recovery._append(Service(cwd, provider_id))
        fd_store.keep(SERVICE, SMALL, [recovery.small_files.fd])
        fd_store.keep(SERVICE, LEDGER, [recovery._ledger.fd])
        fd_store.keep(SERVICE, ARENA, [recovery.arena.fd])
        return recovery

    @staticmethod
    def has_begun(handed: Sequence[fd_store_client.StoredSlot | fd_store_client.EndedProcess]) -> bool:
        """Whether there is anything to resume. There is not if the previous server ended before it had handed
        over the ledger and the index, which the first process needs: then its descriptors are closed.
        """
        if any(
            isinstance(entry, fd_store_client.EndedProcess) or entry.number != SERVICE for entry in handed
        ):
            return True
        kept = [entry for entry in handed if isinstance(entry, fd_store_client.StoredSlot)]
        if {LEDGER, ARENA} <= {entry.slot for entry in kept}:
            return True
        for entry in kept:
            for fd in entry.descriptors:
                os.close(fd)
        return False

    @classmethod
    def resume(
        cls,
        fd_store: SlotStore,
        handed: Iterable[fd_store_client.StoredSlot | fd_store_client.EndedProcess],
    ) -> tuple[RecoveryState, RecoveredState]:
        """The state of a new server that continues where the previous one ended.

        Raises:
            ValueError: the handed-over descriptors are incomplete.
            OSError: no memory.
        """
        slots: dict[int, Slots] = {}
        exits: dict[int, int] = {}
        for entry in handed:
            if isinstance(entry, fd_store_client.StoredSlot):
                slots.setdefault(entry.number, {})[entry.slot] = entry.descriptors
            else:
                exits[entry.number] = entry.status
        service = slots.pop(SERVICE, {})
        if not {LEDGER, ARENA, SMALL} <= service.keys():
            raise ValueError("the previous server left no ledger: it ended before it began")
        ledger, arena = Ledger(service[LEDGER][0]), IndexArena(service[ARENA][0])
        recovered = RecoveredState(ledger.replay(), slots, arena.restore(), exits, service.get(GROUPS, []))
        known = (index for number, index in recovered.indices.items() if number in recovered.state.processes)
        taken = {slot for index in known if (slot := small_slot(index)) is not None}
        recovery = cls(fd_store, ledger, arena, SmallOutputs(service[SMALL][0], taken))
        before = recovered.state.service
        if before is not None:
            recovery._append(Service(before.cwd, before.provider_id, before.servers + 1))
        return recovery, recovered

    # -- sessions

    def session_opened(self, session_id: str) -> None:
        """Record a session, before its client is told of it."""
        self._append(SessionOpened(session_id))

    def session_ttl(self, session_id: str, seconds: float | None) -> None:
        """Record how long a session is kept without a connection, before its client is told.

        Raises:
            OSError: no memory; the earlier time is in force.
        """
        self._append(SessionTtl(session_id, seconds))

    def network_decided(self, session_id: str, target: NetworkTarget, answer: NetworkAnswer) -> None:
        """Record a client's decision about a host, before it takes effect in the session.

        Raises:
            OSError: no memory; it must not outlive the question.
        """
        self._append(NetworkDecided(session_id, target, answer))
        reach("after-network-decision")

    def session_ending(self, session_id: str, at_ms: int, reason: ForgettingReason, ttl_ms: int) -> None:
        """Record that all of a session is about to be killed, and that no client can resume it."""
        self._note(SessionEnding(session_id, at_ms, reason, ttl_ms))

    def session_ended(self, session_id: str) -> None:
        """Record that nothing of a session is left."""
        self._note(SessionEnded(session_id))

    # -- processes

    def keep_groups(self, descriptors: Sequence[int]) -> None:
        """Keep the service's control groups, before a process is in one."""
        self._fd_store.keep(SERVICE, GROUPS, descriptors)

    def launching(self, number: int) -> None:
        """Record a start that takes longer than a turn of the loop, before anything of it exists.

        `started` or `forgotten` follows.

        Raises:
            OSError: no memory.
        """
        self._append(Launching(number))

    def started(
        self,
        record: Started,
        descriptors: Sequence[int],
        report: Sequence[int] = (),
        sandbox: Sequence[int] = (),
        network: Sequence[int] = (),
        oom_events: int | None = None,
    ) -> list[int]:
        """Record and keep a spawned process. Returns the slots beside `PROCESS` that are in use.

        Args:
            record: what it is.
            descriptors: its pidfd and our ends (`Spawned.kept`).
            report: the file that the launcher of its sandbox writes to, and its gate, if there is one.
            sandbox: the locks that keep its mount points from being swept.
            network: the control socket of its network proxy, if it has one.
            oom_events: the count of its memory limit (`limits/leaf.py`).
        """
        reach("after-spawn")
        self._append(record)
        reach("after-ledger")
        slots: list[int] = []
        if network:
            self._fd_store.keep(record.number, NETWORK, network)
            slots.append(NETWORK)
        if report or sandbox:
            slots += self._keep_sandbox(record.number, report, sandbox)
        if oom_events is not None:
            self._fd_store.keep(record.number, OOM, [oom_events])
            slots.append(OOM)
        self._fd_store.keep(record.number, PROCESS, descriptors)
        reach("after-registration")
        return slots

    def _keep_sandbox(self, number: int, report: Sequence[int], locks: Sequence[int]) -> list[int]:
        slots: Slots = {}
        for first in range(0, len(locks), fd_store_protocol.MAX_DESCRIPTORS):
            slots[SANDBOX + len(slots)] = [*locks[first : first + fd_store_protocol.MAX_DESCRIPTORS]]
        if report:
            slots[STATUS] = [*report]
        for slot, descriptors in slots.items():
            self._fd_store.keep(number, slot, descriptors)
        reach("after-locks")
        return list(slots)

    def keep_data(self, number: int, slot: int, fd: int) -> None:
        """Keep a data file of a process, in the slot `DATA` or `MEMORY`."""
        self._fd_store.keep(number, slot, [fd])

    def drop_data(self, number: int) -> None:
        """Drop the data files of a process."""
        self._drop([(number, DATA), (number, MEMORY)], urgent=False)

    def keep_input(self, number: int, fd: int) -> None:
        """Keep the file that accepted input goes through."""
        self._fd_store.keep(number, INPUT, [fd])

    def keep_ends(self, number: int, descriptors: Sequence[int]) -> None:
        """Keep the pidfd and our ends of a process without its input, in the place of those with it: the
        child waits for the close.
        """
        self._fd_store.keep(number, PROCESS, descriptors, urgent=True)
        reach("after-ends-without-input")

    def written(self, number: int, write_id: str, end: int) -> None:
        """Record input, before it is accepted."""
        self._append(Written(number, write_id, end))

    def resized(self, record: Resized) -> None:
        """Record the size of a terminal, which is set in any case."""
        self._note(record)

    def stdin_closed(self, number: int) -> None:
        """Record that no more input is accepted."""
        self._append(StdinClosed(number))
        reach("after-stdin-closed")

    def ending(self, number: int, cause: str, *, tree: bool = False, kill_at: float | None = None) -> None:
        """Record why we are about to kill a process, or with `tree` all its descendants; with `kill_at`
        later, after a SIGTERM.
        """
        self._note(Ending(number, cause, tree, kill_at))
        if tree:
            reach("before-tree-kill")

    def exited(
        self,
        number: int,
        code: int,
        cause: str,
        failure: str | None,
        limits: ProcessLimits | None = None,
    ) -> None:
        """Record the end of a leader, before it is reaped."""
        reach("before-exit-journal")
        limit, usage = (None, None) if limits is None else (limits.hit, limits.usage_at_end)
        self._note(Exited(number, code, cause, failure, time.monotonic(), limit, usage))
        reach("after-exit-journal")

    def reaped(self, number: int) -> None:
        """The end of an inherited leader is recorded: let the supervisor reap it."""
        self._fd_store.reaped(number)

    def closed(self, number: int, slots: Iterable[int], *, recorded: bool, urgent: bool) -> None:
        """A process is closed: drop its ends and the content of these slots, but not its output.

        Args:
            number: of the process.
            slots: beside `PROCESS`.
            recorded: whether its end was recorded just now, which makes a record of the close needless.
            urgent: as for `forgotten`.
        """
        if not recorded:
            self._note(Closed(number, time.monotonic()))
        self._drop([(number, PROCESS), *((number, slot) for slot in slots)], urgent=urgent)

    def forgotten(self, number: int, *, kept: bool = True, urgent: bool = False) -> None:
        """Record that a process is forgotten, and drop all of it.

        Args:
            number: of the process.
            kept: whether the supervisor has anything of it.
            urgent: whether a process may wait for its ends to be closed.
        """
        self._note(Forgotten(number))
        if kept:
            self._drop([(number, EVERY_SLOT)], urgent=urgent)

    def _drop(self, slots: Iterable[tuple[int, int]], *, urgent: bool) -> None:
        """Drop many at a time: only the number of descriptors depends on it."""
        self._dropped += slots
        if urgent or len(self._dropped) > _MANY_DROPS:
            self._send_drops()
        elif self._drop_timer is None:
            self._drop_timer = asyncio.get_running_loop().call_later(_DROP_SECONDS, self._send_drops)

    def _send_drops(self) -> None:
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None
        dropped, self._dropped = self._dropped, []
        self._fd_store.drop(dropped)

    def unknown(self, number: int) -> None:
        """Close what the supervisor has under the number of an unknown process."""
        self._fd_store.release(number)

    # -- the ledger

    def _note(self, record: AnyRecord) -> None:
        """Record an end, which happens in any case (rule 4)."""
        try:
            self._append(record)
        except OSError as error:
            log.error(
                "not in the ledger: a new server would not know",
                record=type(record).__name__,
                reason=str(error),
            )

    def _append(self, record: AnyRecord) -> None:
        self._ledger.append(record)
        if self._ledger.should_compact and not self._compacting:
            self._compacting = True
            loop = asyncio.get_running_loop()
            size = self._ledger.size
            compaction = loop.run_in_executor(None, self._compacted, size)
            compaction.add_done_callback(lambda done: self._switch_ledger(done, size))

    def _compacted(self, size: int) -> Ledger:
        """Runs in a thread: it takes a tenth of a second for each hundred thousand records."""
        return Ledger.compacted(self._ledger.replay(size).records())

    def _switch_ledger(self, compaction: asyncio.Future[Ledger], size: int) -> None:
        """On the loop's thread: add the newer records, then replace the old ledger by the new one."""
        self._compacting = False
        new: Ledger | None = None
        try:
            new = compaction.result()
            new.absorb(self._ledger, size)
            self._fd_store.keep(SERVICE, LEDGER, [new.fd])
        except (OSError, asyncio.CancelledError) as error:
            log.warning("the ledger could not be compacted", reason=str(error))
            if new is not None:
                new.close()
            return
        self._ledger, old = new, self._ledger
        old.close()

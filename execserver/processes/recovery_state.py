"""What is written down and handed to the supervisor, so that processes outlive the server.

Rules kept in this file:

1. Nobody is told of anything that a successor would not know: a record or a descriptor is in its place
   before the answer or the event that speaks of it.
2. A process counts as started when it is in the ledger *and* its descriptors are kept; the ledger comes
   first. Starts are made one after the other, on the loop's thread, with rising numbers: so whoever bears
   the tag of a higher number than all that count was started by a server that died over it.
3. The supervisor lets go of a process's ends when it is closed, of its files when it is forgotten.
4. Without memory for a record nothing begins and no input is accepted. What ends, ends all the same: a
   process that cannot be killed, reaped or forgotten would be worse than a successor that does not know why.

`docs/explanation/reliability.md`
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from execserver.fault_points import reach
from execserver.spool.arena import IndexArena, ProcessIndex
from execserver.spool.ledger import Ledger
from execserver.spool.log_files import small_slot
from execserver.spool.records import (
    AnyRecord,
    Closed,
    Ending,
    Exited,
    Forgotten,
    Service,
    SessionEnded,
    SessionEnding,
    SessionOpened,
    Started,
    State,
    StdinClosed,
    Written,
)
from execserver.spool.small_files import SmallFiles
from execserver.supervisor import fd_store_client, fd_store_protocol
from execserver.supervisor.fd_store_protocol import (
    ARENA,
    DATA,
    EVERY_SLOT,
    INPUT,
    LEDGER,
    MEMORY,
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
"""When the supervisor hears of descriptors that are of no more use: together with those of others."""

Slots = dict[int, list[int]]
"""Descriptors by slot."""


class FdStore(Protocol):
    """The supervisor, which keeps descriptors (`supervisor/fd_store_client.py`)."""

    def keep(self, number: int, slot: int, descriptors: Sequence[int], *, urgent: bool = False) -> None:
        """Keep copies in the place of what the slot holds."""

    def release(self, number: int, *, urgent: bool = False) -> None:
        """Let go of everything under a number."""

    def drop(self, slots: Sequence[tuple[int, int]]) -> None:
        """Let go of what is in some slots, each a number and a slot."""

    def reaped(self, number: int) -> None:
        """The end of an inherited process is recorded."""


class RecoveredState(msgspec.Struct):
    """What the server before this one left."""

    state: State
    slots: dict[int, Slots] = msgspec.field(default_factory=dict)
    """What the supervisor kept, by process number."""
    indices: dict[int, ProcessIndex] = msgspec.field(default_factory=dict)
    exits: dict[int, int] = msgspec.field(default_factory=dict)
    """Processes that ended since, with their status as `os.waitpid` gives it."""


class RecoveryState:
    """The ledger and the fd_store, and the order in which they are told."""

    def __init__(self, fd_store: FdStore, ledger: Ledger, arena: IndexArena, small: SmallFiles) -> None:
        self.arena = arena
        self.small_files = small
        self._fd_store = fd_store
        self._ledger = ledger
        self._compacting = False
        self._dropped: list[tuple[int, int]] = []
        self._drop_timer: asyncio.TimerHandle | None = None

    @classmethod
    def begin(cls, fd_store: FdStore, cwd: str, provider_id: str) -> RecoveryState:
        """For the first server of a service.

        Raises:
            OSError: no descriptor or no memory is to be had.
        """
        recovery = cls(fd_store, Ledger.create(), IndexArena.create(), SmallFiles.create())
        recovery._append(Service(cwd, provider_id))
        fd_store.keep(SERVICE, SMALL, [recovery.small_files.fd])
        fd_store.keep(SERVICE, LEDGER, [recovery._ledger.fd])
        fd_store.keep(SERVICE, ARENA, [recovery.arena.fd])
        return recovery

    @staticmethod
    def has_begun(handed: Sequence[fd_store_client.Kept | fd_store_client.Exited]) -> bool:
        """Whether there is anything to resume. Not if the server before this one ended before it had handed
        over the ledger and the index, of which the first process needs both: what it left is closed then.
        """
        if any(isinstance(entry, fd_store_client.Exited) or entry.number != SERVICE for entry in handed):
            return True
        kept = [entry for entry in handed if isinstance(entry, fd_store_client.Kept)]
        if {LEDGER, ARENA} <= {entry.slot for entry in kept}:
            return True
        for entry in kept:
            for fd in entry.descriptors:
                os.close(fd)
        return False

    @classmethod
    def resume(
        cls, fd_store: FdStore, handed: Iterable[fd_store_client.Kept | fd_store_client.Exited]
    ) -> tuple[RecoveryState, RecoveredState]:
        """For a server that goes on where another one ended.

        Raises:
            ValueError: what was handed over is not what such a server leaves.
            OSError: no memory.
        """
        slots: dict[int, Slots] = {}
        exits: dict[int, int] = {}
        for entry in handed:
            if isinstance(entry, fd_store_client.Kept):
                slots.setdefault(entry.number, {})[entry.slot] = entry.descriptors
            else:
                exits[entry.number] = entry.status
        service = slots.pop(SERVICE, {})
        if not {LEDGER, ARENA, SMALL} <= service.keys():
            raise ValueError("the server before this one left no ledger: it ended before it began")
        ledger, arena = Ledger(service[LEDGER][0]), IndexArena(service[ARENA][0])
        recovered = RecoveredState(ledger.replay(), slots, arena.restore(), exits)
        known = (index for number, index in recovered.indices.items() if number in recovered.state.processes)
        taken = {slot for index in known if (slot := small_slot(index)) is not None}
        recovery = cls(fd_store, ledger, arena, SmallFiles(service[SMALL][0], taken))
        before = recovered.state.service
        if before is not None:
            recovery._append(Service(before.cwd, before.provider_id, before.servers + 1))
        return recovery, recovered

    # -- sessions

    def session_opened(self, session_id: str) -> None:
        """A client is about to be told of its session."""
        self._append(SessionOpened(session_id))

    def session_ending(self, session_id: str) -> None:
        """Everything of it is about to be killed, and nobody can resume it."""
        self._note(SessionEnding(session_id))

    def session_ended(self, session_id: str) -> None:
        """Nothing of it is left."""
        self._note(SessionEnded(session_id))

    # -- processes

    def started(
        self,
        record: Started,
        descriptors: Sequence[int],
        report: int | None = None,
        sandbox: Sequence[int] = (),
    ) -> list[int]:
        """A process was spawned. Returns the slots beside `PROCESS` in which something is kept.

        Args:
            record: what it is.
            descriptors: its pidfd and our ends (`Spawned.kept`).
            report: what the launcher of its sandbox writes to.
            sandbox: what keeps its mount points from being swept.
        """
        reach("after-spawn")
        self._append(record)
        reach("after-ledger")
        slots = self._keep_sandbox(record.number, report, sandbox) if report is not None or sandbox else []
        self._fd_store.keep(record.number, PROCESS, descriptors)
        reach("after-registration")
        return slots

    def _keep_sandbox(self, number: int, report: int | None, locks: Sequence[int]) -> list[int]:
        slots: Slots = {}
        for first in range(0, len(locks), fd_store_protocol.MAX_DESCRIPTORS):
            slots[SANDBOX + len(slots)] = [*locks[first : first + fd_store_protocol.MAX_DESCRIPTORS]]
        if report is not None:
            slots[STATUS] = [report]
        for slot, descriptors in slots.items():
            self._fd_store.keep(number, slot, descriptors)
        reach("after-locks")
        return list(slots)

    def keep_data(self, number: int, slot: int, fd: int) -> None:
        """A data file of a process, `registration.DATA` or `MEMORY`."""
        self._fd_store.keep(number, slot, [fd])

    def drop_data(self, number: int) -> None:
        """The output of a process is not kept any longer."""
        self._drop([(number, DATA), (number, MEMORY)], urgent=False)

    def keep_input(self, number: int, fd: int) -> None:
        """The file that accepted input goes through."""
        self._fd_store.keep(number, INPUT, [fd])

    def keep_ends(self, number: int, descriptors: Sequence[int]) -> None:
        """The pidfd and our ends of a process whose input was closed, in the place of those with it: its
        other side waits for the close.
        """
        self._fd_store.keep(number, PROCESS, descriptors, urgent=True)
        reach("after-ends-without-input")

    def written(self, number: int, write_id: str, end: int) -> None:
        """Input is about to be accepted."""
        self._append(Written(number, write_id, end))

    def stdin_closed(self, number: int) -> None:
        """Nothing is accepted any more behind the input that was."""
        self._append(StdinClosed(number))
        reach("after-stdin-closed")

    def ending(self, number: int, cause: str, *, tree: bool = False) -> None:
        """A process is about to be killed by us, or with `tree` all that came of it."""
        self._note(Ending(number, cause, tree))
        if tree:
            reach("before-tree-kill")

    def exited(self, number: int, code: int, cause: str, failure: str | None) -> None:
        """The leader has ended, and was not reaped yet."""
        reach("before-exit-journal")
        self._note(Exited(number, code, cause, failure, time.monotonic()))
        reach("after-exit-journal")

    def reaped(self, number: int) -> None:
        """The end of an inherited leader is in the ledger: the supervisor may reap it."""
        self._fd_store.reaped(number)

    def closed(self, number: int, slots: Iterable[int], *, told: bool, urgent: bool) -> None:
        """A process is closed: its output is of use, its ends and whatever else is in these slots are not.

        Args:
            number: of the process.
            slots: beside `PROCESS`.
            told: whether the ledger has its end of just now, which will do.
            urgent: as for `forgotten`.
        """
        if not told:
            self._note(Closed(number, time.monotonic()))
        self._drop([(number, PROCESS), *((number, slot) for slot in slots)], urgent=urgent)

    def forgotten(self, number: int, *, kept: bool = True, urgent: bool = False) -> None:
        """Nothing of a process is wanted any more.

        Args:
            number: of the process.
            kept: whether the supervisor has anything of it.
            urgent: whether somebody may wait for its ends to be closed.
        """
        self._note(Forgotten(number))
        if kept:
            self._drop([(number, EVERY_SLOT)], urgent=urgent)

    def _drop(self, slots: Iterable[tuple[int, int]], *, urgent: bool) -> None:
        """Many at a time: nothing depends on it, but the number of descriptors."""
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
        """Whatever the supervisor has under this number belongs to nothing."""
        self._fd_store.release(number)

    # -- the ledger

    def _note(self, record: AnyRecord) -> None:
        """Write down what happens in any case (rule 4)."""
        try:
            self._append(record)
        except OSError as error:
            log.error(
                "not in the ledger: a successor would not know",
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
        """In a thread: it takes a tenth of a second for each hundred thousand records."""
        return Ledger.compacted(self._ledger.replay(size).records())

    def _switch_ledger(self, compaction: asyncio.Future[Ledger], size: int) -> None:
        """On the loop's thread: what came meanwhile is added, then the new one takes the place of the old."""
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

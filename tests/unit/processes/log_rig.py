"""Output logs with everything they stand on, and the supervisor's part played."""

from __future__ import annotations

import itertools
import os

from execprotocol.process import Stream
from execserver.processes.output_log import OutputLog
from execserver.spool.arena import IndexArena
from execserver.spool.small_files import SmallOutputs
from execserver.spool.spool import Spool, SpoolBudget, SpoolLimits
from execserver.supervisor.fd_store_protocol import DATA, MEMORY

RETAINED = 1000


class Rig:
    """Logs that share an arena, a spool and a budget."""

    def __init__(self, limits: SpoolLimits | None = None, folder: str | None = None) -> None:
        # To disk from the first byte, unless a test is about just that.
        self.limits = limits or SpoolLimits(small=0)
        self.arena = IndexArena.create()
        self.states: list[tuple[bool, str]] = []
        self.small = SmallOutputs.create()
        self.spool = Spool(folder, self.limits, self._told, self.small)
        self.budget = SpoolBudget(self.limits)
        self.kept: dict[int, int] = {}
        """The newest data file of each slot, as the supervisor would have it."""
        self._numbers = itertools.count(1)
        self._logs: list[OutputLog] = []
        self._arenas = [self.arena]

    def log(self, retained: int = RETAINED) -> OutputLog:
        index = self.arena.open(next(self._numbers))
        self._logs.append(OutputLog(index, self.spool, self.budget, retained, self._keep))
        return self._logs[-1]

    def restored(self, retained: int = RETAINED) -> OutputLog:
        """The newest log as the next server finds it."""
        arena = IndexArena(os.dup(self.arena.fd))
        self._arenas.append(arena)
        index = max(arena.restore().items())[1]
        files = [os.dup(self.kept[slot]) if slot in self.kept else None for slot in (DATA, MEMORY)]
        log = OutputLog(index, self.spool, self.budget, retained, self._keep).restore(*files)
        self._logs.append(log)
        return log

    def _told(self, failing: bool, reason: str) -> None:
        self.states.append((failing, reason))

    def _keep(self, slot: int, fd: int) -> None:
        if slot in self.kept:
            os.close(self.kept[slot])
        self.kept[slot] = os.dup(fd)

    def close(self) -> None:
        for log in self._logs:
            log.close()
        for fd in self.kept.values():
            os.close(fd)
        self.spool.close()
        self.small.close()
        for arena in self._arenas:
            arena.close()


def take_bytes(log: OutputLog, data: bytes, stream: Stream = "stdout") -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.write(write, data)
    os.close(write)
    log.take(stream, read)
    log.trim()
    os.close(read)

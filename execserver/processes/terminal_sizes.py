"""The sizes that the terminal of a process has had, for clients that replay its output.

Sizes that a program sets by itself, inside, are not known.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from execserver.processes.output_log import OutputLog
from execserver.processes.recovery_state import RecoveryState
from execserver.spool.process_index import now_ms
from execserver.spool.records import ProcessState, Resized, Started, keep_size

if TYPE_CHECKING:
    from execprotocol.process import SizeChange


class TerminalSizes:
    """The sizes of one terminal: that of the start, and each that a client has set since.

    Args:
        started: the record of its process.
        log: the output of the process, which places the sizes.
        recovery: keeps them for a new server.
    """

    __slots__ = ("_log", "_number", "_recovery", "_sizes")

    def __init__(self, started: Started, log: OutputLog, recovery: RecoveryState) -> None:
        self._number = started.number
        self._log = log
        self._recovery = recovery
        self._sizes: list[Resized] = []
        if started.size is not None:
            self._sizes.append(Resized(started.number, 0, started.began_at_ms, *started.size))

    def restore(self, state: ProcessState) -> None:
        """Continue with the sizes that the ledger has."""
        for record in state.sizes:
            keep_size(self._sizes, record)

    def changed(self, rows: int, cols: int) -> None:
        """The terminal has this size from now on."""
        last = self._sizes[-1] if self._sizes else None
        if last is None or (last.rows, last.cols) != (rows, cols):
            record = Resized(self._number, self._log.next_seq - 1, now_ms(), rows, cols)
            keep_size(self._sizes, record)
            self._recovery.resized(record)

    def between(self, after_seq: int, next_seq: int) -> list[SizeChange]:
        """The size at a cursor, if it is kept, and the later ones before the event with `next_seq`."""
        first = bisect_right(self._sizes, after_seq, key=lambda size: size.seq)
        return [
            {"seq": size.seq, "at": size.at_ms, "rows": size.rows, "cols": size.cols}
            for size in self._sizes[max(0, first - 1) :]
            if size.seq < next_seq
        ]

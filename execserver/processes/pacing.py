"""Holds the output of a process back while its client is behind, so that none of it is ever dropped.

Rules of this file:

1. *Sent* is what a connection of the process's own session was sent as events without a gap, or in answer to
   reads; a read also confirms what is before its cursor.
2. The log drops nothing that is not sent. So no more is taken while much is not sent, or while the log is
   above its share for that reason: a full disk, or the budget of all processes. The rest stays in the pipe,
   where the writer has to wait.
3. What was sent stays in the log, as that of other processes does: a client that lost its connection reads
   it again.

A new server does not know what was sent, and counts all that the log holds as not sent, until the client
reads from its cursor.
"""

from __future__ import annotations

from collections.abc import Callable

from execserver.processes.output_log import MAX_CHUNKS, OutputLog

MAX_UNSENT_BYTES = 8 << 20

_MAX_UNSENT_CHUNKS = MAX_CHUNKS // 2


class Pacing:
    """The pace of one process.

    Args:
        log: its output.
        hold: called with whether no output may be taken, when that changes.
    """

    __slots__ = ("_events", "_held", "_hold", "_log", "_offset", "_sent")

    def __init__(self, log: OutputLog, hold: Callable[[bool], None]) -> None:
        self._log = log
        self._hold = hold
        self._held = False
        self._events = (0, 0)
        """The first and the last number of the latest run of events."""
        self._sent = log.sent_through = log.evicted_through
        """The newest number that was sent, with all before it."""
        self._offset = log.offset_after(self._sent)
        """The bytes of output up to that number."""

    def taken(self) -> None:
        """The log has new output, and was trimmed."""
        log = self._log
        unsent = log.total - self._offset
        held = unsent > 0 and (
            unsent > min(MAX_UNSENT_BYTES, log.retained_bytes // 2)
            or log.next_seq - 1 - self._sent > _MAX_UNSENT_CHUNKS
            or log.is_over_share
        )
        if held != self._held:
            self._held = held
            self._hold(held)

    def event_sent(self, seq: int) -> None:
        """The event of this number was sent to a connection of the process's session."""
        first, last = self._events
        self._events = (first if seq == last + 1 else seq, seq)
        self._advance(self._sent)

    def read(self, after_seq: int, through: int) -> None:
        """A read after a cursor was answered up to a number, for such a connection."""
        sent = max(after_seq, self._sent)
        self._advance(max(sent, through) if after_seq <= self._sent else sent)

    def _advance(self, seq: int) -> None:
        """All up to a number was sent, and perhaps events behind it."""
        log = self._log
        first, last = self._events
        if first <= seq + 1:
            seq = max(seq, last)
        seq = min(seq, log.next_seq - 1)
        if seq <= self._sent:
            return
        self._sent = log.sent_through = seq
        self._offset = log.offset_after(seq)
        if self._held:
            log.trim()
            self.taken()

"""Taking a terminal's output without ever holding it in memory of our own.

Rules kept in this file:

1. `splice(2)` moves nothing from a terminal to a file, so an inner pipe lies in between. The supervisor keeps
   both its ends: what a dead server had moved so far is found in it by its successor.
2. What is in the inner pipe comes before what is in the terminal.
3. Whoever waits watches the terminal only. So a take leaves nothing in the inner pipe, unless the log
   takes nothing more.
4. The terminal is at its end when it says so *and* the inner pipe is empty.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from execserver.spool.system_calls import unread_bytes

if TYPE_CHECKING:
    from execprotocol.process import Stream


FILL_BYTES = 64 << 10
"""What the inner pipe holds."""

_MORE_BYTES = 2048
"""A terminal hands out 4,095 bytes at a time, however many it has. One that gave so many is asked again, so
that a flood does not become a chunk for each; one that gave less has no more."""


class OutputSink(Protocol):
    """The log that output goes to (`OutputLog`)."""

    ended: set[Stream]

    def take(self, stream: Stream, fd: int) -> int:
        """Take what is in a pipe; 0 when nothing is taken."""


class TerminalRelay:
    """The way from a terminal to its log. The descriptors, all non-blocking, belong to the process.

    Args:
        master: the terminal.
        read: the inner pipe's read end. The pipe may have something in it.
        write: its write end.
    """

    __slots__ = (
        "_log",
        "_master",
        "_read",
        "_write",
        "held",
    )

    def __init__(self, log: OutputSink, master: int, read: int, write: int) -> None:
        self._log = log
        self._master = master
        self._read = read
        self._write = write
        self.held = unread_bytes(read)
        """Bytes in the inner pipe: 0 after a take, unless the log refused them. Where a dead server left
        some, the terminal itself may have nothing more to wake anybody: somebody has to `take` them.
        """

    def take(self) -> int:
        """Move what there is into the log, 64 KiB at most: one chunk, as a rule.

        Returns the number of bytes taken; 0 when there is nothing now or ever again. The stream is in the
        log's `ended` while the terminal is at its end: it leaves that when somebody opens it again.
        """
        size = self._empty()
        if not size and not self.held and self.fill():
            size = self._empty()
        return size

    def fill(self) -> int:
        """Move what the terminal has into the inner pipe, as far as there is room. Returns the number of
        bytes.
        """
        moved = 0
        while self.held < FILL_BYTES:
            try:
                size = os.splice(self._master, self._write, FILL_BYTES, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                break
            except OSError:
                # Nobody has the other side open (EIO).
                size = 0
            if not size and not self.held:
                self._log.ended.add("pty")
            self.held += size
            moved += size
            if size < _MORE_BYTES:
                break
        return moved

    def _empty(self) -> int:
        taken = 0
        while self.held:
            size = self._log.take("pty", self._read)
            if not size:
                break
            self.held -= size
            taken += size
        return taken

"""Moves a terminal's output into the log without copying it into our memory.

Rules kept in this file:

1. `splice(2)` moves nothing from a terminal to a file, so an inner pipe lies in between. The supervisor keeps
   both its ends: a new server finds in it what the previous server had moved so far.
2. The bytes in the inner pipe come before the bytes in the terminal.
3. Only the terminal is watched. So a take leaves nothing in the inner pipe, unless the log takes nothing
   more.
4. The terminal is at its end when it reports so *and* the inner pipe is empty.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from execserver.spool.system_calls import unread_bytes

if TYPE_CHECKING:
    from execprotocol.process import Stream


FILL_BYTES = 64 << 10
"""The size of the inner pipe."""

_MORE_BYTES = 2048
"""A read of a terminal gives 4,095 bytes at most. After a read of so many there is probably more, and reading
on makes larger chunks of a flood; after a smaller one there is not."""


class OutputSink(Protocol):
    """The log that output goes to (`OutputLog`)."""

    ended: set[Stream]

    def take(self, stream: Stream, fd: int) -> int:
        """Take what is in a pipe; 0 when nothing is taken."""


class TerminalRelay:
    """The path from a terminal to its log. The descriptors, all non-blocking, belong to the process.

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
        """Bytes in the inner pipe: 0 after a take, unless the log refused them. If the previous server left
        some, the terminal may never become readable again: the owner has to call `take`.
        """

    def take(self) -> int:
        """Move what there is into the log, 64 KiB at most: one chunk, as a rule.

        Returns the number of bytes taken; 0 when there is nothing now or ever again. The stream is in the
        log's `ended` while the terminal is at its end, which is over when a process opens it again.
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
                # No process has the other side open (EIO).
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

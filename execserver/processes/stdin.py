"""Writes to a child's standard input without waiting for the child, and without losing accepted input.

Rules kept in this file:

1. Input lies in a memfd that the supervisor keeps too. An accepted write is appended, then journalled (its
   id and its end), then answered, then delivered.
2. Bytes leave the memfd only by `splice(2)` at its own position. That position belongs to the open file:
   after a kill it says to the byte how much the kernel has delivered.
3. Nothing beyond the last journalled end is ever delivered. A new server cuts it off: no client was told that
   it was accepted, so the client sends it again.
4. A terminal takes nothing from a file. An inner pipe, which the supervisor keeps as well, lies in between,
   and is emptied before it is filled.
5. Memory that the child may not have read is never freed: the pipe has no copy but refers to pages of the
   file, and the kernel clears the freed part of a large page.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from execserver.fault_points import reach
from execserver.processes.prompt_output import PromptPredictor
from execserver.spool.system_calls import punch_hole, unread_bytes

QUEUE_BYTES = 64 << 20
"""Bytes queued for a child before the answer to a further write waits, which slows the client down."""

DAEMON_QUEUE_BYTES = 256 << 20
"""Bytes queued for all children together, above which only a short queue takes more."""

SHORT_QUEUE_BYTES = 1 << 20

_DISCARD_BYTES = 256 << 10
"""Delivered bytes that are kept before their memory is freed, all at once: little enough for a thousand
children, and enough to make the system call rare."""

_PAGE = os.sysconf("SC_PAGESIZE")


class InputBudget:
    """Bytes of input queued for all children of the daemon."""

    def __init__(self) -> None:
        self.held = 0


class StdinWriter:
    """The queue in front of one non-blocking descriptor, which belongs to the process.

    `accepted` on the wire means journalled here. A child that closed its input swallows what
    follows, as a pipe to a finished program does.

    Args:
        fd: a pipe, or the master of a terminal.
        budget: what all writers share.
        want_writable: called with True when `flush` is to be called once the descriptor takes
            more, and with False when it need not.
        keep: called with the memfd before the first byte is journalled. The memfd belongs to this object; the
            supervisor gets a copy.
        journal: called with the write id and the length of all accepted input. When it returns, a new server
            knows them.
        relay: the inner pipe of a terminal, read end first; both are non-blocking and belong to the process.
    """

    __slots__ = (
        "_broken",
        "_budget",
        "_discarded",
        "_end",
        "_fd",
        "_file",
        "_journal",
        "_keep",
        "_position",
        "_relay_read",
        "_relay_write",
        "_relayed",
        "_room",
        "_waiting",
        "_want_writable",
        "_when_delivered",
        "closed",
        "predictor",
    )

    def __init__(
        self,
        fd: int,
        budget: InputBudget,
        want_writable: Callable[[bool], None],
        keep: Callable[[int], None],
        journal: Callable[[str, int], None],
        relay: tuple[int, int] | None = None,
    ) -> None:
        self._fd = fd
        self._budget = budget
        self._want_writable = want_writable
        self._keep = keep
        self._journal = journal
        self._relay_read, self._relay_write = relay or (-1, fd)
        self._relayed = 0
        """Bytes in the inner pipe."""
        self._file: int | None = None
        self._end = 0
        """Where the accepted input ends in the file."""
        self._position = 0
        """Where the delivered input ends."""
        self._discarded = 0
        """Where the input ends whose memory was freed."""
        self._waiting = False
        self._broken = False
        self._when_delivered: Callable[[], None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self.closed = False
        self.predictor = PromptPredictor(terminal=relay is not None)
        """Predicts whether the child answers at once."""

    def restore(self, file: int | None, accepted_end: int) -> None:
        """Continue where the previous server stopped; for a writer that was not used yet. Undelivered input
        goes out as soon as the descriptor takes it.

        Args:
            file: the kept memfd, which belongs to this object from now on; None when there is none.
            accepted_end: the length of all input that was journalled.

        Raises:
            OSError: the descriptors are not what they should be.
        """
        if self._relay_read >= 0:
            self._relayed = unread_bytes(self._relay_read)
        if file is not None:
            os.ftruncate(file, accepted_end)
            self._file = file
            self._end = accepted_end
            self._position = os.lseek(file, 0, os.SEEK_CUR)
            self._budget.held += self._queued
        self._wait(bool(self._undelivered))

    @property
    def full(self) -> bool:
        """Whether a further write should wait for room."""
        queued = self._queued
        return queued > QUEUE_BYTES or (queued > SHORT_QUEUE_BYTES and self._budget.held > DAEMON_QUEUE_BYTES)

    @property
    def waiting(self) -> bool:
        """Whether something is queued that the descriptor did not take."""
        return self._waiting

    async def wait_for_space(self) -> None:
        """Wait until the queue is short again, or the child is gone."""
        while self.full and not self.closed:
            room = asyncio.get_running_loop().create_future()
            self._room.append(room)
            await room

    def write(self, data: bytes, write_id: str) -> None:
        """Accept bytes, and deliver at once what the child takes.

        Raises:
            OSError: no memory, no descriptor; nothing was accepted.
        """
        if self._broken or not data:
            return
        if self._file is None:
            file = os.memfd_create("stdin", os.MFD_CLOEXEC)
            try:
                self._keep(file)
            except OSError:
                os.close(file)
                raise
            self._file = file
        _append(self._file, data, self._end)
        reach("after-stdin-append")
        end = self._end + len(data)
        self._journal(write_id, end)
        reach("after-stdin-journal")
        self._end = end
        self._budget.held += len(data)
        if not self._waiting:
            self.flush()

    def flush(self) -> None:
        """Deliver what the child takes now."""
        if self._broken:
            return
        try:
            while self._drain_relay() and self._queued:
                self._deliver()
        except BlockingIOError:
            pass
        except OSError:
            self._break()
        self._wait(bool(self._undelivered))
        if not self.full:
            self._wake()
        self._tell_delivered()

    def close_when_delivered(self, close: Callable[[], None]) -> None:
        """Call `close` once everything is delivered, or never will be: possibly now. The callback closes the
        descriptor. It is not called after the method `close`, whose caller knows that the child is gone. The
        caller makes no further `write`.
        """
        self._when_delivered = close
        self._tell_delivered()

    def close(self) -> None:
        """The child is gone: drop what is queued, and end all waits for room."""
        self.closed = True
        self._when_delivered = None
        self._break()
        self._wait(False)
        self._wake()
        self._close_file()

    @property
    def _queued(self) -> int:
        return self._end - self._position

    @property
    def _undelivered(self) -> int:
        return self._queued + self._relayed

    def _deliver(self) -> None:
        assert self._file is not None
        moved = os.splice(self._file, self._relay_write, self._queued, flags=os.SPLICE_F_NONBLOCK)
        self._position += moved
        self._budget.held -= moved
        if self._relay_read >= 0:
            self._relayed += moved
        if self._position - self._discarded >= _DISCARD_BYTES:
            self._discard()

    def _drain_relay(self) -> bool:
        """Empty the inner pipe into the terminal."""
        while self._relayed:
            self._relayed -= os.splice(self._relay_read, self._fd, self._relayed, flags=os.SPLICE_F_NONBLOCK)
        return True

    def _discard(self) -> None:
        """Free the memory of what the child has read."""
        assert self._file is not None
        end = (self._position - unread_bytes(self._relay_write)) // _PAGE * _PAGE
        if end > self._discarded:
            punch_hole(self._file, self._discarded, end - self._discarded)
            self._discarded = end

    def _break(self) -> None:
        """Nothing can be delivered any more. A new server need not try."""
        if self._broken:
            return
        self._broken = True
        if self._position - self._discarded >= _PAGE:
            self._discard()
        if self._file is not None and self._queued:
            # The position first: from then on there is nothing to deliver, whatever a new server finds here.
            os.lseek(self._file, self._end, os.SEEK_SET)
            os.ftruncate(self._file, self._position)
            os.ftruncate(self._file, self._end)
            self._budget.held -= self._queued
            self._position = self._end
        if self._relayed:
            os.read(self._relay_read, self._relayed)
            self._relayed = 0

    def _tell_delivered(self) -> None:
        if self._when_delivered is not None and not self._undelivered:
            close, self._when_delivered = self._when_delivered, None
            self.closed = True
            self._close_file()
            close()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _wait(self, wanted: bool) -> None:
        if wanted != self._waiting:
            self._waiting = wanted
            self._want_writable(wanted)

    def _wake(self) -> None:
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)


def _append(file: int, data: bytes, at: int) -> None:
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(file, memoryview(data)[written:] if written else data, at + written)
    except OSError:
        os.ftruncate(file, at)
        raise

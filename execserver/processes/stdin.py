"""Writing to a child's standard input without ever waiting for it."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

QUEUE_BYTES = 64 << 20
"""Bytes queued for a child before the answer to a further write waits: the answer is what paces a
client."""

DAEMON_QUEUE_BYTES = 256 << 20
"""Bytes queued for all children together, above which only a short queue still takes more."""

SHORT_QUEUE_BYTES = 1 << 20


class InputBudget:
    """Bytes of input queued for all children of the daemon."""

    def __init__(self) -> None:
        self.held = 0


class StdinWriter:
    """The queue in front of one non-blocking descriptor, which belongs to the process.

    `accepted` on the wire means queued here. A child that closed its input swallows what
    follows, as a pipe to a finished program does.

    Args:
        fd: a pipe, or the master of a terminal.
        budget: what all writers share.
        want_writable: called with True when `flush` is to be called once the descriptor takes
            more, and with False when it need not.
    """

    def __init__(self, fd: int, budget: InputBudget, want_writable: Callable[[bool], None]) -> None:
        self._fd = fd
        self._budget = budget
        self._want_writable = want_writable
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._waiting = False
        self._broken = False
        self._room: deque[asyncio.Future[None]] = deque()
        self.closed = False

    @property
    def full(self) -> bool:
        """Whether a further write should wait for room."""
        return self._queued > QUEUE_BYTES or (
            self._queued > SHORT_QUEUE_BYTES and self._budget.held > DAEMON_QUEUE_BYTES
        )

    @property
    def waiting(self) -> bool:
        """Whether something is queued that the descriptor did not take."""
        return self._waiting

    async def wait_for_room(self) -> None:
        """Wait until the queue is short again, or the child is gone."""
        while self.full and not self.closed:
            room = asyncio.get_running_loop().create_future()
            self._room.append(room)
            await room

    def write(self, data: bytes) -> None:
        """Queue bytes; what the child can take goes out at once."""
        if self._broken or not data:
            return
        self._queue.append(memoryview(data))
        self._queued += len(data)
        self._budget.held += len(data)
        if not self._waiting:
            self.flush()

    def flush(self) -> None:
        """Write what the child takes now."""
        try:
            while self._queue:
                head = self._queue[0]
                written = os.write(self._fd, head)
                self._queued -= written
                self._budget.held -= written
                if written < len(head):
                    self._queue[0] = head[written:]
                else:
                    self._queue.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._break()
        self._wait(bool(self._queue))
        if not self.full:
            self._wake()

    def close(self) -> None:
        """The child is gone: drop what is queued, let every writer go on."""
        self.closed = True
        self._break()
        self._wait(False)
        self._wake()

    def _break(self) -> None:
        self._broken = True
        self._queue.clear()
        self._budget.held -= self._queued
        self._queued = 0

    def _wait(self, wanted: bool) -> None:
        if wanted != self._waiting:
            self._waiting = wanted
            self._want_writable(wanted)

    def _wake(self) -> None:
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)

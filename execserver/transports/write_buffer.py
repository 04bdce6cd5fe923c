"""The write buffer of a connection: outgoing bytes until the kernel takes them.

Rules kept in this file:

1. No call blocks. A write is tried at once; bytes that the kernel refuses wait until the descriptor is
   writable.
2. Everything put in one turn of the loop leaves in one system call at the end of that turn. After a read with
   many messages, though, the first answers leave while the others are made: the first 4 KiB, the next 8, and
   so on. So the peer works meanwhile, and the system calls stay few.
3. Small parts are joined; large parts go to `writev` uncopied.
4. While a stream is open, messages wait behind it, in order; control frames do not.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from execserver.telemetry.measures import measures

LOW_WATER_BYTES = 64 << 10
"""Below this, `drained` is called and a stream continues. About one full pipe: the peer can read while the
next piece is made."""

JOINED_BELOW_BYTES = 16 << 10
"""Parts below this are copied into one piece: a copy is cheaper than an entry of `writev`."""

EARLY_BYTES = 4 << 10
"""The bytes of answers after which the first are written before the last message of the read is served."""

IOV_MAX = os.sysconf("SC_IOV_MAX")

Buffer = bytes | memoryview


class WriteBuffer:
    """The outgoing side of one connection, on one non-blocking descriptor.

    `drained()` is called when the waiting bytes fall below the low-water mark after they were above it,
    `failed(error)` when a write to the descriptor has failed.
    """

    __slots__ = (
        "_ahead", "_backlog", "_behind", "_behind_bytes", "_closed", "_corked", "_drained", "_early",
        "_failed", "_fd", "_large", "_loop", "_queue", "_scheduled", "_stream_open", "_waiters",
        "_waits_for_room", "_was_above", "progress",
    )  # fmt: skip

    def __init__(
        self,
        fd: int,
        drained: Callable[[], None],
        failed: Callable[[OSError], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._fd = fd
        self._drained = drained
        self._failed = failed
        self._loop = loop
        self._queue: list[Buffer] = []  # put in this turn
        self._large = False  # whether the queue holds a part that is not worth joining
        self._backlog: deque[Buffer] = deque()  # tried, refused by the kernel
        self._behind: list[Buffer] = []  # messages put while a stream is open
        self._ahead = 0  # bytes in queue and backlog
        self._behind_bytes = 0
        self._was_above = False
        self._stream_open = False
        self._early = EARLY_BYTES  # how much must wait for the next early write
        self._scheduled = self._corked = self._closed = False
        self._waits_for_room = False  # whether the loop watches the descriptor
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.progress = 0
        """Bytes that the kernel has taken so far."""

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._ahead + self._behind_bytes

    def put(self, parts: Iterable[Buffer], size: int) -> None:
        """Queue a whole message of `size` bytes, behind the open stream if there is one."""
        if self._stream_open and not self._closed:
            self._behind.extend(parts)
            self._behind_bytes += size
            if self.unsent >= LOW_WATER_BYTES:
                self._was_above = True
            return
        self.put_now(parts, size)

    def put_now(self, parts: Iterable[Buffer], size: int) -> None:
        """Queue bytes of the open stream itself, or a control frame, which do not wait behind the stream."""
        if self._closed or not size:
            return
        self._queue.extend(parts)
        self._ahead += size
        if size >= JOINED_BELOW_BYTES:
            self._large = True
        if self._ahead + self._behind_bytes >= LOW_WATER_BYTES:
            self._was_above = True
        if self._corked:
            if self._ahead >= self._early and not (self._large or self._was_above or self._backlog):
                self._early *= 2
                self._write_early()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn_ended)

    def cork(self) -> None:
        """Collect answers until `uncork`, while the messages of one read are served; some leave early (rule
        2).
        """
        self._corked = True
        self._early = EARLY_BYTES

    def uncork(self) -> None:
        """Write the bytes that were put since `cork`."""
        self._corked = False
        self.flush()

    def flush(self) -> None:
        """Offer the bytes of this turn to the kernel now."""
        if self._queue:
            self._flush()

    def open_stream(self) -> None:
        """Make messages wait until `close_stream`."""
        assert not self._stream_open, "one stream at a time"
        self._stream_open = True

    def close_stream(self) -> None:
        """Queue the messages that waited."""
        self._stream_open = False
        behind, size = self._behind, self._behind_bytes
        self._behind, self._behind_bytes = [], 0
        if behind:
            self._large = True
            self.put_now(behind, size)

    async def below(self, mark: int) -> None:
        """Wait until fewer than `mark` bytes are unsent, not counting those behind an open stream.

        Raises:
            ConnectionResetError: the write buffer is closed.
        """
        if not self._closed and self._ahead >= mark:
            waiter = self._loop.create_future()
            self._waiters.append((mark, waiter))
            try:
                await waiter
            finally:
                self._waiters = [entry for entry in self._waiters if entry[1] is not waiter]
        if self._closed:
            raise ConnectionResetError("the connection is gone")

    def close(self) -> None:
        """Drop the unsent bytes and stop using the descriptor, which stays open (idempotent)."""
        if self._closed:
            return
        self._closed = True
        self._watch(False)
        self._queue, self._behind = [], []
        self._backlog.clear()
        self._ahead = self._behind_bytes = 0
        self._wake_waiters()

    def _turn_ended(self) -> None:
        self._scheduled = False
        if self._queue and not self._corked:
            self._flush()

    def _flush(self) -> None:
        pieces = self._queue
        self._queue = []
        if not self._large:
            self._backlog.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        else:
            self._large = False
            self._backlog.extend(join_small(pieces))
        if not self._waits_for_room:
            self._write()

    def _write_early(self) -> None:
        """Offer the first answers to the kernel. The write at the end of the read reports a failure;
        `drained` is not due, because the buffer was not above the low-water mark.
        """
        data = b"".join(self._queue)
        try:
            taken = os.write(self._fd, data)
        except OSError:
            return
        self._queue = [] if taken == len(data) else [memoryview(data)[taken:]]
        self._ahead -= taken
        self.progress += taken
        measures.sent(taken)
        if self._waiters:
            self._wake_waiters()

    def _watch(self, wanted: bool) -> None:
        if wanted == self._waits_for_room:
            return
        self._waits_for_room = wanted
        if wanted:
            self._loop.add_writer(self._fd, self._write)
        else:
            self._loop.remove_writer(self._fd)

    def _write(self) -> None:
        """Write as much as the kernel takes; the rest waits until the descriptor is writable."""
        backlog = self._backlog
        before = self._ahead
        try:
            while backlog:
                if len(backlog) == 1:
                    offered = len(backlog[0])
                    taken = os.write(self._fd, backlog[0])
                else:
                    batch = list(islice(backlog, IOV_MAX))
                    offered = sum(map(len, batch))
                    taken = os.writev(self._fd, batch)
                self._ahead -= taken
                drop_front(backlog, taken)
                if taken < offered:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close()
            self._failed(error)
            return
        self.progress += before - self._ahead
        measures.sent(before - self._ahead)
        self._watch(bool(backlog))
        if self._waiters:
            self._wake_waiters()
        if self._was_above and self.unsent < LOW_WATER_BYTES:
            self._was_above = False
            self._drained()

    def _wake_waiters(self) -> None:
        for mark, waiter in self._waiters:
            if (self._closed or self._ahead < mark) and not waiter.done():
                waiter.set_result(None)


def join_small(pieces: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: small neighbours are joined, large ones stay."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if not piece:
            continue
        if len(piece) < JOINED_BELOW_BYTES:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined


def drop_front(buffers: deque[Buffer], count: int) -> None:
    """Remove the first `count` bytes."""
    while count:
        first = buffers[0]
        if len(first) > count:
            buffers[0] = memoryview(first)[count:]
            return
        buffers.popleft()
        count -= len(first)

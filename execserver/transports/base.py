"""The common part of all transports: one connection over non-blocking descriptors.

A channel is *open* until the peer or the server ends it, which the handler learns once. After an end of
input, unsent bytes may still leave for a moment (*lingering*); after `abort` they may not. Then the
descriptors are *released*.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from execserver.busy_poll import BusyPoll
from execserver.rpc.channel import Channel, MessageHandler, MessageStream
from execserver.sessions.access import PeerProof
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import TransportKind, measures
from execserver.transports.write_buffer import LOW_WATER_BYTES, WriteBuffer

LINGER_SECONDS = 1.0
"""How long replies may still leave after the peer has ended its side: it may still read."""

READ_BYTES, BULK_READ_BYTES = 64 << 10, 1 << 20
"""The size of one read. Small, because a large fresh buffer costs 20 us and other connections wait while its
content is parsed, even if it is empty lines; large in the middle of a large message."""

MakeHandler = Callable[[Channel], MessageHandler]
Got = TypeVar("Got")

log = Logger()


class BaseChannel:
    """The base of the channels; `execserver.rpc.channel.Channel` is their interface.

    Args:
        fd_in, fd_out: non-blocking descriptors, possibly the same.
        release: returns the descriptors to their owner; called once, when the channel no longer uses them.
    """

    kind: TransportKind
    peer_proof: PeerProof | None = None
    key_fingerprint: str | None = None
    parse_error_prefix: str
    max_reply_bytes: int | None = None
    utf8_is_fatal = False
    presumes_json_rpc = False

    def __init__(self, fd_in: int, fd_out: int, peer: str, release: Callable[[], None]) -> None:
        self.peer = peer
        self._fd_in = fd_in
        self._failure = select.poll()
        self._failure.register(fd_in, 0)
        self._loop = asyncio.get_running_loop()
        self._write_buffer = WriteBuffer(fd_out, self._drained, self._failed, self._loop)
        self._busy_poll = BusyPoll(self._loop)
        self._messages = 0  # read so far
        self._release_descriptors = release
        self._handler: MessageHandler
        self._over = False  # ended; the handler has been called or will be in this turn
        self._released = False
        self._paused = False
        self._watched = False
        self._framing_broken = False  # further messages cannot be separated
        self._lingering: asyncio.Task[None] | None = None

    def start(self, make_handler: MakeHandler) -> None:
        """Make the handler and begin to read."""
        measures.connection_opened(self.kind)
        self._handler = make_handler(self)
        self._watch(not self._paused)

    @property
    def ended(self) -> bool:
        """Whether the connection has ended and delivers no more."""
        return self._over

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the kernel has not taken yet."""
        return self._write_buffer.unsent

    @property
    def progress(self) -> int:
        """Bytes that the kernel has taken so far."""
        return self._write_buffer.progress

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue one message."""
        raise NotImplementedError

    def read_now(self) -> None:
        """Send what is queued and read what has arrived, without waiting for the loop."""
        self._write_buffer.flush()
        if self._watched:
            self._readable()

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces come later."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Deliver no further messages after the current batch."""
        self._paused = True
        self._watch(False)

    def resume_reading(self) -> None:
        """Deliver again."""
        self._paused = False
        self._watch(True)

    def finish(self) -> None:
        """Read no more, and end once the peer has taken what is queued, or a second later."""
        self._end_of_input()

    def probe(self, timeout: float) -> None:
        """Do nothing: the kernel reports a dead peer."""

    def abort(self) -> None:
        """Drop the connection now. Messages of this turn are offered to the kernel once, so that the answers
        before a fatal message leave; the rest is dropped.
        """
        self._end()
        self._write_buffer.flush()
        self._release()

    async def flush(self, seconds: float) -> bool:
        """Wait for at most `seconds` until the peer has taken what is queued; return whether it has."""
        try:
            async with asyncio.timeout(seconds):
                await self._write_buffer.below(1)
        except (TimeoutError, ConnectionResetError):
            return False
        return True

    def _read_event(self) -> None:
        """Read once. A peer that closes before it has read everything leaves an error behind what it has
        sent. With an error libuv ends the watch: the rest would never be read, and the end not noticed.
        """
        self._readable()
        if self._watched and self._has_failed():
            self._watch(False)
            self._watch(True)

    def _has_failed(self) -> bool:
        try:
            return bool(self._failure.poll(0))
        except OSError:
            return True  # the limit of descriptors is 0 by now; another watch does no harm

    def _readable(self) -> None:
        """Read once and serve the messages."""
        raise NotImplementedError

    def _serve(self, deliver: Callable[[Got], None], got: Got) -> None:
        """Deliver the messages of one read; their answers leave in one write."""
        began, messages = perf_counter(), self._messages
        self._write_buffer.cork()
        try:
            deliver(got)
            if not self._over:
                self._handler.batch_ended()
        finally:
            self._write_buffer.uncork()
        if self._messages == messages + 1:
            self._busy_poll.served(began)

    def _end_of_input(self) -> None:
        """The peer sends no more, or the server reads no more: end, but send what is queued."""
        if self._over:
            return
        self._end()
        if self._write_buffer.unsent:
            self._lingering = self._loop.create_task(self._linger())
        else:
            self._release()

    def _failed(self, error: OSError) -> None:
        """A descriptor failed, most often because the peer is gone."""
        if not self._over:
            log.debug("connection lost", peer=self.peer, error=str(error))
        self.abort()

    def _drained(self) -> None:
        if not self._over:
            self._handler.drained()

    def _watch(self, wanted: bool) -> None:
        wanted = wanted and not self._over and not self._framing_broken
        if wanted == self._watched:
            return
        self._watched = wanted
        if wanted:
            self._loop.add_reader(self._fd_in, self._read_event)
        else:
            self._loop.remove_reader(self._fd_in)

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        measures.connection_closed(self.kind)
        self._watch(False)
        self._loop.call_soon(self._handler.connection_lost)

    async def _linger(self) -> None:
        await self.flush(LINGER_SECONDS)
        self._release()

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        self._write_buffer.close()
        self._release_descriptors()


class QueuedStream:
    """One message that is sent in pieces; `frame` puts a piece into the transport's framing."""

    def __init__(
        self, write_buffer: WriteBuffer, frame: Callable[[bytes, bool], Sequence[bytes | memoryview]]
    ) -> None:
        self._write_buffer = write_buffer
        self._frame = frame
        write_buffer.open_stream()

    async def write(self, piece: bytes) -> None:
        """Queue a piece and wait until the peer has taken most of what is queued.

        Raises:
            ConnectionResetError: the connection is gone.
        """
        self._put(piece, last=False)
        await self._write_buffer.below(LOW_WATER_BYTES)

    def put(self, piece: bytes) -> None:
        """Queue a small piece."""
        self._put(piece, last=False)

    async def close(self, tail: bytes) -> None:
        """Queue the last piece and release the messages behind this one."""
        self._put(tail, last=True)
        self._write_buffer.close_stream()

    def _put(self, piece: bytes, last: bool) -> None:
        parts = self._frame(piece, last)
        self._write_buffer.put_now(parts, sum(map(len, parts)))

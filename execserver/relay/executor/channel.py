"""One client's connection through the relay: a sealed stream as a channel of `rpc`.

1. A channel asks its multiplexer for turns and never sends by itself: a stream with much to send delays the
   others by one record.
2. Records that arrive while reading is paused are kept as they came. One stream of a socket cannot be slowed
   down, so a stream with more than `MAX_HELD_BYTES` of them is reset.
3. A fault in what a stream received ends this stream, and no other one.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from execprotocol.limits import MAX_WEBSOCKET_REPLY_BYTES
from execprotocol.relay import frames
from execprotocol.relay.noise import NoiseTransport
from execprotocol.relay.records import MessageAssembler
from execprotocol.relay.sealed_stream import SealedStream, StreamBroken
from execserver.rpc.channel import Channel, MessageHandler, MessageStream
from execserver.sessions.access import PeerProof
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import TransportKind, measures

LOW_WATER_BYTES = 64 << 10
"""`drained` is called, and a streamed message goes on, when fewer bytes are unsent: about a record."""

MAX_HELD_BYTES = 128 << 20
"""Limit of one client's unread records: two of the largest messages. A connection stops reading while it
works on one."""

HELD_OVERHEAD_BYTES = 512
"""Counted for each unread record besides its bytes: the WebSocket message and the objects around it. Without
it, a megabyte of the smallest records would take twenty."""

SERVED_PER_TURN = 16
"""Kept records that one turn of the loop serves after `resume_reading`: a megabyte."""

LINGER_SECONDS = 1.0
"""How long replies may still leave after `finish`."""

CLOSED = "executor_closed"
"""The reason of the reset at the end of a connection that the client did not break."""

BLANKS = b" " * LOW_WATER_BYTES

SHOWN_CHARACTERS = 8
"""Of stream ids and fingerprints in logs: enough to tell them apart."""

log = Logger()


class StreamOwner(Protocol):
    """The multiplexer, as a channel uses it (`multiplexer.py`)."""

    held: int
    """Bytes of unread records of all streams."""

    def wants_turn(self, channel: RelayChannel) -> None:
        """The channel has data to send."""

    def send_now(self, channel: RelayChannel) -> None:
        """Send the channel's data, as far as the socket has room at this moment."""

    def leave(self, channel: RelayChannel, reason: str) -> None:
        """The stream has ended. Reset it, unless the reason is empty: then the client knows."""

    def has_newer(self, channel: RelayChannel) -> bool:
        """Whether the same client has opened another stream since."""

    def may_hold(self, size: int) -> bool:
        """Whether that many more bytes may be kept unread."""


class RelayChannel:
    """A stream whose handshake is done. `execserver.rpc.channel.Channel` describes the interface.

    Args:
        owner: sends and receives for the channel.
        stream_id: the stream's name on the socket.
        transport: the stream's keys.
        fingerprint: of the client's key.
    """

    kind: TransportKind = "relay"
    peer_proof: PeerProof | None = None
    """Always None: a registry vouches neither for the daemon's user nor for the daemon's own credentials."""
    parse_error_prefix = "failed to parse JSON-RPC message from exec-server relay: "
    max_reply_bytes: int | None = MAX_WEBSOCKET_REPLY_BYTES
    utf8_is_fatal = False
    presumes_json_rpc = False

    def __init__(
        self, owner: StreamOwner, stream_id: str, transport: NoiseTransport, fingerprint: str
    ) -> None:
        self.peer = f"relay:{stream_id[:SHOWN_CHARACTERS]}:{fingerprint[:SHOWN_CHARACTERS]}"
        self.stream_id = stream_id
        self.key_fingerprint: str | None = fingerprint
        self.has_turn = False
        """Set by the multiplexer while the channel waits for its turn."""
        self._owner = owner
        self._stream = SealedStream(stream_id, MessageAssembler(self._deliver).feed, transport)
        self.next_frame = self._stream.next_frame
        """For the multiplexer, which calls `broken` if it raises `StreamBroken`."""
        self._loop = asyncio.get_running_loop()
        self._handler: MessageHandler
        # Sending.
        self._queue = self._stream.outgoing
        self._was_above = False
        self._streaming = False
        self._behind: list[Sequence[bytes]] = []  # messages that wait for the end of the streamed one
        self._behind_bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        # Receiving.
        self._paused = False
        self._heard = self._loop.time()
        self._held: deque[tuple[int, memoryview | bytes]] = deque()
        self._held_bytes = 0
        # The end.
        self._over = False
        self._left = False
        self._linger: asyncio.TimerHandle | None = None

    def start(self, make_handler: Callable[[Channel], MessageHandler]) -> None:
        """Make the handler. Messages may be delivered from now on."""
        measures.connection_opened(self.kind)
        self._handler = make_handler(self)

    # -- rpc/channel.py: Channel

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the socket has not taken yet."""
        return self._queue.unsent + self._behind_bytes

    @property
    def progress(self) -> int:
        """Bytes that the socket has taken so far."""
        return self._stream.sent_bytes

    @property
    def ended(self) -> bool:
        """Whether nothing more is delivered."""
        return self._over

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue one message."""
        if self._over:
            return
        if self._streaming:
            self._behind.append(parts)
            self._behind_bytes += sum(map(len, parts))
        else:
            self._queue.put(parts)
            self._owner.wants_turn(self)
        if self.unsent >= LOW_WATER_BYTES:
            self._was_above = True

    def read_now(self) -> None:
        """A no-op: all clients of the relay share the socket."""

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces come later."""
        assert not self._streaming, "one stream at a time"
        self._streaming = True
        self._queue.put_head(size)
        return _MessageStream(self, size)

    def pause_reading(self) -> None:
        """Deliver no further messages after those of the current record."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver messages again, those of kept records first."""
        if self._paused:
            self._paused = False
            if self._held:
                self._loop.call_soon(self._serve_held)

    def probe(self, timeout: float) -> None:
        """Drop the connection if it has been silent for `timeout` seconds and its client has opened a newer
        one. A dead client without a newer stream is found by the relay's pings. Silence alone is no reason: a
        second program with the same key, which only asks for a session, must not end the first one's.
        """
        silent = self._loop.time() - self._heard >= timeout
        if silent and not self._over and self._owner.has_newer(self):
            log.debug("peer is elsewhere", peer=self.peer)
            self.abort()

    def finish(self) -> None:
        """Read nothing more, and end once the socket has taken what is queued, or a second later."""
        if self._over:
            return
        self._end()
        if self._queue.unsent:
            self._linger = self._loop.call_later(LINGER_SECONDS, self._leave, CLOSED)
        else:
            self._leave(CLOSED)

    def abort(self) -> None:
        """Drop the connection now. Queued data is offered to the socket once; the rest is dropped."""
        if not self._over:
            self._owner.send_now(self)
        self._end()
        self._leave(CLOSED)

    # -- called by the multiplexer

    def record_received(self, seq: int, sealed: memoryview | bytes) -> None:
        """Process a data frame."""
        measures.received(len(sealed))
        self._heard = self._loop.time()
        if self._over:
            return
        if not (self._paused or self._held):
            self._serve(seq, sealed)
            return
        size = len(sealed) + HELD_OVERHEAD_BYTES
        if self._held_bytes + size > MAX_HELD_BYTES or not self._owner.may_hold(size):
            self.broken(
                StreamBroken(f"too much was sent while nothing was read ({self._held_bytes} bytes wait)")
            )
        else:
            self._held.append((seq, sealed))
            self._hold(size)

    def frame_sent(self) -> bool:
        """Wake what waited until the frame from `next_frame` was sent. Returns whether more is queued."""
        if self._queue.unsent < LOW_WATER_BYTES and self._waiters:
            self._wake_waiters()
        if self._was_above and self.unsent < LOW_WATER_BYTES:
            self._was_above = False
            if not self._over:
                self._handler.drained()
        if self._queue.unsent:
            return True
        if self._over:
            self._leave(CLOSED)
        return False

    def broken(self, error: StreamBroken) -> None:
        """Reset the stream because of a fault."""
        if not self._over:
            log.warning("relay stream broken", peer=self.peer, reason=str(error))
        self._end()
        self._leave(frames.PROTOCOL_ERROR)

    def lost(self) -> None:
        """The client reset the stream, or the socket is lost."""
        self._end()
        self._leave("")

    # -- called by the streamed message

    async def put_piece(self, piece: bytes) -> None:
        """Queue bytes of the streamed message, and wait until the socket has taken most of what is queued.

        Raises:
            ConnectionResetError: the connection is lost.
        """
        self._put_raw(piece)
        if not self._over and self._queue.unsent >= LOW_WATER_BYTES:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        if self._over:
            raise ConnectionResetError("the connection is lost")

    def end_stream(self, tail: bytes) -> None:
        """Queue the last bytes of the streamed message, then the messages that waited for its end."""
        self._put_raw(tail)
        self._streaming = False
        behind, self._behind, self._behind_bytes = self._behind, [], 0
        for parts in behind:
            self.send(parts)

    def _put_raw(self, piece: bytes) -> None:
        if self._over:
            return
        self._queue.put_raw(piece)
        if self.unsent >= LOW_WATER_BYTES:
            self._was_above = True
        self._owner.wants_turn(self)

    # -- receiving

    def _serve(self, seq: int, sealed: memoryview | bytes) -> None:
        try:
            self._stream.data_received(seq, sealed)
        except StreamBroken as error:
            self.broken(error)
            return
        if not self._over:
            self._handler.batch_ended()

    def _deliver(self, message: bytes | bytearray) -> None:
        if not self._over:
            self._handler.messages_received((message,))

    def _serve_held(self) -> None:
        for _ in range(SERVED_PER_TURN):
            if self._paused or not self._held:
                return
            seq, sealed = self._held.popleft()
            self._hold(-len(sealed) - HELD_OVERHEAD_BYTES)
            self._serve(seq, sealed)
        if self._held:
            self._loop.call_soon(self._serve_held)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._owner.held += size

    # -- the end

    def _end(self) -> None:
        """End the connection; what is queued may still leave."""
        if self._over:
            return
        self._over = True
        self._stream.stop_receiving()
        self._held.clear()
        self._hold(-self._held_bytes)
        self._wake_waiters()
        measures.connection_closed(self.kind)
        self._loop.call_soon(self._handler.connection_lost)

    def _leave(self, reason: str) -> None:
        if self._left:
            return
        self._left = True
        if self._linger is not None:
            self._linger.cancel()
        self._queue.clear()
        self._behind.clear()
        self._behind_bytes = 0
        self._owner.leave(self, reason)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _MessageStream:
    """One message in pieces, whose length was sent first. If the pieces have fewer bytes (the file shrank
    meanwhile), blanks follow, which JSON allows behind a value.
    """

    def __init__(self, channel: RelayChannel, size: int) -> None:
        self._channel = channel
        self._missing = size

    async def write(self, piece: bytes) -> None:
        """Queue a piece and wait until the socket has taken most of what is queued."""
        self._missing -= len(piece)
        await self._channel.put_piece(piece)

    async def close(self, tail: bytes) -> None:
        """Queue the last piece, fill up with blanks, and let other messages follow."""
        await self.write(tail)
        while self._missing > len(BLANKS):
            await self.write(BLANKS)
        self._channel.end_stream(BLANKS[: self._missing])

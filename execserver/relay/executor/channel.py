"""One client's connection through the relay: messages in sealed records, as a channel of `rpc`.

Rules kept in this file:

1. A record is sealed when the socket takes it, not when it is queued: the number of a record is its place
   on the wire, and what is dropped was never sealed.
2. This file asks its `Link` for turns and never sends by itself: a stream that has much to say delays the
   others by one record.
3. What the peer sends while nothing is read is kept as it came. There is no way to slow one stream of a
   socket, so that beyond `MAX_HELD_BYTES` the stream goes.
4. Any fault in what came ends this stream, and no other one.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from execprotocol.limits import MAX_WEBSOCKET_REPLY_BYTES
from execprotocol.relay import frames
from execprotocol.relay.noise import NoiseError, Transport
from execprotocol.relay.records import MessageAssembler, RecordError, RecordQueue, Reorder
from execserver.rpc.channel import Channel, MessageHandler, MessageStream
from execserver.sessions.access import PeerProof
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import TransportKind, measures

LOW_WATER_BYTES = 64 << 10
"""`drained` is called, and a stream goes on, when less than this waits: about a record."""

MAX_HELD_BYTES = 128 << 20
"""Kept of one client while nothing is read of it: two of the largest messages. Connections stop reading
while they work on one."""

HELD_OVERHEAD_BYTES = 512
"""What keeping a record costs besides its bytes: the message that it came in and the objects around it. A
megabyte of the smallest records would else be twenty."""

SERVED_PER_TURN = 16
"""Kept records that one turn of the loop serves, once they are read again: a megabyte."""

LINGER_SECONDS = 1.0
"""How long replies may still leave after `finish`."""

CLOSED = "executor_closed"
"""The reason of the reset at the end of a connection that is no fault of the peer's."""

BLANKS = b" " * LOW_WATER_BYTES

SHOWN_CHARACTERS = 8
"""Of stream ids and fingerprints in logs: enough to tell them apart."""

log = Logger()


class Carrier(Protocol):
    """The socket's side, as a stream sees it (`multiplexer.py`)."""

    held: int
    """Bytes that all streams keep unread."""

    def wants_turn(self, channel: RelayChannel) -> None:
        """It has something to send."""

    def send_now(self, channel: RelayChannel) -> None:
        """Send what it has, as far as there is room this very moment."""

    def leave(self, channel: RelayChannel, reason: str) -> None:
        """The stream is over for good; tell the peer, unless the reason is empty (it told us)."""

    def has_newer(self, channel: RelayChannel) -> bool:
        """Whether the same client has opened another stream since."""

    def may_hold(self, size: int) -> bool:
        """Whether so many more bytes may be kept unread."""


class RelayChannel:
    """A stream whose handshake is done; `execserver.rpc.channel.Channel` says what callers see.

    Args:
        carrier: what sends and receives for it.
        stream_id: its name on the socket.
        transport: seals and opens.
        fingerprint: of the client's key.
    """

    kind: TransportKind = "relay"
    peer_proof: PeerProof | None = None
    """Nobody's: a registry's word is none of the daemon's user or of credentials of ours."""
    parse_error_prefix = "failed to parse JSON-RPC message from exec-server relay: "
    max_reply_bytes: int | None = MAX_WEBSOCKET_REPLY_BYTES
    utf8_is_fatal = False
    presumes_json_rpc = False

    def __init__(self, carrier: Carrier, stream_id: str, transport: Transport, fingerprint: str) -> None:
        self.peer = f"relay:{stream_id[:SHOWN_CHARACTERS]}:{fingerprint[:SHOWN_CHARACTERS]}"
        self.stream_id = stream_id
        self.fingerprint = fingerprint
        self.progress = 0
        self.has_turn = False
        """The carrier's note: it waits for its turn."""
        self._carrier = carrier
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._handler: MessageHandler
        # What goes out.
        self._queue = RecordQueue()
        self._next_seq = 0
        self._was_above = False
        self._streaming = False
        self._behind: list[Sequence[bytes]] = []  # messages that wait for the open stream's end
        self._behind_bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        # What comes in.
        self._assembler: MessageAssembler | None = MessageAssembler(self._deliver)
        self._reorder = Reorder()
        self._paused = False
        self._heard = self._loop.time()
        self._held: deque[tuple[int, memoryview | bytes]] = deque()
        self._held_bytes = 0
        # The end.
        self._over = False
        self._left = False
        self._linger: asyncio.TimerHandle | None = None

    def start(self, make_handler: Callable[[Channel], MessageHandler]) -> None:
        """Make the handler; the carrier delivers from now on."""
        measures.connection_opened(self.kind)
        self._handler = make_handler(self)

    # -- rpc/channel.py: Channel

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the socket has not taken yet."""
        return self._queue.unsent + self._behind_bytes

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
            self._carrier.wants_turn(self)
        if self.unsent >= LOW_WATER_BYTES:
            self._was_above = True

    def read_now(self) -> None:
        """A no-op: the socket belongs to all clients of the relay."""

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces come later."""
        assert not self._streaming, "one stream at a time"
        self._streaming = True
        self._queue.put_head(size)
        return _Stream(self, size)

    def pause_reading(self) -> None:
        """Deliver no further messages after the current record's."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver again, what was kept first."""
        if self._paused:
            self._paused = False
            if self._held:
                self._loop.call_soon(self._serve_held)

    def probe(self, timeout: float) -> None:
        """Drop the connection if its client has opened another one since and is silent here for so long: it
        lives there. Otherwise nothing: the relay pings, and tells us of dead peers. And a second program with
        the same key, which only asks for a session, must not take it from the one that works with it.
        """
        silent = self._loop.time() - self._heard >= timeout
        if silent and not self._over and self._carrier.has_newer(self):
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
        """Drop the connection now. What was sent in this very turn is offered to the socket once, the rest
        is dropped.
        """
        if not self._over:
            self._carrier.send_now(self)
        self._end()
        self._leave(CLOSED)

    # -- what the carrier calls

    def record_received(self, seq: int, sealed: memoryview | bytes) -> None:
        """A data frame came."""
        measures.received(len(sealed))
        self._heard = self._loop.time()
        if self._over:
            return
        if not (self._paused or self._held):
            self._serve(seq, sealed)
            return
        size = len(sealed) + HELD_OVERHEAD_BYTES
        if self._held_bytes + size > MAX_HELD_BYTES or not self._carrier.may_hold(size):
            self._fail(f"more than it may was sent while nothing was read ({self._held_bytes} bytes wait)")
        else:
            self._held.append((seq, sealed))
            self._hold(size)

    def next_frame(self) -> bytes | None:
        """The next frame to send, sealed just now; None when there is nothing to say."""
        record = self._queue.take()
        if record is None:
            return None
        try:
            sealed = self._transport.seal(record)
        except NoiseError as error:
            self._fail(str(error))
            return None
        frame = frames.data(self.stream_id, self._next_seq, sealed)
        self._next_seq += 1
        self.progress += len(record)
        return frame

    def frame_sent(self) -> bool:
        """What `next_frame` gave has gone: go on with what waited for that. Whether there is more to send."""
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

    def lost(self) -> None:
        """The peer reset the stream, or the socket is gone."""
        self._end()
        self._leave("")

    # -- what the open stream calls

    async def put_piece(self, piece: bytes) -> None:
        """Queue bytes of the open stream, and wait until the socket has taken most of what is queued.

        Raises:
            ConnectionResetError: the connection is gone.
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
            raise ConnectionResetError("the connection is gone")

    def end_stream(self, tail: bytes) -> None:
        """Queue the last bytes of the open stream, and let the messages pass that waited."""
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
        self._carrier.wants_turn(self)

    # -- what comes in

    def _serve(self, seq: int, sealed: memoryview | bytes) -> None:
        try:
            for record in self._reorder.accept(seq, sealed):
                assert self._assembler is not None, "nothing is read after the end"
                self._assembler.feed(self._transport.open(record))
                if self._over:
                    return
        except (NoiseError, RecordError) as error:
            self._fail(str(error))
            return
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
        self._carrier.held += size

    # -- the end

    def _fail(self, reason: str) -> None:
        if not self._over:
            log.warning("relay stream broken", peer=self.peer, reason=reason)
        self._end()
        self._leave(frames.PROTOCOL_ERROR)

    def _end(self) -> None:
        """The connection is over; what is queued may still leave."""
        if self._over:
            return
        self._over = True
        # Half of a message may be 64 MiB, and this object lives on in cycles for a while.
        self._assembler = None
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
        self._carrier.leave(self, reason)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Stream:
    """One message in pieces whose length was said before. What the pieces lack in the end (the file shrank
    meanwhile) is made up for by blanks, which JSON allows behind a value.
    """

    def __init__(self, channel: RelayChannel, size: int) -> None:
        self._channel = channel
        self._missing = size

    async def write(self, piece: bytes) -> None:
        """Queue a piece and wait until the peer has taken most of what is queued."""
        self._missing -= len(piece)
        await self._channel.put_piece(piece)

    async def close(self, tail: bytes) -> None:
        """Queue the last piece, fill up, and let other messages pass."""
        await self.write(tail)
        while self._missing > len(BLANKS):
            await self.write(BLANKS)
        self._channel.end_stream(BLANKS[: self._missing])

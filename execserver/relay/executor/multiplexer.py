"""One socket to the relay and its streams: dispatch of received frames, and turns for sending.

1. A fault in a stream resets that stream; the socket and the other streams go on.
2. Streams send in turns, a record each, and only while the socket has room. So a small answer waits for one
   record of every other stream and for the bytes in the socket, however much the others have queued.
3. A frame of an unknown stream is answered with a reset, unless the socket has `MAX_QUEUED_RESETS` unsent.
4. Streams, concurrent handshakes and unread bytes are limited.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from execprotocol.relay import frames
from execprotocol.relay.dial import FrameSocket
from execprotocol.relay.frames import Frame, FrameError
from execprotocol.relay.sealed_stream import StreamBroken
from execserver.relay.executor.admission import ClientAdmission, NotAdmitted
from execserver.relay.executor.channel import SHOWN_CHARACTERS, RelayChannel
from execserver.rpc.channel import Channel, MessageHandler
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

MAX_STREAMS = 128
"""As the stock executor."""

MAX_HANDSHAKES = 32
"""Concurrent validations by the registry, as in the stock executor. Further handshakes wait: after a restart
of the relay all clients come at once."""

MAX_HELD_BYTES = 512 << 20
"""Limit of unread bytes of all streams: four streams at their own limit."""

MAX_QUEUED_RESETS = 1 << 20
"""Unsent bytes of the socket above which frames of unknown streams are not answered."""

GOING_AWAY = 1001

log = Logger()


class Multiplexer:
    """The streams of one socket; a `dial.FrameListener`.

    Args:
        admission: decides on handshakes.
        make_handler: makes the handler of each stream.
        may_open: whether new streams are accepted now.
    """

    def __init__(
        self,
        admission: ClientAdmission,
        make_handler: Callable[[Channel], MessageHandler],
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._admission = admission
        self._make_handler = make_handler
        self._may_open = may_open
        self._loop = asyncio.get_running_loop()
        self._socket: FrameSocket
        self._streams: dict[str, RelayChannel] = {}  # in the order in which they were opened
        self._handshakes: dict[str, asyncio.Task[None]] = {}
        self._validations = asyncio.Semaphore(MAX_HANDSHAKES)
        self._turns: deque[RelayChannel] = deque()
        self._turn_scheduled = False
        self._closing = False
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """The reason for the end of the socket, once it has ended."""
        self.held = 0
        """Unread bytes of all streams."""

    def __len__(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def close_when_idle(self) -> None:
        """Accept no more streams, and close the socket after the last one (idempotent)."""
        self._closing = True
        for stream_id in tuple(self._handshakes):
            self._refuse(stream_id)
        self._close_if_idle()

    def abort(self) -> None:
        """Drop the socket and every stream now."""
        self._socket.abort()

    # -- dial.py: FrameListener

    def socket_opened(self, socket: FrameSocket) -> None:
        """The WebSocket is open."""
        self._socket = socket

    def frame_received(self, message: bytes) -> None:
        """Process a message. An undecodable one is dropped."""
        try:
            frame = frames.decode(message)
        except FrameError as error:
            log.debug("frame dropped", reason=str(error))
            return
        stream = self._streams.get(frame.stream_id)
        if frame.kind == "data":
            if stream is None:
                self._refuse(frame.stream_id)
            else:
                stream.record_received(frame.seq, frame.payload)
                if self._turns:
                    self._send_turns()  # answers leave without waiting for the next turn of the loop
        elif frame.kind == "handshake":
            self._handshake_received(stream, frame)
        elif frame.kind == "reset":
            self._reset_received(stream, frame)

    def room(self) -> None:
        """The socket has room again."""
        self._send_turns()

    def socket_lost(self, reason: str) -> None:
        """End every stream."""
        for task in self._handshakes.values():
            task.cancel()
        self._handshakes.clear()
        for stream in tuple(self._streams.values()):
            stream.lost()
        self._turns.clear()
        if not self.lost.done():
            self.lost.set_result(reason)

    # -- channel.py: StreamOwner

    def wants_turn(self, channel: RelayChannel) -> None:
        """Queue a turn for the end of this turn of the loop, so that messages share records."""
        if channel.has_turn:
            return
        channel.has_turn = True
        self._turns.append(channel)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn_ended)

    def send_now(self, channel: RelayChannel) -> None:
        """Send the channel's data, as far as the socket has room at this moment."""
        try:
            while not self._socket.is_full and (frame := channel.next_frame()) is not None:
                self._send(frame)
        except StreamBroken as error:
            channel.broken(error)

    def leave(self, channel: RelayChannel, reason: str) -> None:
        """Remove a stream that has ended."""
        if self._streams.get(channel.stream_id) is channel:
            del self._streams[channel.stream_id]
        if reason:
            self._send(frames.reset(channel.stream_id, reason))
        self._close_if_idle()

    def has_newer(self, channel: RelayChannel) -> bool:
        """Whether the same client has opened another stream since."""
        newest = next(
            (
                each
                for each in reversed(self._streams.values())
                if each.key_fingerprint == channel.key_fingerprint
            ),
            channel,
        )
        return newest is not channel

    def may_hold(self, size: int) -> bool:
        """Whether that many more bytes may be kept unread."""
        return self.held + size <= MAX_HELD_BYTES

    # -- sending

    def _turn_ended(self) -> None:
        self._turn_scheduled = False
        self._send_turns()

    def _send_turns(self) -> None:
        turns, socket = self._turns, self._socket
        while turns and not socket.is_full:
            channel = turns.popleft()
            try:
                frame = channel.next_frame()
            except StreamBroken as error:
                channel.broken(error)
                frame = None
            if frame is None:
                channel.has_turn = False
                continue
            self._send(frame)
            if channel.frame_sent():
                turns.append(channel)
            else:
                channel.has_turn = False

    def _send(self, frame: bytes) -> None:
        measures.sent(len(frame))
        self._socket.send(frame)

    # -- receiving

    def _reset_received(self, stream: RelayChannel | None, frame: Frame) -> None:
        handshake = self._handshakes.pop(frame.stream_id, None)
        if handshake is not None:
            handshake.cancel()
        if stream is not None:
            log.debug("relay stream reset", peer=stream.peer, reason=frame.reason)
            stream.lost()

    def _handshake_received(self, stream: RelayChannel | None, frame: Frame) -> None:
        if stream is not None:
            log.warning("relay stream broken", peer=stream.peer, reason="another handshake")
            stream.lost()
            self._refuse(frame.stream_id)
        elif (
            self._closing
            or not self._may_open()
            or frame.stream_id in self._handshakes
            or len(self._streams) + len(self._handshakes) >= MAX_STREAMS
            or self._admission.is_paused
        ):
            self._refuse(frame.stream_id)
        else:
            task = self._loop.create_task(self._shake_hands(frame.stream_id, frame.payload))
            self._handshakes[frame.stream_id] = task

    async def _shake_hands(self, stream_id: str, message: bytes | memoryview) -> None:
        try:
            async with self._validations:
                if self._admission.is_paused:  # since a moment ago
                    del self._handshakes[stream_id]
                    self._refuse(stream_id)
                    return
                admitted = await self._admission.admit(stream_id, message)
        except NotAdmitted as refused:
            log.warning("client refused", stream=stream_id[:SHOWN_CHARACTERS], reason=str(refused))
            measures.connection_refused("relay")
            del self._handshakes[stream_id]
            if refused.answer is None:
                self._refuse(stream_id)
            else:
                self._send(frames.handshake(stream_id, refused.answer))
            return
        except Exception as error:
            log.error("handshake failed", exc_info=error)
            del self._handshakes[stream_id]
            self._refuse(stream_id)
            return
        del self._handshakes[stream_id]
        channel = RelayChannel(self, stream_id, admitted.transport, admitted.fingerprint)
        self._streams[stream_id] = channel
        self._send(frames.handshake(stream_id, admitted.answer))
        channel.start(self._make_handler)

    def _refuse(self, stream_id: str) -> None:
        """Reset a stream id that is not open, and cancel its handshake."""
        handshake = self._handshakes.pop(stream_id, None)
        if handshake is not None:
            handshake.cancel()
        if self._socket.unsent < MAX_QUEUED_RESETS:
            self._send(frames.reset(stream_id, frames.PROTOCOL_ERROR))

    # -- the end

    def _close_if_idle(self) -> None:
        if self._closing and not self._streams and not self._handshakes:
            self._socket.close(GOING_AWAY, "the executor stops")

"""One socket to the relay and the streams on it: which frame goes to whom, and whose turn it is to send.

Rules kept in this file:

1. What is wrong with a stream ends that stream, by a reset; the socket and the other streams go on.
2. Streams send in turns, a record each, and only while the socket has room. So a small answer waits for a
   record of every other stream and for what the socket holds, however much those have to say.
3. What was never a stream gets a reset, but not at any price: beyond `MAX_QUEUED_RESETS` in the socket they
   are left out.
4. Everything counted here is bounded: streams, handshakes under way, bytes that are kept unread.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from execprotocol.relay import frames
from execprotocol.relay.dial import FrameSocket
from execprotocol.relay.frames import Frame, FrameError
from execserver.relay.executor.admission import ClientAdmission, NotAdmitted
from execserver.relay.executor.channel import SHOWN_CHARACTERS, RelayChannel
from execserver.rpc.channel import Channel, MessageHandler
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

MAX_STREAMS = 128
"""As the stock executor."""

MAX_HANDSHAKES = 32
"""Handshakes that wait for the registry at a time, as in the stock executor. Further ones wait for their
turn: all clients come at the same moment when their relay was started anew."""

MAX_HELD_BYTES = 512 << 20
"""Kept unread of all streams: four that send as much as they may."""

MAX_QUEUED_RESETS = 1 << 20
"""Unsent bytes of the socket above which frames without a stream are not answered."""

GOING_AWAY = 1001

log = Logger()


class Multiplexer:
    """What `dial` tells of a socket (`dial.FrameListener`), made into streams.

    Args:
        admission: decides on handshakes.
        make_handler: makes the handler of each stream.
        may_open: whether new streams are taken now.
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
        self._may_ask = asyncio.Semaphore(MAX_HANDSHAKES)
        self._turns: deque[RelayChannel] = deque()
        self._scheduled = False
        self._closing = False
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done at the end of the socket, with the reason."""
        self.held = 0
        """Bytes that all streams keep unread."""

    def __len__(self) -> int:
        """The streams that are open."""
        return len(self._streams)

    def close_when_idle(self) -> None:
        """Open no more streams, and close the socket behind the last one (idempotent)."""
        self._closing = True
        for stream_id in tuple(self._handshakes):
            self._refuse(stream_id)
        self._close_if_idle()

    def abort(self) -> None:
        """Drop the socket now, and with it every stream."""
        self._socket.abort()

    # -- dial.py: FrameListener

    def socket_opened(self, socket: FrameSocket) -> None:
        """The relay has agreed."""
        self._socket = socket

    def frame_received(self, message: bytes) -> None:
        """A message came. What is no frame is dropped."""
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
                    self._send_turns()  # the answers, without waiting for the loop's next turn
        elif frame.kind == "handshake":
            self._handshake_received(stream, frame)
        elif frame.kind == "reset":
            self._reset_received(stream, frame)

    def room(self) -> None:
        """The socket takes more."""
        self._send_turns()

    def socket_lost(self, reason: str) -> None:
        """Every stream is over."""
        for task in self._handshakes.values():
            task.cancel()
        self._handshakes.clear()
        for stream in tuple(self._streams.values()):
            stream.lost()
        self._turns.clear()
        if not self.lost.done():
            self.lost.set_result(reason)

    # -- stream_channel.py: Carrier

    def wants_turn(self, channel: RelayChannel) -> None:
        """It has something to send: at the end of this turn of the loop, so that messages share records."""
        if channel.has_turn:
            return
        channel.has_turn = True
        self._turns.append(channel)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn_ended)

    def send_now(self, channel: RelayChannel) -> None:
        """Send what it has, as far as there is room this very moment."""
        while not self._socket.is_full and (frame := channel.next_frame()) is not None:
            self._send(frame)

    def leave(self, channel: RelayChannel, reason: str) -> None:
        """The stream is over for good."""
        if self._streams.get(channel.stream_id) is channel:
            del self._streams[channel.stream_id]
        if reason:
            self._send(frames.reset(channel.stream_id, reason))
        self._close_if_idle()

    def has_newer(self, channel: RelayChannel) -> bool:
        """Whether the same client has opened another stream since."""
        newest = next(
            (each for each in reversed(self._streams.values()) if each.fingerprint == channel.fingerprint),
            channel,
        )
        return newest is not channel

    def may_hold(self, size: int) -> bool:
        """Whether so many more bytes may be kept unread."""
        return self.held + size <= MAX_HELD_BYTES

    # -- what goes out

    def _turn_ended(self) -> None:
        self._scheduled = False
        self._send_turns()

    def _send_turns(self) -> None:
        turns, socket = self._turns, self._socket
        while turns and not socket.is_full:
            channel = turns.popleft()
            frame = channel.next_frame()
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

    # -- what comes in

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
            async with self._may_ask:
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
        """It is no stream, and will be none."""
        handshake = self._handshakes.pop(stream_id, None)
        if handshake is not None:
            handshake.cancel()
        if self._socket.unsent < MAX_QUEUED_RESETS:
            self._send(frames.reset(stream_id, frames.PROTOCOL_ERROR))

    # -- the end

    def _close_if_idle(self) -> None:
        if self._closing and not self._streams and not self._handshakes:
            self._socket.close(GOING_AWAY, "the executor stops")

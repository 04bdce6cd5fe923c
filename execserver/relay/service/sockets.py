"""The relay's end of one WebSocket, as the rendezvous sees it: a peer that frames are sent to.

What is sent goes to the transport at once, which gathers all that one turn of the loop brings and writes it
in one call; so the queue of a peer is the transport's buffer, and there is no task that sends. Frames of a
server are not masked: a head and the very bytes that came.

A peer that is paused is not read from; what the library holds of it then is at most some hundred KiB, and the
rest waits at the peer's own end. Every 15 s we ping. A peer of which nothing was heard for two pings is
dropped, unless it is we who do not read, or what is on the way to it moves.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from aiohttp import WebSocketError, WSMsgType, web

from execprotocol.relay.frames import MAX_FRAME_BYTES
from execserver.telemetry.logs import Logger

PING_SECONDS = 15.0
"""Half of what the peers' own pings take: whoever is behind a NAT that forgets after a minute stays known."""

MISSED_PINGS = 2
"""Unanswered ones after which a peer is dead."""

HIGH_BYTES, LOW_BYTES = 1 << 20, 256 << 10
"""When a peer's queue is full, and when it has room again; the rendezvous goes by the same numbers."""

ROOM_SECONDS = 0.005
"""Between looks at a queue that became short and then longer again. 256 KiB take about as long to leave."""

CLOSE_SECONDS = 2.0
"""How long a peer may take for what was sent before a close. A drain of the relay has 5 s for all."""

READ_BYTES = 32 << 10
"""What one read of a peer brings at most. All of it is parsed before the others get their turn, and an event
loop's own reads of 256 KiB may be 40,000 fragments of nothing: a quarter of a second."""

FRAMES_PER_TURN = 64
"""Of one peer, of whatever kind, before the others get their turn: what is there already costs no wait."""

PONG_SECONDS = 0.1
"""Between pongs to one peer. Of several pings only the newest has to be answered (RFC 6455, 5.5.3), so one
that pings and does not read, or does nothing else, takes no more of us than others do."""

COPIED_BELOW_BYTES = 16 << 10
"""Smaller frames are joined with their heads, which is cheaper than a second buffer for the kernel."""

MAX_REASON_BYTES = 120
"""Of a close frame, whose payload has at most 125 with the code."""

_BINARY, _PING, _PONG = 0x82, 0x89, 0x8A
_GOING_AWAY = 1001
_ABNORMAL = 1006

log = Logger()


def new_socket(max_bytes: int = MAX_FRAME_BYTES) -> web.WebSocketResponse[bool]:
    """A WebSocket that takes messages of at most so many bytes; a longer one ends it with 1009."""
    # The library's limit is the first size that is too long. Pings are ours: its own would drop a peer that
    # is paused.
    return web.WebSocketResponse(
        compress=False, max_msg_size=max_bytes + 1, autoping=False, decode_text=False, timeout=CLOSE_SECONDS
    )


class WebSocketPeer:
    """One accepted WebSocket.

    Args:
        socket: prepared.
        request: that it came by.
        peer_id: for logs, and unique in this process.
        has_room: called when the queue is below its low mark after having been above the high one.
        ping_seconds: between pings.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse[bool],
        request: web.Request,
        peer_id: str,
        has_room: Callable[[WebSocketPeer], None],
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        assert request.transport is not None, "just prepared"
        self.id = peer_id
        self._socket = socket
        self._request = request
        self._transport: asyncio.WriteTransport = request.transport
        self._transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._room_watch: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[object] | None = None  # while it reads
        self._ending: tuple[int, str] | None = None  # code and reason of the close, once that is decided
        self._may_read: asyncio.Event | None = None  # while paused
        self._written = 0
        self._progress = 0
        self._heard = True
        self._missed = 0
        self._ping_seconds = ping_seconds
        self._ping_timer = self._loop.call_later(ping_seconds, self._ping)
        self._pinged: bytes | None = None  # what the newest ping carried that is not answered
        self._pong_timer: asyncio.TimerHandle | None = None  # while no pong may be sent
        self.close_reason = ""
        """Why it ended, as far as that was decided here."""

    @property
    def queued(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Send a frame, after those before it. Dropped without a word when the socket is ending."""
        if self._ending is not None or self._transport.is_closing():
            return
        size = len(frame)
        if size < 126:
            head = bytes((_BINARY, size))
        elif size < 1 << 16:
            head = struct.pack(">BBH", _BINARY, 126, size)
        else:
            head = struct.pack(">BBQ", _BINARY, 127, size)
        if size < COPIED_BELOW_BYTES:
            self._transport.write(head + frame)
        else:
            self._transport.writelines((head, frame))
        self._wrote(size)

    def close(self, code: int, reason: str) -> None:
        """Begin to end the socket (idempotent). A long queue is thrown away: its peer takes nothing."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        self.close_reason = self.close_reason or reason
        if self.queued > HIGH_BYTES:
            # It would not see a close frame behind all this, and the memory is wanted now.
            self._transport.abort()
        # The library hangs up on a peer that is being read from, without waiting for its answer; what that
        # peer has sent meanwhile would make it lose our close frame.
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()

    def pause(self) -> None:
        """Read no more."""
        if self._may_read is None:
            self._may_read = asyncio.Event()

    def resume(self) -> None:
        """Read again."""
        if self._may_read is not None:
            self._may_read.set()
            self._may_read = None

    async def serve(self, received: Callable[[bytes], None], dropped: Callable[[], None]) -> str:
        """Read until the socket ends; returns why, for logs.

        Args:
            received: gets each binary message.
            dropped: called for each text message; nobody may send one.
        """
        task = self._reader = asyncio.current_task()
        assert task is not None, "a request has one"
        protocol = self._transport.get_protocol()
        if isinstance(protocol, asyncio.Protocol):  # it has none once the connection is lost
            self._transport.set_protocol(_ShortReads(protocol))
        reason = ""
        try:
            reason = await self._read(received, dropped)
        except asyncio.CancelledError:
            if self._ending is None or task.uncancel() > 0:  # it is not `close`, or not only
                raise
        finally:
            self._reader = None
            self._ping_timer.cancel()
            if self._pong_timer is not None:
                self._pong_timer.cancel()
            self._ending = self._ending or (_GOING_AWAY, "")
            await self._close(*self._ending)
            if self._room_watch is not None:
                self._room_watch.cancel()
        return self.close_reason or reason

    async def _read(self, received: Callable[[bytes], None], dropped: Callable[[], None]) -> str:
        receive = self._socket.receive
        turn = 0
        while self._ending is None:
            while self._may_read is not None:
                await self._may_read.wait()
            message = await receive()
            self._heard = True
            kind = message.type
            if kind is WSMsgType.BINARY:
                received(message.data)
            elif kind is WSMsgType.PING:
                self._answer(message.data)
            elif kind is WSMsgType.TEXT:
                dropped()
            elif kind is not WSMsgType.PONG:
                return self._why(message.data)
            turn += 1
            if turn == FRAMES_PER_TURN:
                turn = 0
                await asyncio.sleep(0)
        return ""

    def _wrote(self, size: int) -> None:
        self._written += size
        if self._room_watch is None and self._transport.get_write_buffer_size() > HIGH_BYTES:
            self._room_watch = self._loop.create_task(self._wait_for_room())

    def _why(self, last: object) -> str:
        """Why there are no more messages, by what the last one carried."""
        if isinstance(last, WebSocketError):
            return f"closed with {last.code}: {last}"
        code = self._socket.close_code
        if code == _ABNORMAL or code is None:
            return "connection lost"
        return f"closed with {code}"

    async def _close(self, code: int, reason: str) -> None:
        # What was sent before goes first, and a stuck peer would keep all of it waiting.
        giving_up = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)
        try:
            await self._socket.close(code=code, message=_cut(reason), drain=False)
            self._transport.set_write_buffer_limits(0)  # so that the next line waits for the last byte
            await self._request.writer.drain()
        except (ConnectionError, RuntimeError):
            pass  # it was gone before
        finally:
            giving_up.cancel()

    async def _wait_for_room(self) -> None:
        try:
            await self._request.writer.drain()
            # Others may have written before this had its turn, and between its marks the transport tells
            # nothing: whoever waits for room would wait for ever.
            while self.queued >= LOW_BYTES:
                await asyncio.sleep(ROOM_SECONDS)
                await self._request.writer.drain()
        except ConnectionError:
            return  # reading ends, too, and says so
        self._room_watch = None
        self._has_room(self)

    def _answer(self, ping: bytes) -> None:
        """Send a pong, now or when the next one may be sent, if there is no newer ping by then."""
        self._pinged = ping
        if self._pong_timer is None:
            self._send_pong()

    def _send_pong(self) -> None:
        self._pong_timer = None
        if self._pinged is None or self._ending is not None:
            return
        if self.queued <= HIGH_BYTES:
            self._send_control(_PONG, self._pinged)
            self._pinged = None
        self._pong_timer = self._loop.call_later(PONG_SECONDS, self._send_pong)

    def _send_control(self, opcode: int, payload: bytes) -> None:
        if self._ending is None and not self._transport.is_closing():
            self._transport.write(bytes((opcode, len(payload))) + payload)

    def _ping(self) -> None:
        progress = self._written - self.queued
        if self._transport.is_closing():
            self.resume()  # so that reading finds out that there is nothing more
            return
        if self._heard or self._may_read is not None or progress > self._progress:
            self._missed = 0
        else:
            self._missed += 1
        if self._missed == MISSED_PINGS:
            self.close_reason = "no answer to pings"
            self._transport.abort()
            return
        self._heard = False
        self._progress = progress
        self._send_control(_PING, b"")
        self._ping_timer = self._loop.call_later(self._ping_seconds, self._ping)


class _ShortReads(asyncio.BufferedProtocol):
    """Stands between a transport and its protocol, so that a read brings no more than `READ_BYTES`."""

    _buffer = memoryview(bytearray(READ_BYTES))  # one for all: it is empty again when a read is over

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self._protocol.data_received(bytes(self._buffer[:nbytes]))


def _cut(reason: str) -> bytes:
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()

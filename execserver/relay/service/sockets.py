"""The relay's end of one WebSocket: a peer of the rendezvous.

Frames go to the transport at once, which writes the frames of one turn of the loop in one call. So the queue
of a peer is the transport's buffer, and there is no task for sending. A server's frames are not masked: each
is a head and the bytes as received.

A paused peer is not read from. The library then holds at most some hundred KiB of it, and the rest waits at
the peer. The relay pings every 15 s, and drops a peer that has been silent for two pings, unless the peer is
paused or its queue is moving.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from aiohttp import WebSocketError, WSMsgType, web

from execprotocol.relay.frames import MAX_FRAME_BYTES
from execserver.telemetry.logs import Logger

PING_SECONDS = 15.0
"""Half of the interval of the peers' pings: keeps NAT entries alive that expire after a minute."""

MISSED_PINGS = 2
"""A peer is dead after so many unanswered pings."""

HIGH_BYTES, LOW_BYTES = 1 << 20, 256 << 10
"""Bytes above which a queue is full, and below which it has room again. As `queues.Limits`."""

ROOM_SECONDS = 0.005
"""Interval of checks of a queue that became short and then longer again. 256 KiB take about as long."""

CLOSE_SECONDS = 2.0
"""How long a peer may take for data sent before a close. A drain of the relay has 5 s for all."""

READ_BYTES = 32 << 10
"""Limit of one read. A read is parsed before other peers get their turn, and the event loop's own reads of
256 KiB may be 40,000 empty fragments: a quarter of a second."""

FRAMES_PER_TURN = 64
"""Frames of one peer, of any kind, before other peers get their turn: buffered frames need no wait."""

PONG_SECONDS = 0.1
"""Interval of pongs to one peer. Only the newest of several pings has to be answered (RFC 6455, 5.5.3), so a
flood of pings costs no more than other traffic."""

COPIED_BELOW_BYTES = 16 << 10
"""Smaller frames are joined with their heads: cheaper than a second buffer for the kernel."""

MAX_REASON_BYTES = 120
"""Limit for a close frame, whose payload has at most 125 bytes with the code."""

_BINARY, _PING, _PONG = 0x82, 0x89, 0x8A
_GOING_AWAY = 1001
_ABNORMAL = 1006

log = Logger()


def new_socket(max_bytes: int = MAX_FRAME_BYTES) -> web.WebSocketResponse[bool]:
    """A WebSocket that takes messages of at most `max_bytes`; a longer one closes it with 1009."""
    # The library's limit is the first size that is too long. Its own pings would drop a paused peer.
    return web.WebSocketResponse(
        compress=False, max_msg_size=max_bytes + 1, autoping=False, decode_text=False, timeout=CLOSE_SECONDS
    )


class WebSocketPeer:
    """One WebSocket. Frames that are sent before `upgrade` wait for it.

    Args:
        socket: not yet prepared.
        request: the upgrade request.
        peer_id: for logs, and unique in this process.
        has_room: called when the queue was above its high mark and is below its low mark again.
        ping_seconds: interval of pings.

    Raises:
        ConnectionResetError: the connection is lost.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse[bool],
        request: web.Request,
        peer_id: str,
        has_room: Callable[[WebSocketPeer], None],
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        if request.transport is None:
            raise ConnectionResetError("the connection was lost before its upgrade")
        self.id = peer_id
        self._socket = socket
        self._request = request
        self._transport: asyncio.WriteTransport = request.transport
        self._held: bytearray | None = bytearray()  # frames, until the upgrade
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._room_watch: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[object] | None = None  # while it reads
        self._ending: tuple[int, str] | None = None  # code and reason of the close
        self._may_read: asyncio.Event | None = None  # while paused
        self._written = 0
        self._progress = 0
        self._heard = True
        self._missed = 0
        self._ping_seconds = ping_seconds
        self._ping_timer: asyncio.TimerHandle | None = None  # from the upgrade on
        self._pinged: bytes | None = None  # payload of the newest unanswered ping
        self._pong_timer: asyncio.TimerHandle | None = None  # while no pong may be sent
        self.close_reason = ""
        """The reason, if the relay ended the socket."""

    @property
    def queued(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._transport.get_write_buffer_size() + len(self._held or b"")

    async def upgrade(self) -> None:
        """Answer the upgrade request, and send the frames that waited for it.

        Raises:
            ConnectionResetError: the connection is lost.
        """
        await self._socket.prepare(self._request)
        self._transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        held, self._held = self._held, None
        if held:
            self._transport.write(held)
            self._wrote(len(held))
            if len(held) > HIGH_BYTES:
                self._expect_room()  # the queue was full, however much of it the system has taken by now
        self._ping_timer = self._loop.call_later(self._ping_seconds, self._ping)

    def send(self, frame: bytes) -> None:
        """Queue a frame. A no-op if the socket is ending."""
        if self._ending is not None or self._transport.is_closing():
            return
        size = len(frame)
        if size < 126:
            head = bytes((_BINARY, size))
        elif size < 1 << 16:
            head = struct.pack(">BBH", _BINARY, 126, size)
        else:
            head = struct.pack(">BBQ", _BINARY, 127, size)
        if self._held is not None:
            self._held += head + frame
            return
        if size < COPIED_BELOW_BYTES:
            self._transport.write(head + frame)
        else:
            self._transport.writelines((head, frame))
        self._wrote(size)

    def close(self, code: int, reason: str) -> None:
        """Begin to end the socket (idempotent). A full queue is discarded: its peer does not read."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        self.close_reason = self.close_reason or reason
        if self.queued > HIGH_BYTES:
            # A close frame would not get through behind the queue, and the memory is needed now.
            self._transport.abort()
        # While a read is pending, the library closes without waiting for the peer's answer. Data from the
        # peer would then reset the connection, and the close frame would be lost.
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
        """Read until the socket ends. Returns the reason, for logs.

        Args:
            received: called with each binary message.
            dropped: called for each text message, which peers must not send.
        """
        task = self._reader = asyncio.current_task()
        assert task is not None, "a request has one"
        protocol = self._transport.get_protocol()
        if isinstance(protocol, asyncio.Protocol):  # None once the connection is lost
            self._transport.set_protocol(_ShortReads(protocol))
        reason = ""
        try:
            reason = await self._read(received, dropped)
        except asyncio.CancelledError:
            if self._ending is None or task.uncancel() > 0:  # cancelled by another caller than `close`
                raise
        finally:
            self._reader = None
            if self._ping_timer is not None:
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
                return self._end_reason(message.data)
            turn += 1
            if turn == FRAMES_PER_TURN:
                turn = 0
                await asyncio.sleep(0)
        return ""

    def _wrote(self, size: int) -> None:
        self._written += size
        if self._transport.get_write_buffer_size() > HIGH_BYTES:
            self._expect_room()

    def _expect_room(self) -> None:
        if self._room_watch is None:
            self._room_watch = self._loop.create_task(self._watch_for_room())

    def _end_reason(self, last: object) -> str:
        """The reason for the end of messages, from the data of the last one."""
        if isinstance(last, WebSocketError):
            return f"closed with {last.code}: {last}"
        code = self._socket.close_code
        if code == _ABNORMAL or code is None:
            return "connection lost"
        return f"closed with {code}"

    async def _close(self, code: int, reason: str) -> None:
        # Queued data is sent first, for which a stuck peer could take for ever.
        timer = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)
        try:
            await self._socket.close(code=code, message=_cut(reason), drain=False)
            self._transport.set_write_buffer_limits(0)  # so that `drain` waits for the last byte
            await self._request.writer.drain()
        except (ConnectionError, RuntimeError):
            pass  # the connection was lost
        finally:
            timer.cancel()

    async def _watch_for_room(self) -> None:
        try:
            await self._request.writer.drain()
            # More may have been written before this task ran, and the transport has no event between its
            # marks: without these checks `has_room` might never be called.
            while self.queued >= LOW_BYTES:
                await asyncio.sleep(ROOM_SECONDS)
                await self._request.writer.drain()
        except ConnectionError:
            return  # `serve` ends, too
        self._room_watch = None
        self._has_room(self)

    def _answer(self, ping: bytes) -> None:
        """Answer a ping now, or when the next pong may be sent, unless a newer ping has come by then."""
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
            self.resume()  # so that reading sees the end
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
    """A protocol between a transport and its protocol that limits reads to `READ_BYTES`."""

    _buffer = memoryview(bytearray(READ_BYTES))  # shared: it is empty again after each read

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer of the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Forward the bytes of a read."""
        self._protocol.data_received(bytes(self._buffer[:nbytes]))


def _cut(reason: str) -> bytes:
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()

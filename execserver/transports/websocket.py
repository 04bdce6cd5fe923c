"""WebSocket connections: messages in text or binary frames, over TCP or a Unix socket.

The server sends text frames, in fragments above 1 MiB. It drops a connection without a close frame, as the
reference does; a peer's close frame is answered.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence

from execprotocol.limits import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_WEBSOCKET_REPLY_BYTES,
    WEBSOCKET_FRAGMENT_BYTES,
)
from execserver.rpc.channel import MessageStream
from execserver.sessions.access import PeerProof
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures
from execserver.transports import websocket_parser
from execserver.transports.base import BaseChannel, MakeHandler, QueuedStream
from execserver.transports.websocket_parser import (
    BINARY,
    BUFFER_BYTES,
    BULK_BYTES,
    CONTINUATION,
    TEXT,
    FrameParser,
    WebSocketFrame,
)
from execserver.transports.write_buffer import Buffer

LAST, FIRST_TEXT, CONTINUED = 0x80, 0x01, 0x00
PONG, PING, CLOSE = 0x8A, 0x89, 0x88

NORMAL_CLOSURE = struct.pack(">H", 1000)

MOST_WHOLE = 256
"""Messages that are copied out of the read buffer before they are delivered: as many small ones as it holds
at first, but not a second copy of a grown buffer."""

log = Logger()


class WebSocketChannel(BaseChannel):
    """One JSON value in each message.

    Args:
        fd: the connected socket, non-blocking.
        peer: the peer's name for logs.
        release: closes the socket.
        address: the peer's name for parse errors.
        ping_seconds: the time between pings. A peer that is silent between two is dropped.
        proof: how the peer is known.
    """

    max_reply_bytes = MAX_WEBSOCKET_REPLY_BYTES

    def __init__(
        self,
        fd: int,
        peer: str,
        release: Callable[[], None],
        address: str,
        ping_seconds: float,
        proof: PeerProof | None = None,
    ) -> None:
        super().__init__(fd, fd, peer, release)
        self.kind = "unix-websocket" if address == "unix" else "websocket"
        self.peer_proof = proof
        self.parse_error_prefix = (
            f"failed to parse websocket JSON-RPC message from exec-server websocket {address}: "
        )
        self._parser: FrameParser | None = self._new_parser()
        self._partial = 0  # bytes of an incomplete frame in it; negative until a read completes a frame
        self._large_frames = False  # since the last ping
        self._begun: bytearray | None = None  # a fragmented message
        self._whole: list[bytes | bytearray] = []  # messages of this read
        self._heard = True  # whether anything has arrived since the last ping
        self._progress = 0  # bytes sent by then
        self._ping_seconds = ping_seconds
        self._ping_timer: asyncio.TimerHandle
        self._probe_timer: asyncio.TimerHandle | None = None

    def answer_upgrade(self, response: bytes, make_handler: MakeHandler, first: bytes) -> None:
        """Send the answer to the upgrade and serve the bytes that came with it."""
        self._write_buffer.put((response,), len(response))
        self._ping_timer = self._loop.call_later(self._ping_seconds, self._ping)
        self.start(make_handler)
        if first:
            measures.received(len(first))
            self._serve(self._feed, first)

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue one message."""
        size = sum(map(len, parts))
        if size <= WEBSOCKET_FRAGMENT_BYTES:
            head = header(LAST | FIRST_TEXT, size)
            self._write_buffer.put((head, *parts), size + len(head))
        else:
            framed = fragments(parts, FIRST_TEXT, last=True)
            self._write_buffer.put(framed, sum(map(len, framed)))

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces come later."""
        opcodes = iter((FIRST_TEXT,))
        return QueuedStream(
            self._write_buffer, lambda piece, last: fragments((piece,), next(opcodes, CONTINUED), last)
        )

    def probe(self, timeout: float) -> None:
        """Ping now; drop the peer if nothing arrives from it within `timeout` seconds."""
        if self._over or self._probe_timer is not None:
            return
        progress = self._write_buffer.progress
        self._send_control(PING, b"")
        self._probe_timer = self._loop.call_later(timeout, self._probe_expired, progress)

    def finish(self) -> None:
        """Read no more, and end with a close frame once the peer has taken what is queued."""
        if not self._over:
            self._send_control(CLOSE, NORMAL_CLOSURE)
        super().finish()

    def _probe_expired(self, progress: int) -> None:
        self._probe_timer = None
        if not self._may_be_alive(progress):
            log.debug("peer does not answer", peer=self.peer)
            self.abort()

    def _ping(self) -> None:
        if not self._heard and not self._may_be_alive(self._progress):
            log.debug("peer does not answer", peer=self.peer)
            self.abort()
            return
        self._shrink_parser()
        self._heard = False
        self._progress = self._write_buffer.progress
        self._send_control(PING, b"")
        self._ping_timer = self._loop.call_later(self._ping_seconds, self._ping)

    def _may_be_alive(self, progress: int) -> bool:
        """Whether a silent peer may be alive, because its pong has to wait: for the ping to leave (bytes are
        moving), or for the server to read again.
        """
        if self._write_buffer.unsent:
            return self._write_buffer.progress > progress
        return self._paused

    def _send_control(self, opcode: int, payload: bytes) -> None:
        frame = header(opcode, len(payload)) + payload
        self._write_buffer.put_now((frame,), len(frame))

    def _end(self) -> None:
        if not self._over:
            self._ping_timer.cancel()
            if self._probe_timer is not None:
                self._probe_timer.cancel()
        super()._end()

    def _shrink_parser(self) -> None:
        """Replace a read buffer that a large message has enlarged, if no other one followed for a while."""
        if not self._partial and not self._large_frames and self._open_parser.room > BUFFER_BYTES:
            self._parser = self._new_parser()
        self._large_frames = False

    @property
    def _open_parser(self) -> FrameParser:
        assert self._parser is not None, "nothing is read after the end"
        return self._parser

    def _release(self) -> None:
        # Half of a message may have 64 MiB, and this object lives on in cycles for a while.
        self._parser = self._begun = None
        super()._release()

    def _new_parser(self) -> FrameParser:
        return FrameParser(MAX_FRAME_BYTES, self._frame_received, self._broken)

    def _readable(self) -> None:
        self._serve(self._read, self._fd_in)

    def _feed(self, first: bytes) -> None:
        self._partial = len(first)
        self._open_parser.feed(first)
        self._pass_on()

    def _read(self, fd: int) -> None:
        partial, self._partial = self._partial, -1
        try:
            count = self._open_parser.read(fd, BUFFER_BYTES if partial < BUFFER_BYTES else BULK_BYTES)
        except (BlockingIOError, InterruptedError):
            self._partial = partial
            return
        except OSError as error:
            self._failed(error)
            return
        if not count:
            self._end_of_input()
            return
        if self._partial < 0:
            self._partial = partial + count
        measures.received(count)
        self._heard = True
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None
        self._pass_on()

    def _pass_on(self) -> None:
        """Deliver the complete messages."""
        whole = self._whole
        if whole and not self._over:
            self._whole = []
            self._handler.messages_received(whole)

    def _frame_received(self, _: object, frame: WebSocketFrame) -> None:
        if self._over:
            return
        self._partial = frame.tail_size
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._broken()
            return
        kind = frame.msg_type
        if kind is TEXT or kind is BINARY:
            self._messages += 1
            if self._begun is not None:
                self._broken()
            elif frame.fin:
                whole = self._whole
                whole.append(frame.get_payload_as_bytes())
                if frame.payload_size > BUFFER_BYTES:
                    self._large_frames = True
                    self._pass_on()
                elif len(whole) >= MOST_WHOLE:
                    self._pass_on()
            else:
                self._begun = bytearray(frame.get_payload_as_memoryview())
        elif kind is CONTINUATION:
            self._continued(frame)
        elif kind is websocket_parser.PING:
            self._send_control(PONG, frame.get_payload_as_bytes())
        elif kind is websocket_parser.CLOSE:
            self._pass_on()
            self._send_control(CLOSE, frame.get_payload_as_bytes()[:2])
            self._end_of_input()

    def _continued(self, frame: WebSocketFrame) -> None:
        begun = self._begun
        if begun is None or len(begun) + frame.payload_size > MAX_MESSAGE_BYTES:
            self._broken()
            return
        begun += frame.get_payload_as_memoryview()
        if frame.fin:
            self._begun = None
            self._whole.append(begun)
            self._pass_on()

    def _broken(self) -> None:
        self._pass_on()
        if not self._over:
            log.warning("websocket protocol violation or message too long", peer=self.peer)
        self.abort()


def header(opcode: int, size: int) -> bytes:
    """The head of an unmasked frame; `opcode` includes the final bit."""
    if size < 126:
        return bytes((opcode, size))
    if size < 1 << 16:
        return struct.pack(">BBH", opcode, 126, size)
    return struct.pack(">BBQ", opcode, 127, size)


def fragments(parts: Sequence[bytes], opcode: int, last: bool) -> list[Buffer]:
    """The parts as frames of at most 1 MiB, not copied. The first has `opcode`; the last has the final bit if
    it is the `last` of its message.
    """
    left = sum(map(len, parts))
    room = min(left, WEBSOCKET_FRAGMENT_BYTES)
    left -= room
    framed: list[Buffer] = [header(opcode | (LAST if last and not left else 0), room)]
    for part in parts:
        rest: Buffer = part
        while rest:
            if not room:
                room = min(left, WEBSOCKET_FRAGMENT_BYTES)
                left -= room
                framed.append(header(CONTINUED | (LAST if last and not left else 0), room))
            if len(rest) <= room:
                framed.append(rest)
                room -= len(rest)
                break
            view = memoryview(rest)
            framed.append(view[:room])
            rest = view[room:]
            room = 0
    return framed

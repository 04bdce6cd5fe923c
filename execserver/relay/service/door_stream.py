"""One stream that the relay opens itself, for a client that knows no relay: the harness's end of it.

1. No sockets here. Frames for the executor go to `forward`, WebSocket frames for the client to its `Client`.
2. Bounded both ways. Of what the client sends one message is in work: when the rendezvous wants no more, the
   client is not read from until all of that has gone. Towards the client no message is gathered, its records
   become fragments as they come; what it does not take is `queued`, by which the rendezvous judges it.
3. The rendezvous is never called back from within its calls: what follows from them waits for the next turn.
4. A stream ends once, and tells its client by a close code and a reason.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from execprotocol.limits import MAX_MESSAGE_BYTES
from execprotocol.relay import frames
from execprotocol.relay.noise import REJECTION, Initiator, NoiseError, Transport
from execprotocol.relay.records import HEADER_BYTES, RecordError, RecordQueue, Reorder
from execserver.transports.websocket import CONTINUED, FIRST_TEXT, LAST, header

STREAM_OVER, PROTOCOL_BROKEN = 1001, 1011
"""Close codes for the client: the executor ended the stream; the executor sent what cannot be understood."""

REJECTED = "the executor does not accept the door of the relay"


class Client(Protocol):
    """The plain socket, as the stream uses it."""

    @property
    def queued(self) -> int:
        """Bytes that were written and have not left."""

    def write(self, data: bytes) -> None:
        """Send whole WebSocket frames."""

    def pause(self) -> None:
        """Read no more messages."""

    def resume(self) -> None:
        """Read again."""

    def close(self, code: int, reason: str) -> None:
        """End the socket (idempotent)."""


class StreamRefused(Exception):
    """The stream did not come about.

    Attributes:
        rejected: whether the executor took us for somebody it does not want.
    """

    def __init__(self, message: str, *, rejected: bool = False) -> None:
        super().__init__(message)
        self.rejected = rejected


class DoorStream:
    """One stream: a harness to the rendezvous.

    Args:
        stream_id: a new UUID.
        initiator: bound to that stream.
        forward: takes each frame for the executor; the rendezvous may answer from within.
    """

    def __init__(self, stream_id: str, initiator: Initiator, forward: Callable[[bytes], None]) -> None:
        self.id = stream_id
        self._initiator = initiator
        self._forward = forward
        self._client: Client | None = None
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._transport: Transport | None = None
        self._ended: tuple[int, str] | None = None
        self._paused = False
        self._outgoing = RecordQueue()
        self._sent = 0  # records
        self._order = Reorder()
        self._cutter = FrameCutter()
        self._early: list[bytes] = []  # for a client that is not there yet

    # -- the door's side

    async def open(self, authorization: bytes) -> None:
        """Claim the stream and shake hands with the executor.

        Args:
            authorization: what our registry gave for it.

        Raises:
            StreamRefused: the executor, or the rendezvous, did not want it.
        """
        self._forward(frames.resume(self.id))
        if self._ended is None:
            self._forward(frames.handshake(self.id, self._initiator.write_first(authorization)))
        await self._opened

    def attach(self, client: Client) -> None:
        """From now on the stream has a client."""
        self._client = client
        early, self._early = self._early, []
        for data in early:
            client.write(data)
        if self._ended is not None:
            client.close(*self._ended)

    def message(self, message: bytes) -> None:
        """The client sent a message."""
        self._outgoing.put((message,))
        self._pump()
        if self._outgoing.unsent and self._client is not None:
            self._client.pause()

    # -- the rendezvous's side

    @property
    def queued(self) -> int:
        """Bytes that wait for the client."""
        return self._client.queued if self._client is not None else sum(map(len, self._early))

    def send(self, frame: bytes) -> None:
        """A frame of the executor, or a reset by the relay."""
        if self._ended is not None:
            return
        try:
            self._received(frames.decode(frame))
        except frames.FrameError:
            return  # dropped, as every peer does
        except (NoiseError, RecordError) as error:
            self._break(str(error))

    def close(self, code: int, reason: str) -> None:
        """End the stream, and with it the client's socket."""
        if self._ended is None:
            self._ended = (code, reason)
            self._outgoing.clear()
            self._refuse(StreamRefused(reason, rejected=reason == REJECTED))
            if self._client is not None:
                self._client.close(code, reason)

    def pause(self) -> None:
        """The executor's queue is full."""
        self._paused = True

    def resume(self) -> None:
        """It has room."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._go_on)

    # -- within

    def _go_on(self) -> None:
        self._pump()
        if not self._outgoing.unsent and self._client is not None:
            self._client.resume()

    def _received(self, frame: frames.Frame) -> None:
        if frame.stream_id != self.id:
            return
        if frame.kind == "data":
            if self._transport is None:
                raise NoiseError("the executor sent data before it had answered the handshake")
            for sealed in self._order.accept(frame.seq, frame.payload):
                self._write(self._cutter.cut(self._transport.open(sealed)))
        elif frame.kind == "handshake":
            self._answered(frame.payload)
        elif frame.kind == "reset":
            self.close(STREAM_OVER, f"the executor reset the stream: {frame.reason or 'no reason'}")

    def _answered(self, message: bytes | memoryview) -> None:
        payload, transport = self._initiator.read_second(message)  # refuses a second answer
        if payload == REJECTION:
            self.close(STREAM_OVER, REJECTED)
        elif payload:
            raise NoiseError("the executor answered the handshake with something unknown")
        else:
            self._transport = transport
            if not self._opened.done():
                self._opened.set_result(None)

    def _pump(self) -> None:
        transport = self._transport
        while not self._paused and self._ended is None and transport is not None:
            record = self._outgoing.take()
            if record is None:
                return
            try:
                sealed = transport.seal(record)
            except NoiseError as error:
                self._break(str(error))
                return
            self._sent += 1
            self._forward(frames.data(self.id, self._sent - 1, sealed))

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._client is not None:
            self._client.write(data)
        else:
            self._early.append(data)

    def _break(self, reason: str) -> None:
        self._loop.call_soon(self._forward, frames.reset(self.id, frames.PROTOCOL_ERROR))
        self.close(PROTOCOL_BROKEN, reason)

    def _refuse(self, error: StreamRefused) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)


class FrameCutter:
    """Makes WebSocket frames of records: a message that lies within one becomes one text frame, a longer one
    is sent in fragments, each as soon as its record is there.

    Args:
        limit: bytes that a message may have.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._head = b""  # less than the length of the next message
        self._missing = 0  # of a message that has begun
        self._opcode = FIRST_TEXT

    def cut(self, record: bytes) -> bytes:
        """The frames that a record makes; they may be none.

        Raises:
            RecordError: a message of more than `limit` bytes is announced.
        """
        parts: list[bytes | memoryview] = []
        if self._head:
            record, self._head = self._head + record, b""
        view, place = memoryview(record), 0
        while place < len(record):
            if not self._missing:
                if len(record) - place < HEADER_BYTES:
                    self._head = record[place:]
                    break
                size = int.from_bytes(view[place : place + HEADER_BYTES])
                if size > self._limit:
                    raise RecordError(f"the executor announced a message of {size} bytes")
                place += HEADER_BYTES
                self._missing = size
                if not size:
                    parts.append(header(LAST | FIRST_TEXT, 0))
                    continue
            piece = view[place : place + self._missing]
            if not piece:
                break
            place += len(piece)
            self._missing -= len(piece)
            parts += (header(self._opcode | (0 if self._missing else LAST), len(piece)), piece)
            self._opcode = CONTINUED if self._missing else FIRST_TEXT
        return b"".join(parts)

"""The client's end of an encrypted stream to an executor, over a relay that can read none of it.

    socket opened ─> resume, message 1 ── message 2 ──> open ── reset, a fault, the socket lost ──> over

1. Nobody is told of a channel whose handshake did not come about; who waits for it is told why.
2. Frames of other streams are ignored, and so is what is no frame. Whatever is wrong within our stream
   ends it: a record that is lost or changed cannot be made good, but the session can be resumed.
3. Messages are sealed when the socket has room for them, and never twice.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

from execclient.connection.channel import Receiver
from execclient.errors import AccessDenied, ConnectionFailed
from execclient.fork_safety import withhold
from execprotocol.relay import frames
from execprotocol.relay.contract import ConnectAnswer
from execprotocol.relay.dial import FrameSocket
from execprotocol.relay.frames import Frame, FrameError, printable
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import REJECTION, Binding, Initiator, NoiseError, Transport
from execprotocol.relay.records import MessageAssembler, RecordError, RecordQueue, Reorder

HIGH_BYTES, LOW_BYTES = 1 << 20, 256 << 10
"""Unsealed bytes above which the connection is to wait, and below which it may go on: enough that the
socket never starves, and little enough that what is asked for next does not stand in line for long."""

CLOSED = "client_closed"
"""The reason of our own reset."""

NORMAL_CLOSURE = 1000

REJECTED_STATUS = 401
"""What the registry told the executor when the answer to the handshake is `REJECTION`."""


class RelayChannel:
    """One stream, on a socket of its own.

    Args:
        receiver: told of what comes, once the executor has answered the handshake.
        answer: what the registry gave out.
        own: our keys.
        shown: the URL, for errors.

    Raises:
        ConnectionFailed: the registry gave out keys that are none.
    """

    def __init__(self, receiver: Receiver, answer: ConnectAnswer, own: KeyPair, shown: str) -> None:
        self._receiver = receiver
        self._shown = shown
        self._stream_id = str(uuid4())
        binding = Binding(answer.environment_id, answer.registration_id, self._stream_id)
        self._initiator = Initiator(own, answer.executor_key, binding)
        try:
            self._first = self._initiator.write_first(answer.authorization.encode())
        except NoiseError as error:
            raise ConnectionFailed(f"cannot connect to {shown}: {error}") from None
        self._established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._socket: FrameSocket | None = None
        self._noise: Transport | None = None
        self._queue = RecordQueue()
        self._sequence = 0
        self._reorder = Reorder()
        self._assembler = MessageAssembler(self._deliver)
        self._waiting = False  # the receiver, for room
        self._closing = False
        self._reason: str | None = None

    async def established(self, seconds: float) -> None:
        """Wait for the executor's answer to the handshake.

        Raises:
            AccessDenied: the registry did not send us, says the executor, or does not want us.
            ConnectionFailed: no answer in time, or none that holds.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._established
        except TimeoutError:
            raise ConnectionFailed(
                f"cannot connect to {self._shown}: the executor did not answer the handshake within "
                f"{seconds:g} s"
            ) from None

    async def ended(self) -> None:
        """Wait until nothing is left of it. Only after `abort`, and once its socket was opened."""
        if self._socket is not None:
            await self._ended.wait()

    # -- the way out

    def send(self, message: bytes) -> None:
        """As `Channel.send`."""
        if self._closing or self._ended.is_set():
            return
        self._queue.put((message,))
        self._flush()
        if not self._waiting and self._queue.unsent > HIGH_BYTES:
            self._waiting = True
            self._receiver.pause_writing()

    def close(self) -> None:
        """As `Channel.close`."""
        if not self._closing:
            self._closing = True
            self._flush()

    def abort(self) -> None:
        """As `Channel.abort`."""
        self._closing = True
        self._queue.clear()
        if self._socket is not None:
            self._socket.abort()

    def _flush(self) -> None:
        socket, noise = self._socket, self._noise
        if socket is None or noise is None:
            return
        while not socket.is_full and (record := self._queue.take()) is not None:
            try:
                sealed = noise.seal(record)
            except NoiseError as error:
                self._end(str(error))
                return
            socket.send(frames.data(self._stream_id, self._sequence, sealed))
            self._sequence += 1
        if self._closing and not self._queue.unsent:
            # The relay would tell the executor, too, but only once it has seen the socket's end.
            socket.send(frames.reset(self._stream_id, CLOSED))
            socket.close(NORMAL_CLOSURE, "done")
        elif self._waiting and self._queue.unsent < LOW_BYTES:
            self._waiting = False
            self._receiver.resume_writing()

    # -- what the socket tells

    def socket_opened(self, socket: FrameSocket) -> None:
        """As `FrameListener.socket_opened`."""
        self._socket = socket
        withhold(socket.carrier)
        socket.send(frames.resume(self._stream_id))
        socket.send(frames.handshake(self._stream_id, self._first))
        self._first = b""

    def frame_received(self, message: bytes) -> None:
        """As `FrameListener.frame_received`."""
        if self._closing:
            return
        try:
            frame = frames.decode(message)
        except FrameError:
            return
        if frame.stream_id != self._stream_id:
            return
        if frame.kind == "data":
            self._data(frame)
        elif frame.kind == "handshake":
            self._handshake(frame)
        elif frame.kind == "reset":
            reason = printable(frame.reason, frames.MAX_REASON_CHARACTERS) or "without a reason"
            self._end(f"the executor reset the stream: {reason}")

    def room(self) -> None:
        """As `FrameListener.room`."""
        self._flush()

    def socket_lost(self, reason: str) -> None:
        """As `FrameListener.socket_lost`."""
        self._ended.set()
        self._queue.clear()
        if self._noise is not None:
            self._receiver.channel_lost(self._reason or reason)
        elif not self._established.done():
            self._failed(ConnectionFailed(f"cannot connect to {self._shown}: {self._reason or reason}"))

    # -- frames

    def _handshake(self, frame: Frame) -> None:
        if self._noise is not None:
            self._end("the executor began the handshake anew")
            return
        try:
            payload, noise = self._initiator.read_second(frame.payload)
        except NoiseError as error:
            self._end(f"the handshake does not hold: {error}")
            return
        if payload == REJECTION:
            self._failed(
                AccessDenied(
                    f"the executor of {self._shown} refused us: its registry did not authorize this client, "
                    "or its list of clients does not have our key (key_file=, EXECSERVER_CLIENT_KEY_FILE)",
                    REJECTED_STATUS,
                )
            )
            self._end("refused")
        elif payload:
            self._end("the executor answered the handshake with something unknown")
        else:
            self._noise = noise
            self._receiver.channel_opened(self)
            if not self._established.done():
                self._established.set_result(None)

    def _data(self, frame: Frame) -> None:
        if self._noise is None:
            self._end("the executor sent data before its answer to the handshake")
            return
        try:
            for sealed in self._reorder.accept(frame.seq, frame.payload):
                self._assembler.feed(self._noise.open(sealed))
                if self._closing:
                    return
        except (NoiseError, RecordError) as error:
            self._end(str(error))

    def _deliver(self, message: bytes | bytearray) -> None:
        if not self._closing:
            self._receiver.message_received(message)

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.abort()

    def _failed(self, error: ConnectionFailed) -> None:
        if not self._established.done():
            self._established.set_exception(error)
            self._established.exception()  # somebody may have given up waiting

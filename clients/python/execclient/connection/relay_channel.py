"""The client's channel to an executor behind a relay, which can read none of its messages.

    socket opened ─> resume, message 1 ── message 2 ──> open ── reset, a fault, the socket lost ──> over

1. The receiver hears of no channel whose handshake failed; `established` raises the reason.
2. Any fault in the stream ends the channel; the session can be resumed on another one.
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
from execprotocol.relay.frames import printable
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import Binding, Initiator, NoiseError
from execprotocol.relay.records import MessageAssembler
from execprotocol.relay.sealed_stream import InitiatorStream, StreamBroken, StreamRejected, StreamReset

HIGH_BYTES, LOW_BYTES = 1 << 20, 256 << 10
"""Writing is paused above so many unsealed bytes, and resumed below: enough that the socket never starves,
and few enough that the next request does not wait long."""

CLOSED = "client_closed"
"""The reason of the client's own reset."""

NORMAL_CLOSURE = 1000

REJECTED_STATUS = 401
"""The registry's status to the executor when the executor answers the handshake with a rejection."""


class RelayClientChannel:
    """One stream, on a socket of its own.

    Args:
        receiver: notified once the executor has answered the handshake.
        answer: of the registry, to `connect`.
        own: the client's keys.
        shown: the URL, for errors.

    Raises:
        ConnectionFailed: the registry gave invalid keys.
    """

    def __init__(self, receiver: Receiver, answer: ConnectAnswer, own: KeyPair, shown: str) -> None:
        self._receiver = receiver
        self._shown = shown
        stream_id = str(uuid4())
        binding = Binding(answer.environment_id, answer.registration_id, stream_id)
        initiator = Initiator(own, answer.executor_key, binding)
        self._stream = InitiatorStream(stream_id, MessageAssembler(self._deliver).feed, initiator)
        try:
            self._opening = self._stream.opening_frames(answer.authorization)
        except NoiseError as error:
            raise ConnectionFailed(f"cannot connect to {shown}: {error}") from None
        self._queue = self._stream.outgoing
        self._established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._socket: FrameSocket | None = None
        self._paused = False  # the receiver's writing
        self._closing = False
        self._reason: str | None = None

    async def established(self, seconds: float) -> None:
        """Wait for the executor's answer to the handshake.

        Raises:
            AccessDenied: the executor refuses this client, or its registry did not authorize it.
            ConnectionFailed: no valid answer within `seconds`.
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
        """Wait until the socket has ended, if it was opened. Call `abort` first."""
        if self._socket is not None:
            await self._ended.wait()

    # -- sending

    def send(self, message: bytes) -> None:
        """As `Channel.send`."""
        if self._closing or self._ended.is_set():
            return
        self._queue.put((message,))
        self._flush()
        if not self._paused and self._queue.unsent > HIGH_BYTES:
            self._paused = True
            self._receiver.pause_writing()

    def close(self) -> None:
        """As `Channel.close`."""
        if not self._closing:
            self._closing = True
            self._stream.stop_receiving()
            self._flush()

    def abort(self) -> None:
        """As `Channel.abort`."""
        self._closing = True
        self._stream.stop_receiving()
        self._queue.clear()
        if self._socket is not None:
            self._socket.abort()

    def _flush(self) -> None:
        socket, stream = self._socket, self._stream
        if socket is None or not stream.is_open:
            return
        try:
            while not socket.is_full and (frame := stream.next_frame()) is not None:
                socket.send(frame)
        except StreamBroken as error:
            self._end(str(error))
            return
        if self._closing and not self._queue.unsent:
            # The relay resets the stream, too, but only once it has seen the socket's end.
            socket.send(frames.reset(stream.id, CLOSED))
            socket.close(NORMAL_CLOSURE, "done")
        elif self._paused and self._queue.unsent < LOW_BYTES:
            self._paused = False
            self._receiver.resume_writing()

    # -- called by the socket

    def socket_opened(self, socket: FrameSocket) -> None:
        """As `FrameListener.socket_opened`."""
        self._socket = socket
        withhold(socket.transport)
        for frame in self._opening:
            socket.send(frame)
        self._opening = (b"", b"")

    def frame_received(self, message: bytes) -> None:
        """As `FrameListener.frame_received`."""
        if self._closing:
            return
        try:
            opened = self._stream.frame_received(message)
        except StreamBroken as error:
            self._end(str(error))
        except StreamRejected:
            self._fail(
                AccessDenied(
                    f"the executor of {self._shown} refused us: its registry did not authorize this client, "
                    "or its list of clients does not have our key (key_file=, EXECSERVER_CLIENT_KEY_FILE)",
                    REJECTED_STATUS,
                )
            )
            self._end("refused")
        except StreamReset as reset:
            reason = printable(reset.reason, frames.MAX_REASON_CHARACTERS) or "without a reason"
            self._end(f"the executor reset the stream: {reason}")
        else:
            if opened:
                self._receiver.channel_opened(self)
                if not self._established.done():
                    self._established.set_result(None)

    def room(self) -> None:
        """As `FrameListener.room`."""
        self._flush()

    def socket_lost(self, reason: str) -> None:
        """As `FrameListener.socket_lost`."""
        self._ended.set()
        self._queue.clear()
        if self._stream.is_open:
            self._receiver.channel_lost(self._reason or reason)
        elif not self._established.done():
            self._fail(ConnectionFailed(f"cannot connect to {self._shown}: {self._reason or reason}"))

    def _deliver(self, message: bytes | bytearray) -> None:
        if not self._closing:
            self._receiver.message_received(message)

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.abort()

    def _fail(self, error: ConnectionFailed) -> None:
        if not self._established.done():
            self._established.set_exception(error)
            self._established.exception()  # the caller of `established` may have given up

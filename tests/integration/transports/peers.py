"""A server side on a loop of its own, and plain blocking peers to talk to it.

The peers know framing and nothing else; they use no library of the server. Every blocking
call has a limit, so that a test that would hang fails.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from execserver.rpc.channel import Channel
from execserver.transports.authentication import NoAuthentication
from execserver.transports.base import BaseChannel
from execserver.transports.http_upgrade import accept_value
from execserver.transports.listener import SocketListener, serve_socket
from execserver.transports.stdio import serve_stdio
from tests.support.framing import FIN, TEXT, Framing, Lines, WebSocket, frame

PATIENCE = 10.0
KEY = base64.b64encode(b"sixteen bytes ok").decode()

T = TypeVar("T")


class Recorder:
    """A message handler that keeps what it is told, and by default answers with an echo."""

    def __init__(self, channel: Channel, answers: Callable[[Recorder, bytes], None] | None = None) -> None:
        self.channel = channel
        self.messages: list[bytes] = []
        self.batches: list[int] = []
        self.drains = 0
        self.losses = 0
        self.lost = threading.Event()
        self.came = threading.Event()
        self.drained_below = threading.Event()
        self._answers = answers

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        for message in messages:
            if self.channel.ended:
                return
            self.messages.append(bytes(message))
            self.came.set()
            if self._answers is None:
                self.channel.send([bytes(message)])
            else:
                self._answers(self, bytes(message))

    def framing_failed(self, reason: str) -> None:
        self.channel.send([reason.encode()])

    def batch_ended(self) -> None:
        self.batches.append(len(self.messages))

    def drained(self) -> None:
        self.drains += 1
        self.drained_below.set()

    def connection_lost(self) -> None:
        self.losses += 1
        self.lost.set()


class LoopThread:
    """A uvloop in a thread. What goes wrong in its callbacks fails the test at `close`."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.errors: list[Any] = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def call(self, function: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return function()

        return self.run(on_the_loop())

    def close(self) -> None:
        async def idle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.run(idle())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()
        assert not self.errors, self.errors


class Peer:
    """The client's end of one connection."""

    def __init__(
        self, fd_in: int, fd_out: int, close: Callable[[], None], end_output: Callable[[], None]
    ) -> None:
        self.fd_in, self.fd_out = fd_in, fd_out
        self.close = close
        self.end_output = end_output
        self.framing: Framing = Lines()

    @property
    def buffer(self) -> bytearray:
        """What came and was not taken."""
        return self.framing.pending

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.fd_out, rest) :]

    def fill(self) -> bool:
        piece = os.read(self.fd_in, 1 << 20)
        self.framing.feed(piece)
        return bool(piece)

    def take(self, count: int) -> bytes:
        """That many bytes, whatever they are."""
        while len(self.buffer) < count:
            if not self.fill():
                raise EOFError
        taken = bytes(memoryview(self.buffer)[:count])
        del self.buffer[:count]
        return taken

    def send(self, message: bytes) -> None:
        self.write(self.frame(message))

    def frame(self, message: bytes) -> bytes:
        return self.framing.encode(message)

    def receive(self) -> bytes:
        """The next message.

        Raises:
            EOFError: there is none; the connection ended.
        """
        return self._next(self.framing.take)

    def _next(self, take: Callable[[], T | None]) -> T:
        while (found := take()) is None:
            if not self.fill():
                raise EOFError
        return found

    def ended(self) -> bool:
        """Whether the other side ends the connection now, saying nothing more."""
        with suppress(ConnectionResetError):
            return not self.buffer and not os.read(self.fd_in, 1)
        return True


class WebSocketPeer(Peer):
    """Frames of a client; masked, with zeros when nothing else is asked."""

    mask = bytes(4)

    def __init__(
        self, fd_in: int, fd_out: int, close: Callable[[], None], end_output: Callable[[], None]
    ) -> None:
        super().__init__(fd_in, fd_out, close, end_output)
        self.framing: WebSocket = WebSocket()

    def upgrade(self, *headers: str) -> None:
        self.write(request("GET / HTTP/1.1", *UPGRADE, *headers))
        head = self.head()
        assert head.startswith(b"HTTP/1.1 101 "), head
        assert f"sec-websocket-accept: {accept_value(KEY)}".encode() in head

    def head(self) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.take(1)
        return head

    def frame(self, message: bytes, opcode: int = FIN | TEXT) -> bytes:
        return frame(opcode, message, fin=False, mask=self.mask)

    def receive_frame(self) -> tuple[int, bytes]:
        """The first byte and the payload of the next frame."""
        return self._next(self.framing.take_frame)

    def receive(self) -> bytes:
        opcode, message = self.receive_frame()
        assert opcode & 0x0F == TEXT, opcode
        parts = [message]
        while not opcode & FIN:
            opcode, message = self.receive_frame()
            assert opcode & 0x0F == 0, opcode
            parts.append(message)
        return b"".join(parts)


UPGRADE = (
    "Host: 127.0.0.1:1",
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {KEY}",
)


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, *headers, "", ""]).encode()


class Server:
    """Serves one transport: `stdio`, `unix`, `ws` or `ws+unix`."""

    def __init__(self, transport: str, folder: Path, **options: Any) -> None:
        self.transport = transport
        self.thread = LoopThread()
        self.handlers: list[Recorder] = []
        self.answers: Callable[[Recorder, bytes], None] | None = None
        self.listener: SocketListener | None = None
        self._cleanup: list[Callable[[], None]] = []
        self._options = options
        if transport != "stdio":
            self._listen(folder)

    def connect(self) -> Peer:
        """A connection that is ready for messages."""
        if self.transport == "stdio":
            return self._connect_stdio()
        peer = self.dial()
        if isinstance(peer, WebSocketPeer):
            peer.upgrade()
        return peer

    def dial(self) -> Peer:
        """A connection on which nothing was said."""
        sock = socket.socket(socket.AF_UNIX if "unix" in self.transport else socket.AF_INET)
        self._cleanup.append(sock.close)
        sock.connect(self.address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(PATIENCE), 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(PATIENCE), 0))
        kind = WebSocketPeer if "ws" in self.transport else Peer
        return kind(sock.fileno(), sock.fileno(), sock.close, lambda: sock.shutdown(socket.SHUT_WR))

    def handler(self, number: int = 0) -> Recorder:
        """The handler of the connection; it exists once its first message came."""
        for _ in range(int(PATIENCE * 1000)):
            if len(self.handlers) > number:
                return self.handlers[number]
            threading.Event().wait(0.001)
        raise TimeoutError("no connection")

    def make_handler(self, channel: Channel) -> Recorder:
        handler = Recorder(channel, self.answers)
        self.handlers.append(handler)
        return handler

    def close(self) -> None:
        for clean in self._cleanup:
            clean()
        for handler in self.handlers:
            self.thread.call(handler.channel.abort)
        if self.listener is not None:
            self.thread.call(self.listener.close)
        self.thread.close()
        assert [handler.losses for handler in self.handlers] == [1] * len(self.handlers)
        if self.listener is not None:
            assert not self.listener.channels
            self._sock.close()

    def _listen(self, folder: Path) -> None:
        unix = "unix" in self.transport
        self._sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self._sock.bind(str(folder / "socket") if unix else ("127.0.0.1", 0))
        self._sock.listen(64)
        self.address = self._sock.getsockname()
        options = {"authenticator": NoAuthentication(), "host_names": ["configured.example"], **self._options}
        self.listener = self.thread.run(
            serve_socket(self._sock, "unix" if unix else "tcp", self.make_handler, **options)
        )

    def _connect_stdio(self) -> Peer:
        server_in, peer_out = os.pipe()
        peer_in, server_out = os.pipe()
        open_ends = {server_in, peer_out, peer_in, server_out}

        def close(*ends: int) -> None:
            for end in open_ends.intersection(ends):
                open_ends.discard(end)
                os.close(end)

        def serve() -> BaseChannel:
            return serve_stdio(server_in, server_out, self.make_handler, **self._options)

        self._cleanup.append(lambda: close(peer_in, peer_out))
        self.thread.call(serve)
        handler = self.handlers[-1]

        def finish() -> None:
            self.thread.call(handler.channel.abort)
            close(server_in, server_out)

        self._cleanup.append(finish)
        return Peer(peer_in, peer_out, lambda: close(peer_out, peer_in), lambda: close(peer_out))


def flood(peer: Peer, data: bytes) -> threading.Thread:
    """Write in a thread, for what is larger than the buffers between."""
    thread = threading.Thread(target=peer.write, args=(data,))
    thread.start()
    return thread

"""What was sent to a relay and has not left yet stays where its order can still be decided: with us."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import socket

from execprotocol.relay.dial import FrameSocket, dial

FRAME = bytes(60_000)
SMALL_WINDOW_BYTES = 16 << 10
MOST_IN_THE_SYSTEM = 512 << 10
"""By itself it takes two to four megabytes here."""


class Sender:
    """Sends as long as there is room, as streams do."""

    def __init__(self) -> None:
        self.socket: FrameSocket
        self.sent = 0
        self.lost = asyncio.Event()

    def socket_opened(self, socket: FrameSocket) -> None:
        self.socket = socket

    def frame_received(self, message: bytes) -> None:
        raise AssertionError("no data is expected")

    def room(self) -> None:
        while not self.socket.is_full:
            self.socket.send(FRAME)
            self.sent += len(FRAME)

    def socket_lost(self, reason: str) -> None:
        self.lost.set()


async def upgraded(listening: socket.socket) -> socket.socket:
    """The relay's end, of which nothing is read once it has agreed."""
    loop = asyncio.get_running_loop()
    accepted, _ = await loop.sock_accept(listening)
    accepted.setblocking(False)
    head = b""
    while b"\r\n\r\n" not in head:
        head += await loop.sock_recv(accepted, 4096)
    found = re.search(rb"sec-websocket-key: *(\S+)", head, re.IGNORECASE)
    assert found is not None
    digest = hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    await loop.sock_sendall(
        accepted, answer + b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
    )
    return accepted


async def test_the_system_holds_little_of_what_a_slow_relay_has_not_taken() -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW_BYTES)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        sender = Sender()
        relay_end, _ = await asyncio.gather(
            upgraded(listening), dial(f"ws://127.0.0.1:{listening.getsockname()[1]}", sender)
        )
        try:
            sender.room()

            assert sender.socket.is_full
            assert sender.sent - sender.socket.unsent < MOST_IN_THE_SYSTEM
        finally:
            sender.socket.abort()
            await sender.lost.wait()
            relay_end.close()

"""The client's side of the three framings, without I/O: received bytes go in, messages come out.

    peer = WebSocket()
    connection.sendall(peer.encode(b"{}"))
    peer.feed(connection.recv(65536))
    message = peer.take()

The harnesses of the tests use these over their own sockets, pipes and threads.
Standard library only, RFC 6455 included, so that no library of the server is tested against itself.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections import deque

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
"""Opcodes of RFC 6455."""

FIN = 0x80
"""In the first byte of the last frame of a message."""


def with_headers(payload: bytes) -> bytes:
    """A message in `Content-Length` framing."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(payload), payload)


class Framing(ABC):
    """One direction of a connection in each way: messages to send, and bytes that were received."""

    def __init__(self, received: bytes = b"") -> None:
        self.pending = bytearray(received)
        """Received, and not yet part of a message that was taken."""

    @staticmethod
    @abstractmethod
    def encode(payload: bytes) -> bytes:
        """The bytes of one message."""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self.pending += data

    @abstractmethod
    def take(self) -> bytes | None:
        """The next message, once it is complete."""

    def _cut(self, begin: int, end: int) -> bytes:
        """Take the bytes up to `end`; those from `begin` on."""
        data = bytes(memoryview(self.pending)[begin:end])
        del self.pending[:end]
        return data


class Lines(Framing):
    """A message a line. A last line without its end is none."""

    _searched = 0

    @staticmethod
    def encode(payload: bytes) -> bytes:
        """The bytes of one message."""
        return payload + b"\n"

    def take(self) -> bytes | None:
        """The next line, without its end."""
        end = self.pending.find(b"\n", self._searched)
        self._searched = len(self.pending) if end < 0 else 0
        return None if end < 0 else self._cut(0, end + 1)[:-1]


class Headers(Framing):
    """A message behind its `Content-Length`, as the server writes it."""

    @staticmethod
    def encode(payload: bytes) -> bytes:
        """The bytes of one message."""
        return with_headers(payload)

    def take(self) -> bytes | None:
        """The next message, without its header.

        Raises:
            ValueError: another header than `Content-Length`.
        """
        end = self.pending.find(b"\r\n\r\n")
        if end < 0:
            return None
        begin, size = end + 4, int(self.pending[:end].removeprefix(b"Content-Length: "))
        return self._cut(begin, begin + size) if len(self.pending) >= begin + size else None


def frame(opcode: int, payload: bytes, *, fin: bool = True, mask: bytes | None = None) -> bytes:
    """The bytes of one frame of a client; opcode 0 continues a message. Without a mask it is random."""
    size, mask = len(payload), os.urandom(4) if mask is None else mask
    first = opcode | (FIN if fin else 0)
    if size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    # Masking as one exclusive-or of two long integers: linear, and in C.
    key = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)
    return head + mask + masked


class WebSocket(Framing):
    """Just enough of RFC 6455 to test a server: `frame` makes any frame, also a wrong one."""

    def __init__(self, received: bytes = b"") -> None:
        super().__init__(received)
        self.pongs: deque[bytes] = deque()
        self.pings: deque[bytes] = deque()
        """Those that the owner has to answer."""
        self.ended = False
        """A close frame came; what follows it is not read."""
        self.close_code: int | None = None
        self.largest_frame = 0
        self.opcodes: set[int] = set()
        self._message = bytearray()  # a relay sends a thousand frames of a large one

    @staticmethod
    def encode(payload: bytes) -> bytes:
        """The bytes of one text message."""
        return frame(TEXT, payload)

    def take_frame(self) -> tuple[int, bytes] | None:
        """The first byte and the payload of the next frame, once it is complete."""
        if len(self.pending) < 2:
            return None
        size, begin = self.pending[1], 2
        assert size < 128, "a server does not mask"
        if size >= 126:
            begin += 2 if size == 126 else 8
            size = int.from_bytes(self.pending[2:begin]) if len(self.pending) >= begin else len(self.pending)
        if len(self.pending) < begin + size:
            return None
        return self.pending[0], self._cut(begin, begin + size)

    def take(self) -> bytes | None:
        """The next message, put together from its frames; control frames are noted on the way."""
        while not self.ended and (found := self.take_frame()) is not None:
            opcode, payload = found[0] & 15, found[1]
            if opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2]) if payload else 1005
                self.ended = True
            elif opcode == PING:
                self.pings.append(payload)
            elif opcode == PONG:
                self.pongs.append(payload)
            else:
                self.opcodes.add(opcode)
                self.largest_frame = max(self.largest_frame, len(payload))
                self._message += payload
                if found[0] & FIN:
                    message, self._message = bytes(self._message), bytearray()
                    return message
        return None

"""One client connection made for load: raw descriptors, frames built ahead of time, no JSON decoding.

Rule of this file: whatever runs between two time stamps may count newlines or frame headers and search for a
marker, nothing more, so that the load generator stays much cheaper than any server it measures.
A read of a pipe may block for ever; the runner bounds a workload in time (`compare.time_limit`).
"""

import contextlib
import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

Transport = Literal["stdio", "ws", "unix"]

# Larger than a server writes at once, small enough to stay in the processor's cache.
READ_SIZE = 1 << 18
# A marker split over two reads is found because this much of the end of the first one is kept.
TAIL = 4096
# After so many lines it is clear whether they are long; a call for each is nothing beside such a line.
SAMPLED_NEWLINES, LONG_LINE_BYTES = 4, 4096
# Fragment size of a large WebSocket message: the reference serves frames of up to 16 MiB.
FRAGMENT = 1 << 20
# A blocking read of a socket gives up after this (a thread cannot be ended from outside).
SILENCE_SECONDS = 60
# Any fixed key: the server pays the same for unmasking, the generator can build frames ahead of time.
MASK = b"\x37\xfa\x21\x3d"

CLOSED = b'"process/closed"'

_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class StalledError(TimeoutError):
    """The server made no progress for the given time; says how far it came."""


class Connection(ABC):
    """A connection over two descriptors (one and the same for a socket)."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer
        self._buffer = b""
        self._offset = 0

    @abstractmethod
    def frame(self, message: bytes) -> bytes:
        """The bytes that carry one message to the server."""

    @abstractmethod
    def counter(self) -> Callable[[bytes], int]:
        """A fresh function that is fed everything read and tells how many messages ended in it."""

    @abstractmethod
    def receive(self) -> bytes:
        """The next message."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    def large_frame(self, message: bytes) -> bytes:
        """As `frame`, for a message that may be larger than one frame is allowed to be."""
        return self.frame(message)

    def handshake(self, *, extensions: bool = False) -> None:
        """Initialize a new session, with events and members that the reference does not have if asked for."""
        asked = b',"extensions":{"execserver":1}' if extensions else b""
        reply = self.call(b'{"id":1,"method":"initialize","params":{"clientName":"benchmarks"%b}}' % asked)
        if b"sessionId" not in reply:
            raise ConnectionError(f"initialize was refused: {reply[:200]!r}")
        self.send(self.frame(b'{"method":"initialized"}'))

    def send(self, data: bytes) -> None:
        """Write frames, waiting for room."""
        written = os.write(self.writer, data)
        while written < len(data):
            written += os.write(self.writer, memoryview(data)[written:])

    def skip(self, count: int) -> None:
        """Read until `count` more messages have come, and nothing else is on its way."""
        counter = self.counter()
        missing = count - counter(self._take())
        while missing > 0:
            missing -= counter(self.read())

    def call(self, message: bytes) -> bytes:
        """Send one request and return the next message, which must be its answer."""
        self.send(self.frame(message))
        return self.receive()

    def expect(self, *markers: bytes) -> int:
        """Receive until each marker was in some message, in any order; returns how many messages came."""
        missing = list(markers)
        count = 0
        while missing:
            message = self.receive()
            count += 1
            missing = [marker for marker in missing if marker not in message]
        return count

    def ready(self, seconds: float) -> bool:
        """Whether something of a message is there within so many seconds."""
        return self._offset < len(self._buffer) or bool(select.select([self.reader], [], [], seconds)[0])

    def read(self) -> bytes:
        """Whatever is there, as bytes of the wire."""
        try:
            data = os.read(self.reader, READ_SIZE)
        except BlockingIOError as error:
            raise StalledError(f"nothing came for {SILENCE_SECONDS} s") from error
        if not data:
            raise EOFError("the server closed the connection")
        return data

    def exchange(
        self,
        frames: Sequence[bytes],
        *,
        answers: int | None = None,
        window: int | None = None,
        stalled_after: float = 20.0,
    ) -> int:
        """Write `frames` while reading until `answers` messages came (default: one each).

        At most `window` frames are unanswered at a time; None writes as fast as the server takes them.

        Returns:
            Bytes read.

        Raises:
            StalledError: nothing came and nothing could be written for `stalled_after` seconds.
        """
        total = len(frames) if answers is None else answers
        room = len(frames) if window is None else window
        counter = self.counter()
        kept = self._take()
        got, size = counter(kept), len(kept)
        sent = 0
        pending = memoryview(b"")
        ready = select.poll()
        self._watch(ready, writable=True)
        writable = True
        os.set_blocking(self.writer, False)
        try:
            while got < total:
                if not pending and sent < len(frames) and sent - got < room:
                    end = min(len(frames), got + room)
                    pending = memoryview(b"".join(frames[sent:end]))
                    sent = end
                if writable is not bool(pending):
                    writable = bool(pending)
                    self._watch(ready, writable=writable)
                events = ready.poll(stalled_after * 1000)
                if not events:
                    raise StalledError(f"no progress after {got} of {total} messages")
                for descriptor, event in events:
                    if descriptor == self.reader and event & (select.POLLIN | select.POLLHUP):
                        data = self.read()
                        size += len(data)
                        got += counter(data)
                if pending:
                    with contextlib.suppress(BlockingIOError):
                        pending = pending[os.write(self.writer, pending[:READ_SIZE]) :]
        finally:
            os.set_blocking(self.writer, True)
        return size

    def _watch(self, ready: select.poll, *, writable: bool) -> None:
        if self.reader == self.writer:
            ready.register(self.reader, select.POLLIN | (select.POLLOUT if writable else 0))
            return
        ready.register(self.reader, select.POLLIN)
        ready.register(self.writer, select.POLLOUT if writable else 0)

    def read_until_closed(self) -> int:
        """Read and drop until `process/closed` is the last thing that came; returns the bytes read."""
        kept = self._take()
        size = len(kept)
        tail = kept[-TAIL:]
        buffer = bytearray(READ_SIZE)
        view = memoryview(buffer)
        while CLOSED not in tail:
            count = os.readv(self.reader, [view])
            if not count:
                raise EOFError("the server closed the connection")
            size += count
            tail = bytes(view[count - TAIL : count]) if count >= TAIL else tail[-TAIL:] + bytes(view[:count])
        return size

    def count_closed(self, total: int, refill: Callable[[int], bytes] = lambda _: b"") -> None:
        """Read until `process/closed` was seen `total` times.

        Args:
            total: events to wait for.
            refill: told how many events just came; returns further frames to send, or nothing.
        """
        seen = 0
        carry = self._take()
        while True:
            found = carry.count(CLOSED)
            if found:
                seen += found
                if seen >= total:
                    return
                carry = carry[carry.rfind(CLOSED) + len(CLOSED) :]
                more = refill(found)
                if more:
                    self.send(more)
            carry = carry[-TAIL:] + self.read()

    def _take(self) -> bytes:
        kept = self._buffer[self._offset :]
        self._buffer, self._offset = b"", 0
        return kept


class LineConnection(Connection):
    """One message a line: stdio and Unix sockets."""

    def __init__(self, reader: int, writer: int, owner: socket.socket | None = None) -> None:
        super().__init__(reader, writer)
        self._socket = owner

    def frame(self, message: bytes) -> bytes:
        """The message and its newline."""
        return message + b"\n"

    def counter(self) -> Callable[[bytes], int]:
        """Counts newlines: JSON text on the wire contains no other."""
        return count_newlines

    def receive(self) -> bytes:
        """The next line without its newline."""
        end = self._buffer.find(b"\n", self._offset)
        if end >= 0:
            message = self._buffer[self._offset : end]
            self._offset = end + 1
            return message
        parts = [self._take()]
        while True:
            data = self.read()
            end = data.find(b"\n")
            if end >= 0:
                self._buffer, self._offset = data, end + 1
                parts.append(data[:end])
                return b"".join(parts)
            parts.append(data)

    def close(self) -> None:
        """Close the socket; the pipes of a stdio server belong to its process object."""
        if self._socket is not None:
            self._socket.close()


def count_newlines(data: bytes) -> int:
    """How many newlines there are, quickly where they are few and where they are many.

    `count` looks at one byte after the other, which takes longer for a large answer than making it does;
    `find` looks at many at once, but costs a call for each newline.
    """
    count = position = 0
    while (end := data.find(b"\n", position)) >= 0:
        count += 1
        position = end + 1
        if count == SAMPLED_NEWLINES and position < SAMPLED_NEWLINES * LONG_LINE_BYTES:
            return count + data.count(b"\n", position)
    return count


def _header(data: bytes, start: int) -> tuple[int, int, int] | None:
    """Header length, payload length and first byte of the frame at `start`, or None when cut short."""
    if len(data) < start + 2:
        return None
    short = data[start + 1]
    if short < 126:
        return 2, short, data[start]
    if short == 126:
        if len(data) < start + 4:
            return None
        return 4, (data[start + 2] << 8) | data[start + 3], data[start]
    if len(data) < start + 10:
        return None
    return 10, int.from_bytes(data[start + 2 : start + 10], "big"), data[start]


class _FrameCounter:
    """Counts the final data frames whose last byte has passed."""

    def __init__(self) -> None:
        self._skip = 0
        self._final = 0
        self._part = b""

    def __call__(self, data: bytes) -> int:
        start = count = 0
        if self._skip:
            if self._skip > len(data):
                self._skip -= len(data)
                return 0
            start, count, self._skip = self._skip, self._final, 0
        elif self._part:
            data, self._part = self._part + data, b""
        size = len(data)
        while start < size:
            header = _header(data, start)
            if header is None:
                self._part = data[start:]
                break
            length, payload, first = header
            end = start + length + payload
            final = 1 if first & 0x80 and first & 15 < 3 else 0
            if end > size:
                self._skip, self._final = end - size, final
                break
            count += final
            start = end
        return count


class WebSocketConnection(Connection):
    """One message a WebSocket message; text frames, all masked with one key."""

    def __init__(self, owner: socket.socket) -> None:
        super().__init__(owner.fileno(), owner.fileno())
        self._socket = owner
        owner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        owner.sendall(_HANDSHAKE)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.read()
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(f"upgrade was refused: {head[:200]!r}")
        self._buffer = head.split(b"\r\n\r\n", 1)[1]

    def frame(self, message: bytes) -> bytes:
        """A single masked text frame."""
        return self._frame(message, 0x81)

    def large_frame(self, message: bytes) -> bytes:
        """As many fragments of 1 MiB as the message needs."""
        if len(message) <= FRAGMENT:
            return self.frame(message)
        starts = range(0, len(message), FRAGMENT)
        return b"".join(
            self._frame(
                message[start : start + FRAGMENT],
                (0x01 if start == 0 else 0x00) | (0x80 if start + FRAGMENT >= len(message) else 0x00),
            )
            for start in starts
        )

    @staticmethod
    def _frame(payload: bytes, first: int) -> bytes:
        size = len(payload)
        if size < 126:
            header = struct.pack("!BB", first, 0x80 | size)
        elif size < 1 << 16:
            header = struct.pack("!BBH", first, 0x80 | 126, size)
        else:
            header = struct.pack("!BBQ", first, 0x80 | 127, size)
        key = int.from_bytes((MASK * (size // 4 + 1))[:size], "little")
        masked = (int.from_bytes(payload, "little") ^ key).to_bytes(size, "little")
        return header + MASK + masked

    def counter(self) -> Callable[[bytes], int]:
        """Walks frame headers."""
        return _FrameCounter()

    def receive(self) -> bytes:
        """The next text or binary message; control frames are skipped."""
        message = b""
        while True:
            header = _header(self._buffer, self._offset)
            if header is None:
                self._buffer, self._offset = self._take() + self.read(), 0
                continue
            length, payload, first = header
            start = self._offset + length
            missing = start + payload - len(self._buffer)
            if missing > 0:
                parts = [self._buffer[start:]]
                while missing > 0:
                    parts.append(self.read())
                    missing -= len(parts[-1])
                self._buffer, start = b"".join(parts), 0
            data = self._buffer[start : start + payload]
            self._offset = start + payload
            if first & 15 > 2:
                continue
            message = message + data if message else data
            if first & 0x80:
                return message

    def close(self) -> None:
        """Drop the socket."""
        self._socket.close()


def connect_socket(family: int, address: str | tuple[str, int], *, within: float) -> socket.socket:
    """A connected, blocking socket, tried again until the server listens.

    Raises:
        ConnectionError: no server listened within `within` seconds.
    """
    end = time.monotonic() + within
    while True:
        attempt = socket.socket(family, socket.SOCK_STREAM)
        try:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENCE_SECONDS, 0))
            attempt.connect(address)
        except OSError as error:
            attempt.close()
            if time.monotonic() > end:
                raise ConnectionError(f"no server at {address}: {error}") from error
            time.sleep(0.001)
        else:
            return attempt

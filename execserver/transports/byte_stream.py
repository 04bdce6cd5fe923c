"""Messages over a byte stream: Unix sockets and stdio.

The first bytes that are not white space select the framing: `Cont` begins the headers of `Content-Length`
framing, everything else is newline JSON (`docs/protocol.md`, "Content-Length framing").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter

import msgspec

from execserver.rpc.channel import MessageStream
from execserver.rpc.framing import Framer, FramingError, HeaderFramer, LineFramer, Messages
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures
from execserver.transports.base import (
    BULK_READ_BYTES,
    READ_BYTES,
    BaseChannel,
    QueuedStream,
)
from execserver.transports.write_buffer import LOW_WATER_BYTES

MAX_SPIN_SECONDS = 0.005
"""The longest spin in one turn of the loop, whatever arrives meanwhile."""

BLANKS = b" \t\r\n"
PADDING = b" " * LOW_WATER_BYTES

_HEADERS = b"cont"
"""The first letters of `Content-Length` and `Content-Type`, in any case; `CONNECT` has others."""

log = Logger()


class Spin(msgspec.Struct, frozen=True):
    """Further reads for a moment after a message, because the next one often follows at once and its sender
    would have to wake a sleeping reader (about 60 us).
    """

    seconds: float
    allowed: Callable[[], bool]


class ByteStreamChannel(BaseChannel):
    """One JSON value for each line or `Content-Length`, in UTF-8."""

    parse_error_prefix = "failed to parse JSON-RPC message from exec-server stdio: "
    utf8_is_fatal = True

    def __init__(
        self, fd_in: int, fd_out: int, peer: str, release: Callable[[], None], spin: Spin | None = None
    ) -> None:
        super().__init__(fd_in, fd_out, peer, release)
        self.kind = "unix" if peer.startswith("unix:") else "stdio"
        # The listener accepts no other user.
        self.peer_proof = "user" if self.kind == "unix" else None
        self._framer: Framer | None = None
        self._has_headers = False
        self._first = b""  # bytes before the framing was known
        self._spin = spin

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue one message."""
        size = sum(map(len, parts))
        if self._has_headers:
            headers = b"Content-Length: %d\r\n\r\n" % size
            self._write_buffer.put((headers, *parts), size + len(headers))
        else:
            self._write_buffer.put((*parts, b"\n"), size + 1)

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces come later."""
        if self._has_headers:
            return SizedStream(QueuedStream(self._write_buffer, lambda piece, _: (piece,)), size)
        return QueuedStream(self._write_buffer, lambda piece, last: (piece, b"\n") if last else (piece,))

    def serve_first(self, first: bytes) -> None:
        """Serve bytes that were read before this channel was created."""
        measures.received(len(first))
        self._serve(self._deliver, first)

    def _release(self) -> None:
        # Half of a message may have 64 MiB, and this object lives on in cycles for a while.
        self._framer = None
        super()._release()

    def _readable(self) -> None:
        delivered = self._read_once()
        if delivered and self._spin is not None:
            self._spin_for_more(self._spin)

    def _spin_for_more(self, spin: Spin) -> None:
        now = perf_counter()
        limit = now + MAX_SPIN_SECONDS
        deadline = min(now + spin.seconds, limit)
        while now < deadline and not self._paused and not self._over and not self.unsent and spin.allowed():
            if self._read_once():
                deadline = min(perf_counter() + spin.seconds, limit)
            now = perf_counter()

    def _read_once(self) -> bool:
        """Read once; return whether there was at least one byte."""
        framer = self._framer
        most = BULK_READ_BYTES if framer is not None and framer.is_in_bulk else READ_BYTES
        try:
            piece = os.read(self._fd_in, most)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._failed(error)
            return False
        if not piece:
            self._end_of_input()
            return False
        measures.received(len(piece))
        self._serve(self._deliver, piece)
        return True

    def _deliver(self, piece: bytes) -> None:
        framer = self._framer
        if framer is None:
            piece = (self._first + piece).lstrip(BLANKS)
            framer = self._choose_framing(piece)
            if framer is None:
                return
        try:
            messages = framer.feed(piece)
        except FramingError as error:
            self._pass_on(error.messages)
            log.warning("message cannot be framed", peer=self.peer, reason=str(error))
            if error.answer is None:
                self._end_of_input()
            elif not self._over:
                self._framing_broken = True
                self._watch(False)
                self._handler.framing_failed(error.answer)
            return
        self._pass_on(messages)

    def _choose_framing(self, first: bytes) -> Framer | None:
        headers = begins_headers(first)
        if headers is None:
            self._first = first
        else:
            self._first = b""
            # The stock client writes lines; only editors write headers.
            self._has_headers = self.presumes_json_rpc = headers
            self._framer = HeaderFramer() if headers else LineFramer()
        return self._framer

    def _pass_on(self, messages: Messages) -> None:
        self._messages += len(messages)
        self._handler.messages_received(messages)


class SizedStream:
    """One message in pieces whose length was announced. If the pieces turn out shorter (the file shrank
    meanwhile), blanks fill up the rest, which JSON allows behind a value.
    """

    def __init__(self, stream: QueuedStream, size: int) -> None:
        self._stream = stream
        self._missing = size
        stream.put(b"Content-Length: %d\r\n\r\n" % size)

    async def write(self, piece: bytes) -> None:
        """Queue a piece and wait until the peer has taken most of what is queued."""
        self._missing -= len(piece)
        await self._stream.write(piece)

    async def close(self, tail: bytes) -> None:
        """Queue the last piece, fill up, and release the messages behind this one."""
        await self.write(tail)
        while self._missing > len(PADDING):
            await self.write(PADDING)
        await self._stream.close(PADDING[: self._missing])


def begins_headers(received: bytes | bytearray) -> bool | None:
    """Whether these bytes, after blanks, begin the headers of a message; None if they are too few."""
    begun = bytes(received[: len(_HEADERS)]).lower()
    if begun == _HEADERS:
        return True
    return None if _HEADERS.startswith(begun) else False

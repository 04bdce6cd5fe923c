"""Whole bodies in memory, which are counted for the daemon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType

import pybase64

from execprotocol.limits import MAX_HTTP_BODY_BYTES
from execserver.http.errors import TransferError

PIECE_BYTES = 768 << 10
"""Raw bytes of a piece of a large reply: a multiple of three, so that only the last one has padding, and
encoded in a fraction of a millisecond."""


class HeldBytes:
    """How much of responses the daemon holds in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.total = 0

    def take(self, size: int) -> None:
        """Count bytes.

        Raises:
            TransferError: there would be too many.
        """
        if self.total + size > self._limit:
            raise TransferError(
                f"the executor holds {self.total} bytes of other responses: ask for it with streamResponse"
            )
        self.total += size

    def give_back(self, size: int) -> None:
        """Bytes that are no longer held."""
        self.total -= size


class WholeBody:
    """A body in memory, counted in `held` until `release`, of which `released` is told."""

    def __init__(self, held: HeldBytes, released: Callable[[WholeBody], None]) -> None:
        self._held = held
        self._released = released
        self._counted = 0
        self.data = bytearray()

    @property
    def encoded_size(self) -> int:
        """Bytes of the body in base64."""
        return (len(self.data) + 2) // 3 * 4

    async def read(self, chunks: AsyncGenerator[bytes, None]) -> None:
        """Take the body in.

        Raises:
            TransferError: it broke, or is too large.
        """
        async with aclosing(chunks):
            async for chunk in chunks:
                if len(self.data) + len(chunk) > MAX_HTTP_BODY_BYTES:
                    raise TransferError(
                        f"larger than {MAX_HTTP_BODY_BYTES} bytes: ask for it with streamResponse"
                    )
                self._held.take(len(chunk))
                self._counted += len(chunk)
                self.data += chunk

    def release(self) -> None:
        """Let go of the bytes (idempotent)."""
        self._held.give_back(self._counted)
        self._counted = 0
        self.data = bytearray()
        self._released(self)


class EncodedPieces(AsyncGenerator[bytes, None]):
    """A body in base64, piece by piece. It is released at the end and by `aclose`, also when nothing
    was asked for: a generator function would not notice that.
    """

    def __init__(self, body: WholeBody) -> None:
        self._body = body
        self._start = 0

    async def asend(self, value: None) -> bytes:
        """The next piece."""
        piece = self._body.data[self._start : self._start + PIECE_BYTES]
        if not piece:
            self._body.release()
            raise StopAsyncIteration
        self._start += PIECE_BYTES
        return pybase64.b64encode(piece)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> bytes:
        """End the stream and raise."""
        self._body.release()
        raise typ

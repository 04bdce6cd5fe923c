"""`fs/readFile`: a whole file as base64, in one piece when it is small, else as a stream.

The pieces of a stream are read and encoded in threads, a few ahead of what is sent, so that
memory stays the same for a file of any size.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from types import TracebackType

import msgspec
import pybase64

from execprotocol.errors import InvalidRequest
from execprotocol.limits import MAX_READ_FILE_BYTES
from execserver.filesystem.blocking import BlockingCalls, run_in_background
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.opening import open_to_read, require_regular

PIECE_BYTES = 768 << 10
"""Raw bytes of a piece: a multiple of three, so that only the last one has padding, and 1 MiB
when encoded. Smaller files are read and answered at once."""

_ENCODED_PIECE_BYTES = PIECE_BYTES // 3 * 4

_AHEAD = 2
"""Pieces in work while one is sent."""

_ENVELOPE_BYTES = 1024
"""What a reply has beside the base64 text."""


class LargeFile(msgspec.Struct, frozen=True):
    """A file that is to be streamed: its descriptor, and how many bytes it had when opened."""

    descriptor: Descriptor
    size: int


def begin_reading(path: str, max_reply_bytes: int | None, descriptors: Descriptors) -> bytes | LargeFile:
    """Open a regular file, following links, and read it if it is small.

    Returns:
        The content as base64, or the file to be given to `FileStream`.

    Raises:
        InvalidRequest: it is no file, larger than 512 MiB, or its base64 text would not fit
            into `max_reply_bytes`.
        OSError: it cannot be opened or read.
    """
    number, status = open_to_read(path)
    return _begin(number, status.st_size, max_reply_bytes, descriptors)


def begin_reading_opened(
    descriptor: Descriptor, path: str, max_reply_bytes: int | None, descriptors: Descriptors
) -> bytes | LargeFile:
    """The same with a file that somebody else opened; `descriptor` is released.

    Raises:
        InvalidRequest: as above.
        OSError: it cannot be read, or was closed.
    """
    try:
        with descriptor.borrow() as borrowed:
            number = os.dup(borrowed)
    finally:
        descriptors.release(descriptor)
    status = require_regular(number, path)
    return _begin(number, status.st_size, max_reply_bytes, descriptors)


def _begin(
    number: int, size: int, max_reply_bytes: int | None, descriptors: Descriptors
) -> bytes | LargeFile:
    """Read the file if it is small; the number is closed here or kept in what is given back."""
    try:
        if not size:
            # The files of /proc do not report their size.
            number, size = _take_in(number)
        _check_size(size, max_reply_bytes)
        if size <= PIECE_BYTES:
            return pybase64.b64encode(read_at(number, size, 0))
        kept, number = number, -1
        return LargeFile(descriptors.adopt(kept), size)
    finally:
        if number >= 0:
            os.close(number)


class FileStream(AsyncGenerator[bytes, None]):
    """The pieces of a large file, in base64. The file is closed at the end, on an error and by
    `aclose`. A file that shrinks meanwhile ends the stream early, one that grows does not prolong it.
    """

    def __init__(self, file: LargeFile, calls: BlockingCalls, descriptors: Descriptors) -> None:
        self._file = file
        self._calls = calls
        self._descriptors = descriptors
        self._offset = 0
        self._ahead: deque[asyncio.Future[bytes]] = deque()
        self.encoded_size = (file.size + 2) // 3 * 4
        """Bytes of base64 text, unless the file shrinks meanwhile."""

    async def asend(self, value: None) -> bytes:
        """The next piece."""
        while self._offset < self._file.size and len(self._ahead) <= _AHEAD:
            self._read_ahead()
        piece = b""
        try:
            if self._ahead:
                piece = await self._ahead.popleft()
        finally:
            if len(piece) < _ENCODED_PIECE_BYTES:
                self._end()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> bytes:
        """End the stream and raise."""
        self._end()
        raise typ

    def _read_ahead(self) -> None:
        length = min(PIECE_BYTES, self._file.size - self._offset)
        self._ahead.append(self._calls.run(_encoded_piece, self._file.descriptor, length, self._offset))
        self._offset += length

    def _end(self) -> None:
        self._offset = self._file.size
        run_in_background(partial(self._descriptors.release, self._file.descriptor))
        for future in self._ahead:
            if not future.cancel() and not future.cancelled():
                future.exception()  # A failure beyond the end of the stream is nobody's.
        self._ahead.clear()


def read_at(number: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes from `offset` on; fewer only where the file ends."""
    data = os.pread(number, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    received = len(data)
    while received < length and (data := os.pread(number, length - received, offset + received)):
        parts.append(data)
        received += len(data)
    return b"".join(parts)


def _encoded_piece(descriptor: Descriptor, length: int, offset: int) -> bytes:
    with descriptor.borrow() as number:
        data = read_at(number, length, offset)
    return pybase64.b64encode(data)


def _check_size(size: int, max_reply_bytes: int | None) -> None:
    if size > MAX_READ_FILE_BYTES:
        raise InvalidRequest(f"file is too large to read: limit is {MAX_READ_FILE_BYTES} bytes")
    check_reply_size((size + 2) // 3 * 4, max_reply_bytes)


def check_reply_size(encoded_size: int, max_reply_bytes: int | None) -> None:
    """See that a reply with so many characters of base64 may be sent.

    Raises:
        InvalidRequest: its peer does not take it.
    """
    if max_reply_bytes is not None and encoded_size + _ENVELOPE_BYTES > max_reply_bytes:
        raise InvalidRequest(
            f"file is too large for one reply of at most {max_reply_bytes} bytes: "
            "read it in blocks by fs/open and fs/readBlock"
        )


def _take_in(number: int) -> tuple[int, int]:
    """Read a file of unknown size into memory.

    Returns:
        A descriptor of the content, which replaces `number`, and its size; no more is read than
        what shows that the file is too large.
    """
    data = os.read(number, PIECE_BYTES)
    if not data:
        return number, 0
    content = os.memfd_create("fs/readFile")
    size = 0
    try:
        while data and size <= MAX_READ_FILE_BYTES:
            size += os.write(content, data)
            data = os.read(number, PIECE_BYTES)
    except BaseException:
        os.close(content)
        raise
    with suppress(OSError):
        os.close(number)
    return content, size

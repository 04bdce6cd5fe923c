"""`fs/readFile`, `fs/getFiles` and `fs/digest`. A small file is read in one piece, a large one as a stream.

The pieces of a stream are read and encoded in threads, a few ahead of the client: the use of memory does not
depend on the size of the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import pybase64

from execprotocol.errors import InvalidRequest
from execprotocol.limits import MAX_READ_FILE_BYTES
from execserver.filesystem.blocking import BlockingCalls, run_in_background
from execserver.filesystem.content import content_digest
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.metadata import metadata, metadata_of
from execserver.filesystem.opening import open_to_read, require_regular

if TYPE_CHECKING:
    from execprotocol.filesystem import DigestResult, FoundFile, Metadata
    from execserver.filesystem.cancel import StopFlag

PIECE_BYTES = 768 << 10
"""Raw bytes of a piece: a multiple of three, so that only the last one has padding, and 1 MiB when encoded.
Files up to this size are read in one piece."""

_ENCODED_PIECE_BYTES = PIECE_BYTES // 3 * 4

_AHEAD = 2
"""Pieces that are read while one is sent."""

_ENVELOPE_BYTES = 1024
"""An upper bound for the rest of the reply."""


class LargeFile(msgspec.Struct, frozen=True):
    """A file to be streamed: its descriptor, and its size in bytes when it was opened."""

    descriptor: Descriptor
    size: int


def begin_reading(path: str, max_reply_bytes: int | None, descriptors: Descriptors) -> bytes | LargeFile:
    """Open a regular file, following links, and read it if it is small.

    Returns:
        The content as base64, or the file for a `FileStream`.

    Raises:
        InvalidRequest: the path is no file, the file is larger than 512 MiB, or its base64 text does not fit
            into `max_reply_bytes`.
        OSError: the file cannot be opened or read.
    """
    fd, status = open_to_read(path)
    return _begin(fd, status.st_size, max_reply_bytes, descriptors)


def begin_reading_opened(
    descriptor: Descriptor, path: str, max_reply_bytes: int | None, descriptors: Descriptors
) -> bytes | LargeFile:
    """The same with a file that an fs worker has opened; `descriptor` is released.

    Raises:
        InvalidRequest: as above.
        OSError: the file cannot be read, or was closed.
    """
    try:
        with descriptor.borrow() as borrowed:
            fd = os.dup(borrowed)
    finally:
        descriptors.release(descriptor)
    status = require_regular(fd, path)
    return _begin(fd, status.st_size, max_reply_bytes, descriptors)


def _begin(fd: int, size: int, max_reply_bytes: int | None, descriptors: Descriptors) -> bytes | LargeFile:
    """Read the file if it is small. `fd` is closed, unless the result keeps it."""
    try:
        if not size:
            # The files of /proc do not report their size.
            fd, size = _read_into_memory(fd)
        _check_size(size, max_reply_bytes)
        if size <= PIECE_BYTES:
            return pybase64.b64encode(read_at(fd, size, 0))
        kept, fd = fd, -1
        return LargeFile(descriptors.adopt(kept), size)
    finally:
        if fd >= 0:
            os.close(fd)


def digest(path: str, stop: StopFlag, limit: int | None = None) -> DigestResult:
    """`fs/digest`: read a regular file to its end, following links, without keeping the interpreter's lock.

    Args:
        path: the file.
        stop: cancels the reading.
        limit: bytes to read at most; None for all.

    Raises:
        InvalidRequest: the path is a directory, a fifo or a device.
        OSError: the file cannot be opened or read.
        RequestCancelled: `stop` is set.
    """
    fd, _ = open_to_read(path)
    try:
        return _digest(fd, stop, limit)
    finally:
        os.close(fd)


def digest_opened(
    descriptor: Descriptor, descriptors: Descriptors, stop: StopFlag, limit: int | None = None
) -> DigestResult:
    """The same of an open file, from its beginning; `descriptor` is released."""
    try:
        with descriptor.borrow() as fd:
            return _digest(fd, stop, limit)
    finally:
        descriptors.release(descriptor)


def _digest(fd: int, stop: StopFlag, limit: int | None) -> DigestResult:
    sha256, size = content_digest(fd, stop, limit)
    return {"sha256": sha256, "size": size}


def find(path: str, most: int) -> FoundFile:
    """A path of `fs/getFiles`, following links: its metadata, and its content if it is a regular file.

    Args:
        path: the path.
        most: bytes of content; a larger file is described only.

    Raises:
        OSError: the path does not exist, or the file cannot be opened or read.
    """
    described = metadata(path, extended=True)
    if not may_hold(described, most):
        return described_only(described)
    fd, _ = open_to_read(path)
    try:
        return _found(fd, most, is_link=described["isSymlink"])
    finally:
        os.close(fd)


def find_opened(descriptor: Descriptor, descriptors: Descriptors, most: int, is_link: bool) -> FoundFile:
    """The same of an open file; `descriptor` is released."""
    try:
        with descriptor.borrow() as fd:
            return _found(fd, most, is_link=is_link)
    finally:
        descriptors.release(descriptor)


def may_hold(described: Metadata, most: int) -> bool:
    """Whether a path is a regular file of at most so many bytes."""
    return described["isFile"] and described["size"] <= most


def described_only(described: Metadata) -> FoundFile:
    """The result for a path whose content is not returned."""
    return {
        "isDirectory": described["isDirectory"],
        "isFile": described["isFile"],
        "isSymlink": described["isSymlink"],
        "size": described["size"],
        "permissions": described["permissions"],
        "modifiedAtNs": described["modifiedAtNs"],
        "accessedAtNs": described["accessedAtNs"],
    }


def _found(fd: int, most: int, *, is_link: bool) -> FoundFile:
    status = os.fstat(fd)
    found = described_only(metadata_of(status, is_link=is_link, extended=True))
    size = status.st_size
    if size > most or not found["isFile"]:
        return found
    # The files of /proc do not report their size, and are other ones at each read.
    content = read_at(fd, size, 0) if size else _read_on(fd, most + 1)
    if len(content) == size or (not size and len(content) <= most):
        found["dataBase64"] = pybase64.b64encode(content).decode()
        again = read_at(fd, size, 0) if size else content
        found["sha256"] = hashlib.sha256(again).hexdigest()
    return found


def _read_on(fd: int, most: int) -> bytes:
    """Read on to the end of a file, up to so many bytes."""
    parts = []
    while most and (part := os.read(fd, most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


class FileStream(AsyncGenerator[bytes, None]):
    """The pieces of a large file, in base64.

    The file is closed at the end, on an error and by `aclose`. If the file shrinks meanwhile, the stream ends
    early; if it grows, the stream ends at the size that it had when opened.
    """

    def __init__(self, file: LargeFile, calls: BlockingCalls, descriptors: Descriptors) -> None:
        self._file = file
        self._calls = calls
        self._descriptors = descriptors
        self._offset = 0
        self._ahead: deque[asyncio.Future[bytes]] = deque()
        self.encoded_size = (file.size + 2) // 3 * 4
        """Bytes of base64 text, unless the file shrinks."""

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
                future.exception()  # No reader is left for it.
        self._ahead.clear()


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes at `offset`; fewer only at the end of the file."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    received = len(data)
    while received < length and (data := os.pread(fd, length - received, offset + received)):
        parts.append(data)
        received += len(data)
    return b"".join(parts)


def _encoded_piece(descriptor: Descriptor, length: int, offset: int) -> bytes:
    with descriptor.borrow() as fd:
        data = read_at(fd, length, offset)
    return pybase64.b64encode(data)


def _check_size(size: int, max_reply_bytes: int | None) -> None:
    if size > MAX_READ_FILE_BYTES:
        raise InvalidRequest(f"file is too large to read: limit is {MAX_READ_FILE_BYTES} bytes")
    check_reply_size((size + 2) // 3 * 4, max_reply_bytes)


def check_reply_size(encoded_size: int, max_reply_bytes: int | None) -> None:
    """Check that the client accepts a reply with so many characters of base64.

    Raises:
        InvalidRequest: the reply is too large.
    """
    if max_reply_bytes is not None and encoded_size + _ENVELOPE_BYTES > max_reply_bytes:
        raise InvalidRequest(
            f"file is too large for one reply of at most {max_reply_bytes} bytes: "
            "read it in blocks by fs/open and fs/readBlock"
        )


def _read_into_memory(fd: int) -> tuple[int, int]:
    """Read a file of unknown size into memory.

    Returns:
        A descriptor of the content, which replaces `fd`, and its size. If the file is too large, reading
        stops just beyond the limit.
    """
    data = os.read(fd, PIECE_BYTES)
    if not data:
        return fd, 0
    content = os.memfd_create("fs/readFile")
    size = 0
    try:
        while data and size <= MAX_READ_FILE_BYTES:
            size += os.write(content, data)
            data = os.read(fd, PIECE_BYTES)
    except BaseException:
        os.close(content)
        raise
    with suppress(OSError):
        os.close(fd)
    return content, size

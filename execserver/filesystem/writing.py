"""`fs/writeFile`: writes base64 text to a file, in place.

The text may be as long as a message. The writing thread decodes it twice, piece by piece: once to check it
before any file is touched, and once to write it. Decoding costs a tenth of writing, and less than keeping the
decoded pieces.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator

import msgspec
import pybase64

from execprotocol.errors import InvalidRequest
from execserver.filesystem.content import reserve
from execserver.filesystem.opening import open_to_write

_PIECE_CHARS = 256 << 10
"""Characters of a piece: a multiple of four, and small enough for a processor's cache."""


class Content(msgspec.Struct, frozen=True):
    """A valid base64 text, and the number of bytes that it encodes."""

    encoded: memoryview
    size: int


def write_file(path: str, text: str | memoryview) -> None:
    """Make a file or replace its content. Links are followed; inode, mode and hard links stay.

    If there is no space for the new content, the old content stays.

    Raises:
        InvalidRequest: the text is no base64; nothing was made or changed.
        OSError: the file cannot be opened or written.
    """
    content = check_content(text)
    fd = open_to_write(path)
    try:
        write_opened(fd, content)
    finally:
        os.close(fd)


def check_content(text: str | memoryview, method: str = "fs/writeFile") -> Content:
    """Check that a text is base64.

    Args:
        text: the text.
        method: the method, for the error message.

    Raises:
        InvalidRequest: the text is no base64.
    """
    encoded = memoryview(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    return Content(encoded, _decoded_size(encoded, method))


def write_opened(fd: int, content: Content) -> None:
    """Replace the content of a file that was opened by `open_to_write`.

    Raises:
        OSError: the file cannot be written.
    """
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        _replace_content(fd, status.st_size, content.encoded, content.size)
    else:
        _write_all(fd, content.encoded)


def write_new(fd: int, content: Content) -> str:
    """Fill an empty regular file, and return the SHA-256 of its content in hexadecimal digits.

    Raises:
        OSError: the file cannot be written.
    """
    digest = hashlib.sha256()
    for piece in _pieces(content.encoded):
        data = memoryview(pybase64.b64decode(piece, validate=True))
        digest.update(data)
        while data:
            data = data[os.write(fd, data) :]
    return digest.hexdigest()


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def _replace_content(fd: int, old_size: int, encoded: memoryview, size: int) -> None:
    try:
        if old_size and size:
            reserve(fd, old_size, size)
        _write_all(fd, encoded)
    except OSError:
        if not old_size:
            os.ftruncate(fd, 0)
        raise
    if size < old_size:
        os.ftruncate(fd, size)


def _write_all(fd: int, encoded: memoryview) -> None:
    for piece in _pieces(encoded):
        data = memoryview(pybase64.b64decode(piece, validate=True))
        while data:
            data = data[os.write(fd, data) :]


def _decoded_size(encoded: memoryview, method: str = "fs/writeFile") -> int:
    """The number of bytes that a text encodes.

    Raises:
        InvalidRequest: the text is no standard base64 with padding.
    """
    size = 0
    decoded = b""
    last = memoryview(b"")
    for piece in _pieces(encoded):
        if len(last) * 3 != len(decoded) * 4:
            raise _invalid(method, "padding before the end")
        try:
            decoded = pybase64.b64decode(piece, validate=True)
        except ValueError as error:
            raise _invalid(method, str(error)) from None
        last = piece
        size += len(decoded)
    # The last digit before the padding has unused bits. Every encoder sets them to zero; other bits are a
    # sign of a damaged text.
    if pybase64.b64encode(decoded[-(len(decoded) % 3 or 3) :]) != bytes(last[-4:]):
        raise _invalid(method, "the last digit has bits that are not zero")
    return size


def _pieces(encoded: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(encoded), _PIECE_CHARS):
        yield encoded[start : start + _PIECE_CHARS]


def _invalid(method: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{method} requires valid base64 dataBase64: {reason}")

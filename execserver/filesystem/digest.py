"""`fs/digest`: the SHA-256 of a file that is read once, in blocks."""

from __future__ import annotations

import hashlib
import os

from execserver.filesystem.cancel import give_up_if
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.opening import open_to_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execprotocol.filesystem import DigestResult
    from execserver.filesystem.cancel import Stop

_BLOCK_BYTES = 1 << 20


def digest(path: str, stop: Stop, limit: int | None = None) -> DigestResult:
    """Read a regular file to its end, following links. Blocking; the interpreter is free meanwhile.

    Args:
        path: the file.
        stop: ends the reading half-way.
        limit: how many bytes to read at most; None for all.

    Raises:
        InvalidRequest: it is a directory, a fifo or a device.
        OSError: it cannot be opened or read.
        Abandoned: `stop` is set.
    """
    number, _ = open_to_read(path)
    try:
        return _digest(number, stop, limit)
    finally:
        os.close(number)


def digest_opened(
    descriptor: Descriptor, descriptors: Descriptors, stop: Stop, limit: int | None = None
) -> DigestResult:
    """The same of an open file, from its beginning; it is closed."""
    try:
        with descriptor.borrow() as number:
            return _digest(number, stop, limit)
    finally:
        descriptors.release(descriptor)


def _digest(number: int, stop: Stop, limit: int | None) -> DigestResult:
    found, size, block = hashlib.sha256(), 0, memoryview(bytearray(_BLOCK_BYTES))
    # By the file's own offset: those of /proc do not take any other.
    while length := os.readv(number, [block if limit is None else block[: limit - size]]):
        found.update(block[:length])
        size += length
        give_up_if(stop)
    return {"sha256": found.hexdigest(), "size": size}

"""Copies and digests of the content of open files. A copy is made inside the kernel where that is possible.

Also used by fs workers.
"""

from __future__ import annotations

import errno
import os

from execserver.filesystem.cancel import raise_if_cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.filesystem.cancel import StopFlag

_STEP_BYTES = 16 << 20
"""Copied by one system call, so that a cancelled copy stops soon."""

_BUFFER_BYTES = 1 << 20

# Errors of a kernel or a file system that cannot copy, either these two files or at all.
_CANNOT_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)

# Errors of a file system, or of the C library, that cannot reserve space. EBADF is that of glibc, whose
# fallback needs a descriptor that can be read.
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})

_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


def copy_whole(original: int, copied: int, status: os.stat_result, stop: StopFlag) -> None:
    """Copy a regular file to an empty one, up to the size that it had when opened; holes stay holes.

    A file that reports no size, such as those of /proc, is copied to its end.

    Args:
        original: open for reading, at its beginning.
        copied: open for writing.
        status: of the original, right after it was opened.
        stop: cancels the copy.

    Raises:
        OSError: a file cannot be read or written.
        RequestCancelled: `stop` is set.
    """
    size = status.st_size
    if status.st_blocks * _BLOCK_BYTES >= size:
        copy_content(original, copied, stop, size or None)
        return
    end = 0
    while end < size:
        raise_if_cancelled(stop)
        try:
            start = os.lseek(original, end, os.SEEK_DATA)
            end = min(os.lseek(original, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                break
            raise
        os.lseek(original, start, os.SEEK_SET)
        os.lseek(copied, start, os.SEEK_SET)
        copy_content(original, copied, stop, end - start)
    os.ftruncate(copied, size)


def copy_content(original: int, copied: int, stop: StopFlag | None, limit: int | None = None) -> None:
    """Copy from the offsets of both files on, by the fastest method that works.

    When a method fails or ends, the next slower one continues. The last one, read and write, also finds the
    end of files that the kernel takes for empty.

    Args:
        original: open for reading.
        copied: open for writing.
        stop: cancels the copy.
        limit: bytes to copy at most; None for all.

    Raises:
        OSError: a file cannot be read or written.
        RequestCancelled: `stop` is set.
    """
    ways: tuple[Callable[[int, int, int], int], ...] = (_copy_range, _send, _read_and_write)
    left = limit
    for way in ways:
        try:
            while left is None or left > 0:
                count = way(original, copied, _STEP_BYTES if left is None else min(left, _STEP_BYTES))
                if not count:
                    break
                if left is not None:
                    left -= count
                if stop is not None:
                    raise_if_cancelled(stop)
        except OSError as error:
            if way is _read_and_write or error.errno not in _CANNOT_COPY:
                raise


def content_digest(fd: int, stop: StopFlag | None, limit: int | None = None) -> tuple[str, int]:
    """Read an open file to its end, or up to a limit.

    Args:
        fd: open for reading.
        stop: cancels the reading; None for a small file.
        limit: bytes to read at most; None for all.

    Returns:
        The SHA-256 in hexadecimal digits, and how many bytes were read.

    Raises:
        OSError: the file cannot be read.
        RequestCancelled: `stop` is set.
    """
    # Slow to import, and few workers are asked for a digest.
    import hashlib

    largest = _BUFFER_BYTES if limit is None else min(limit, _BUFFER_BYTES)
    digest, size, block = hashlib.sha256(), 0, memoryview(bytearray(largest))
    # By the file's own offset: files of /proc do not accept any other.
    while length := os.readv(fd, [block if limit is None else block[: limit - size]]):
        digest.update(block[:length])
        size += length
        if stop is not None:
            raise_if_cancelled(stop)
    return digest.hexdigest(), size


def reserve(fd: int, old_size: int, size: int) -> None:
    """Reserve space for writing `size` bytes from the start, without changing a byte.

    Raises:
        OSError: there is no space; the file has its old size.
    """
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if size > old_size and os.fstat(fd).st_size > old_size:
            os.ftruncate(fd, old_size)
        if error.errno not in _CANNOT_RESERVE:
            raise


def _copy_range(original: int, copied: int, size: int) -> int:
    return os.copy_file_range(original, copied, size)


def _send(original: int, copied: int, size: int) -> int:
    return os.sendfile(copied, original, None, size)


def _read_and_write(original: int, copied: int, size: int) -> int:
    data = os.read(original, min(size, _BUFFER_BYTES))
    view = memoryview(data)
    while view:
        view = view[os.write(copied, view) :]
    return len(data)

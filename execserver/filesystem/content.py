"""Copies the content of one open file to another, inside the kernel where it can do that.

Also done by fs workers.
"""

from __future__ import annotations

import errno
import os

from execserver.filesystem.cancel import give_up_if

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.filesystem.cancel import Stop

_STEP_BYTES = 16 << 20
"""Copied by one system call, so that work whose connection has ended stops soon."""

_BUFFER_BYTES = 1 << 20

# Errors of a kernel or a file system that cannot copy by itself, here or at all.
_CANNOT_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)

# Errors of a file system, or of the C library, that cannot reserve space. EBADF is that of glibc, whose
# substitute needs a descriptor that can be read.
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})

_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


def copy_whole(original: int, copied: int, status: os.stat_result, stop: Stop) -> None:
    """Copy a regular file to an empty one, as large as it was when it was opened; holes stay holes.

    A file that reports no size, as those of /proc, is copied to its end.

    Args:
        original: open for reading, at its beginning.
        copied: open for writing.
        status: of the original, right after it was opened.
        stop: ends the copying half-way.

    Raises:
        OSError: it cannot be read or written.
        Abandoned: `stop` is set.
    """
    size = status.st_size
    if status.st_blocks * _BLOCK_BYTES >= size:
        copy_content(original, copied, stop, size or None)
        return
    end = 0
    while end < size:
        give_up_if(stop)
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


def copy_content(original: int, copied: int, stop: Stop | None, limit: int | None = None) -> None:
    """Copy from both files' offsets on, by the best way that works; a worse one goes on where a better one
    ends. The last one finds the end of files that the kernel takes for empty.

    Args:
        original: open for reading.
        copied: open for writing.
        stop: ends the copying half-way.
        limit: how many bytes at most; None for all to the end.

    Raises:
        OSError: it cannot be read or written.
        Abandoned: `stop` is set.
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
                    give_up_if(stop)
        except OSError as error:
            if way is _read_and_write or error.errno not in _CANNOT_COPY:
                raise


def reserve(number: int, old_size: int, size: int) -> None:
    """Make sure that writing `size` bytes from the start will find space, without changing a byte.

    Raises:
        OSError: there is no space; the file has its old size.
    """
    try:
        os.posix_fallocate(number, 0, size)
    except OSError as error:
        if size > old_size and os.fstat(number).st_size > old_size:
            os.ftruncate(number, old_size)
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

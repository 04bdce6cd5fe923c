"""Opening regular files without blocking on a fifo or a device. Also used by fs workers."""

from __future__ import annotations

import errno
import os
import stat

from execprotocol.errors import InvalidRequest
from execprotocol.path_text import printable_path

# Without O_NONBLOCK, opening a fifo waits for its other end. Without O_NOCTTY, opening a terminal can make it
# the controlling terminal of the server.
ALWAYS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

NEW_FILE_MODE = 0o666
"""The mode of a new file, before the umask."""


def open_to_read(path: str) -> tuple[int, os.stat_result]:
    """Open a regular file, following links.

    Raises:
        InvalidRequest: the path is a directory, a fifo or a device.
        OSError: among others ENXIO for a socket.
    """
    fd = os.open(path, os.O_RDONLY | ALWAYS)
    return fd, require_regular(fd, path)


def open_to_replace(path: str, permissions: int | None = None) -> int:
    """Open or make a regular file, following links, and empty it.

    Args:
        path: the file.
        permissions: the permission bits of a new file, before the umask; None for `NEW_FILE_MODE`.

    Raises:
        InvalidRequest: the path is a device, or a fifo with a reader.
        OSError: among others EISDIR, and ENXIO for another fifo or a socket.
    """
    fd = open_to_write(path, NEW_FILE_MODE if permissions is None else permissions)
    require_regular(fd, path)
    try:
        os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_to_write(path: str, mode: int = NEW_FILE_MODE) -> int:
    """Open or make a file of any kind, following links; its content stays.

    Raises:
        OSError: among others EROFS for a file on a read-only mount, whatever its own mode.
    """
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | ALWAYS, mode)
    except PermissionError:
        # With O_TRUNC, which other programs use, the kernel reports the mount before the mode.
        if is_read_only(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None
        raise


def may_write(path: str) -> None:
    """Check that a regular file, which is no link, can be opened for writing.

    Raises:
        OSError: it cannot. EROFS for a file on a read-only mount, whatever its own mode.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | ALWAYS))
    except PermissionError:
        if is_read_only(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None
        raise
    except OSError as error:
        # A running program cannot be written, but it can be replaced.
        if error.errno != errno.ETXTBSY:
            raise


def is_read_only(path: str) -> bool:
    """Whether an existing path is on a read-only mount."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def require_regular(fd: int, path: str) -> os.stat_result:
    """The status of an open regular file. Any other file is closed.

    Raises:
        InvalidRequest: the file is a directory, a fifo or a device.
    """
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"path `{printable_path(path)}` is not a file")
    except BaseException:
        os.close(fd)
        raise
    return status

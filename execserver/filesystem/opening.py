"""Opening regular files without ever waiting: for a fifo's other end, for a device."""

from __future__ import annotations

import errno
import os
import stat

from execprotocol.errors import InvalidRequest
from execprotocol.path_text import printable_path

# Without O_NONBLOCK the open of a fifo waits for its other end; without O_NOCTTY that of a
# terminal can make it the server's.
ALWAYS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

NEW_FILE_MODE = 0o666
"""Of a file that is made here, less the umask's bits."""


def open_to_read(path: str) -> tuple[int, os.stat_result]:
    """Open a regular file, following links.

    Raises:
        InvalidRequest: it is a directory, a fifo or a device.
        OSError: among others ENXIO, it is a socket.
    """
    number = os.open(path, os.O_RDONLY | ALWAYS)
    return number, require_regular(number, path)


def open_to_replace(path: str, permissions: int | None = None) -> int:
    """Open or make a regular file, following links, and empty it.

    Args:
        path: which.
        permissions: the permission bits of a file that is made, before the umask; None for the usual ones.

    Raises:
        InvalidRequest: it is a device, or a fifo that somebody reads.
        OSError: among others EISDIR, and ENXIO for another fifo or a socket.
    """
    number = open_to_write(path, NEW_FILE_MODE if permissions is None else permissions)
    require_regular(number, path)
    try:
        os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number


def open_to_write(path: str, mode: int = NEW_FILE_MODE) -> int:
    """Open or make a file of any kind, following links; its content stays.

    Raises:
        OSError: among others EROFS for a file on a read-only mount, whatever its own mode.
    """
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | ALWAYS, mode)
    except PermissionError:
        # Who truncates while opening, as other programs do, hears of the mount before the mode.
        if is_read_only(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None
        raise


def may_write(path: str) -> None:
    """See whether a regular file, which is no link, could be opened for writing.

    Raises:
        OSError: it could not; EROFS for a file on a read-only mount, whatever its own mode.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | ALWAYS))
    except PermissionError:
        if is_read_only(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None
        raise
    except OSError as error:
        # A program that runs cannot be written to; it can be replaced.
        if error.errno != errno.ETXTBSY:
            raise


def is_read_only(path: str) -> bool:
    """Whether a path that exists lies on a read-only mount."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def require_regular(number: int, path: str) -> os.stat_result:
    """The status of an open file; when it is no regular one it is closed and refused.

    Raises:
        InvalidRequest: it is a directory, a fifo or a device.
    """
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"path `{printable_path(path)}` is not a file")
    except BaseException:
        os.close(number)
        raise
    return status

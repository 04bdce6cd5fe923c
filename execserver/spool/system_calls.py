"""System calls as they are needed here, and as the standard library does not offer them."""

from __future__ import annotations

import ctypes
import fcntl
import struct
import termios

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h

_INT = struct.Struct("i")
_NO_BYTES = bytes(_INT.size)

_fallocate = ctypes.CDLL(None).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch_hole(fd: int, position: int, length: int) -> bool:
    """Give back the space of a part of a file, which reads as zeros then; its size stays. False where the
    file system cannot.
    """
    return bool(_fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, position, length) == 0)


def enlarge_pipe(pipe: int, size: int) -> None:
    """Have a pipe hold at least so many bytes.

    Raises:
        OSError: it would be above the user's share of the memory for pipes, or it is no pipe.
    """
    if fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) < size:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


def unread_bytes(pipe: int) -> int:
    """How many bytes are in a pipe, or a terminal has for us.

    Raises:
        OSError: it is neither.
    """
    return int(_INT.unpack(fcntl.ioctl(pipe, termios.FIONREAD, _NO_BYTES))[0])

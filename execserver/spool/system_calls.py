"""System calls that the standard library does not offer, or not in this form."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import termios

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h

_INT = struct.Struct("i")
_NO_BYTES = bytes(_INT.size)

_ONCE = struct.Struct("@4l")  # struct itimerspec: an interval of none, seconds, nanoseconds
_CLOCK_MONOTONIC = 1

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch_hole(fd: int, position: int, length: int) -> bool:
    """Free the space of a part of a file, which reads as zeros then; the size stays. False if the file system
    cannot do that.
    """
    return bool(_fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, position, length) == 0)


def reserve_space(fd: int, position: int, length: int) -> None:
    """Reserve the space of a part of a file, also beyond its end; the size stays.

    Raises:
        OSError: there is not so much, or the file system reserves none (EOPNOTSUPP).
    """
    if _fallocate(fd, _KEEP_SIZE, position, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def enlarge_pipe(pipe: int, size: int) -> None:
    """Make a pipe hold at least so many bytes.

    Raises:
        OSError: the user's share of the memory for pipes is used up, or it is no pipe.
    """
    if fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) < size:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


def unread_bytes(pipe: int) -> int:
    """The number of bytes that can be read from a pipe or a terminal.

    Raises:
        OSError: it is neither.
    """
    return int(_INT.unpack(fcntl.ioctl(pipe, termios.FIONREAD, _NO_BYTES))[0])


class DescriptorTimer:
    """A timer with a descriptor, for less than the millisecond of an event loop's timers. The descriptor
    becomes readable when the time is over.

    Args:
        seconds: from `start` on, less than one.

    Raises:
        OSError: no descriptor is available.
    """

    def __init__(self, seconds: float) -> None:
        self._time = _ONCE.pack(0, 0, 0, round(seconds * 1e9))
        # Its flags are those of a file (sys/timerfd.h).
        self.fd = int(_libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def start(self) -> None:
        """Start, or start again. An earlier end that was not read is forgotten."""
        _libc.timerfd_settime(self.fd, 0, self._time, None)

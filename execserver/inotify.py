"""inotify(7), by three calls into the C library that the interpreter has loaded.

The usual libraries use `ctypes.util.find_library`, which starts programs. A server that manages child
processes must not do that.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

MODIFY, ATTRIBUTES = 0x2, 0x4
CREATE, DELETE = 0x100, 0x200
MOVED_FROM, MOVED_TO = 0x40, 0x80
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, QUEUE_OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLY_DIRECTORY, EXCLUDE_UNLINKED = 0x01000000, 0x04000000
IS_DIRECTORY = 0x40000000

_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    """An event of `name` in the directory of `watch`."""

    watch: int
    mask: int
    name: str
    cookie: int = 0
    """Of a rename: the same for both of its events."""


def open_inotify() -> int:
    """Make a non-blocking instance.

    Raises:
        OSError: EMFILE, the user has too many instances.
    """
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add_watch(fd: int, path: str, mask: int) -> int:
    """Watch the file that `path` leads to. The same inode gives the same watch.

    Raises:
        OSError: among others ENOSPC, the user has too many watches.
    """
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)))


def remove_watch(fd: int, watch: int) -> None:
    """End a watch; no error if it has ended."""
    _libc.inotify_rm_watch(fd, watch)


def read_events(fd: int) -> list[Event]:
    """Read the pending events; none are no error."""
    try:
        data = os.read(fd, _BUFFER_BYTES)
    except BlockingIOError:
        return []
    events = []
    offset = 0
    while offset < len(data):
        watch, mask, cookie, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        events.append(Event(watch, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0")), cookie))
        offset += length
    return events


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

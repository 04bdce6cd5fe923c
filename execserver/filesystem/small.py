"""Small reads, lists and writes on the loop's thread. They take some 30 µs; in a thread they would take 300.

Rules kept in this file:

1. Nothing here may hang: no path is touched while a mount can hang (`mounts.py`), and none below `/proc`,
   which leads to the mounts of other processes.
2. A read uses the page cache only; if the disk is needed, a thread reads the file.
3. If an operation takes longer than `SLOW_SECONDS`, and sleeps, threads do the next ones of its kind for
   `REST_SECONDS`: a slow disk does not delay the other clients for long. One that does not sleep was only
   waiting for the processor, as it would in a thread. A list that takes so long is left to a thread.
4. The outcome is the same as in a thread. A method that returns None or False has changed nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter

import pybase64

from execprotocol.errors import file_error
from execserver.filesystem.descriptors import Descriptor
from execserver.filesystem.directories import entry_kind
from execserver.filesystem.listing import entries_json
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.opening import open_to_read
from execserver.filesystem.writing import Content, write_file, write_opened

MAX_BYTES = 64 << 10
"""Bytes of a file that is read or written here. More takes too long even from the page cache."""

MAX_CHARACTERS = (MAX_BYTES + 2) // 3 * 4
"""The same in base64."""

MAX_ENTRIES = 500
"""Names of a directory that is listed here."""

SLOW_SECONDS = 0.002
REST_SECONDS = 1.0

PROC_PREFIX = "/proc/"
"""Below it are the roots of other processes, whose mounts are not in our table."""

# EAGAIN: not in the page cache. EOPNOTSUPP: this file system cannot tell.
_NEEDS_THREAD = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})


class SmallFiles:
    """Small operations on paths, and on files that an fs worker has opened. Not thread-safe.

    Args:
        mounts: kept up to date by its owner.
    """

    def __init__(self, mounts: MountTable) -> None:
        self._mounts = mounts
        self._slow_until = {"read": 0.0, "list": 0.0, "write": 0.0}
        self._began = 0.0
        """The start of the operation, by `perf_counter`."""
        self._sleeps = 0
        """How often the thread had slept before it."""

    def read(self, path: str) -> bytes | None:
        """The content of a regular file in base64; None if a thread has to read it.

        Raises:
            InvalidRequest: the path is no file.
            RpcError: the file cannot be opened or read.
        """
        if not self._begin("read", path):
            return None
        try:
            fd, status = open_to_read(path)
            try:
                return self._cached(fd, status)
            finally:
                os.close(fd)
        except BlockingIOError:  # a lease must be broken first
            return None
        except OSError as error:
            raise file_error(error) from None
        finally:
            self._end("read")

    def read_opened(self, descriptor: Descriptor) -> bytes | None:
        """The same of an open file.

        Raises:
            RpcError: the file cannot be read, or was closed.
        """
        if not self._begin("read"):
            return None
        try:
            with descriptor.borrow() as fd:
                status = os.fstat(fd)
                return self._cached(fd, status) if stat.S_ISREG(status.st_mode) else None
        except OSError as error:
            raise file_error(error) from None
        finally:
            self._end("read")

    def read_directory(self, path: str) -> bytes | None:
        """The JSON of `listing.entries_json`; None if a thread has to list the directory.

        Raises:
            RpcError: the directory cannot be opened or read.
        """
        if not self._begin("list", path):
            return None
        found: list[tuple[str, int]] = []
        try:
            with os.scandir(path) as scan:
                for index, entry in enumerate(scan):
                    # Looking up the target of a link may take milliseconds: up to forty links of long paths.
                    if index >= MAX_ENTRIES or perf_counter() - self._began > SLOW_SECONDS:
                        return None
                    kind = entry_kind(entry)
                    if kind is not None:
                        found.append((entry.name, kind))
        except OSError as error:
            raise file_error(error) from None
        finally:
            self._end("list")
        return entries_json(found)

    def write(self, path: str, text: str | memoryview) -> bool:
        """Do `writing.write_file`; False if a thread has to write the file.

        Raises:
            InvalidRequest: the text is no base64; nothing was made or changed.
            RpcError: the file cannot be opened or written.
        """
        if len(text) > MAX_CHARACTERS or not self._begin("write", path):
            return False
        try:
            try:
                if not stat.S_ISREG(os.stat(path).st_mode):  # a device may block writers
                    return False
            except FileNotFoundError:
                pass
            except OSError:  # a fault of the text is reported first
                return False
            write_file(path, text)
        except BlockingIOError:  # a lease must be broken first
            return False
        except OSError as error:
            raise file_error(error) from None
        finally:
            self._end("write")
        return True

    def write_opened(self, descriptor: Descriptor, content: Content) -> bool:
        """Do `writing.write_opened` with a file of an fs worker; False if a thread has to write it.

        Raises:
            RpcError: the file cannot be written, or was closed.
        """
        if content.size > MAX_BYTES or not self._begin("write"):
            return False
        try:
            with descriptor.borrow() as fd:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    return False
                write_opened(fd, content)
        except OSError as error:
            raise file_error(error) from None
        finally:
            self._end("write")
        return True

    def _begin(self, kind: str, path: str = "") -> bool:
        """Begin an operation; False if a thread has to do it."""
        if self._mounts.can_hang or path.startswith(PROC_PREFIX):
            return False
        self._began = perf_counter()
        if self._began < self._slow_until[kind]:
            return False
        self._sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
        return True

    def _end(self, kind: str) -> None:
        now = perf_counter()
        if now - self._began > SLOW_SECONDS and getrusage(RUSAGE_THREAD).ru_nvcsw > self._sleeps:
            self._slow_until[kind] = now + REST_SECONDS

    def _cached(self, fd: int, status: os.stat_result) -> bytes | None:
        """The whole content in base64, if it is small and in the page cache."""
        size = status.st_size
        if not 0 < size <= MAX_BYTES:  # the files of /sys do not report their size
            return None
        buffer = bytearray(size)
        flags = 0 if status.st_dev in self._mounts.in_memory else os.RWF_NOWAIT
        try:
            read = os.preadv(fd, [buffer], 0, flags)
        except OSError as error:
            if error.errno in _NEEDS_THREAD:
                return None
            raise
        return pybase64.b64encode(buffer) if read == size else None

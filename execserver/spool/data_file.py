"""The bytes of a process's output: a file without a name, used as a ring.

Rules kept in this file:

1. Bytes come into the file by `splice(2)` at the descriptor's own offset. That offset belongs to the open
   file, which the supervisor holds too: a new server finds in it how far the kernel got.
2. One move never crosses the end of the ring, so its bytes lie in one piece.
3. The owner knows which bytes are still needed, and makes room before it moves more.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from execserver.spool.system_calls import punch_hole

PAGE_BYTES = 4096
"""The size of a ring is a multiple of this. Smaller holes free no space."""

_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_NAME_ATTEMPTS = 10

_COPIED_BYTES = 64 << 10
"""Copied at a time where the kernel does not move bytes: so much a kill can lose, and so much may be left
over when the file takes no more. A chunk (`spool.CHUNK_BYTES`)."""


class NotStoredError(Exception):
    """Bytes are out of their pipe and have no place in the file.

    Args:
        data: these bytes.
        cause: why they could not be written.
    """

    def __init__(self, data: bytes, cause: OSError) -> None:
        super().__init__(data, cause)
        self.data = data
        self.cause = cause


class DataFile:
    """A ring over one descriptor, which belongs to this object.

    Args:
        fd: an open file, read and write; the ring continues at its offset.
        capacity: bytes of the ring, a multiple of 4 KiB.
        in_memory: whether the file is in memory.
    """

    __slots__ = ("_freed_to", "_punches", "_written", "can_splice", "capacity", "fd", "in_memory", "position")

    def __init__(self, fd: int, capacity: int, in_memory: bool) -> None:
        self.fd = fd
        self.capacity = capacity
        self.in_memory = in_memory
        self.can_splice = True
        """Whether the kernel moves bytes into this file. If not, they are read and written, and a kill in
        between loses up to one chunk."""
        self.position = os.lseek(fd, 0, os.SEEK_CUR) % capacity
        """Where the next bytes go."""
        if self.position == 0:
            os.lseek(fd, 0, os.SEEK_SET)
        # Counted without wrapping, to know which part of the ring is free.
        self._written = self.position + capacity
        self._freed_to = self.position
        self._punches = True

    def splice_from(self, fd: int, most: int) -> int:
        """Move bytes from `fd` into the ring.

        Args:
            fd: a pipe, or any other descriptor where `can_splice` is false.
            most: bytes to move at most.

        Returns:
            Bytes moved; 0 at the end of `fd`.

        Raises:
            BlockingIOError: there is nothing now.
            OSError: the file takes no more (full disk, quota); the bytes are still in `fd`.
            NotStoredError: the same, when `can_splice` is false.
        """
        most = min(most, self.capacity - self.position)
        if not self.can_splice:
            return self._copy_from(fd, most)
        try:
            size = os.splice(fd, self.fd, most, flags=_FLAGS)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # This file system moves nothing, or this is no pipe.
            self.can_splice = False
            return self._copy_from(fd, most)
        self._advance(size)
        return size

    def store(self, data: bytes) -> int:
        """Write bytes that were read already. Returns how many fit before the end of the ring: at least one.

        Raises:
            OSError: the file takes no more.
        """
        size = os.write(self.fd, memoryview(data)[: self.capacity - self.position])
        self._advance(size)
        return size

    def read(self, position: int, length: int) -> bytes:
        """The bytes from `position` on, around the end of the ring.

        Raises:
            OSError: they cannot be read, or the file has been cut (EIO).
        """
        position %= self.capacity
        first = min(length, self.capacity - position)
        data = os.pread(self.fd, first, position)
        if len(data) == first < length:
            data += os.pread(self.fd, length - first, 0)
        if len(data) != length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data

    def free_space(self, held: int, at_least: int) -> None:
        """Free the space of everything but the last `held` bytes, if that is at least `at_least` bytes. Stops
        trying when the file system cannot free space.
        """
        start = max(self._freed_to, self._written - self.capacity)
        end = (self._written - held) // PAGE_BYTES * PAGE_BYTES
        start += -start % PAGE_BYTES
        if end - start >= at_least and self._punches:
            first = min(end - start, self.capacity - start % self.capacity)
            self._punch(start % self.capacity, first)
            self._punch(0, end - start - first)
            self._freed_to = end

    def close(self) -> None:
        """Close the descriptor. Ignores what a network file system reports here as not stored: no client will
        read it.
        """
        with suppress(OSError):
            os.close(self.fd)

    def _copy_from(self, fd: int, most: int) -> int:
        try:
            data = os.read(fd, min(most, _COPIED_BYTES))
        except BlockingIOError:
            raise
        except OSError:
            # A terminal whose other side is gone reports EIO: that is its end of file.
            return 0
        stored = 0
        while stored < len(data):
            try:
                stored += os.write(self.fd, memoryview(data)[stored:])
            except OSError as error:
                # The stored part is written again with the rest, elsewhere: one chunk is one piece.
                os.lseek(self.fd, self.position, os.SEEK_SET)
                raise NotStoredError(data, error) from None
        self._advance(stored)
        return stored

    def _advance(self, size: int) -> None:
        self._written += size
        self.position += size
        if self.position == self.capacity:
            os.lseek(self.fd, 0, os.SEEK_SET)
            self.position = 0

    def _punch(self, position: int, length: int) -> None:
        if length and not punch_hole(self.fd, position, length):
            self._punches = False


def ring_capacity(size: int) -> int:
    """The smallest ring with room for so many bytes."""
    return max(PAGE_BYTES, -(-size // PAGE_BYTES) * PAGE_BYTES)


def create_on_disk(folder: int, capacity: int) -> DataFile:
    """A file without a name in an open folder; it is gone when its last descriptor is closed.

    Raises:
        OSError: as `open(2)` says.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=folder)
    except OSError as error:
        # Not every file system has files without a name; a kernel without them opens the folder.
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        fd = _create_and_unlink(folder, flags)
    return DataFile(fd, capacity, in_memory=False)


def create_in_memory(capacity: int) -> DataFile:
    """A file in memory.

    Raises:
        OSError: no descriptor or no memory is available.
    """
    return DataFile(os.memfd_create("execserver-output", os.MFD_CLOEXEC), capacity, in_memory=True)


def _create_and_unlink(folder: int, flags: int) -> int:
    for _ in range(_NAME_ATTEMPTS):
        name = f"output-{os.urandom(8).hex()}"
        with suppress(FileExistsError):
            fd = os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            os.unlink(name, dir_fd=folder)
            return fd
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

"""The data files of one process: a slot in memory for its first bytes, a file on disk, and a file in memory
while the disk takes nothing.

Rules kept in this file:

1. A file is given to the supervisor, and its size recorded, before anything is moved into it.
2. The first bytes go to the slot (`small_files.py`). While the disk takes nothing, later bytes stay in their
   pipe, and then go to a file in memory; after a second the disk is tried again.
3. The place of the next bytes is recorded before they are moved. So the bytes that a killed server moved and
   did not record are known: they lie between that place and the offset of the file.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence

from execserver.fault_points import reach
from execserver.spool.data_file import DataFile, NotStoredError
from execserver.spool.process_index import MAX_LENGTH, IndexRecord, Kind, ProcessIndex, now_ms
from execserver.spool.small_files import FIRST_PLACE, SmallFile, slot_of
from execserver.spool.spool import CHUNK_BYTES, LARGE_CHUNK_BYTES, RETRY_SECONDS, SHORT_OF_DESCRIPTORS, Spool
from execserver.supervisor.fd_store_protocol import DATA, MEMORY

_NOT_THE_DISK = (errno.ENOMEM, errno.ENOBUFS)
"""Shortages that pass. Every other error means that the disk takes nothing: besides full disks there are dead
mounts (ENOTCONN, ESTALE) and broken file systems."""

_SPAN_BYTES = 1 << 20
"""Adjacent chunks are read together, up to this size."""

_GIVEN_BACK_DISK = 1 << 20
_GIVEN_BACK_MEMORY = 128 << 10
"""How much space is freed at a time."""


class UnreadableError(Exception):
    """The bytes of a chunk are gone.

    Args:
        record: the newest unreadable one.
    """

    def __init__(self, record: IndexRecord) -> None:
        super().__init__(record)
        self.record = record


class Moved:
    """Bytes that are in a file and not recorded yet."""

    __slots__ = ("in_memory", "kind", "position", "size")

    def __init__(self, kind: Kind, size: int, position: int, in_memory: bool) -> None:
        self.kind = kind
        self.size = size
        self.position = position
        self.in_memory = in_memory


class LogFiles:
    """The files of one log.

    Args:
        index: the index of the process.
        spool: where files come from.
        retained_bytes: how much the process keeps.
        keep: called with a slot and the descriptor of a new file.
        make_room: called with a file that is about to be written: it has to drop what would be overwritten.
    """

    __slots__ = (
        "_index",
        "_keep",
        "_leftover",
        "_make_room",
        "_may_be_large",
        "_retained_bytes",
        "_spool",
        "disk",
        "memory",
        "retry_at",
        "small",
    )

    def __init__(
        self,
        index: ProcessIndex,
        spool: Spool,
        retained_bytes: int,
        keep: Callable[[int, int], None],
        make_room: Callable[[DataFile], None],
    ) -> None:
        self.small: SmallFile | None = None
        self.disk: DataFile | None = None
        self.memory: DataFile | None = None
        self.retry_at = 0.0
        """When the disk is tried again; 0 while it works."""
        self._index = index
        self._spool = spool
        self._retained_bytes = retained_bytes
        # Chunks are dropped as a whole: a process that keeps little keeps small ones.
        self._may_be_large = retained_bytes >= 2 * LARGE_CHUNK_BYTES
        self._keep = keep
        self._make_room = make_room
        self._leftover: tuple[Kind, bytes] | None = None
        """Bytes that a file which cannot splice did not take."""

    def move(self, kind: Kind, fd: int) -> Moved | None:
        """Move what `fd` has into a file: 64 KiB at most, or 128 KiB into the file on disk if no client waits
        for an answer. None at its end.

        Raises:
            BlockingIOError: there is nothing now.
            OSError: no descriptor or no memory is available; the bytes are where they were.
        """
        while True:
            file = self._choose()
            self._make_room(file)
            if file is self.small:
                self.small.prepare()
            position = file.position
            leftover = self._leftover
            if leftover is not None:
                kind = leftover[0]
            self._index.begin(kind, position, file.in_memory)
            try:
                most = self._most(file)
                size = file.splice_from(fd, most) if leftover is None else self._store(file, leftover)
            except BlockingIOError:
                raise
            except NotStoredError as error:
                self._leftover = (kind, error.data)
                self._failed(file, error.cause)
            except OSError as error:
                self._failed(file, error)
            else:
                return Moved(kind, size, position, file.in_memory) if size else None

    def _most(self, file: DataFile) -> int:
        if file is self.disk and self._may_be_large and not self._spool.expedited():
            return LARGE_CHUNK_BYTES
        return CHUNK_BYTES

    @property
    def needs_file(self) -> bool:
        """Whether a move would make a file, or take a slot."""
        if self.disk is not None or self.memory is not None:
            return False
        return self.small is None or self._index.total >= self._spool.limits.small

    def record(self, moved: Moved) -> None:
        """Make a chunk of what was moved.

        Raises:
            OSError: no memory. Never for what `move` gave.
        """
        self._index.append(moved.kind, moved.size, moved.position, moved.in_memory, now_ms())
        reach("after-index")

    @property
    def has_leftover(self) -> bool:
        """Whether bytes were read and not stored; the next move stores them before it reads."""
        return self._leftover is not None

    def disk_works(self) -> None:
        """The disk took something."""
        self.retry_at = 0.0
        self._spool.disk_works()

    def bytes_of(self, records: Sequence[IndexRecord]) -> list[bytes]:
        """The bytes of chunks, which are in the order of their numbers.

        Raises:
            UnreadableError: of some.
        """
        found: list[bytes] = []
        start = 0
        while start < len(records):
            first = records[start]
            size, end = first.length, start + 1
            while end < len(records) and size < _SPAN_BYTES:
                following = records[end]
                if following.in_memory != first.in_memory or following.position != first.position + size:
                    break
                size += following.length
                end += 1
            data = self._read(first, size, records[end - 1])
            if end == start + 1:
                found.append(data)
            else:
                places = ((record.position - first.position, record.length) for record in records[start:end])
                found += [data[at : at + length] for at, length in places]
            start = end
        return found

    def content(self, record: IndexRecord) -> bytes:
        """The bytes of one chunk.

        Raises:
            UnreadableError: they are gone.
        """
        return self._read(record, record.length, record)

    def free_space(self, disk_held: int, memory_held: int) -> None:
        """Free the space of what is not held any more, when that is worth it."""
        if self.disk is not None:
            self.disk.free_space(disk_held, _GIVEN_BACK_DISK)
        self.free_memory_space(memory_held)

    def free_memory_space(self, held: int) -> None:
        """The same for the file in memory only."""
        if self.memory is not None:
            self.memory.free_space(held, _GIVEN_BACK_MEMORY)

    def close(self) -> None:
        """Close all descriptors."""
        for file in (self.small, self.disk, self.memory):
            if file is not None:
                file.close()
        self.small = self.disk = self.memory = None

    # -- taking over

    def restore(self, disk: int | None, memory: int | None) -> None:
        """Continue with the files of the previous server: record what it moved and did not record, and drop
        the chunks of a missing file.

        Raises:
            ValueError: a file is not the one that the index is about.
            OSError: a file cannot be used, or there is no memory.
        """
        self.disk = self._restored(disk, False)
        self.memory = self._restored(memory, True)
        index = self._index
        slot = small_slot(index)
        if slot is not None and self._spool.small_files is not None:
            self.small = SmallFile(self._spool.small_files, slot)
            self.small.position = max(self.small.position, index.small_end(FIRST_PLACE))
        for in_memory, file in ((False, self.disk), (True, self.memory)):
            if file is None and index.capacity(in_memory):
                kept = index.records_after(index.evicted_through)
                lost = [
                    record
                    for record in kept
                    if record.has_bytes and record.in_memory == in_memory and slot_of(record.position) is None
                ]
                if lost:
                    index.evict_through(lost[-1])
        self._recover_moved()

    def _restored(self, fd: int | None, in_memory: bool) -> DataFile | None:
        capacity = self._index.capacity(in_memory)
        if fd is None:
            return None
        if not capacity:
            # Nothing was moved into it: the next file takes its place.
            os.close(fd)
            return None
        return DataFile(fd, capacity, in_memory)

    def _recover_moved(self) -> None:
        index = self._index
        pending = index.pending
        if pending is None:
            return
        start = pending.position
        newest = index.newest_chunk()
        if newest is not None and (newest.in_memory, newest.position) == (pending.in_memory, start):
            start += newest.length
        if pending.in_memory and slot_of(start) is not None:
            self._recover_small(pending.kind, start)
            return
        file = self.memory if pending.in_memory else self.disk
        if file is None:
            return
        size = (file.position - start) % file.capacity
        if size > MAX_LENGTH:
            raise ValueError(f"the data file of process {index.number} is not the one of its index")
        if size:
            start %= file.capacity
            # An older record may begin at the former place: the next server must not find that place.
            index.begin(pending.kind, start, pending.in_memory)
            self.record(Moved(pending.kind, size, start, pending.in_memory))

    def _recover_small(self, kind: Kind, start: int) -> None:
        size = 0 if self.small is None else self.small.moved_beyond(start)
        if self.small is not None and size:
            self._index.append(kind, size, start, True, now_ms())
            self.small.position = start + size

    # -- which file

    def _choose(self) -> DataFile:
        """The file that takes bytes now."""
        disk = self.disk
        if disk is not None:
            if not self.retry_at or time.monotonic() >= self.retry_at:
                return disk
        elif self.memory is None and self._index.total < self._spool.limits.small:
            if self.small is None and self._spool.small_files is not None:
                self.small = self._spool.small_files.new()
            if self.small is not None:
                return self.small
        if disk is None:
            disk = self._new_disk_file()
            if disk is not None:
                self.disk = self._kept(disk)
                return disk
        if self.memory is None:
            self.memory = self._kept(self._spool.new_memory_file(self._retained_bytes))
        return self.memory

    def _new_disk_file(self) -> DataFile | None:
        try:
            return self._spool.new_disk_file(self._retained_bytes)
        except OSError as error:
            if self.memory is None or error.errno not in SHORT_OF_DESCRIPTORS:
                raise
            return None

    def _kept(self, file: DataFile) -> DataFile:
        try:
            self._keep(MEMORY if file.in_memory else DATA, file.fd)
        except BaseException:
            file.close()
            raise
        self._index.set_capacity(file.in_memory, file.capacity)
        return file

    def _failed(self, file: DataFile, error: OSError) -> None:
        if file.in_memory or error.errno in _NOT_THE_DISK:
            raise error
        self.retry_at = time.monotonic() + RETRY_SECONDS
        self._spool.disk_failed(error)

    def _store(self, file: DataFile, leftover: tuple[Kind, bytes]) -> int:
        kind, data = leftover
        size = file.store(data)
        self._leftover = (kind, data[size:]) if size < len(data) else None
        return size

    def _read(self, first: IndexRecord, size: int, last: IndexRecord) -> bytes:
        file = self.memory if first.in_memory else self.disk
        if first.in_memory and slot_of(first.position) is not None:
            file = self.small
        if file is None:
            raise UnreadableError(last)
        try:
            return file.read(first.position, size)
        except OSError as error:
            if not first.in_memory:
                self._spool.disk_failed(error)
            raise UnreadableError(last) from error


def small_slot(index: ProcessIndex) -> int | None:
    """The slot that may hold the first bytes of a process; None when it never had one."""
    pending = index.pending
    first = index.first_chunk()
    for place in (None if first is None else first, None if pending is None else pending):
        if place is not None and place.in_memory and (slot := slot_of(place.position)) is not None:
            return slot
    return None

"""The output of one process as a log of numbered chunks.

Rules kept in this file:

1. One dense counter numbers output, `exited` and `closed`; a number never has two meanings.
2. The log *takes* from a descriptor, and no reader of the log can make it wait. The kernel moves the bytes
   into a data file. Then they are recorded, and only recorded bytes are reported. What a killed server moved
   and did not record becomes the next chunk.
3. Output is dropped oldest first, in whole chunks, and stays counted, so that every gap can be stated in
   bytes.

Bytes are kept on disk, `retained_bytes` a process. While the disk takes nothing they stay in the pipe, and
are then moved into memory, where a process has less room. A gap is only ever at the beginning of the kept
output: when memory is used up, older output on disk is dropped too (`docs/protocol.md`, "Output retention").
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, cast

import msgspec

from execserver.fault_points import reach
from execserver.spool.data_file import DataFile
from execserver.spool.log_files import LogFiles, UnreadableError
from execserver.spool.process_index import IndexRecord, ProcessIndex, now_ms
from execserver.spool.spool import CHUNK_BYTES, LARGE_CHUNK_BYTES, Spool, SpoolBudget
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import Stream


MAX_CHUNKS = 100_000
"""Chunks kept a process, whatever their size: a child that writes single bytes must not cost more in
bookkeeping than in content."""


class Chunk(NamedTuple):
    """One numbered piece of output."""

    seq: int
    stream: Stream
    data: bytes
    offset: int
    """Bytes of the process's output before this chunk, over all streams."""
    at_ms: int
    """When it was taken, in milliseconds since 1970; 0 if that is not known."""


class Page(msgspec.Struct, frozen=True):
    """The result of a read."""

    chunks: list[Chunk]
    complete: bool
    """Whether the page reaches the newest chunk."""
    first_seq: int | None
    """The oldest kept number, when something after the cursor was dropped before it."""
    lost_bytes: int
    """Bytes dropped between the cursor and the first chunk kept."""


class OutputLog:
    """The log of one process.

    Args:
        index: its index, which belongs to the log.
        spool: where data files come from.
        budget: limits all logs together.
        retained_bytes: how much this one keeps.
        keep: called with a slot and a new data file's descriptor before anything is moved into it, so
            that the file outlives the server.
    """

    __slots__ = (
        "_budget",
        "_files",
        "_index",
        "_memory_share",
        "_spool",
        "disk_held",
        "ended",
        "memory_held",
        "retained_bytes",
        "sent_through",
    )

    def __init__(
        self,
        index: ProcessIndex,
        spool: Spool,
        budget: SpoolBudget,
        retained_bytes: int,
        keep: Callable[[int, int], None],
    ) -> None:
        self.disk_held = 0
        self.memory_held = 0
        self.ended: set[Stream] = set()
        """Streams whose descriptor reached its end."""
        self.retained_bytes = retained_bytes
        self.sent_through: int | None = None
        """The number after which nothing is dropped (`pacing.py`); None: all may be."""
        self._index = index
        self._spool = spool
        self._budget = budget
        self._memory_share = spool.memory_share(retained_bytes)
        self._files = LogFiles(index, spool, retained_bytes, keep, self._make_room)
        budget.add(self)

    def restore(self, disk: int | None, memory: int | None) -> Self:
        """Continue the log of a previous server, whose index this log was made with. Returns the log.

        Args:
            disk: the data file on disk, which belongs to the log from now on; None if there was none.
            memory: the data file in memory, likewise.

        Raises:
            ValueError: a data file is not the one that the index is about.
            OSError: a data file cannot be used, or there is no memory.
        """
        self._budget.remove(self)
        self._files.restore(disk, memory)
        self._count_held()
        self._budget.add(self)
        self.trim()
        return self

    # -- taking

    def take(self, stream: Stream, fd: int) -> int:
        """Move what `fd` (non-blocking) has into the log, as one chunk of at most 128 KiB.

        Returns the number of bytes; 0 when there is nothing now or ever again. The stream is in `ended` once
        its end was reached.

        Raises:
            OSError: no descriptor or no memory is available; the bytes are where they were.
        """
        files = self._files
        if files.needs_file and not (ready := _ready(fd)) & select.POLLIN:
            # No bytes need no file: most processes have a stream that stays empty.
            if ready:
                self.ended.add(stream)
            return 0
        try:
            moved = files.move(stream, fd)
        except BlockingIOError:
            return 0
        if moved is None:
            self.ended.add(stream)
            return 0
        reach("after-splice")
        size = moved.size
        files.record(moved)
        if moved.in_memory:
            self.memory_held += size
            self._budget.memory_held += size
        else:
            self.disk_held += size
            self._budget.disk_held += size
            if files.retry_at or self._spool.failing:
                files.disk_works()
        if files.has_leftover:
            # No event may follow: the pipe may be empty, or at its end. What cannot be stored stays there.
            with suppress(OSError):
                size += self.take(stream, fd)
        return size

    def trim(self) -> None:
        """Drop what exceeds the limits. Call it after each `take`, when the subscribers have had the chance
        to send the new chunk.
        """
        if (
            self.held > self.retained_bytes
            or self.memory_held > self._memory_share
            or self._index.next_seq - 1 - self._index.evicted_through > MAX_CHUNKS
        ):
            self._evict(self.retained_bytes, self.retained_bytes, self._memory_share)
        if self._budget.is_exceeded:
            self._budget.enforce()

    def number_event(self, kind: Literal["exited", "closed"]) -> int:
        """The number of an `exited` or `closed` event, which happens now.

        Raises:
            OSError: no memory.
        """
        return self._index.append(kind, at_ms=now_ms())

    # -- what there is

    @property
    def next_seq(self) -> int:
        """The number that the next chunk or event will have."""
        return self._index.next_seq

    @property
    def total(self) -> int:
        """Bytes ever taken."""
        return self._index.total

    @property
    def has_leftover(self) -> bool:
        """Whether taken bytes could not be stored yet; the next `take` tries again."""
        return self._files.has_leftover

    @property
    def expedited(self) -> bool:
        """Whether a client sent something a moment ago: its next request should not wait for much output."""
        return self._spool.expedited()

    @property
    def held(self) -> int:
        """Bytes kept."""
        return self.disk_held + self.memory_held

    @property
    def is_over_share(self) -> bool:
        """Whether it holds, or all logs together hold, more than they should, although it was trimmed."""
        over_own = self.held > self.retained_bytes or self.memory_held > self._memory_share
        return over_own or self._budget.is_exceeded

    @property
    def exited_seq(self) -> int | None:
        """The number of `exited`, once it happened."""
        return self._index.exited_seq

    @property
    def closed_seq(self) -> int | None:
        """The number of `closed`, once it happened."""
        return self._index.closed_seq

    @property
    def evicted_through(self) -> int:
        """The number of the newest chunk that was dropped; 0 when none was."""
        return self._index.evicted_through

    def first_kept(self) -> IndexRecord | None:
        """The oldest chunk kept, without its bytes."""
        return self._index.first_chunk_after(self._index.evicted_through)

    def offset_after(self, seq: int) -> int:
        """Bytes of output that a cursor at number `seq` covers; as exact as `lost_after`."""
        first = self._index.first_chunk_after(max(seq, self._index.evicted_through))
        return (self.total if first is None else first.offset) - self.lost_after(seq)

    def lost_after(self, seq: int) -> int:
        """Bytes after number `seq` that were dropped. Exact for a cursor at 0 or among the last 32,768
        dropped chunks; a lower bound in between.
        """
        return self._index.lost_after(seq)

    # -- reading

    def chunk(self, seq: int) -> Chunk | None:
        """The chunk of that number; None when it was dropped or is no chunk. A chunk whose bytes cannot be
        read is dropped, with all older ones.
        """
        if seq <= self._index.evicted_through:
            return None
        record = self._index.record(seq)
        if record is None or not record.has_bytes:
            return None
        try:
            data = self._files.content(record)
        except UnreadableError as error:
            self._drop_unreadable(error.record)
            return None
        return Chunk(seq, cast("Stream", record.kind), data, record.offset, record.at_ms)

    def read(self, after_seq: int, max_bytes: int | None, page_bytes: int) -> Page:
        """The kept chunks after a cursor, oldest first: at most `max_bytes`, or `page_bytes` if that is None,
        but always the first chunk as a whole.
        """
        limit = page_bytes if max_bytes is None else max_bytes
        index = self._index
        chunks: list[Chunk] | None = None
        while chunks is None:
            taken: list[IndexRecord] = []
            size, complete = 0, True
            for record in index.records_after(max(after_seq, index.evicted_through)):
                if not record.has_bytes:
                    continue
                if taken and (size >= limit or size + record.length > limit):
                    complete = False
                    break
                taken.append(record)
                size += record.length
            # None: unreadable chunks were dropped, and the page begins later.
            chunks = self._contents(taken)
        lost = self.lost_after(after_seq)
        if lost:
            measures.gap(lost)
        first = self.first_kept() if lost else None
        return Page(
            chunks=chunks,
            complete=complete,
            first_seq=(first.seq if first else index.next_seq) if lost else None,
            lost_bytes=lost,
        )

    def tail(self, most: int) -> bytes:
        """The last kept output, over all streams: up to `most` bytes and a chunk."""
        records: list[IndexRecord] = []
        seq = self._index.next_seq - 1
        while most > 0 and seq > self._index.evicted_through:
            record = self._index.record(seq)
            seq -= 1
            if record is not None and record.has_bytes:
                records.append(record)
                most -= record.length
        records.reverse()
        return b"".join(chunk.data for chunk in self._contents(records) or ())

    # -- dropping

    def shrink_to(self, disk: int, memory: int) -> bool:
        """Drop oldest chunks until at most so many bytes are held on disk and in memory, and free their
        space. Returns whether any was dropped.
        """
        dropped = self._evict(self.held, disk, memory)
        self._files.free_space(self.disk_held, self.memory_held)
        return dropped

    @property
    def has_files(self) -> bool:
        """Whether it has descriptors open."""
        return self._files.disk is not None or self._files.memory is not None

    def empty(self) -> None:
        """Drop everything, and close the descriptors; for a closed process."""
        self.sent_through = None
        self._evict(0, 0, 0)
        self._files.close()

    def close(self) -> None:
        """Give everything up; do not use the log any more."""
        self._budget.remove(self)
        self._files.close()
        self.disk_held = self.memory_held = 0
        self._index.free()

    def _make_room(self, file: DataFile) -> None:
        """Drop what would be overwritten, if several chunks came without a `trim`."""
        if file.in_memory:
            room = file.capacity - CHUNK_BYTES
            if self.memory_held > room:
                self._evict(self.held, self.held, room)
        elif self.disk_held > (room := file.capacity - LARGE_CHUNK_BYTES):
            self._evict(self.held, room, self.held)

    def _contents(self, records: list[IndexRecord]) -> list[Chunk] | None:
        """Chunks with their bytes. None when some are unreadable: these and all older ones are dropped."""
        try:
            contents = self._files.bytes_of(records)
        except UnreadableError as error:
            self._drop_unreadable(error.record)
            return None
        return [
            Chunk(record.seq, cast("Stream", record.kind), data, record.offset, record.at_ms)
            for record, data in zip(records, contents, strict=True)
        ]

    def _drop_unreadable(self, newest: IndexRecord) -> None:
        self._budget.remove(self)
        self._index.evict_through(newest)
        self._count_held()
        self._budget.add(self)

    def _evict(self, total: int, disk: int, memory: int) -> bool:
        """Drop oldest chunks until at most so many bytes are kept together, on disk, and in memory, and at
        most `MAX_CHUNKS` chunks, or until the next one must not be dropped. Returns whether any was dropped.
        """
        index = self._index
        held_disk, held_memory = self.disk_held, self.memory_held
        last: IndexRecord | None = None
        seq = index.evicted_through
        while (
            held_disk + held_memory > total
            or held_disk > disk
            or held_memory > memory
            or index.next_seq - 1 - seq > MAX_CHUNKS
        ):
            record = index.first_chunk_after(seq)
            if record is None or (self.sent_through is not None and record.seq > self.sent_through):
                break
            last, seq = record, record.seq
            if record.in_memory:
                held_memory -= record.length
            else:
                held_disk -= record.length
        if last is None:
            return False
        # Before the bytes are overwritten: no record may refer to bytes of a later chunk.
        index.evict_through(last)
        self._budget.disk_held -= self.disk_held - held_disk
        self._budget.memory_held -= self.memory_held - held_memory
        self.disk_held, self.memory_held = held_disk, held_memory
        if not held_memory:
            self._files.free_memory_space(0)
        return True

    def _count_held(self) -> None:
        index = self._index
        memory = 0
        if self._files.memory is not None or self._files.small is not None:
            kept = index.records_after(index.evicted_through)
            memory = sum(record.length for record in kept if record.in_memory)
        self.memory_held = memory
        self.disk_held = index.total - index.evicted_offset - memory


def _ready(fd: int) -> int:
    """The events of a descriptor that is polled for input; 0 while there are none."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    events = poller.poll(0)
    return events[0][1] if events else 0

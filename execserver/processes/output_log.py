"""The output of one process as a log of numbered chunks.

Rules kept in this file:

1. One dense counter numbers output, `exited` and `closed`; a number never has two meanings.
2. The log *takes* from a descriptor, it is never handed bytes: where the bytes are kept is its
   own affair, and nothing that reads the log can make it wait.
3. What is dropped is dropped oldest first, in whole chunks, and stays counted, so that every
   gap can be stated in bytes.

Bytes are kept in memory: `retained_bytes` a process, and all logs together within an
`OutputBudget`. `docs/protocol.md`, "Output retention".
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from execserver.protocol.process import Stream

TAKE_BYTES = 64 << 10
"""Bytes taken at a time: as much as a pipe holds. Larger pieces gain nothing, smaller ones cost
a third of the throughput."""

MAX_CHUNKS = 16_384
"""Chunks kept a process, whatever their size: a child that writes single bytes must not cost
more in bookkeeping than in content."""

_INDEXED_EVICTIONS = 32_768
"""How many evicted chunks keep their place in the stream known, to state a gap exactly (256 KiB)."""

_COMPACT_AFTER = 1024


class Chunk(NamedTuple):
    """One numbered piece of output."""

    seq: int
    stream: Stream
    data: bytes
    offset: int
    """Bytes of the process's output before this chunk, over all streams."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a read of the log gives."""

    chunks: list[Chunk]
    complete: bool
    """Whether the page reaches the newest chunk."""
    first_seq: int | None
    """The oldest kept number, when something after the cursor was dropped before it."""
    lost_bytes: int
    """Bytes dropped between the cursor and the first chunk kept."""


class OutputBudget:
    """Bytes of output kept by all processes of the daemon together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._logs: set[OutputLog] = set()

    def join(self, log: OutputLog) -> None:
        """Count this log from now on."""
        self._logs.add(log)

    def leave(self, log: OutputLog) -> None:
        """Count it no longer."""
        self._logs.discard(log)
        self.held -= log.held

    def enforce(self) -> None:
        """Drop the oldest chunks of whoever holds most until the budget is met."""
        while self.held > self.limit:
            largest = max(self._logs, key=lambda log: log.held)
            target = max(0, largest.held - (self.held - self.limit))
            if not largest.evict_to(target):
                return


class OutputLog:
    """The log of one process."""

    def __init__(self, retained_bytes: int, budget: OutputBudget) -> None:
        self.next_seq = 1
        self.held = 0
        self.total = 0
        """Bytes ever taken."""
        self.ended: set[Stream] = set()
        """Streams whose descriptor reached its end."""
        self._retained_bytes = retained_bytes
        self._budget = budget
        self._chunks: list[Chunk] = []
        self._start = 0
        self._evicted_through = 0
        self._evicted_offset = 0
        self._evicted_ends: array[int] = array("Q")
        self._evicted_seqs: array[int] = array("Q")
        self._index_base = 0
        """The offset that the index of dropped chunks begins at."""
        budget.join(self)

    def take(self, stream: Stream, fd: int) -> int:
        """Move what `fd` (non-blocking) has into the log, as one chunk at most.

        Returns the number of bytes taken; 0 when there is nothing now or ever again. The
        stream is in `ended` once its end was reached.
        """
        try:
            data = os.read(fd, TAKE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            # A terminal whose other side is gone reports EIO: that is its end of file.
            data = b""
        if not data:
            self.ended.add(stream)
            return 0
        size = len(data)
        self._chunks.append(Chunk(self.next_seq, stream, data, self.total))
        self.next_seq += 1
        self.total += size
        self.held += size
        self._budget.held += size
        return size

    def trim(self) -> None:
        """Drop what exceeds the limits. To be called after each `take`, when whoever follows the
        log has had the chance to pass the new chunk on.
        """
        if self.held > self._retained_bytes or len(self._chunks) - self._start > MAX_CHUNKS:
            self.evict_to(self._retained_bytes)
        if self._budget.held > self._budget.limit:
            self._budget.enforce()

    def number_event(self) -> int:
        """The number of an `exited` or `closed` event, which happens now."""
        seq = self.next_seq
        self.next_seq += 1
        return seq

    @property
    def evicted_through(self) -> int:
        """The number of the newest chunk that was dropped; 0 when none was."""
        return self._evicted_through

    def chunk(self, seq: int) -> Chunk | None:
        """The chunk of that number, or None when it was dropped or is no chunk."""
        index = self._index_after(seq - 1)
        if index < len(self._chunks) and self._chunks[index].seq == seq:
            return self._chunks[index]
        return None

    def first_kept(self) -> Chunk | None:
        """The oldest chunk kept."""
        return self._chunks[self._start] if self._start < len(self._chunks) else None

    def read(self, after_seq: int, max_bytes: int | None, page_bytes: int) -> Page:
        """The kept chunks after a cursor, oldest first.

        With `max_bytes`: stop before the chunk that would exceed it, but take the first whole
        in any case. Without: at most `page_bytes`, likewise.
        """
        limit = page_bytes if max_bytes is None else max_bytes
        chunks = self._chunks
        index = self._index_after(after_seq)
        taken: list[Chunk] = []
        size = 0
        while index < len(chunks):
            chunk = chunks[index]
            if taken and size + len(chunk.data) > limit:
                break
            taken.append(chunk)
            size += len(chunk.data)
            index += 1
            if size >= limit:
                break
        lost = self.lost_after(after_seq)
        first = self.first_kept()
        return Page(
            chunks=taken,
            complete=index >= len(chunks),
            first_seq=(first.seq if first else self.next_seq) if lost else None,
            lost_bytes=lost,
        )

    def tail(self, most: int) -> bytes:
        """The last output that is kept, over all streams: up to `most` bytes and a chunk."""
        parts: list[bytes] = []
        for index in range(len(self._chunks) - 1, self._start - 1, -1):
            if most <= 0:
                break
            data = self._chunks[index].data
            parts.append(data)
            most -= len(data)
        return b"".join(reversed(parts))

    def lost_after(self, seq: int) -> int:
        """Bytes after number `seq` that were dropped. Exact for a cursor at 0 or among the last
        32,768 dropped chunks; for one in between, what is known to be lost at the least.
        """
        if seq >= self._evicted_through:
            return 0
        if seq == 0:
            return self._evicted_offset
        low = bisect_right(self._evicted_seqs, seq)
        known_end = self._evicted_ends[low - 1] if low else self._index_base
        return self._evicted_offset - known_end

    def evict_to(self, size: int) -> bool:
        """Drop oldest chunks until at most `size` bytes and `MAX_CHUNKS` chunks are kept.
        Says whether any was dropped.
        """
        chunks, start = self._chunks, self._start
        before = start
        while start < len(chunks) and (self.held > size or len(chunks) - start > MAX_CHUNKS):
            chunk = chunks[start]
            start += 1
            length = len(chunk.data)
            self.held -= length
            self._budget.held -= length
            self._evicted_through = chunk.seq
            self._evicted_offset = chunk.offset + length
            self._evicted_seqs.append(chunk.seq)
            self._evicted_ends.append(self._evicted_offset)
            # The list keeps its place until it is compacted; the bytes must go now.
            chunks[start - 1] = _DROPPED
        self._start = start
        if start > _COMPACT_AFTER and start * 2 > len(chunks):
            del chunks[:start]
            self._start = 0
        if len(self._evicted_seqs) > 2 * _INDEXED_EVICTIONS:
            self._index_base = self._evicted_ends[-_INDEXED_EVICTIONS - 1]
            del self._evicted_seqs[:-_INDEXED_EVICTIONS]
            del self._evicted_ends[:-_INDEXED_EVICTIONS]
        return start > before

    def close(self) -> None:
        """Give everything up; the log is not used any more."""
        self._budget.leave(self)
        self._chunks.clear()
        self._start = self.held = 0

    def _index_after(self, seq: int) -> int:
        """The index of the first kept chunk whose number is above `seq`.

        Numbers are dense but for the one of `exited`, so the guess is off by one at most.
        """
        chunks, start = self._chunks, self._start
        if start >= len(chunks):
            return len(chunks)
        index = min(start + max(0, seq + 1 - chunks[start].seq), len(chunks))
        while index > start and chunks[index - 1].seq > seq:
            index -= 1
        return index


_DROPPED = Chunk(0, "stdout", b"", 0)

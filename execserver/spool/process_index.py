"""The numbered events of one process, in its blocks of the arena.

Rules kept in this file:

1. Numbers are dense, and a block holds 40 records: a number tells the block and the place of its record.
   A process that a server of an earlier version started has records without times, 60 in a block.
2. The last word of a record is stored last, and makes it valid. What has to be known before an operation
   (where bytes go, what is dropped) is one word in the head of block 0, stored before.
3. Records of dropped events are kept for a while, so that a gap can be stated in bytes.

The layout of the file is in `arena.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, Protocol

Kind = Literal["stdout", "stderr", "pty", "exited", "closed"]

BLOCK_WORDS = 128
RECORDS_A_BLOCK, RECORDS_WITHOUT_TIME = 40, 60
KEPT_EVICTIONS = 32_768
"""How many records of evicted events are kept, to state a gap exactly (0.8 MiB)."""

MAX_LENGTH: Final = 1 << 20
"""Bytes of one event: the limit of a chunk on the wire."""

MAX_POSITION: Final = (1 << 38) - 1
"""Where in a data file an event can begin: no file is larger than 256 GiB."""

OWNER, ORDINAL = 0, 1
"""In the head of every block: the number of its process, and which of its blocks it is."""

WITH_TIMES = 1 << 63
"""In the second word of block 0: the records of the process have three words, and not two."""

_HEAD_WORDS = 8
_PENDING, _EVICTED_THROUGH, _DISK_BYTES, _MEMORY_BYTES, _EXITED, _CLOSED = 2, 3, 4, 5, 6, 7
"""In the head of block 0."""

_KINDS: tuple[Kind, ...] = ("stdout", "stderr", "pty", "exited", "closed")
_CODES: dict[Kind, int] = {kind: code for code, kind in enumerate(_KINDS)}
_VALID = 1 << 63
_IN_MEMORY = 1 << 62
_KIND_SHIFT, _KIND_MASK = 59, 7
_LENGTH_SHIFT, _LENGTH_MASK = 38, (1 << 21) - 1


class IndexRecord(NamedTuple):
    """One numbered event."""

    seq: int
    kind: Kind
    offset: int
    """Bytes of the process's output before it, over all streams."""
    length: int
    position: int
    """Where its bytes begin in their data file."""
    in_memory: bool
    """Whether they are in the data file in memory, not in the one on disk."""
    at_ms: int = 0
    """When it was recorded, in milliseconds since 1970; 0 in a record without a time."""

    @property
    def has_bytes(self) -> bool:
        """Whether it is a chunk of output, not the end of something."""
        return self.kind not in ("exited", "closed")


class Pending(NamedTuple):
    """The place of the bytes that are being moved, or were moved last."""

    kind: Kind
    position: int
    in_memory: bool


class Blocks(Protocol):
    """The arena, as an index sees it."""

    def allocate(self, number: int, ordinal: int) -> int:
        """A block for a process, empty."""

    def free_block(self, block: int) -> None:
        """Take a block from its process."""

    def place(self, block: int) -> tuple[memoryview, int]:
        """The view and the offset of a block's words."""

    def free(self, index: ProcessIndex) -> None:
        """Forget a process."""


class ProcessIndex:
    """The numbered events of one process, and the state of its output as a whole."""

    __slots__ = (
        "_arena",
        "_base",
        "_blocks",
        "_head",
        "_head_base",
        "_low",
        "_record_words",
        "_records_a_block",
        "_view",
        "evicted_offset",
        "evicted_through",
        "next_seq",
        "number",
        "total",
    )

    def __init__(self, arena: Blocks, number: int, blocks: list[int]) -> None:
        self._arena = arena
        self.number = number
        self._head, self._head_base = arena.place(blocks[0])
        self._blocks = blocks
        has_times = self._head[self._head_base + ORDINAL] & WITH_TIMES
        self._record_words = 3 if has_times else 2
        self._records_a_block = RECORDS_A_BLOCK if has_times else RECORDS_WITHOUT_TIME
        if len(blocks) == 1 and not self._head[self._head_base + _HEAD_WORDS + self._record_words - 1]:
            # No event yet, as in every new index.
            self._low = 1
            self._view, self._base = self._head, self._head_base
            self.next_seq = 1
            self.evicted_through = self.total = self.evicted_offset = 0
            return
        last_view, last_base = arena.place(blocks[-1])
        ordinal = last_view[last_base + ORDINAL] & ~WITH_TIMES
        self._low = ordinal - len(blocks) + 2
        """The ordinal of the oldest block but block 0."""
        self._view, self._base = last_view, last_base
        """The newest block."""
        self.next_seq = ordinal * self._records_a_block + 1 + self._valid_records(last_view, last_base)
        """The number of the next event."""
        self.evicted_through = self._head[self._head_base + _EVICTED_THROUGH]
        """The number of the newest event that was dropped; 0 when none was."""
        self.total = self._end_of(self.next_seq - 1)
        """Bytes of output that the index knows of."""
        self.evicted_offset = self._end_of(self.evicted_through)
        """Bytes of output that were dropped."""
        last = self.record(self.next_seq - 1)
        if last is not None and not last.has_bytes:
            # The server may have been killed between the record and this word.
            self._head[self._head_base + (_EXITED if last.kind == "exited" else _CLOSED)] = last.seq

    # -- the process as a whole

    @property
    def exited_seq(self) -> int | None:
        """The number of `exited`, once it happened."""
        return self._head[self._head_base + _EXITED] or None

    @property
    def closed_seq(self) -> int | None:
        """The number of `closed`, once it happened."""
        return self._head[self._head_base + _CLOSED] or None

    @property
    def pending(self) -> Pending | None:
        """The last call of `begin`; None before the first one."""
        word = self._head[self._head_base + _PENDING]
        if not word & _VALID:
            return None
        return Pending(_KINDS[word >> _KIND_SHIFT & _KIND_MASK], word & MAX_POSITION, bool(word & _IN_MEMORY))

    def capacity(self, in_memory: bool) -> int:
        """The size of a data file in bytes; 0 before `set_capacity`."""
        return self._head[self._head_base + (_MEMORY_BYTES if in_memory else _DISK_BYTES)]

    def set_capacity(self, in_memory: bool, capacity: int) -> None:
        """Record the size of a data file, before anything is moved into it."""
        self._head[self._head_base + (_MEMORY_BYTES if in_memory else _DISK_BYTES)] = capacity

    def begin(self, kind: Kind, position: int, in_memory: bool) -> None:
        """Record where the next bytes go. Bytes after that place in the file without a record were moved and
        not recorded.

        Raises:
            OSError: no memory for the record to come.
        """
        if (self.next_seq - 1) % self._records_a_block == 0 and self.next_seq > 1:
            self._add_block()
        word = _VALID | _CODES[kind] << _KIND_SHIFT | position
        self._head[self._head_base + _PENDING] = word | _IN_MEMORY if in_memory else word

    # -- events

    def append(
        self, kind: Kind, length: int = 0, position: int = 0, in_memory: bool = False, at_ms: int = 0
    ) -> int:
        """Record the next event, and return its number.

        Args:
            kind: what it is.
            length: its bytes, at most 1 MiB; 0 for an end.
            position: where they begin in their data file.
            in_memory: whether that is the one in memory.
            at_ms: the time now, in milliseconds since 1970.

        Raises:
            OSError: no memory. Never after `begin`.
        """
        seq = self.next_seq
        place = (seq - 1) % self._records_a_block
        if place == 0 and seq > 1:
            self._add_block()
        words = self._record_words
        view, at = self._view, self._base + _HEAD_WORDS + words * place
        word = _VALID | _CODES[kind] << _KIND_SHIFT | length << _LENGTH_SHIFT | position
        view[at] = self.total
        if words == 3:
            view[at + 1] = at_ms
        view[at + words - 1] = word | _IN_MEMORY if in_memory else word
        self.next_seq = seq + 1
        self.total += length
        if not length and kind in ("exited", "closed"):
            self._head[self._head_base + (_EXITED if kind == "exited" else _CLOSED)] = seq
        return seq

    def record(self, seq: int) -> IndexRecord | None:
        """The event of that number; None when there is none yet, or its record is gone."""
        if not 0 < seq < self.next_seq:
            return None
        ordinal, place = divmod(seq - 1, self._records_a_block)
        if ordinal == 0:
            view, base = self._head, self._head_base
        elif ordinal >= self._low and self._blocks:
            view, base = self._arena.place(self._blocks[ordinal - self._low + 1])
        else:
            return None
        words = self._record_words
        at = base + _HEAD_WORDS + words * place
        word = view[at + words - 1]
        return _unpack(seq, view[at], view[at + 1] if words == 3 else 0, word) if word & _VALID else None

    def first_chunk_after(self, seq: int) -> IndexRecord | None:
        """The first chunk whose number is above `seq`, which is not dropped; None if there is none."""
        seq += 1
        while seq < self.next_seq:
            record = self.record(seq)
            if record is not None and record.has_bytes:
                return record
            seq += 1
        return None

    def records_after(self, seq: int) -> Iterator[IndexRecord]:
        """The known events whose numbers are above `seq`, oldest first."""
        while seq < self.next_seq - 1:
            ordinal, place = divmod(seq, self._records_a_block)
            seq = (ordinal + 1) * self._records_a_block
            if 0 < ordinal < self._low or not self._blocks:
                continue
            view, base = self._arena.place(self._blocks[ordinal - self._low + 1 if ordinal else 0])
            step = self._record_words
            words = view[base + _HEAD_WORDS + step * place : base + BLOCK_WORDS].tolist()
            times = words[1::3] if step == 3 else [0] * (len(words) // 2)
            number = ordinal * self._records_a_block + place
            for offset, at_ms, word in zip(words[::step], times, words[step - 1 :: step], strict=True):
                number += 1
                if number == self.next_seq:
                    return
                yield _unpack(number, offset, at_ms, word)

    def evict_through(self, record: IndexRecord) -> None:
        """Drop all events up to this one. The records of the last 32,768 stay, to state gaps."""
        seq = record.seq
        self.evicted_offset = record.offset + record.length
        self.evicted_through = seq
        self._head[self._head_base + _EVICTED_THROUGH] = seq
        blocks = self._blocks
        while len(blocks) > 2 and (self._low + 1) * self._records_a_block <= seq - KEPT_EVICTIONS:
            self._arena.free_block(blocks.pop(1))
            self._low += 1

    def newest_chunk(self) -> IndexRecord | None:
        """The newest event that has bytes, dropped or not."""
        # At most two events have none.
        for seq in range(self.next_seq - 1, max(0, self.next_seq - 4), -1):
            record = self.record(seq)
            if record is not None and record.has_bytes:
                return record
        return None

    def first_chunk(self) -> IndexRecord | None:
        """The oldest event that has bytes, dropped or not; only looked for among the first."""
        for seq in range(1, 4):
            record = self.record(seq)
            if record is not None and record.has_bytes:
                return record
        return None

    def small_end(self, first_place: int) -> int:
        """Where the chunks with places from `first_place` on end; 0 when there are none. They are the first
        chunks of a process.
        """
        end = 0
        for record in self.records_after(0):
            if record.has_bytes:
                if not record.in_memory or record.position < first_place:
                    break
                end = record.position + record.length
        return end

    def lost_after(self, seq: int) -> int:
        """Bytes after number `seq` that were dropped: exact if its record is kept, else a lower bound."""
        if seq >= self.evicted_through:
            return 0
        a_block = self._records_a_block
        if seq > a_block and (seq - 1) // a_block < self._low:
            oldest = self.record(self._low * a_block + 1)
            return self.evicted_offset - oldest.offset if oldest is not None else 0
        return self.evicted_offset - self._end_of(seq)

    def free(self) -> None:
        """Forget the process; the index is empty from now on."""
        self._arena.free(self)

    def detach(self) -> list[int]:
        """Give up all blocks, and return which these were, block 0 first."""
        blocks, self._blocks = self._blocks, []
        # The index of a forgotten process must not show the next content of its blocks.
        self._head = self._view = memoryview(bytearray(8 * BLOCK_WORDS)).cast("Q")
        self._head_base = self._base = self.evicted_through = self.evicted_offset = 0
        return blocks

    def _end_of(self, seq: int) -> int:
        record = self.record(seq)
        return record.offset + record.length if record is not None else 0

    def _add_block(self) -> None:
        """Add a block for `next_seq`, the first number of a block."""
        ordinal = (self.next_seq - 1) // self._records_a_block
        if self._view[self._base + ORDINAL] == ordinal:
            return
        block = self._arena.allocate(self.number, ordinal)
        self._blocks.append(block)
        self._view, self._base = self._arena.place(block)

    def _valid_records(self, view: memoryview, base: int) -> int:
        step = self._record_words
        words = view[base + _HEAD_WORDS + step - 1 : base + BLOCK_WORDS : step]
        return next((count for count, word in enumerate(words) if not word & _VALID), len(words))


def now_ms() -> int:
    """The time of an event that is recorded now, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _unpack(seq: int, offset: int, at_ms: int, word: int) -> IndexRecord:
    return IndexRecord(
        seq,
        _KINDS[word >> _KIND_SHIFT & _KIND_MASK],
        offset,
        word >> _LENGTH_SHIFT & _LENGTH_MASK,
        word & MAX_POSITION,
        bool(word & _IN_MEMORY),
        at_ms,
    )

"""The index against a model, as it is found after any single store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execserver.spool.arena import IndexArena
from execserver.spool.process_index import (
    BLOCK_WORDS,
    KEPT_EVICTIONS,
    MAX_LENGTH,
    MAX_POSITION,
    ORDINAL,
    RECORDS_A_BLOCK,
    RECORDS_WITHOUT_TIME,
    IndexRecord,
    Kind,
    Pending,
    ProcessIndex,
)

STEP = 1 << 20


@pytest.fixture
def arena() -> Iterator[IndexArena]:
    arena = IndexArena.create()
    yield arena
    arena.close()


def reopened(arena: IndexArena) -> dict[int, ProcessIndex]:
    """What a new server finds."""
    return copied(os.pread(arena.fd, os.fstat(arena.fd).st_size, 0)).restore()


def copied(content: bytes, step: int = STEP) -> IndexArena:
    fd = os.memfd_create("copy")
    os.ftruncate(fd, -(-len(content) // step) * step)
    os.pwrite(fd, content, 0)
    arena = IndexArena(fd)
    # The mapping does not need it.
    os.close(fd)
    return arena


def test_what_was_recorded_is_found_again_with_its_last_bit(arena: IndexArena) -> None:
    index = arena.open(2**64 - 1)
    index.set_capacity(False, 2**40)
    index.set_capacity(True, 4096)
    index.begin("pty", MAX_POSITION, True)
    index.append("stdout", MAX_LENGTH, MAX_POSITION, True)
    index.append("stderr", 1)
    index.append("pty", 7, 5)
    index.append("exited")
    index.append("closed")
    for found in (index, reopened(arena)[2**64 - 1]):
        assert list(found.records_after(0)) == [
            IndexRecord(1, "stdout", 0, MAX_LENGTH, MAX_POSITION, True),
            IndexRecord(2, "stderr", MAX_LENGTH, 1, 0, False),
            IndexRecord(3, "pty", MAX_LENGTH + 1, 7, 5, False),
            IndexRecord(4, "exited", MAX_LENGTH + 8, 0, 0, False),
            IndexRecord(5, "closed", MAX_LENGTH + 8, 0, 0, False),
        ]
        assert (found.next_seq, found.total, found.exited_seq, found.closed_seq) == (6, MAX_LENGTH + 8, 4, 5)
        assert (found.capacity(False), found.capacity(True)) == (2**40, 4096)
        assert found.pending == Pending("pty", MAX_POSITION, True)


def test_events_keep_their_times(arena: IndexArena) -> None:
    index = arena.open(1)
    times = [2**64 - 1, *range(2 * RECORDS_A_BLOCK)]
    for at_ms in times:
        index.append("stdout", 1, at_ms=at_ms)
    for found in (index, reopened(arena)[1]):
        assert [record.at_ms for record in found.records_after(0)] == times
        assert [record.at_ms for seq in (1, 50) if (record := found.record(seq))] == [2**64 - 1, 48]


def test_a_process_of_a_server_without_times_keeps_its_blocks(arena: IndexArena) -> None:
    block = arena.allocate(1, 0)
    words, base = arena.place(block)
    words[base + ORDINAL] = 0  # as that version wrote it
    index = ProcessIndex(arena, 1, [block])
    events = 2 * RECORDS_WITHOUT_TIME + 1
    for _ in range(events):
        index.append("stdout", 5, at_ms=1000)
    assert words[base + 8 : base + 12].tolist()[::2] == [0, 5], "two words, the first is the offset"
    os.pwrite(arena.fd, (1).to_bytes(1, sys.byteorder), 0)  # the layout

    left = copied(os.pread(arena.fd, os.fstat(arena.fd).st_size, 0))
    found = left.restore()[1]

    assert (found.next_seq, found.total) == (events + 1, 5 * events)
    found.append("exited", at_ms=1000)
    assert [record.offset for record in found.records_after(0)] == [5 * n for n in range(events + 1)]
    assert {record.at_ms for record in found.records_after(0)} == {0}
    last = found.record(RECORDS_WITHOUT_TIME + 1)
    assert last is not None
    assert (last.offset, last.at_ms) == (5 * RECORDS_WITHOUT_TIME, 0)
    timed = left.open(2)
    timed.append("stdout", 1, at_ms=7)
    assert [record.at_ms for record in timed.records_after(0)] == [7]
    assert left.place(0)[0][0] & 0xFF == 2, "an earlier version refuses it"


def test_a_new_index_knows_nothing(arena: IndexArena) -> None:
    index = arena.open(1)
    assert (index.next_seq, index.total, index.pending, index.exited_seq) == (1, 0, None, None)
    assert (index.record(0), index.record(1), index.lost_after(0)) == (None, None, 0)
    assert list(reopened(arena)) == [1]


def test_the_arena_grows_and_is_found_whole(arena: IndexArena) -> None:
    indexes = [arena.open(number) for number in range(1, 1501)]
    for index in indexes:
        index.append("stdout", index.number)
    assert os.fstat(arena.fd).st_size == 2 * STEP
    found = reopened(arena)
    assert {number: index.total for number, index in found.items()} == {n: n for n in range(1, 1501)}


def test_old_records_make_room_and_gaps_stay_exact_for_the_newest_of_them(arena: IndexArena) -> None:
    index = arena.open(1)
    events = KEPT_EVICTIONS + 5000
    for _ in range(events):
        index.begin("stdout", 0, False)
        index.append("stdout", 3)
    last = index.record(events - 10)
    assert last is not None
    index.evict_through(last)
    for found in (index, reopened(arena)[1]):
        assert (found.evicted_through, found.evicted_offset) == (events - 10, 3 * (events - 10))
        assert [record.seq for record in found.records_after(events - 10)] == list(
            range(events - 9, events + 1)
        )
        for seq in (0, 1, RECORDS_A_BLOCK, events - KEPT_EVICTIONS, events - 11):
            assert found.lost_after(seq) == 3 * (events - 10 - seq)
        assert found.record(RECORDS_A_BLOCK + 1) is None
        assert 0 < found.lost_after(RECORDS_A_BLOCK + 1) <= 3 * (events - 10 - RECORDS_A_BLOCK - 1)
        assert next(found.records_after(0)).seq == 1
    index.free()
    assert reopened(arena) == {}


def test_blocks_of_a_forgotten_process_are_used_again(arena: IndexArena) -> None:
    for number in range(1, 200):
        index = arena.open(number)
        for _ in range(10 * RECORDS_A_BLOCK):
            index.append("stdout", 1)
        arena.free(index)
        arena.free(index)
    assert os.fstat(arena.fd).st_size == STEP
    assert (index.record(1), index.record(100), index.lost_after(0)) == (None, None, 0)
    assert list(index.records_after(0)) == []


def test_the_arena_grows_without_a_descriptor(arena: IndexArena) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 3000):
        arena.open(number)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("content", [bytes(STEP), b"", b"x" * STEP])
def test_a_file_of_another_layout_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="layout"):
        copied(content)


# -- against a model, at each store


@dataclass
class Model:
    """One process, kept the naive way."""

    records: list[IndexRecord] = field(default_factory=list)
    evicted: int = 0
    exited: int | None = None
    closed: int | None = None
    pending: Pending | None = None
    capacities: tuple[int, int] = (0, 0)

    def state(self) -> tuple[object, ...]:
        total = sum(record.length for record in self.records)
        lost = sum(record.length for record in self.records if record.seq <= self.evicted)
        kept = tuple(record for record in self.records if record.seq > self.evicted)
        ends = self.exited, self.closed
        return len(self.records) + 1, total, lost, self.evicted, kept, ends, self.pending, self.capacities


def state_of(index: ProcessIndex) -> tuple[object, ...]:
    return (
        index.next_seq,
        index.total,
        index.evicted_offset,
        index.evicted_through,
        tuple(index.records_after(index.evicted_through)),
        (index.exited_seq, index.closed_seq),
        index.pending,
        (index.capacity(False), index.capacity(True)),
    )


class StoreRecorder:
    """The words of an arena, and each store into them."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.stores: list[tuple[int, int]] = []

    def __getitem__(self, key: Any) -> Any:
        return self.words[key]

    def __setitem__(self, key: int | slice, value: Any) -> None:
        if isinstance(key, slice):
            # What does not change anything is no state of its own.
            places = zip(range(key.start, key.stop), self.words[key], value, strict=True)
            self.stores += [(place, new) for place, old, new in places if old != new]
        else:
            self.stores.append((key, value))
        self.words[key] = value


operation = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["stdout", "stderr"]), st.integers(1, MAX_LENGTH)),
    st.tuples(st.just("many"), st.integers(1, 130), st.integers(1, 5)),
    st.tuples(st.just("end"), st.none(), st.none()),
    st.tuples(st.just("evict"), st.floats(0, 1), st.none()),
    st.tuples(st.just("begin"), st.integers(0, MAX_POSITION), st.booleans()),
    st.tuples(st.just("capacity"), st.integers(1, 2**40), st.booleans()),
    st.tuples(st.just("free"), st.none(), st.none()),
)


SMALL_STEP = 64 << 10


class Driven:
    """A small arena and a model of each of its processes, at which operations are leftover out."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("execserver.spool.arena._STEP_BYTES", SMALL_STEP)
        self.patch.setattr("execserver.spool.arena._STEP_BLOCKS", SMALL_STEP // (8 * BLOCK_WORDS))
        self.patch.setattr("execserver.spool.process_index.KEPT_EVICTIONS", 100)
        self.arena = IndexArena.create()
        self.recorder = StoreRecorder(self.arena._views[0])
        self.arena._views[0] = cast("memoryview", self.recorder)
        self.numbers = iter(range(1, 1000))
        self.indexes: dict[int, ProcessIndex] = {}
        self.models: dict[int, Model] = {}

    def states(self) -> dict[int, tuple[object, ...]]:
        return {number: model.state() for number, model in self.models.items()}

    def step(self, act: Callable[[], None], change: Callable[[], None]) -> None:
        """Carry one operation out; at each store of it, look at what a new server would find."""
        before = self.states()
        content = bytearray(self.recorder.words)
        self.recorder.stores.clear()
        act()
        change()
        after = self.states()
        for place, value in self.recorder.stores:
            assert self.found(content) in (before, after)
            content[8 * place : 8 * place + 8] = value.to_bytes(8, "little")
        assert self.found(content) == after
        assert {number: state_of(index) for number, index in self.indexes.items()} == after

    @staticmethod
    def found(content: bytearray) -> dict[int, tuple[object, ...]]:
        # What is beyond the last block in use is zero.
        filled = bytes(content).rstrip(b"\0")
        return {number: state_of(index) for number, index in copied(filled, SMALL_STEP).restore().items()}

    def open(self) -> int:
        number = next(self.numbers)

        def act() -> None:
            self.indexes[number] = self.arena.open(number)

        self.step(act, lambda: self.models.update({number: Model()}))
        return number

    def append(self, number: int, kind: Kind, length: int) -> None:
        index, model = self.indexes[number], self.models[number]
        seq, total = len(model.records) + 1, sum(record.length for record in model.records)

        def change() -> None:
            model.records.append(IndexRecord(seq, kind, total, length, seq, False))
            model.exited = seq if kind == "exited" else model.exited
            model.closed = seq if kind == "closed" else model.closed

        self.step(lambda: cast("None", index.append(kind, length, seq)), change)

    def evict(self, number: int, share: float) -> None:
        index, model = self.indexes[number], self.models[number]
        chunks = [record for record in model.records if record.has_bytes and record.seq > model.evicted]
        if chunks:
            record = chunks[int(share * (len(chunks) - 1))]
            self.step(lambda: index.evict_through(record), lambda: setattr(model, "evicted", record.seq))

    def run(self, number: int, name: str, first: Any, second: Any) -> None:
        index, model = self.indexes[number], self.models[number]
        if name == "append" and model.closed is None:
            self.append(number, first, second)
        elif name == "many" and model.closed is None:
            self.fill(number, first, second)
            self.append(number, "pty", second)
        elif name == "end" and model.closed is None:
            self.append(number, "exited" if model.exited is None else "closed", 0)
        elif name == "evict":
            self.evict(number, first)
        elif name == "begin":
            kind: Kind = "stderr"
            self.step(
                lambda: index.begin(kind, first, second),
                lambda: setattr(model, "pending", Pending(kind, first, second)),
            )
        elif name == "capacity":
            disk, memory = model.capacities
            sizes = (disk, first) if second else (first, memory)
            self.step(lambda: index.set_capacity(second, first), lambda: setattr(model, "capacities", sizes))
        elif name == "free":
            self.step(lambda: self.free(number), lambda: cast("None", self.models.pop(number)))

    def fill(self, number: int, count: int, length: int) -> None:
        """Many events, not looked at one by one."""
        model = self.models[number]
        for _ in range(count):
            seq = self.indexes[number].append("stdout", length)
            model.records.append(
                IndexRecord(seq, "stdout", self.indexes[number].total - length, length, 0, False)
            )

    def free(self, number: int) -> None:
        self.arena.free(self.indexes.pop(number))

    def close(self) -> None:
        self.patch.undo()
        self.arena.close()


@given(st.lists(st.tuples(st.booleans(), operation), max_size=12))
@settings(deadline=None, max_examples=40)
def test_at_each_store_a_new_server_finds_the_state_before_the_operation_or_after_it(
    operations: list[tuple[bool, tuple[str, Any, Any]]],
) -> None:
    driven = Driven()
    try:
        numbers = [driven.open(), driven.open()]
        for which, (name, first, second) in operations:
            if numbers[which] not in driven.models:
                numbers[which] = driven.open()
            driven.run(numbers[which], name, first, second)
    finally:
        driven.close()


def test_at_each_store_of_a_long_eviction_the_state_is_the_one_before_or_after() -> None:
    driven = Driven()
    number = driven.open()
    driven.fill(number, 400, 2)
    driven.evict(number, 0.8)
    driven.evict(number, 1.0)
    assert driven.indexes[number].record(RECORDS_A_BLOCK + 1) is None
    driven.run(number, "free", None, None)
    driven.close()

"""The log against a simple model, and its accounting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from execserver.processes.output_log import OutputBudget, OutputLog

RETAINED = 1000


def take_bytes(log: OutputLog, data: bytes, stream: str = "stdout") -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.write(write, data)
    os.close(write)
    log.take(stream, read)  # type: ignore[arg-type]
    log.trim()
    os.close(read)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def test_taking_from_an_empty_pipe_takes_nothing_and_is_not_the_end(pipe: tuple[int, int]) -> None:
    log = OutputLog(RETAINED, OutputBudget(RETAINED))
    assert log.take("stdout", pipe[0]) == 0
    assert not log.ended


def test_the_end_of_a_pipe_ends_its_stream_and_takes_no_number() -> None:
    log = OutputLog(RETAINED, OutputBudget(RETAINED))
    read, write = os.pipe()
    os.close(write)
    assert log.take("stderr", read) == 0
    os.close(read)
    assert log.ended == {"stderr"}
    assert log.next_seq == 1


def test_events_share_the_counter_with_chunks() -> None:
    log = OutputLog(RETAINED, OutputBudget(RETAINED))
    take_bytes(log, b"a")
    assert log.number_event() == 2
    take_bytes(log, b"b")
    assert [chunk.seq for chunk in log.read(0, None, RETAINED).chunks] == [1, 3]
    assert log.chunk(2) is None


def test_the_daemon_budget_is_taken_from_whoever_holds_most() -> None:
    budget = OutputBudget(1000)
    large, small = OutputLog(2000, budget), OutputLog(2000, budget)
    for _ in range(9):
        take_bytes(large, b"x" * 100)
    take_bytes(small, b"y" * 300)
    assert (large.held, small.held) == (700, 300)
    assert budget.held == 1000


def test_a_closed_log_gives_its_share_back() -> None:
    budget = OutputBudget(1000)
    log = OutputLog(2000, budget)
    take_bytes(log, b"x" * 100)
    log.close()
    assert budget.held == 0


def test_lost_bytes_are_exact_for_every_cursor() -> None:
    log = OutputLog(10, OutputBudget(RETAINED))
    for size in (3, 4, 5, 6, 2):
        take_bytes(log, b"x" * size)
    assert [log.lost_after(seq) for seq in range(6)] == [12, 9, 5, 0, 0, 0]
    page = log.read(1, None, RETAINED)
    assert (page.lost_bytes, page.first_seq) == (9, 4)


@dataclass
class Model:
    """What the log should say, kept the naive way."""

    chunks: list[tuple[int, bytes]] = field(default_factory=list)
    dropped: list[tuple[int, bytes]] = field(default_factory=list)
    next_seq: int = 1

    def evict(self, size: int) -> None:
        while sum(len(data) for _, data in self.chunks) > size:
            self.dropped.append(self.chunks.pop(0))

    def read(self, after: int, max_bytes: int) -> list[tuple[int, bytes]]:
        page: list[tuple[int, bytes]] = []
        total = 0
        for seq, data in self.chunks:
            if seq <= after:
                continue
            if page and total + len(data) > max_bytes:
                break
            page.append((seq, data))
            total += len(data)
            if total >= max_bytes:
                break
        return page


class LogAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = OutputLog(RETAINED, OutputBudget(10 * RETAINED))
        self.model = Model()
        self.events = 0

    @rule(data=st.binary(min_size=1, max_size=700))
    def output(self, data: bytes) -> None:
        take_bytes(self.log, data)
        self.model.chunks.append((self.model.next_seq, data))
        self.model.next_seq += 1
        self.model.evict(RETAINED)

    @precondition(lambda self: self.events < 2)
    @rule()
    def event(self) -> None:
        self.events += 1
        assert self.log.number_event() == self.model.next_seq
        self.model.next_seq += 1

    @rule(size=st.integers(0, RETAINED))
    def budget_pressure(self, size: int) -> None:
        self.log.evict_to(size)
        self.model.evict(size)

    @rule(data=st.data(), max_bytes=st.integers(0, 2 * RETAINED))
    def read_anywhere(self, data: st.DataObject, max_bytes: int) -> None:
        after = data.draw(st.integers(0, self.model.next_seq + 2))
        page = self.log.read(after, max_bytes, 10 * RETAINED)
        assert [(chunk.seq, chunk.data) for chunk in page.chunks] == self.model.read(after, max_bytes)
        lost = sum(len(data) for seq, data in self.model.dropped if seq > after)
        assert page.lost_bytes == lost
        assert (page.first_seq is not None) == (lost > 0)

    @invariant()
    def numbers_and_sizes_agree(self) -> None:
        assert self.log.next_seq == self.model.next_seq
        assert self.log.held == sum(len(data) for _, data in self.model.chunks)
        for seq, data in self.model.chunks:
            chunk = self.log.chunk(seq)
            assert chunk is not None
            assert chunk.data == data


LogAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLogAgainstModel = LogAgainstModel.TestCase


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=60), st.integers(0, 400))
@settings(deadline=None, max_examples=60)
def test_paging_through_with_any_budget_gives_every_byte_once(pieces: list[bytes], max_bytes: int) -> None:
    log = OutputLog(1 << 20, OutputBudget(1 << 20))
    for piece in pieces:
        take_bytes(log, piece)
    cursor, seen = 0, b""
    while page := log.read(cursor, max_bytes, 1 << 20).chunks:
        seen += b"".join(chunk.data for chunk in page)
        cursor = page[-1].seq
    assert seen == b"".join(pieces)

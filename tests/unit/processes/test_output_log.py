"""The log against a simple model, and its accounting."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from execserver.processes import output_log
from execserver.spool import spool
from execserver.spool.process_index import RECORDS_A_BLOCK
from execserver.spool.spool import CHUNK_BYTES, SpoolLimits
from execserver.spool.system_calls import enlarge_pipe
from execserver.supervisor.fd_store_protocol import DATA
from execserver.telemetry.measures import measures
from tests.unit.processes.log_rig import RETAINED, Rig, take_bytes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(folder=str(tmp_path / "spool"))
    yield rig
    rig.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def test_taking_from_an_empty_pipe_takes_nothing_and_is_not_the_end(rig: Rig, pipe: tuple[int, int]) -> None:
    log = rig.log()
    assert log.take("stdout", pipe[0]) == 0
    assert not log.ended


def test_a_large_pipe_gives_large_chunks(rig: Rig, pipe: tuple[int, int]) -> None:
    log = rig.log(1 << 20)
    enlarge_pipe(pipe[0], 4 * CHUNK_BYTES)
    data = os.urandom(3 * CHUNK_BYTES + 5)
    os.write(pipe[1], data)
    assert [log.take("stdout", pipe[0]) for _ in range(3)] == [2 * CHUNK_BYTES, CHUNK_BYTES + 5, 0]
    chunks = log.read(0, None, 1 << 20).chunks
    assert [len(chunk.data) for chunk in chunks] == [2 * CHUNK_BYTES, CHUNK_BYTES + 5]
    assert b"".join(chunk.data for chunk in chunks) == data


def test_chunks_are_small_while_clients_speak(
    rig: Rig, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.log(1 << 20)
    enlarge_pipe(pipe[0], 8 * CHUNK_BYTES)
    os.write(pipe[1], bytes(6 * CHUNK_BYTES))
    monkeypatch.setattr(spool, "EXPEDITE_SECONDS", 60.0)
    measures.received(1)
    assert [log.take("stdout", pipe[0]) for _ in range(3)] == [CHUNK_BYTES] * 3
    monkeypatch.setattr(spool, "EXPEDITE_SECONDS", 0.0)
    measures.received(1)
    assert [log.take("stdout", pipe[0]) for _ in range(2)] == [CHUNK_BYTES, 2 * CHUNK_BYTES]


def test_chunks_are_small_where_little_is_kept(rig: Rig, pipe: tuple[int, int]) -> None:
    log = rig.log(3 * CHUNK_BYTES)
    enlarge_pipe(pipe[0], 4 * CHUNK_BYTES)
    os.write(pipe[1], bytes(4 * CHUNK_BYTES))
    assert [log.take("stdout", pipe[0]) for _ in range(4)] == [CHUNK_BYTES] * 4
    log.trim()
    assert log.held == 3 * CHUNK_BYTES


def test_a_chunk_that_cannot_be_recorded_stays_in_its_pipe(
    rig: Rig, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.log(64 << 20)
    enlarge_pipe(pipe[0], 8 * CHUNK_BYTES)
    for _ in range(RECORDS_A_BLOCK - 1):
        take_bytes(log, b"x")
    os.write(pipe[1], bytes(4 * CHUNK_BYTES))
    # From now on there is no memory for another block of records.
    monkeypatch.setattr(rig.arena, "allocate", no_memory)
    assert log.take("stdout", pipe[0]) == 2 * CHUNK_BYTES
    with pytest.raises(OSError, match="Cannot allocate"):
        log.take("stdout", pipe[0])
    monkeypatch.undo()
    assert log.take("stdout", pipe[0]) == 2 * CHUNK_BYTES
    assert (log.total, log.next_seq) == (RECORDS_A_BLOCK - 1 + 4 * CHUNK_BYTES, RECORDS_A_BLOCK + 2)


def no_memory(_number: int, _ordinal: int) -> int:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_the_end_of_a_pipe_ends_its_stream_and_takes_no_number(rig: Rig) -> None:
    log = rig.log()
    read, write = os.pipe()
    os.close(write)
    assert log.take("stderr", read) == 0
    os.close(read)
    assert log.ended == {"stderr"}
    assert log.next_seq == 1


def test_a_process_without_output_has_no_file(rig: Rig, pipe: tuple[int, int]) -> None:
    log = rig.log()
    assert log.take("stdout", pipe[0]) == 0
    take_bytes(log, b"")
    assert log.ended == {"stdout"}
    assert not rig.kept


def test_the_end_of_a_pipe_after_output_ends_its_stream(rig: Rig) -> None:
    log = rig.log()
    take_bytes(log, b"x")
    take_bytes(log, b"")
    assert (log.ended, log.next_seq) == ({"stdout"}, 2)


def test_events_share_the_counter_with_chunks(rig: Rig) -> None:
    log = rig.log()
    take_bytes(log, b"a")
    assert log.number_event("exited") == 2
    take_bytes(log, b"b")
    assert log.number_event("closed") == 4
    assert [chunk.seq for chunk in log.read(0, None, RETAINED).chunks] == [1, 3]
    assert log.chunk(2) is None
    assert (log.exited_seq, log.closed_seq) == (2, 4)


def test_a_terminal_can_be_taken_from_without_a_pipe_in_between(rig: Rig) -> None:
    log = rig.log()
    master, slave = os.openpty()
    os.set_blocking(master, False)
    os.write(slave, b"words")
    assert log.take("pty", master) == 5
    assert log.take("pty", master) == 0
    os.close(slave)
    assert log.take("pty", master) == 0
    os.close(master)
    assert log.ended == {"pty"}
    assert log.tail(100) == b"words"


@pytest.mark.parametrize("folder", [True, False])
def test_the_daemon_budget_is_taken_from_the_largest_log(tmp_path: Path, folder: bool) -> None:
    rig = Rig(SpoolLimits(disk=1000, memory=1000, small=0), str(tmp_path) if folder else None)
    large, small = rig.log(2000), rig.log(2000)
    for _ in range(9):
        take_bytes(large, b"x" * 100)
    take_bytes(small, b"y" * 300)
    assert (large.held, small.held) == (700, 300)
    assert (rig.budget.disk_held if folder else rig.budget.memory_held) == rig.budget.held == 1000
    rig.close()


def test_a_closed_log_gives_its_share_back(rig: Rig) -> None:
    log = rig.log(2000)
    take_bytes(log, b"x" * 100)
    log.close()
    assert rig.budget.held == 0


def test_what_looks_at_a_closed_log_finds_nothing_of_the_next_one(rig: Rig) -> None:
    log = rig.log()
    take_bytes(log, b"mine")
    log.close()
    other = rig.log()
    take_bytes(other, b"another's")
    assert (log.read(0, None, RETAINED).chunks, log.tail(100), log.chunk(1)) == ([], b"", None)
    assert log.next_seq == 2


def test_lost_bytes_are_exact_for_every_cursor(rig: Rig) -> None:
    log = rig.log(10)
    for size in (3, 4, 5, 6, 2):
        take_bytes(log, b"x" * size)
    assert [log.lost_after(seq) for seq in range(6)] == [12, 9, 5, 0, 0, 0]
    page = log.read(1, None, RETAINED)
    assert (page.lost_bytes, page.first_seq) == (9, 4)


def test_single_bytes_are_kept_up_to_a_number_of_chunks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_log, "MAX_CHUNKS", 200)
    log = rig.log()
    for number in range(500):
        take_bytes(log, b"%d" % (number % 10))
    assert (log.held, log.lost_after(0), log.lost_after(250)) == (200, 300, 50)
    first = log.first_kept()
    assert first is not None
    assert first.seq == 301
    assert [chunk.seq for chunk in log.read(0, None, 1 << 20).chunks] == list(range(301, 501))


def test_many_chunks_in_a_row_do_not_overwrite_what_is_kept(rig: Rig, pipe: tuple[int, int]) -> None:
    log = rig.log(64 << 10)
    for number in range(60):
        os.write(pipe[1], bytes([number]) * (60 << 10))
        while log.take("stdout", pipe[0]):
            pass
    for chunk in log.read(0, None, 64 << 20).chunks:
        assert chunk.data == bytes([chunk.offset // (60 << 10)]) * len(chunk.data)
    assert log.lost_after(0) + log.held == log.total == 60 * (60 << 10)


def test_what_cannot_be_read_any_more_is_stated_as_lost(rig: Rig) -> None:
    log = rig.log(1 << 20)
    for data in (b"aaaa", b"bbbb", b"cccc"):
        take_bytes(log, data)
    os.ftruncate(rig.kept[DATA], 6)
    assert log.chunk(2) is None
    assert (log.evicted_through, log.lost_after(0), log.held) == (2, 8, 4)
    page = log.read(0, None, RETAINED)
    assert (page.chunks, page.lost_bytes, page.complete) == ([], 12, True)
    assert (rig.budget.held, rig.states) == (0, [(True, "Input/output error")])


def test_the_space_of_what_the_daemon_budget_drops_is_freed(tmp_path: Path) -> None:
    rig = Rig(SpoolLimits(disk=1 << 20, small=0), str(tmp_path))
    log = rig.log(16 << 20)
    for _ in range(160):
        take_bytes(log, bytes(64 << 10))
    assert log.held <= 1 << 20
    assert os.fstat(rig.kept[DATA]).st_blocks * 512 <= 3 << 20
    page = log.read(0, None, 64 << 20)
    assert log.held == sum(len(chunk.data) for chunk in page.chunks) == log.total - page.lost_bytes
    rig.close()


def test_a_log_is_restored_with_all_that_it_had(rig: Rig) -> None:
    log = rig.log(10)
    for size in (3, 4, 5, 6, 2):
        take_bytes(log, b"x" * size)
    log.number_event("exited")
    take_bytes(log, b"yy", "stderr")
    found = rig.restored(10)
    for cursor in range(8):
        assert found.read(cursor, None, RETAINED) == log.read(cursor, None, RETAINED)
        assert found.lost_after(cursor) == log.lost_after(cursor)
    assert (found.next_seq, found.held, found.total) == (8, 10, 22)
    assert (found.exited_seq, found.closed_seq) == (6, None)
    take_bytes(found, b"z")
    assert found.tail(3) == b"yyz"


def test_a_log_without_its_data_file_states_everything_as_lost(rig: Rig) -> None:
    log = rig.log()
    take_bytes(log, b"gone")
    os.close(rig.kept.pop(DATA))
    found = rig.restored()
    assert (found.lost_after(0), found.held, found.next_seq) == (4, 0, 2)
    take_bytes(found, b"new")
    assert found.tail(100) == b"new"


def test_the_data_file_of_another_process_is_refused(rig: Rig) -> None:
    log = rig.log(4 << 20)
    take_bytes(log, b"x")
    os.lseek(rig.kept[DATA], 3 << 20, os.SEEK_SET)
    with pytest.raises(ValueError, match="data file"):
        rig.restored(4 << 20)


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
        self.folder = tempfile.TemporaryDirectory()
        self.rig = Rig(folder=self.folder.name)
        self.log = self.rig.log()
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
        assert self.log.number_event("exited" if self.events == 1 else "closed") == self.model.next_seq
        self.model.next_seq += 1

    @rule()
    def a_new_server(self) -> None:
        self.log = self.rig.restored()

    @rule()
    def the_disk_fails(self) -> None:
        self.rig.spool.disk_failed(OSError(errno.ENOSPC, ""))
        self.log._files.retry_at = float("inf")

    @rule()
    def the_disk_works_again(self) -> None:
        self.rig.spool._retry_at = self.log._files.retry_at = 0.0

    @rule(size=st.integers(0, RETAINED))
    def budget_pressure(self, size: int) -> None:
        self.log._evict(size, size, size)
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

    def teardown(self) -> None:
        self.rig.close()
        self.folder.cleanup()


LogAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLogAgainstModel = LogAgainstModel.TestCase


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=60), st.integers(0, 400))
@settings(deadline=None, max_examples=60)
def test_paging_through_with_any_budget_gives_every_byte_once(pieces: list[bytes], max_bytes: int) -> None:
    rig = Rig()
    log = rig.log(1 << 20)
    for piece in pieces:
        take_bytes(log, piece)
    cursor, seen = 0, b""
    while page := log.read(cursor, max_bytes, 1 << 20).chunks:
        seen += b"".join(chunk.data for chunk in page)
        cursor = page[-1].seq
    assert seen == b"".join(pieces)
    rig.close()


def test_small_output_has_no_file_on_disk_and_more_has(tmp_path: Path) -> None:
    rig = Rig(SpoolLimits(small=1000), str(tmp_path))
    log = rig.log(1 << 20)
    take_bytes(log, b"a" * 999)
    take_bytes(log, b"b")
    assert not rig.kept
    take_bytes(log, b"c" * 5000)
    assert set(rig.kept) == {DATA}
    assert (log.memory_held, log.disk_held) == (1000, 5000)
    assert rig.states == []
    for found in (log, rig.restored(1 << 20)):
        assert [chunk.data[:1] for chunk in found.read(0, None, 1 << 20).chunks] == [b"a", b"b", b"c"]
    rig.close()


def test_a_log_that_is_emptied_keeps_its_numbers_and_says_what_is_lost(tmp_path: Path) -> None:
    rig = Rig(SpoolLimits(small=1000), str(tmp_path))
    log = rig.log(1 << 20)
    take_bytes(log, b"a" * 3000)
    take_bytes(log, b"b" * 2000)
    log.number_event("exited")
    log.number_event("closed")
    log.empty()
    assert (log.held, rig.budget.held, log.next_seq, log.has_files) == (0, 0, 5, False)
    assert (log.exited_seq, log.closed_seq) == (3, 4)
    page = log.read(0, None, 1 << 20)
    assert (page.chunks, page.lost_bytes, page.first_seq) == ([], 5000, 5)
    assert log.lost_after(1) == 2000
    rig.close()

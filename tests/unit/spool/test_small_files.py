"""The beginnings of many processes' output in one file: none is mixed up, whenever the server dies."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from execserver.processes.output_log import OutputLog
from execserver.spool import log_files
from execserver.spool.arena import IndexArena
from execserver.spool.log_files import small_slot
from execserver.spool.small_files import FIRST_PLACE, SLOT_BYTES, SmallFile, SmallOutputs, slot_of
from execserver.spool.spool import CHUNK_BYTES, Spool, SpoolBudget, SpoolLimits

PROCESSES = 24
LIMITS = SpoolLimits(small=40_000)


class Server:
    """What one server has of the two files; another one is made of the same descriptors."""

    def __init__(self, arena: int, small: int) -> None:
        self.arena = IndexArena(os.dup(arena))
        indices = self.arena.restore()
        taken = {slot for index in indices.values() if (slot := small_slot(index)) is not None}
        self.small = SmallOutputs(os.dup(small), taken)
        self.budget = SpoolBudget(LIMITS)
        self.spool = Spool(None, LIMITS, small_files=self.small)
        self.logs = {
            number: OutputLog(index, self.spool, self.budget, 1 << 20, self._keep).restore(None, None)
            for number, index in indices.items()
        }

    def log(self, number: int) -> OutputLog:
        if number not in self.logs:
            index = self.arena.open(number)
            self.logs[number] = OutputLog(index, self.spool, self.budget, 1 << 20, self._keep)
        return self.logs[number]

    def _keep(self, slot: int, fd: int) -> None:
        raise AssertionError(f"a file of its own, in slot {slot}")

    def close(self) -> None:
        self.arena.close()
        self.small.close()


@pytest.fixture
def files() -> Iterator[tuple[int, int]]:
    arena, small = IndexArena.create(), SmallOutputs.create()
    yield arena.fd, small.fd
    arena.close()
    small.close()


def pipe_with(data: bytes) -> int:
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    assert os.write(write, data) == len(data)
    os.close(write)
    return read


def whole(log: OutputLog) -> bytes:
    return b"".join(chunk.data for chunk in log.read(0, None, 1 << 30).chunks)


def pattern(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


@pytest.mark.parametrize("seed", range(25))
def test_a_kill_at_any_moment_mixes_nothing_up(
    files: tuple[int, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 3000)
    chance = random.Random(seed)
    outputs = {number: pattern(number, chance.randrange(1, 36_000)) for number in range(1, PROCESSES + 1)}
    pipes = {number: pipe_with(data) for number, data in outputs.items()}
    pid = os.fork()
    if pid == 0:
        server, turns = Server(*files), random.Random(seed)
        open_ones = list(pipes)
        while open_ones:
            number = turns.choice(open_ones)
            log = server.log(number)
            if not log.take("stdout", pipes[number]) and "stdout" in log.ended:
                open_ones.remove(number)
        os._exit(0)
    time.sleep(chance.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    for _ in range(2):  # the one that takes over may be followed by another one
        server = Server(*files)
        for number, log in server.logs.items():
            assert outputs[number].startswith(whole(log)), number
            assert len(whole(log)) == log.total, number
        server.close()
    server = Server(*files)
    for number, read in pipes.items():
        log = server.log(number)
        while "stdout" not in log.ended:
            log.take("stdout", read)
        assert whole(log) == outputs[number], number
        assert [chunk.seq for chunk in log.read(0, None, 1 << 30).chunks] == list(range(1, log.next_seq))
        os.close(read)
    server.close()


class DeathError(Exception):
    """The server dies here."""


@pytest.mark.parametrize("moment", ["prepare", "splice_from"])
def test_what_an_earlier_user_left_in_a_slot_is_nobodys_output(
    files: tuple[int, int], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise DeathError

    server = Server(*files)
    server.log(1).take("stdout", read := pipe_with(b"first" * 100))
    os.close(read)
    server.logs.pop(1).close()
    read = pipe_with(b"second")
    monkeypatch.setattr(SmallFile, moment, die)
    with pytest.raises(DeathError):
        server.log(2).take("stdout", read)  # into the slot that the first one had
    monkeypatch.undo()

    new_server = Server(*files)
    assert (whole(new_server.logs[2]), new_server.logs[2].next_seq) == (b"", 1)
    new_server.logs[2].take("stdout", read)
    assert whole(new_server.logs[2]) == b"second"
    os.close(read)
    new_server.close()
    server.close()


def test_the_beginning_of_the_next_slot_is_not_the_end_of_the_one_before(
    files: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(*files)
    server.log(1).take("stdout", first := pipe_with(b"first"))

    def die(*_: object) -> None:
        raise DeathError

    monkeypatch.setattr(SmallFile, "splice_from", die)
    with pytest.raises(DeathError):
        server.log(2).take("stdout", second := pipe_with(b"second"))
    monkeypatch.undo()
    new_server = Server(*files)
    assert (whole(new_server.logs[1]), new_server.logs[1].total) == (b"first", 5)
    assert (whole(new_server.logs[2]), new_server.logs[2].total) == (b"", 0)
    os.close(first)
    os.close(second)
    new_server.close()
    server.close()


def test_a_new_server_gives_no_slot_away_that_is_in_use(files: tuple[int, int]) -> None:
    server = Server(*files)
    for number in (1, 2, 3):
        server.log(number).take("stdout", read := pipe_with(pattern(number, 100)))
        os.close(read)
    server.logs[2].close()
    new_server = Server(*files)
    assert sorted(new_server.logs) == [1, 3]
    slots = [slot_of(new_server.small.new().position) for _ in range(3)]
    assert sorted(slot for slot in slots if slot is not None) == [1, 3, 4]
    assert whole(new_server.logs[1]) == pattern(1, 100)
    assert whole(new_server.logs[3]) == pattern(3, 100)
    new_server.close()
    server.close()


def test_the_memory_of_many_free_slots_is_given_back(files: tuple[int, int]) -> None:
    server = Server(*files)
    for number in range(1, 601):
        server.log(number).take("stdout", read := pipe_with(bytes(60_000)))
        os.close(read)
    full = os.fstat(files[1]).st_blocks * 512
    for log in server.logs.values():
        log.close()
    assert full >= 600 * 60_000
    assert os.fstat(files[1]).st_blocks * 512 <= 257 * 65_536
    server.close()


def test_a_slot_is_large_enough_for_what_may_come_at_once() -> None:
    assert SpoolLimits().small + CHUNK_BYTES <= SLOT_BYTES
    assert slot_of(FIRST_PLACE - 1) is None
    assert slot_of(FIRST_PLACE + SLOT_BYTES) == 1


def test_taking_from_several_threads_of_processes_keeps_each_apart(files: tuple[int, int]) -> None:
    server = Server(*files)
    pipes = {number: os.pipe2(os.O_CLOEXEC) for number in range(1, 9)}

    def write(number: int) -> None:
        for position in range(0, 30_000, 500):
            os.write(pipes[number][1], pattern(number, 30_000)[position : position + 500])
        os.close(pipes[number][1])

    writers = [threading.Thread(target=write, args=(number,)) for number in pipes]
    for read, _ in pipes.values():
        os.set_blocking(read, False)
    for writer in writers:
        writer.start()
    ends = set(pipes)
    while ends:
        for number in list(ends):
            log = server.log(number)
            log.take("stdout", pipes[number][0])
            if "stdout" in log.ended:
                ends.remove(number)
    for writer in writers:
        writer.join()
    for number, (read, _) in pipes.items():
        assert whole(server.logs[number]) == pattern(number, 30_000)
        os.close(read)
    server.close()

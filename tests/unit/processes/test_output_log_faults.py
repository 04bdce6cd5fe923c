"""The log when its server is killed, and when the disk is full: what was taken is there, once."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execprotocol.process import Stream
from execserver import fault_points
from execserver.processes.output_log import Chunk, OutputLog
from execserver.spool import log_files
from execserver.spool.arena import IndexArena
from execserver.spool.spool import CHUNK_BYTES, RETRY_SECONDS, Spool, SpoolBudget, SpoolLimits
from execserver.spool.system_calls import enlarge_pipe, unread_bytes
from tests.sandbox_user import NOT_ROOT
from tests.unit.processes.log_rig import Rig

KILLS = 30
RETAINED = 256 << 20


def counter(start: int, size: int) -> bytes:
    """`size` bytes of a stream in which each place is recognised, from `start` on."""
    first = start // 8
    words = b"".join(number.to_bytes(8, "big") for number in range(first, (start + size) // 8 + 1))
    return words[start - 8 * first :][:size]


def flood(read: int, write: int) -> int:
    """A process that writes the counter for ever, in pieces of any size."""
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            at, chance = 0, random.Random(1)
            while True:
                at += os.write(write, counter(at, chance.choice((1, 50, 4096, 70_000))))
        finally:
            os._exit(0)
    os.close(write)
    return pid


def server(
    arena: IndexArena,
    kept: dict[int, int],
    pipe: int,
    folder: str | None,
    channel: socket.socket,
    retained: int,
) -> None:
    """What a server does with one process, until it is killed."""
    limits = SpoolLimits(process_memory=RETAINED, small=0)
    spool = Spool(folder, limits)
    indexes = IndexArena(os.dup(arena.fd)).restore()

    def keep(slot: int, fd: int) -> None:
        socket.send_fds(channel, [bytes([slot])], [fd])

    log = OutputLog(indexes[1], spool, SpoolBudget(limits), retained, keep)
    log.restore(kept.get(1), kept.get(2))
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    channel.send(b"ready")
    while True:
        poller.poll()
        log.take("stdout", pipe)
        log.trim()


@pytest.mark.parametrize("pipe_bytes", [64 << 10, 256 << 10])
@pytest.mark.parametrize(
    ("on_disk", "retained"), [(True, RETAINED), (False, RETAINED), (True, 64 << 10), (False, 64 << 10)]
)
def test_whenever_a_server_is_killed_the_new_one_has_every_byte_once(
    tmp_path: Path, on_disk: bool, retained: int, pipe_bytes: int
) -> None:
    folder = str(tmp_path) if on_disk else None
    arena = IndexArena.create()
    arena.open(1)
    kept: dict[int, int] = {}
    read, write = os.pipe()
    os.set_blocking(read, False)
    enlarge_pipe(read, pipe_bytes)
    writer = flood(read, write)
    chance = random.Random(7)
    for _ in range(KILLS):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                server(arena, kept, read, folder, theirs, retained)
            finally:
                os._exit(1)
        theirs.close()
        while True:
            message, fds, _, _ = socket.recv_fds(ours, 16, 1)
            if message == b"ready":
                break
            if fds:
                kept[message[0]] = fds[0]
        time.sleep(chance.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        while True:
            message, fds, _, _ = socket.recv_fds(ours, 16, 1)
            if not message:
                break
            kept[message[0]] = fds[0]
        ours.close()
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)

    limits = SpoolLimits(process_memory=RETAINED, small=0)
    spool, budget = Spool(folder, limits), SpoolBudget(limits)
    index = IndexArena(os.dup(arena.fd)).restore()[1]
    log = OutputLog(index, spool, budget, retained, lambda _slot, _fd: None)
    log.restore(kept.get(1), kept.get(2))
    while log.take("stdout", read):
        log.trim()
    assert log.ended == {"stdout"}
    chunks: list[Chunk] = []
    while page := log.read(chunks[-1].seq if chunks else 0, None, 64 << 20).chunks:
        chunks += page
    assert [chunk.seq for chunk in chunks] == list(range(log.evicted_through + 1, log.next_seq))
    lost, data = log.lost_after(0), b"".join(chunk.data for chunk in chunks)
    assert (lost > 0) == (retained < RETAINED)
    assert lost + len(data) == log.total > 2 << 20
    assert data == counter(lost, len(data))
    log.close()
    spool.close()
    os.close(read)
    arena.close()
    assert os.listdir(tmp_path) == []


def take_and_die(log: OutputLog, stream: Stream, read: int, point: str) -> None:
    """What a server does that is killed at a fault point of a `take`."""
    pid = os.fork()
    if pid == 0:
        try:
            fault_points.arm({fault_points.VARIABLE: point})
            log.take(stream, read)
        finally:
            os._exit(1)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(("point", "missing"), [("after-splice", 1), ("after-index", 0)])
def test_bytes_that_were_moved_and_not_recorded_are_the_next_chunk(
    tmp_path: Path, point: str, missing: int
) -> None:
    rig = Rig(folder=str(tmp_path))
    log = rig.log(1 << 20)
    read, write = os.pipe()
    os.write(write, b"first")
    log.take("stdout", read)
    os.write(write, b"second")
    take_and_die(log, "stderr", read, point)
    assert rig.arena.restore()[1].next_seq == 3 - missing
    for _ in range(2):
        found = rig.restored(1 << 20)
        assert [(chunk.seq, chunk.stream, chunk.data) for chunk in found.read(0, None, 1 << 20).chunks] == [
            (1, "stdout", b"first"),
            (2, "stderr", b"second"),
        ]
    os.close(read)
    os.close(write)
    rig.close()


@pytest.mark.parametrize(("point", "recorded"), [("after-splice", 0), ("after-index", 1)])
def test_a_large_chunk_of_a_killed_server_is_neither_lost_nor_doubled(
    tmp_path: Path, point: str, recorded: int
) -> None:
    rig = Rig(folder=str(tmp_path))
    log = rig.log(1 << 20)
    read, write = os.pipe()
    os.set_blocking(read, False)
    enlarge_pipe(read, 4 * CHUNK_BYTES)
    give(log, (read, write), 0, 8)
    os.write(write, counter(8, 3 * CHUNK_BYTES))
    take_and_die(log, "stdout", read, point)
    assert rig.arena.restore()[1].next_seq == 2 + recorded
    for _ in range(2):
        found = rig.restored(1 << 20)
        assert everything(found) == (0, counter(0, 8 + 2 * CHUNK_BYTES))
    # It goes on behind it.
    assert found.take("stdout", read) == CHUNK_BYTES
    assert everything(found) == (0, counter(0, 8 + 3 * CHUNK_BYTES))
    os.close(read)
    os.close(write)
    rig.close()


def test_a_chunk_that_a_killed_server_moved_is_kept_and_what_is_older_goes(tmp_path: Path) -> None:
    rig = Rig(folder=str(tmp_path))
    log = rig.log(CHUNK_BYTES)
    read, write = os.pipe()
    os.set_blocking(read, False)
    enlarge_pipe(read, 4 * CHUNK_BYTES)
    give(log, (read, write), 0, 8)
    os.write(write, counter(8, 2 * CHUNK_BYTES))
    take_and_die(log, "stdout", read, "after-splice")
    found = rig.restored(CHUNK_BYTES)
    assert everything(found) == (8, counter(8, CHUNK_BYTES))
    os.close(read)
    os.close(write)
    rig.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "spool", folder], check=True)
    yield folder
    # A log of a test that failed may still have files there.
    subprocess.run(["umount", "--lazy", folder], check=True)


def give(log: OutputLog, pipe: tuple[int, int], start: int, size: int) -> None:
    """Let the log take that part of the counter, as it does it while a process runs."""
    sent = 0
    while sent < size:
        sent += os.write(pipe[1], counter(start + sent, min(size - sent, 64 << 10)))
        while log.take("stdout", pipe[0]):
            log.trim()


def everything(log: OutputLog) -> tuple[int, bytes]:
    """Where what is kept begins, and what it is."""
    page = log.read(0, None, 64 << 20)
    assert page.complete
    seqs = [chunk.seq for chunk in page.chunks]
    assert seqs == list(range(seqs[0], log.next_seq))
    return page.lost_bytes, b"".join(chunk.data for chunk in page.chunks)


@pytest.mark.parametrize("pipe_bytes", [64 << 10, 256 << 10])
def test_what_a_full_disk_that_cannot_splice_did_not_take_overwrites_nothing_in_memory(
    small_disk: Path, pipe_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The disk is tried each time, and what it did not take is in our hands then.
    monkeypatch.setattr(log_files, "RETRY_SECONDS", 0.002)
    rig = Rig(SpoolLimits(process_memory=128 << 10, small=0), str(small_disk))
    log = rig.log(8 << 20)
    read, write = os.pipe()
    os.set_blocking(read, False)
    enlarge_pipe(read, pipe_bytes)
    give(log, (read, write), 0, 8)
    disk = log._files.disk
    assert disk is not None
    disk.can_splice = False
    at = 8
    while at < 4 << 20:
        at += os.write(write, counter(at, pipe_bytes))
        while unread_bytes(read):
            assert log.take("stdout", read)
            # Before anything is dropped: feeds are at work at this moment.
            lost, data = everything(log)
            assert data == counter(lost, len(data))
            log.trim()
        assert log.total == at
    assert rig.states[0][0]
    assert (log.total, log.disk_held) == (at, 0)
    os.close(read)
    os.close(write)
    rig.close()


def test_on_a_full_disk_output_goes_on_in_memory_and_returns_to_the_disk(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        log_files, "RETRY_SECONDS", 3600.0
    )  # the first log stays in memory, however long it takes
    rig = Rig(folder=str(small_disk))
    log = rig.log(8 << 20)
    pipe = os.pipe()
    os.set_blocking(pipe[0], False)

    # As much as fits on the disk and into memory together: nothing is lost.
    give(log, pipe, 0, 3 << 19)
    assert rig.states == [(True, "No space left on device")]
    assert everything(log) == (0, counter(0, 3 << 19))
    assert log.disk_held + log.memory_held == 3 << 19
    assert 0 < log.memory_held <= 1 << 20

    # More: the newest MiB is kept, and the gap is exact.
    give(log, pipe, 3 << 19, 5 << 20)
    lost, data = everything(log)
    assert lost + len(data) == log.total == (3 << 19) + (5 << 20)
    assert data == counter(lost, len(data))
    assert (1 << 20) - (64 << 10) <= log.memory_held == log.held <= 1 << 20

    # A new server finds the same, and the space that was freed on the disk.
    found = rig.restored(8 << 20)
    assert everything(found) == (lost, data)
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    time.sleep(RETRY_SECONDS)
    give(found, pipe, log.total, 2 << 20)
    assert rig.states[-1] == (False, "")
    assert everything(found) == (lost, data + counter(lost + len(data), 2 << 20))
    assert found.disk_held == 2 << 20

    # Once its output is dropped, the memory is given back.
    found._evict(1 << 20, 1 << 20, 1 << 20)
    assert found.memory_held == 0
    assert os.fstat(rig.kept[2]).st_blocks == 0
    for fd in pipe:
        os.close(fd)
    rig.close()


def test_a_process_that_begins_on_a_full_disk_is_kept_in_memory(small_disk: Path) -> None:
    (small_disk / "full").write_bytes(bytes(1 << 20))
    rig = Rig(folder=str(small_disk))
    first, second = rig.log(8 << 20), rig.log(8 << 20)
    for log in (first, second):
        pipe = os.pipe()
        os.set_blocking(pipe[0], False)
        give(log, pipe, 0, 100_000)
        assert everything(log) == (0, counter(0, 100_000))
        for fd in pipe:
            os.close(fd)
    assert (first.memory_held, second.memory_held) == (100_000, 100_000)
    assert len(rig.states) == 1, "a full disk is told once"
    rig.close()


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
            rig = Rig(folder=str(tmp_path))
            log = rig.log(8 << 20)
            pipe = os.pipe()
            os.set_blocking(pipe[0], False)
            give(log, pipe, 0, 5 << 19)
            assert everything(log) == (0, counter(0, 5 << 19))
            assert rig.states == [(True, "File too large")]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_disk_that_fails_in_whatever_way_holds_no_output_up(tmp_path: Path) -> None:
    rig = Rig(folder=str(tmp_path))
    log = rig.log(8 << 20)
    pipe = os.pipe()
    os.set_blocking(pipe[0], False)
    give(log, pipe, 0, 100_000)
    disk = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_below(tmp_path, fd))
    refusing = os.memfd_create("refusing", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(refusing, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.dup2(refusing, disk, inheritable=False)
    os.write(pipe[1], b"goes on")
    assert log.take("stdout", pipe[0]) == 7
    assert log.tail(1) == b"goes on"
    assert rig.states == [(True, "Operation not permitted")]
    for fd in (*pipe, refusing):
        os.close(fd)
    rig.close()


def _is_below(folder: Path, fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/") and os.fstat(fd).st_size >= 100_000
    except OSError:
        return False


def test_with_a_full_descriptor_table_bytes_stay_where_they_are_or_go_to_a_file_that_is_there(
    small_disk: Path,
) -> None:
    (small_disk / "full").write_bytes(bytes(1 << 20))
    rig = Rig(folder=str(small_disk))
    log = rig.log()
    pipe = os.pipe()
    os.set_blocking(pipe[0], False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take_without_descriptors() -> int:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            return log.take("stdout", pipe[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    os.write(pipe[1], b"first")
    with pytest.raises(OSError, match="Too many open files"):
        take_without_descriptors()
    assert log.take("stdout", pipe[0]) == 5
    assert log.memory_held == 5
    os.write(pipe[1], b"second")
    assert take_without_descriptors() == 6
    assert log.tail(100) == b"firstsecond"
    for fd in pipe:
        os.close(fd)
    rig.close()

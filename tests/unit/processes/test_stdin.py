"""Input on its way to a child: accepted once, delivered once, also when the server is killed in between."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import random
import resource
import select
import signal
import socket
import struct
import termios
import threading
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from execserver.processes.stdin import QUEUE_BYTES, SHORT_QUEUE_BYTES, InputBudget, StdinWriter

MIB = 1 << 20


def pattern(start: int, size: int) -> bytes:
    """Part of an endless stream in which every 8 bytes say where they are."""
    first = start // 8
    words = b"".join(struct.pack(">Q", word) for word in range(first, (start + size) // 8 + 1))
    return words[start - first * 8 :][:size]


@dataclass
class Bench:
    """A writer, the pipe behind it, and everything it told."""

    relay: tuple[int, int] | None = None
    pipe: tuple[int, int] = field(default_factory=lambda: os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
    budget: InputBudget = field(default_factory=InputBudget)
    wanted: list[bool] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    journal: list[tuple[str, int]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def writer(self) -> StdinWriter:
        def keep(fd: int) -> None:
            self.told.append("keep")
            self.kept.append(os.dup(fd))

        def journal(write_id: str, end: int) -> None:
            self.told.append("journal")
            self.journal.append((write_id, end))

        return StdinWriter(self.pipe[1], self.budget, self.wanted.append, keep, journal, self.relay)

    def read_all(self) -> bytes:
        pieces = []
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.pipe[0], MIB):
                pieces.append(piece)
        return b"".join(pieces)

    def blocks(self) -> int:
        """Bytes of memory behind the input."""
        return os.fstat(self.kept[0]).st_blocks * 512


def is_full(writer: StdinWriter) -> bool:
    return writer.full


def is_waiting(writer: StdinWriter) -> bool:
    return writer.waiting


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for fd in (*bench.pipe, *bench.kept):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_nothing_is_kept_for_a_child_that_is_never_written_to(bench: Bench) -> None:
    writer = bench.writer()
    writer.flush()
    writer.write(b"", "w")
    writer.close()
    assert not bench.told
    assert not bench.wanted


def test_input_is_kept_then_journalled_then_delivered(bench: Bench) -> None:
    writer = bench.writer()
    writer.write(b"one", "w1")
    writer.write(b"three", "w2")
    assert bench.told == ["keep", "journal", "journal"]
    assert bench.journal == [("w1", 3), ("w2", 8)]
    assert bench.read_all() == b"onethree"
    assert bench.budget.held == 0
    assert not bench.wanted
    writer.close()


def test_nothing_is_delivered_of_a_write_that_was_not_journalled(bench: Bench) -> None:
    writer = bench.writer()

    def full_ledger(write_id: str, end: int) -> None:
        raise OSError(12, "no memory")

    whole, writer._journal = writer._journal, full_ledger
    with pytest.raises(OSError):
        writer.write(b"lost and sent again", "w1")
    assert bench.read_all() == b""
    writer._journal = whole
    writer.write(b"again", "w1")
    assert bench.read_all() == b"again"
    assert bench.journal == [("w1", 5)]
    writer.close()


def test_a_write_that_finds_no_room_leaves_nothing_behind(bench: Bench) -> None:
    writer = bench.writer()
    writer.write(b"x" * 100, "w1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError):
            writer.write(b"y" * 2000, "w2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.fstat(bench.kept[0]).st_size == 100
    writer.write(b"z", "w3")
    assert bench.read_all() == b"x" * 100 + b"z"
    writer.close()


def test_a_child_that_reads_late_gets_every_byte_of_pages_that_were_appended_to_meanwhile(
    bench: Bench,
) -> None:
    """The pipe refers to pages of the file, and more is written to these pages while it does."""
    writer = bench.writer()
    random_source = random.Random(1)
    end = 0
    read = bytearray()
    while end < 3 * MIB:
        size = random_source.choice((1, 7, 8, 100, 4095, 4096, 5000, 70_000))
        writer.write(pattern(end, size), f"w{end}")
        end += size
        if random_source.random() < 0.05:
            read += bench.read_all()
            writer.flush()
    while len(read) < end:
        read += bench.read_all()
        writer.flush()
    assert read == pattern(0, end)
    assert bench.wanted[-1] is False
    writer.close()


def test_memory_of_what_was_read_is_given_back_and_of_what_is_in_the_pipe_is_not(bench: Bench) -> None:
    fcntl.fcntl(bench.pipe[1], fcntl.F_SETPIPE_SZ, MIB)
    writer = bench.writer()
    end = 0
    for _ in range(32):
        data = pattern(end, MIB // 2)
        writer.write(data, f"w{end}")
        end += len(data)
        assert bench.read_all() == data
    assert bench.blocks() < 2 * MIB
    first = pattern(end, MIB)
    writer.write(first, "first")
    assert bench.blocks() >= MIB
    writer.write(pattern(end + MIB, MIB), "second")
    assert is_waiting(writer), "the pipe is full of pages"
    assert bench.read_all() == first
    writer.close()


def test_what_the_child_does_not_take_waits_and_goes_out_when_it_does(bench: Bench) -> None:
    writer = bench.writer()
    writer.write(pattern(0, MIB), "w1")
    assert is_waiting(writer)
    assert bench.wanted == [True]
    assert bench.budget.held == MIB - 65536
    writer.write(pattern(MIB, 100), "w2")
    assert bench.journal[-1] == ("w2", MIB + 100), "accepted all the same"
    read = b""
    while len(read) < MIB + 100:
        read += bench.read_all()
        writer.flush()
    assert read == pattern(0, MIB + 100)
    assert bench.wanted == [True, False]
    assert bench.budget.held == 0
    writer.close()


async def test_a_full_queue_makes_the_next_writer_wait_until_the_child_reads(bench: Bench) -> None:
    writer = bench.writer()
    data = bytes(16 * MIB)
    while not is_full(writer):
        writer.write(data, "w")
    assert bench.budget.held > QUEUE_BYTES
    waiting = asyncio.create_task(writer.wait_for_space())
    await asyncio.sleep(0)
    assert not waiting.done()
    while is_full(writer):
        bench.read_all()
        writer.flush()
    await waiting
    writer.close()
    assert bench.budget.held == 0


async def test_a_full_daemon_leaves_a_short_queue_a_child(bench: Bench) -> None:
    bench.budget.held = 300 * MIB
    writer = bench.writer()
    writer.write(bytes(SHORT_QUEUE_BYTES), "w1")
    assert not is_full(writer)
    writer.write(bytes(MIB), "w2")
    assert is_full(writer)
    waiting = asyncio.create_task(writer.wait_for_space())
    await asyncio.sleep(0)
    writer.close()
    await waiting
    assert bench.budget.held == 300 * MIB


def test_a_child_that_closed_its_input_swallows_what_follows(bench: Bench) -> None:
    writer = bench.writer()
    writer.write(pattern(0, 3 * MIB), "w1")
    os.close(bench.pipe[0])
    writer.flush()
    assert bench.budget.held == 0
    assert bench.blocks() <= 65536 + 4096
    writer.write(b"more", "w2")
    assert [write_id for write_id, _ in bench.journal] == ["w1"]
    assert bench.wanted == [True, False]
    writer.close()
    # A new server has nothing to deliver either, and finds that at its first write.
    new_server = bench.writer()
    new_server.restore(os.dup(bench.kept[0]), bench.journal[-1][1])
    assert not is_waiting(new_server)
    new_server.write(b"x", "w3")
    assert bench.budget.held == 0
    new_server.close()


def test_input_is_closed_after_its_last_byte(bench: Bench) -> None:
    writer = bench.writer()
    closed: list[bytes] = []
    writer.write(pattern(0, MIB), "w1")
    writer.close_when_delivered(lambda: closed.append(b""))
    read = b""
    while len(read) < MIB:
        assert not closed or len(read) >= MIB - 65536
        read += bench.read_all()
        writer.flush()
    assert closed == [b""]
    assert writer.closed
    assert read == pattern(0, MIB)


def test_input_without_anything_to_deliver_is_closed_at_once(bench: Bench) -> None:
    closed: list[int] = []
    bench.writer().close_when_delivered(lambda: closed.append(1))
    writer = bench.writer()
    writer.write(bytes(MIB), "w1")
    writer.close_when_delivered(lambda: closed.append(2))
    os.close(bench.pipe[0])
    writer.flush()
    assert closed == [1, 2], "what is never delivered does not keep the close waiting"


def test_the_owner_of_a_child_that_is_gone_is_not_told_to_close_its_input(bench: Bench) -> None:
    closed: list[int] = []
    writer = bench.writer()
    writer.write(bytes(MIB), "w1")
    writer.close_when_delivered(lambda: closed.append(1))
    writer.close()
    writer.flush()
    assert not closed


def test_a_writer_leaves_no_descriptor_behind(bench: Bench) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for end in ("close", "deliver"):
        writer = bench.writer()
        writer.write(b"x", "w")
        if end == "close":
            writer.close()
        else:
            writer.close_when_delivered(lambda: None)
    assert len(os.listdir("/proc/self/fd")) - len(bench.kept) == before


def test_input_that_cannot_be_kept_is_refused_and_leaves_no_descriptor_behind(bench: Bench) -> None:
    def refuse(_fd: int) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    def journal(write_id: str, end: int) -> None:
        bench.journal.append((write_id, end))

    writer = StdinWriter(bench.pipe[1], bench.budget, bench.wanted.append, refuse, journal)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="Too many references"):
            writer.write(b"x", "w")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not bench.journal
    assert bench.read_all() == b""


# -- take-over


def test_a_new_server_cuts_what_was_not_accepted_and_delivers_the_rest(bench: Bench) -> None:
    writer = bench.writer()
    writer.write(pattern(0, MIB), "w1")
    kept, end = bench.kept[0], bench.journal[-1][1]
    # The old server was killed between append and journal.
    os.pwrite(kept, b"not accepted", end)
    read = bench.read_all()
    budget = InputBudget()
    bench.budget = budget
    new_server = bench.writer()
    new_server.restore(os.dup(kept), end)
    assert os.fstat(kept).st_size == end
    assert (budget.held, new_server.waiting) == (MIB - len(read), True)
    while len(read) < MIB:
        new_server.flush()
        read += bench.read_all()
    new_server.write(pattern(MIB, 100), "w2")
    assert bench.journal[-1] == ("w2", MIB + 100)
    assert read + bench.read_all() == pattern(0, MIB + 100)
    new_server.close()
    writer.close()


def test_a_new_server_after_one_that_never_wrote_begins_at_the_start(bench: Bench) -> None:
    new_server = bench.writer()
    new_server.restore(None, 0)
    assert not is_waiting(new_server)
    new_server.write(b"x", "w")
    assert bench.read_all() == b"x"
    new_server.close()


def serve_stdin(writes: socket.socket, supervisor: socket.socket, told: int, pipe: int) -> None:
    """A server in small: takes writes, tells the supervisor, is killed."""
    poll = select.poll()
    poll.register(writes, select.POLLIN)

    def want(wanted: bool) -> None:
        poll.register(pipe, select.POLLOUT) if wanted else poll.unregister(pipe)

    def keep(fd: int) -> None:
        socket.send_fds(supervisor, [b"k"], [fd])

    def journal(write_id: str, end: int) -> None:
        os.write(told, struct.pack("QQ", int(write_id), end))

    writer = StdinWriter(pipe, InputBudget(), want, keep, journal)
    message, fds, _, _ = socket.recv_fds(supervisor, 8, 1)
    writer.restore(fds[0] if fds else None, struct.unpack("Q", message)[0])
    while True:
        for fd, _ in poll.poll():
            if fd == pipe:
                writer.flush()
                continue
            data = writes.recv(1 << 17)
            write_id = struct.unpack("Q", data[:8])[0]
            writer.write(data[8:], str(write_id))
            writes.send(b"a")


def test_no_byte_of_accepted_input_is_lost_or_doubled_over_25_kills() -> None:
    """The test is client and supervisor; the server is killed again and again while a child reads."""
    random_source = random.Random(2)
    total = 16 * MIB
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write_end, False)
    received = bytearray()

    def child() -> None:
        while piece := os.read(read_end, 1 << 16):
            received.extend(piece)

    reader = threading.Thread(target=child)
    reader.start()
    kept: int | None = None
    accepted: dict[int, int] = {}
    accepted_end = kills = sent = 0
    while sent < total:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours_keeper, theirs_keeper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        told_read, told_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                serve_stdin(theirs, theirs_keeper, told_write, write_end)
            finally:
                os._exit(1)
        theirs.close()
        theirs_keeper.close()
        os.close(told_write)
        if kept is None:
            ours_keeper.send(struct.pack("Q", accepted_end))
        else:
            socket.send_fds(ours_keeper, [struct.pack("Q", accepted_end)], [kept])
        # After some writes, while it deals with the next: at once, or a little later.
        writes = 10_000 if kills == 25 else random_source.randrange(1, 25)
        killer = threading.Timer(random_source.choice((0, 0.0002)), os.kill, (pid, signal.SIGKILL))
        while sent < total:
            # A write id is where its bytes begin: it is sent again until it was accepted.
            size = min(total - sent, random_source.choice((10, 4096, 30_000, 65_536)))
            if not writes:
                killer.start()
            writes -= 1
            if writes == -4:
                killer.join()
            try:
                ours.send(struct.pack("Q", sent) + pattern(sent, size))
                answer = ours.recv(1)
            except OSError:
                answer = b""
            if not answer:
                break
            sent += size
        if killer.ident is not None:
            killer.join()
        while sent == total and len(received) < total:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        while record := os.read(told_read, 16):
            write_id, end = struct.unpack("QQ", record)
            assert write_id not in accepted
            assert write_id == accepted_end
            accepted[write_id] = accepted_end = end
        # Accepted, and killed before the answer: a server that remembers the id answers it without writing.
        sent = accepted_end
        while True:
            message, fds, _, _ = socket.recv_fds(ours_keeper, 1, 1)
            if not message:
                break
            assert kept is None
            kept = fds[0]
        for fd in (ours, ours_keeper):
            fd.close()
        os.close(told_read)
    os.close(write_end)
    reader.join()
    os.close(read_end)
    assert kept is not None
    os.close(kept)
    assert kills == 26
    assert bytes(received) == pattern(0, total)


# -- terminals


@pytest.fixture
def terminal() -> Iterator[tuple[Bench, int]]:
    """A bench whose pipe is a raw terminal's, and the terminal's other side."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    os.set_blocking(slave, False)
    relay = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    bench = Bench(relay, (slave, master))
    yield bench, slave
    for fd in (master, slave, *relay, *bench.kept):
        with contextlib.suppress(OSError):
            os.close(fd)


def read_terminal(slave: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        if select.select([slave], [], [], 0.2)[0]:
            return os.read(slave, 1 << 16)
    return b""


def test_a_terminal_is_written_to_through_its_inner_pipe(terminal: tuple[Bench, int]) -> None:
    bench, slave = terminal
    writer = bench.writer()
    writer.write(b"hello", "w1")
    assert read_terminal(slave) == b"hello"
    assert not bench.wanted
    writer.close()


def test_a_terminal_that_takes_no_more_gets_the_rest_later_in_order(terminal: tuple[Bench, int]) -> None:
    bench, slave = terminal
    writer = bench.writer()
    writer.write(pattern(0, MIB), "w1")
    assert is_waiting(writer)
    closed: list[int] = []
    writer.close_when_delivered(lambda: closed.append(1))
    read = b""
    while len(read) < MIB:
        piece = read_terminal(slave)
        writer.flush()
        read += piece
    assert read == pattern(0, MIB)
    assert closed == [1]
    assert bench.wanted == [True, False]


def test_a_new_server_empties_the_inner_pipe_first(terminal: tuple[Bench, int]) -> None:
    bench, slave = terminal
    writer = bench.writer()
    writer.write(pattern(0, MIB), "w1")
    assert bench.relay is not None
    unread = fcntl.ioctl(bench.relay[0], termios.FIONREAD, bytes(4))
    assert struct.unpack("i", unread)[0], "the test wants something to be in it"
    new_server = bench.writer()
    new_server.restore(os.dup(bench.kept[0]), MIB)
    assert is_waiting(new_server)
    read = b""
    while len(read) < MIB:
        read += read_terminal(slave)
        new_server.flush()
    assert read == pattern(0, MIB)
    assert not is_waiting(new_server)
    new_server.close()


def test_what_is_only_in_the_inner_pipe_is_waited_for(terminal: tuple[Bench, int]) -> None:
    bench, slave = terminal
    assert bench.relay is not None
    os.write(bench.relay[1], b"left by the dead")
    new_server = bench.writer()
    new_server.restore(None, 0)
    assert bench.wanted == [True]
    new_server.flush()
    assert read_terminal(slave) == b"left by the dead"
    assert bench.wanted == [True, False]
    new_server.close()


def test_what_a_terminal_did_not_take_is_gone_with_it(terminal: tuple[Bench, int]) -> None:
    bench, slave = terminal
    writer = bench.writer()
    writer.write(pattern(0, MIB), "w1")
    os.close(slave)
    writer.flush()
    assert is_waiting(writer), "a process may open it again"
    writer.close()
    assert (bench.budget.held, bench.wanted) == (0, [True, False])
    assert bench.blocks() <= 2 * 65536 + 4096
    new_server = bench.writer()
    new_server.restore(os.dup(bench.kept[0]), MIB)
    assert not is_waiting(new_server)
    new_server.close()

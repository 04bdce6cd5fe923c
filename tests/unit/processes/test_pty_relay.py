"""A terminal's output on its way to the log, also when the server is killed in between."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import signal
import termios
import threading
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from execprotocol.process import Stream
from execserver.processes.pty_relay import FILL_BYTES, TerminalRelay


@dataclass
class FileLog:
    """A log that splices to a file, as the real one does, and counts chunks."""

    file: int
    most: int = FILL_BYTES
    ended: set[Stream] = field(default_factory=set)
    chunks: list[int] = field(default_factory=list)
    refuses: bool = False

    def take(self, stream: Stream, fd: int) -> int:
        if self.refuses:
            return 0
        try:
            size = os.splice(fd, self.file, self.most, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        self.chunks.append(size)
        return size

    def content(self) -> bytes:
        return os.pread(self.file, 1 << 28, 0)


@dataclass
class Terminal:
    log: FileLog
    master: int
    slave: int
    read: int
    write: int

    def relay(self) -> TerminalRelay:
        return TerminalRelay(self.log, self.master, self.read, self.write)

    def say(self, data: bytes) -> None:
        """Write all of it; what a terminal takes in one go, or another thread has to take it meanwhile."""
        while data:
            data = data[os.write(self.slave, data) :]

    def wait(self) -> None:
        """Until the kernel's own thread has passed on what was said, or the end of it."""
        assert select.select([self.master], [], [], 5)[0]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    file = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    terminal = Terminal(FileLog(file), master, slave, *os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
    yield terminal
    for fd in (file, master, slave, terminal.read, terminal.write):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_terminal_with_nothing_to_say_gives_nothing_and_is_not_at_its_end(terminal: Terminal) -> None:
    assert terminal.relay().take() == 0
    assert not terminal.log.ended


def test_what_a_terminal_says_is_in_the_log_after_one_take_and_not_in_the_inner_pipe(
    terminal: Terminal,
) -> None:
    relay = terminal.relay()
    terminal.say(b"hello")
    terminal.wait()
    assert relay.take() == 5
    assert (terminal.log.content(), relay.held) == (b"hello", 0)
    assert not select.select([terminal.read], [], [], 0)[0]


@pytest.mark.parametrize("size", [10, 4000])
def test_the_end_is_told_after_the_last_words_and_not_with_them(terminal: Terminal, size: int) -> None:
    relay = terminal.relay()
    terminal.say(b"x" * size)
    os.close(terminal.slave)
    terminal.wait()
    assert relay.take() == size
    assert not terminal.log.ended
    assert relay.take() == 0
    assert terminal.log.ended == {"pty"}
    assert terminal.log.content() == b"x" * size


def test_a_terminal_that_is_opened_again_goes_on(terminal: Terminal) -> None:
    relay = terminal.relay()
    name = os.ttyname(terminal.slave)
    os.close(terminal.slave)
    assert relay.take() == 0
    assert terminal.log.ended == {"pty"}
    terminal.log.ended.clear()
    terminal.slave = os.open(name, os.O_RDWR | os.O_NOCTTY)
    terminal.say(b"again")
    terminal.wait()
    assert relay.take() == 5
    assert not terminal.log.ended


def test_what_a_dead_server_left_in_the_inner_pipe_comes_first(terminal: Terminal) -> None:
    os.write(terminal.write, b"left ")
    terminal.say(b"said since")
    terminal.wait()
    relay = terminal.relay()
    assert relay.held == 5
    assert relay.take() == 5
    assert relay.take() == 10
    assert terminal.log.content() == b"left said since"


def test_the_end_waits_until_the_inner_pipe_is_empty(terminal: Terminal) -> None:
    os.write(terminal.write, b"left")
    os.close(terminal.slave)
    relay = terminal.relay()
    terminal.log.refuses = True
    assert relay.take() == 0
    assert not terminal.log.ended
    assert relay.held == 4
    terminal.log.refuses = False
    assert relay.take() == 4
    assert relay.take() == 0
    assert terminal.log.ended == {"pty"}


def test_a_log_that_takes_in_pieces_is_asked_until_the_inner_pipe_is_empty(terminal: Terminal) -> None:
    terminal.log.most = 3
    relay = terminal.relay()
    terminal.say(b"12345678")
    terminal.wait()
    assert relay.take() == 8
    assert terminal.log.chunks == [3, 3, 2]
    assert relay.held == 0


def test_a_flood_comes_in_fewer_chunks_than_the_terminal_has_pieces(terminal: Terminal) -> None:
    relay = terminal.relay()
    data = random.Random(3).randbytes(1 << 20)
    writer = threading.Thread(target=terminal.say, args=(data,))
    writer.start()
    while sum(terminal.log.chunks) < len(data):
        terminal.wait()
        assert relay.take() <= FILL_BYTES
    writer.join()
    assert terminal.log.content() == data
    assert len(terminal.log.chunks) < len(data) // 4095


def test_an_inner_pipe_that_is_full_of_small_pieces_is_emptied_and_filled_again(terminal: Terminal) -> None:
    relay = terminal.relay()
    for index in range(40):
        terminal.say(b"%02d" % index)
        terminal.wait()
        relay.fill()
    size = 0
    while taken := relay.take():
        size += taken
    assert size == 80
    assert terminal.log.content() == b"".join(b"%02d" % index for index in range(40))


def test_no_byte_of_a_terminal_is_lost_or_doubled_over_30_kills(terminal: Terminal) -> None:
    """The file, its position and the inner pipe are shared with the killed process, as by the supervisor."""
    random_source = random.Random(4)
    said = bytearray()
    stop = threading.Event()

    def talk() -> None:
        while not stop.is_set():
            data = random.randbytes(30_000)
            terminal.say(data)
            said.extend(data)

    def logged() -> int:
        return os.fstat(terminal.log.file).st_size

    mode = termios.tcgetattr(terminal.slave)
    assert not mode[1] & termios.OPOST, "a raw terminal changes nothing"
    talker = threading.Thread(target=talk)
    talker.start()
    for kills in range(31):
        pid = os.fork()
        if pid == 0:
            try:
                relay = terminal.relay()
                while True:
                    relay.take()
                    select.select([terminal.master], [], [])
            finally:
                os._exit(1)
        # It goes on taking while this looks, so it is killed anywhere.
        enough = logged() + random_source.randrange(200_000)
        if kills == 30:
            stop.set()
            talker.join()
            enough = len(said)
        while logged() < enough:
            time.sleep(0.0001)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert terminal.log.content() == said

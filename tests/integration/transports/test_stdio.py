"""Standard input and output: descriptors of every kind, limits, the spin."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from execprotocol.limits import MAX_LINE_BYTES
from execserver.transports.stdio import PIPE_BYTES, serve_stdio
from tests.integration.transports.conftest import MakeServer
from tests.integration.transports.peers import PATIENCE, LoopThread, Recorder, flood


def test_a_line_of_64_mib_is_served_and_one_byte_more_ends_the_connection(make_server: MakeServer) -> None:
    server = make_server("stdio")
    server.answers = lambda handler, message: handler.channel.send([b"%d" % len(message)])
    peer = server.connect()

    peer.write(b"x" * MAX_LINE_BYTES + b"\n")
    assert peer.receive() == b"%d" % MAX_LINE_BYTES
    assert not server.handler().lost.is_set()

    peer.write(b"x" * MAX_LINE_BYTES)
    writer = flood(peer, b"x\n{}\n")
    assert server.handler().lost.wait(PATIENCE)
    writer.join()
    assert len(server.handler().messages) == 1


def test_a_megabyte_without_newline_is_waited_for(make_server: MakeServer) -> None:
    server = make_server("stdio")
    peer = server.connect()

    peer.write(b"x" * (1 << 20))
    peer.write(b"y\n")

    assert peer.receive() == b"x" * (1 << 20) + b"y"


def test_bytes_that_are_no_utf_8_are_left_to_the_connection(make_server: MakeServer) -> None:
    server = make_server("stdio")
    peer = server.connect()

    peer.write(b"\xff\xfe\n")

    assert peer.receive() == b"\xff\xfe"
    assert server.handler().channel.utf8_is_fatal
    assert server.handler().channel.parse_error_prefix.endswith("exec-server stdio: ")


def test_pipes_are_enlarged_and_their_flags_restored(make_server: MakeServer) -> None:
    server = make_server("stdio")
    peer = server.connect()
    peer.send(b"{}")
    peer.receive()
    assert fcntl.fcntl(peer.fd_in, fcntl.F_GETPIPE_SZ) == PIPE_BYTES
    assert fcntl.fcntl(peer.fd_out, fcntl.F_GETPIPE_SZ) == PIPE_BYTES

    ours, theirs = socket.socketpair()
    handlers: list[Recorder] = []

    def make_handler(channel: object) -> Recorder:
        handlers.append(Recorder(channel))  # type: ignore[arg-type]
        return handlers[-1]

    with ours, theirs:
        server.thread.call(lambda: serve_stdio(ours.fileno(), ours.fileno(), make_handler))
        assert not os.get_blocking(ours.fileno())
        theirs.send(b"{}\n")
        assert theirs.recv(10) == b"{}\n"
        theirs.shutdown(socket.SHUT_WR)
        assert handlers[0].lost.wait(PATIENCE)
        server.thread.call(lambda: None)
        assert os.get_blocking(ours.fileno())


@pytest.mark.parametrize("content", [b"", b"{1}\n{2}\n", b'{"x":"' + b"x" * (3 << 20) + b'"}\n'])
def test_input_that_cannot_be_polled_is_read_all_the_same(tmp_path: Path, content: bytes) -> None:
    file, output = tmp_path / "in", tmp_path / "out"
    file.write_bytes(content)
    thread = LoopThread()
    handlers: list[Recorder] = []

    def make_handler(channel: object) -> Recorder:
        handlers.append(Recorder(channel))  # type: ignore[arg-type]
        return handlers[-1]

    with file.open("rb") as stdin, output.open("wb") as stdout:
        thread.call(lambda: serve_stdio(stdin.fileno(), stdout.fileno(), make_handler))
        assert handlers[0].lost.wait(PATIENCE)
        thread.close()

    assert output.read_bytes() == content


def test_dev_null_is_the_end_of_input() -> None:
    thread = LoopThread()
    lost = threading.Event()

    def make_handler(channel: object) -> Recorder:
        handler = Recorder(channel)  # type: ignore[arg-type]
        handler.lost = lost
        return handler

    with open(os.devnull, "r+b", buffering=0) as null:
        thread.call(lambda: serve_stdio(null.fileno(), null.fileno(), make_handler))
        assert lost.wait(PATIENCE)
        thread.close()


def test_an_output_without_a_reader_ends_the_connection(make_server: MakeServer) -> None:
    server = make_server("stdio")
    peer = server.connect()
    peer.send(b"{}")
    peer.receive()

    os.close(os.dup(peer.fd_in))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, peer.fd_in)  # the only read end is gone
    os.close(null)
    peer.send(b"{}")

    assert server.handler().lost.wait(PATIENCE)


def spinning(allowed: list[int]) -> Callable[[], bool]:
    def may_spin() -> bool:
        allowed.append(1)
        return True

    return may_spin


def test_with_a_spin_requests_are_answered_as_without(make_server: MakeServer) -> None:
    asked: list[int] = []
    server = make_server("stdio", spin_us=500, may_spin=spinning(asked))
    peer = server.connect()

    for number in range(200):
        peer.send(b"{%d}" % number)
        assert peer.receive() == b"{%d}" % number

    assert asked


def test_a_spin_never_holds_the_loop_for_long(make_server: MakeServer) -> None:
    server = make_server("stdio", spin_us=10_000_000)
    peer = server.connect()

    peer.send(b"{}")

    assert peer.receive() == b"{}"
    assert server.thread.call(lambda: 1) == 1  # within its limit, not after ten seconds


def test_no_spin_where_it_is_not_allowed(make_server: MakeServer) -> None:
    server = make_server("stdio", spin_us=10_000_000, may_spin=lambda: False)
    peer = server.connect()

    peer.send(b"{}")

    assert peer.receive() == b"{}"

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from execserver.descendants import new_instance
from execserver.supervisor.fd_store_protocol import KEEP, receive
from execserver.supervisor.packets import receive_packet, send_packet
from execserver.supervisor.server_channel import (
    ChannelError,
    ServerChannel,
    SupervisorGoneError,
    open_supervisor_pidfd,
)
from tests.support.wire import alive, wait_gone

HELLO = {
    "type": "hello",
    "version": 3,
    "instance": 5,
    "supervisorPid": 77,
    "nofileSoft": 1024,
    "beatSeconds": 2.5,
    "takeOver": False,
    "record": False,
    "listeners": [],
}


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The supervisor's end; the server's is in the environment."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setenv("EXECSERVER_CHANNEL_FD", str(theirs.detach()))
    yield ours
    ours.close()


_SERVER = """
import os, subprocess, sys
from execserver import descendants
from execserver.supervisor.start import SERVER_COMMAND
descendants.set_own_tag(descendants.tag_value(int(sys.argv[1]), 5))
print(subprocess.Popen(["sleep", "60"], start_new_session=True).pid, flush=True)
descendants.set_own_tag(descendants.tag_value(int(sys.argv[1])))
os.execv(SERVER_COMMAND[0], [*SERVER_COMMAND, "serve"])
"""


def test_a_server_whose_supervisor_ends_before_its_hello_kills_what_is_left() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(new_instance())],
        stdout=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        env={**os.environ, "EXECSERVER_CHANNEL_FD": str(theirs.fileno())},
    )
    theirs.close()
    with server:
        assert server.stdout is not None
        command = int(server.stdout.readline())
        assert alive(command)
        ours.close()
        assert wait_gone(command)


def test_hello_brings_listeners_stdio_and_record_in_order(pair: socket.socket) -> None:
    entries = [
        {"kind": "tcp", "url": "ws://127.0.0.1:1"},
        {"kind": "stdio", "url": "stdio"},
        {"kind": "unix", "url": "unix:///x"},
    ]
    tcp, unix = socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX)
    pipe = os.pipe()
    record = os.open("/dev/null", os.O_RDONLY)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nudge = os.pipe()
    registration = [theirs.fileno(), nudge[1]]
    send_packet(
        pair,
        {**HELLO, "takeOver": True, "record": True, "listeners": entries},
        [tcp.fileno(), *pipe, unix.fileno(), *registration, record],
    )

    channel, hello = ServerChannel.from_environment()

    assert "EXECSERVER_CHANNEL_FD" not in os.environ
    assert (hello.instance, hello.supervisor_pid, hello.nofile_soft, hello.beat_seconds) == (5, 77, 1024, 2.5)
    first, second, third = hello.listeners
    assert first.socket is not None
    assert third.socket is not None
    assert first.socket.family == socket.AF_INET
    assert third.socket.family == socket.AF_UNIX
    assert second.stdio is not None
    assert [os.fstat(end).st_ino for end in second.stdio] == [os.fstat(end).st_ino for end in pipe]
    assert hello.record is not None
    assert os.readlink(f"/proc/self/fd/{hello.record}") == "/dev/null"
    assert hello.take_over
    hello.fd_store.keep(5, 1, [record], urgent=True)
    message = receive(ours)
    assert message is not None
    assert (message.kind, message.number, message.slot, len(message.descriptors)) == (KEEP, 5, 1, 1)
    assert os.read(nudge[0], 10) == b"\0"
    passed = [channel.fileno(), first.socket.fileno(), third.socket.fileno(), *second.stdio, hello.record]
    passed += [hello.fd_store.fileno(), *message.descriptors]
    assert not any(os.get_inheritable(descriptor) for descriptor in passed)
    for end in (channel, tcp, unix, first.socket, third.socket, ours, theirs, hello.fd_store):
        end.close()
    for descriptor in (*pipe, *second.stdio, record, hello.record, *nudge, *message.descriptors):
        os.close(descriptor)


def test_messages_go_both_ways_and_the_end_is_none(pair: socket.socket) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nudge = os.pipe()
    send_packet(pair, HELLO, [theirs.fileno(), nudge[1]])
    channel, hello = ServerChannel.from_environment()
    assert hello.record is None
    assert not hello.take_over
    for descriptor in nudge:
        os.close(descriptor)
    for end in (ours, theirs, hello.fd_store):
        end.close()
    channel.send({"type": "ready"})
    assert receive_packet(pair) == ({"type": "ready"}, [])
    send_packet(pair, {"type": "stop"})
    assert channel.receive() == {"type": "stop"}
    channel.send({"type": "never read"})
    pair.close()
    assert channel.receive() is None
    channel.send({"type": "into the void"})
    channel.close()


def test_another_version_is_said(pair: socket.socket) -> None:
    send_packet(pair, {**HELLO, "version": 2})
    with pytest.raises(ChannelError, match="speaks version 3, the supervisor sent hello version 2"):
        ServerChannel.from_environment()


def test_a_supervisor_that_ended_before_hello_is_said(pair: socket.socket) -> None:
    pair.close()
    with pytest.raises(ChannelError, match="before its hello"):
        ServerChannel.from_environment()


def test_a_server_started_by_hand_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXECSERVER_CHANNEL_FD", raising=False)
    with pytest.raises(ChannelError, match="execserver serve"):
        ServerChannel.from_environment()


@pytest.mark.parametrize("value", ["", "x", "-1", "999999"])
def test_a_wrong_descriptor_is_said(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_CHANNEL_FD", value)
    with pytest.raises(ChannelError, match="is no channel"):
        ServerChannel.from_environment()


def test_lost_descriptors_are_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send_packet(ours, {"type": "x"}, [0] * 250)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with pytest.raises(ChannelError, match="lost descriptors"):
            receive_packet(theirs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("data", [b"no json", b"[]", b'{"type": 1}'])
def test_an_invalid_message_is_an_error(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(data)
    with pytest.raises(ChannelError):
        receive_packet(theirs)
    ours.close()
    theirs.close()


def test_only_the_parent_is_watched_as_supervisor() -> None:
    os.close(open_supervisor_pidfd(os.getppid()))
    with pytest.raises(SupervisorGoneError):
        open_supervisor_pidfd(os.getpid())

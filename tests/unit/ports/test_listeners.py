"""Listening sockets in /proc: real sockets of this process and of children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from execserver.ports import listeners
from execserver.ports.listeners import Listener, Scanner

OURS = 7


def found(*pids: int) -> list[Listener]:
    return Scanner().find({OURS: pids or (os.getpid(),)})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.2.3.4", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"])
def test_addresses_are_as_programs_write_them(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    mapped = address.startswith("::ffff")
    with socket.create_server((address, 0), family=family, dualstack_ipv6=mapped) as server:
        [listener] = found()
        assert (listener.address, listener.port) == (address, server.getsockname()[1])
        assert listener.family == ("ipv6" if ":" in address else "ipv4")
        assert (listener.number, listener.pid) == (OURS, os.getpid())
        assert listener.namespace == listeners.own_namespace()
    assert found() == []


def test_only_sockets_that_listen_are_found() -> None:
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as server:
        bound.bind(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            assert [each.port for each in found()] == [server.getsockname()[1]]


def test_sockets_that_share_a_port_are_one() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as first,
        socket.create_server(first.getsockname(), reuse_port=True),
    ):
        assert len(found()) == 1


def test_of_very_many_the_lowest_ports_are_found() -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.9.9.9", 0)))
            for _ in range(listeners.MAX_LISTENERS + 5)
        ]
        every = sorted(server.getsockname()[1] for server in servers)
        assert [each.port for each in found()] == every[: listeners.MAX_LISTENERS]
        of_two = Scanner().find({OURS: [os.getpid()], OURS + 1: [os.getppid()]})
        assert len([each for each in of_two if each.number == OURS]) == listeners.MAX_LISTENERS


def test_a_scanner_sees_what_changed_since_its_last_look() -> None:
    scanner = Scanner()
    mine = {OURS: [os.getpid()]}
    with socket.create_server(("127.0.0.1", 0)):
        first = scanner.find(mine)
        assert scanner.find(mine) == first
        with socket.create_server(("127.0.0.1", 0)):
            assert len(scanner.find(mine)) == 2
        assert scanner.find(mine) == first
    assert scanner.find(mine) == []


def test_what_a_child_has_too_belongs_to_the_one_with_the_lower_pid() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.set_inheritable(True)
        with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
            pids = (os.getpid(), child.pid)
            [listener] = found(*pids)
            assert listener.pid == min(pids)
            [of_child] = found(child.pid)
            assert (of_child.pid, of_child.name) == (child.pid, "sleep")
            child.kill()
    assert found(*pids) == [], "and the dead have none"


def test_a_listener_that_gives_its_port_away_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        [listener] = found()
        assert listeners.is_listening(listener)
        port = server.getsockname()[1]
    with socket.create_server(("127.0.0.1", port)):
        assert not listeners.is_listening(listener)


def test_a_connection_is_told_by_its_other_end_and_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        [listener] = found()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0]:
            peer_port = client.getsockname()[1]
            assert listeners.has_connection(listener, peer_port, [os.getpid()])
            assert not listeners.has_connection(listener, peer_port, [os.getppid()])
            assert not listeners.has_connection(listener, peer_port + 1, [os.getpid()])


def test_the_namespace_of_a_listener_is_opened_only_if_it_is_another_one() -> None:
    listen = "import socket; s = socket.create_server(('0.0.0.0', 8000)); print(1, flush=True); input()"
    argv = ["unshare", "--map-root-user", "--net", sys.executable, "-c", listen]
    with socket.create_server(("127.0.0.1", 0)):
        [listener] = found()
        assert listeners.open_namespace(listener) is None
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        [listener] = found(child.pid)
        assert (listener.port, listener.namespace) == (8000, os.stat(f"/proc/{child.pid}/ns/net").st_ino)
        descriptor = listeners.open_namespace(listener)
        assert descriptor is not None
        assert os.fstat(descriptor).st_ino == listener.namespace
        os.close(descriptor)
        child.kill()
    with pytest.raises(OSError, match="No such"):
        listeners.open_namespace(listener)

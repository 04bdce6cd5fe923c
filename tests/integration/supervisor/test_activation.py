"""Listening sockets passed by the service manager; the server is the fake one."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.supervisor.conftest import Service, Start
from tests.support.servers import open_files
from tests.support.service_manager import passing


@pytest.fixture
def unix(folder: Path) -> Iterator[socket.socket]:
    """The socket of a unit with ListenStream=PATH and SocketMode=0600."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(f"{folder}/passed")
        listening.listen()
        yield listening


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def activate(start: Start, sockets: list[socket.socket], *arguments: str, **options: Any) -> Service:
    descriptors = [each.fileno() for each in sockets]
    names = options.pop("names", "")
    pid = options.pop("pid", "")
    return start(
        *arguments, launcher=passing(descriptors, pid=pid, names=names), pass_fds=descriptors, **options
    )


def test_passed_sockets_replace_the_default(
    start: Start, folder: Path, unix: socket.socket, tcp: socket.socket
) -> None:
    service = activate(start, [unix, tcp], names="main:web")
    hello = service.event("hello")
    urls = [f"unix://{folder}/passed", f"ws://127.0.0.1:{tcp.getsockname()[1]}"]
    assert [service.url(), service.url()] == urls == hello["urls"]
    assert hello["kinds"] == ["unix", "tcp"]
    assert not (folder / "runtime/execserver").exists()
    assert not [name for name in hello["environment"] if name.startswith("LISTEN_")]
    # 0 to 2, the channel, the registration channel and its nudge pipe, the supervisor's pidfd, two listeners
    # and the record; and the listing itself.
    assert len(hello["descriptors"]) == 11


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_requested_listeners_are_added(start: Start, folder: Path, unix: socket.socket, how: str) -> None:
    if how == "flag":
        service = activate(start, [unix], "--listen", f"unix://{folder}/own")
    else:
        service = activate(start, [unix], env={"EXECSERVER_LISTEN": f"unix://{folder}/own"})
    assert [service.url(), service.url()] == [f"unix://{folder}/passed", f"unix://{folder}/own"]
    service.process.terminate()
    assert service.end() == (0, "", "")
    assert not (folder / "own").exists()
    assert (folder / "passed").exists()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_socket_stays_when_the_service_ends(
    start: Start, folder: Path, unix: socket.socket, end: signal.Signals
) -> None:
    service = activate(start, [unix])
    service.url()
    service.process.send_signal(end)
    service.end()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{folder}/passed")
        unix.accept()[0].close()


def test_a_server_that_refuses_leaves_the_socket(start: Start, folder: Path, unix: socket.socket) -> None:
    assert activate(start, [unix], "--fake-exit", "1").end()[:2] == (1, "")
    assert (folder / "passed").exists()


def test_sockets_for_another_process_are_ignored_and_closed(
    start: Start, folder: Path, unix: socket.socket
) -> None:
    service = activate(start, [unix], pid=str(os.getpid()))
    hello = service.event("hello")
    assert service.url() == f"unix://{folder}/runtime/execserver/execserver.sock"
    assert not [name for name in hello["environment"] if name.startswith("LISTEN_")]
    assert f"socket:[{os.fstat(unix.fileno()).st_ino}]" not in open_files(service.pid)


def test_the_socket_of_the_flag_cannot_be_the_passed_one(
    start: Start, folder: Path, unix: socket.socket
) -> None:
    code, out, err = activate(start, [unix], "--listen", f"unix://{folder}/passed").end()
    assert (code, out) == (1, "")
    assert f"cannot listen on unix://{folder}/passed: in use by process {os.getpid()}" in err
    assert (folder / "passed").exists()


def test_a_socket_that_is_open_to_others_is_said(start: Start, folder: Path, unix: socket.socket) -> None:
    (folder / "passed").chmod(0o666)
    service = activate(start, [unix])
    assert service.error_line() == (
        f"execserver: {folder}/passed has mode 0666: other users are refused; SocketMode=0600 keeps them out"
    )
    assert service.url() == f"unix://{folder}/passed"


def test_a_socket_of_a_wrong_kind_ends_the_start_by_its_name(start: Start, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        code, out, err = activate(start, [datagrams], names="log").end()
    assert (code, out) == (1, "")
    assert "descriptor 3 (log), passed by the service manager, is a datagram socket" in err
    assert "use ListenStream= and Accept=no" in err


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ("2", "descriptor 3 is not open, but LISTEN_FDS=2 says that it was passed"),
        ("many", "LISTEN_FDS='many' is no number of descriptors"),
        ("-1", "LISTEN_FDS='-1' is no number of descriptors"),
        ("65", "LISTEN_FDS=65: at most 64 sockets can be served"),
    ],
)
def test_a_launcher_that_promises_wrongly_is_told(start: Start, count: str, text: str) -> None:
    launcher = ["sh", "-c", f'export LISTEN_PID=$$ LISTEN_FDS={count}; exec "$@"', "sh"]
    code, out, err = start(launcher=launcher).end()
    assert (code, out) == (1, "")
    assert text in err

"""A relay on a socket of a service manager: no connection is refused while the relay restarts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.relay_service import PROGRAM, environment
from tests.support.service_manager import passing

SECONDS = 20.0


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """What a socket unit opens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def start(state: Path, listen: str, *doors: socket.socket) -> subprocess.Popen[str]:
    descriptors = [door.fileno() for door in doors]
    return subprocess.Popen(
        [*passing(descriptors), *PROGRAM, "serve", "--listen", listen, "--state-dir", str(state)],
        env=environment(),
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def url_of(door: socket.socket) -> str:
    return f"http://127.0.0.1:{door.getsockname()[1]}"


def ask(door: socket.socket) -> socket.socket:
    asking = socket.create_connection(door.getsockname(), timeout=SECONDS)
    asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    return asking


def end(relay: subprocess.Popen[str], number: int) -> str:
    relay.send_signal(number)
    return relay.communicate(timeout=SECONDS)[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_comes_while_no_relay_runs_is_served_by_the_next_one(
    tmp_path: Path, door: socket.socket, number: int
) -> None:
    first = start(tmp_path / "state", url_of(door), door)
    assert first.stdout is not None
    assert first.stdout.readline() == f"{url_of(door)}\n"
    end(first, number)

    with ask(door) as waiting:
        second = start(tmp_path / "state", url_of(door), door)
        answer = waiting.recv(1000)

    end(second, signal.SIGTERM)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("other", ["another address", "two sockets"])
def test_a_socket_that_is_not_that_of_the_command_line_is_refused(
    tmp_path: Path, door: socket.socket, other: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as second:
        address = f"127.0.0.1:{second.getsockname()[1]}"
        doors = (second,) if other == "another address" else (door, second)
        refused = start(tmp_path / "state", url_of(door), *doors)
        error = refused.communicate(timeout=SECONDS)[1]

    assert refused.returncode == 1
    assert f"listens on {address}, and" in error
    assert f"--listen says {url_of(door)}: it must pass one socket, with that address" in error


def test_variables_for_another_process_mean_nothing(tmp_path: Path, door: socket.socket) -> None:
    listen = "http://127.0.0.1:0"
    with subprocess.Popen(
        [*PROGRAM, "serve", "--listen", listen, "--state-dir", str(tmp_path / "state")],
        env=environment() | {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as relay:
        assert relay.stdout is not None
        url = relay.stdout.readline().rstrip("\n")
        end(relay, signal.SIGTERM)
    assert url.startswith("http://127.0.0.1:")
    assert url != url_of(door)

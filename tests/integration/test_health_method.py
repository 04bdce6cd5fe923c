"""`server/health`, over every transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver import __version__
from tests.conftest import StartServer
from tests.support.wire import Client, spawn_stdio

MEMBERS = {
    "status", "version", "pid", "uptimeSeconds", "connections", "sessions", "processes",
    "retainedOutputBytes", "retainedOutputLimitBytes", "queuedInputBytes", "lostOutputBytes",
    "requireSandbox",
}  # fmt: skip

Connect = Callable[[], Client]


@pytest.fixture(params=["stdio", "unix", "ws"])
def connect(request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path) -> Connect:
    """Connects without a handshake."""
    if request.param == "stdio":
        return spawn_stdio
    server = start_server(f"unix://{tmp_path}/s" if request.param == "unix" else "ws://127.0.0.1:0")
    return lambda: server.connect(handshake=False)


def test_it_needs_no_handshake_and_opens_no_session(connect: Connect) -> None:
    with connect() as client:
        first, second = client.call("server/health"), client.call("server/health", {})

    assert set(first) == MEMBERS
    assert (first["status"], first["version"]) == ("ok", __version__)
    assert (second["connections"], second["sessions"], second["processes"]) == (1, 0, 0)
    assert second["uptimeSeconds"] >= first["uptimeSeconds"] > 0
    assert second["retainedOutputLimitBytes"] > 0


def test_it_takes_no_parameters(connect: Connect) -> None:
    with connect() as client:
        assert client.refused("server/health", {"verbose": True}).code == -32602


def test_it_says_what_the_daemon_holds(connect: Connect) -> None:
    with connect() as client:
        client.handshake()
        cat = client.start("/bin/cat", pipeStdin=True)
        cat.write(b"12345", "w1")
        cat.wait_output(b"12345")
        during = client.call("server/health")
        os.kill(during["pid"], 0)  # it is somebody
        cat.terminate()
        cat.wait_closed()
        after = client.call("server/health")

    assert (during["sessions"], during["processes"], during["retainedOutputBytes"]) == (1, 1, 5)
    assert (after["sessions"], after["processes"], after["retainedOutputBytes"]) == (1, 0, 5)


def test_it_names_what_was_lost_to_clients(start_server: StartServer, tmp_path: Path) -> None:
    flags = ("--retained-output-bytes", "1048576")
    with start_server(f"unix://{tmp_path}/s", *flags).connect() as client:
        process = client.shell("head -c 3000000 /dev/zero").wait_closed()
        before = client.call("server/health")["lostOutputBytes"]

        page = client.call("process/read", {"processId": process.id, "afterSeq": 0})

        assert client.call("server/health")["lostOutputBytes"] - before == page["lostBytes"] > 0


def test_it_does_not_wait_behind_a_full_set_of_slots(start_server: StartServer, tmp_path: Path) -> None:
    with start_server(f"unix://{tmp_path}/s", "--concurrent-requests", "2").connect() as client:
        process = client.shell("exec sleep 600")
        long_polls = [
            client.request("process/read", {"processId": process.id, "afterSeq": 0, "waitMs": 600_000})
            for _ in range(2)
        ]

        assert client.call("server/health")["status"] == "ok"
        assert not any(client.answered(number) for number in long_polls)
        process.terminate()

"""A name server that does not answer holds a thread for minutes. Nothing else may wait for that thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import silent_resolver
from tests.faults.service import Serve
from tests.support.wire import PATIENCE

URL = "relay+https://relay.example.test?environment=box"


def launcher(folder: Path) -> list[str]:
    return ["unshare", "-rmn", sys.executable, silent_resolver.__file__, str(folder)]


def wait_until_asked(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (folder / "asked").exists():
        assert time.monotonic() < deadline, "the name server was not asked"
        time.sleep(0.01)


def test_a_daemon_stops_at_once_while_a_request_waits_for_a_name(serve: Serve, folder: Path) -> None:
    service = serve("unix", launcher=launcher(folder))
    request = {"method": "GET", "url": "http://name.example.test/", "requestId": "r"}
    service.connect().request("http/request", request)
    wait_until_asked(folder)
    service.process.terminate()
    assert service.process.wait(PATIENCE) == 0
    assert "did not stop in time" not in service.log


def test_a_daemon_makes_room_for_its_upgrade_at_once_while_its_executor_waits_for_a_name(
    serve: Serve, folder: Path
) -> None:
    service = serve(
        "unix",
        "--remote",
        "https://registry.example.test",
        "--environment-id",
        "box",
        launcher=launcher(folder),
        env={"EXECSERVER_REMOTE_TOKEN": "t" * 40},
    )
    client = service.connect()
    session = client.session_id
    wait_until_asked(folder)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_new_server()
    assert service.connect(session).call("environment/status") is not None
    assert "did not exit in time" not in service.log


@pytest.mark.parametrize(
    "program",
    [
        "from execclient.commands.app import main\nmain(['run', '--url', URL, '--', 'true'])",
        "from execclient.sync import connect\nconnect(URL, token='t' * 40)",
    ],
    ids=["command line", "execclient.sync"],
)
def test_a_client_gives_up_a_name_and_ends(folder: Path, program: str) -> None:
    patience = "from execclient.connection import relay\nrelay.CONNECT_SECONDS = 1.5\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    ended = subprocess.run(
        [*launcher(folder), sys.executable, "-c", f"URL = {URL!r}\n{patience}{program}"],
        env={**kept, "EXECSERVER_TOKEN": "t" * 40},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (folder / "asked").exists()
    assert ended.returncode != 0
    assert "https://relay.example.test gave no answer to connect within 1.5 s" in ended.stderr

"""One connection floods the server: the others are answered all the same. Each has a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import flood
from tests.support.wire import Server, alive

BOUND_SECONDS = 0.25
"""What an answer may take. It is a tenth of that where a processor is free."""

MEASURED_SECONDS = 0.8
PAUSE_SECONDS = 0.01
"""Between two calls, as agents pause; else many of them might be one turn's."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("floods")
    with Server("ws://127.0.0.1:0", cwd=folder) as ws, Server(f"unix://{folder}/socket", cwd=folder) as unix:
        yield {"ws": ws, "unix": unix}


@contextmanager
def flooding(server: Server, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.support.flood", server.url, kind]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"flooding\n"
        yield attacker
    finally:
        attacker.kill()
        attacker.communicate()


@pytest.mark.parametrize(
    ("transport", "kind"),
    [*(("ws", kind) for kind in flood.FRAMES), *(("unix", kind) for kind in flood.LINES)],
)
def test_a_flood_from_one_connection_keeps_no_other_waiting(
    servers: dict[str, Server], transport: str, kind: str
) -> None:
    server = servers[transport]
    with server.connect() as victim, flooding(server, kind) as attacker:
        taken = []
        begin = now = time.monotonic()
        while now - begin < MEASURED_SECONDS:
            victim.call("environment/info")
            taken.append(time.monotonic() - now)
            time.sleep(PAUSE_SECONDS)
            now = time.monotonic()

        assert alive(attacker.pid), "it was stopped: nothing was flooded"
    waited = sum(seconds for seconds in taken if seconds > BOUND_SECONDS)
    assert waited < sum(taken) / 2, [round(seconds, 3) for seconds in taken]

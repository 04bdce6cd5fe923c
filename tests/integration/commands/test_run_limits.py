"""`execserver run` with limits: what it says when one is wrong, and when one was reached."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.integration.commands.conftest import EXECSERVER, CommandLine
from tests.limits.groups import PYTHON, needs_groups


@needs_groups
def test_a_command_that_fails_at_its_limit_of_processes_is_told_so(execserver: CommandLine) -> None:
    script = ("--", "sh", "-c", "/bin/true; exit 3")

    limited = execserver("run", "--pids", "1", *script)
    assert limited.returncode != 0
    assert limited.stderr.decode().splitlines()[-1] == (
        "execserver: the command reached its limit of processes, where fork fails; --pids sets it"
    )

    free = execserver("run", "--pids", "9", *script)
    assert (free.returncode, free.stderr) == (3, b"")


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("--memory", "1k", "memory_bytes is 1048576 to "),
        ("--pids", "0", "pids is 1 to "),
        ("--cpu", "0", "cpu_percent is 1 to "),
        ("--io-weight", "10001", "io_weight is 1 to 10000, not 10001"),
        ("--memory", "1Q", "no size: '1Q'"),
    ],
)
def test_a_wrong_limit_is_refused_by_its_option(
    execserver: CommandLine, option: str, value: str, error: str
) -> None:
    refused = execserver("run", option, value, "--", "true")

    assert refused.returncode == 2
    assert f"error: argument {option}: {error}" in refused.stderr.decode()


@needs_groups
def test_limits_of_the_daemon_are_in_the_json_too(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(f"unix://{tmp_path}/socket", "--default-limit", "memory=64M")
    hog = ("run", "--json", "--url", server.url, "--", *PYTHON.split())

    done = subprocess.run(
        [*EXECSERVER, *hog, "-c", "x = bytearray(400 << 20)"], capture_output=True, timeout=60
    )

    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["exitCode"], end["limit"]) == (137, {"which": "memory", "value": 64 << 20})
    assert end["usage"]["limitsHit"] == ["memory"]

"""What every container of ours has to do, whatever its root file system is."""

from __future__ import annotations

import json
import signal
import time

from tests.container.container import Container
from tests.support.wire import PATIENCE

STOP_SECONDS = 2.0

_CONFINED = """
import asyncio, json, os, sys
from execclient import connect
from execclient.govern.sandbox import ReadOnly

async def main():
    async with connect(os.environ["EXECSERVER_LISTEN"]) as executor:
        script = "id -u >/dev/null && echo read; touch made; echo wrote: $?"
        sandbox = ReadOnly().context(sys.argv[1], [sys.argv[1]])
        result = await executor.run(["sh", "-c", script], cwd=sys.argv[1], sandbox=sandbox)
        print(json.dumps([result.stdout.decode(), result.stderr.decode()]))

asyncio.run(main())
"""
_ORPHAN = """
parent() { cut -d" " -f4 /proc/$$/stat; }
sh -c 'parent() { cut -d" " -f4 /proc/$$/stat; }; while [ "$(parent)" = "$1" ]; do :; done; parent' x $$ &
"""
"""Prints the new parent of a process whose parent has ended."""


def check_life(container: Container, execserver: str) -> None:
    """Process 1 serves, runs commands as its user, and reaps orphans."""
    who = container.run(
        execserver, "run", "--", "sh", "-c", "id -u; echo $PPID; tr '\\0' ' ' </proc/1/cmdline"
    )
    assert who.returncode == 0, who.stderr
    uid, _, first = who.stdout.splitlines()
    assert uid != "0"
    assert first.endswith("execserver serve ")
    orphan = container.run(execserver, "run", "--", "sh", "-c", _ORPHAN)
    assert (orphan.stdout.strip(), orphan.stderr) == ("1", "")
    many = container.run(
        execserver, "run", "--", "sh", "-c", "for i in $(seq 30); do (sleep 0.1 &); done; sleep 0.2"
    )
    assert many.returncode == 0, many.stderr
    wait_without_zombies(container)


def wait_without_zombies(container: Container) -> None:
    """Wait until process 1 has reaped all that ended."""
    deadline = time.monotonic() + PATIENCE
    while zombies := container.zombies():
        assert time.monotonic() < deadline, zombies
        time.sleep(0.02)


def check_doctor(container: Container, execserver: str) -> dict[str, str]:
    """The status of each check of `doctor`, by name."""
    done = container.run(execserver, "doctor", "--json")
    return {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}


def check_confined(container: Container, python: str, folder: str) -> None:
    """A command in a read-only sandbox reads and does not write."""
    done = container.run(python, "-I", "-c", _CONFINED, folder)
    assert done.returncode == 0, done.stderr
    output, errors = json.loads(done.stdout)
    assert output.startswith("read\nwrote: ")
    assert not output.endswith("wrote: 0\n")
    assert "Read-only file system" in errors or "Permission denied" in errors  # bubblewrap, Landlock


def check_stop(container: Container, execserver: str) -> float:
    """SIGTERM ends everything in time, also a command that ignores it; returns the seconds."""
    stubborn = container.run(
        execserver, "run", "--detach", "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"
    )
    assert stubborn.returncode == 0, stubborn.stderr
    status, seconds = container.stop(signal.SIGTERM)
    assert status == 0
    assert seconds < STOP_SECONDS
    return seconds

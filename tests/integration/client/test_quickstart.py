from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from execclient import connect
from tests.support.wire import alive, wait_gone

QUICK_START = ["-W", "error", "-m", "execclient.quickstart"]
MARK = "QUICK_START_MARK"


class Place:
    """An environment by which everything is known that a quick start leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, "TMPDIR": str(folder), MARK: self.mark}

    def processes(self) -> list[str]:
        """The processes that it left."""
        marked = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    marked.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:  # gone meanwhile
                continue
        return marked


@pytest.fixture
def place() -> Iterator[Place]:
    # Not tmp_path: the path of a socket has an end.
    with tempfile.TemporaryDirectory(prefix="qs", dir="/tmp") as folder:
        yield Place(Path(folder))


def run_without_terminal(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *QUICK_START, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=place.environment,
        timeout=30,
    )


def daemon_pid(text: str) -> int:
    found = re.search(r"process (\d+)", text)
    assert found is not None, text
    return int(found[1])


def test_without_a_terminal_it_takes_all_steps_and_leaves_nothing(place: Place) -> None:
    begin = time.monotonic()
    done = run_without_terminal(place)
    elapsed = time.monotonic() - begin

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.findall(r"^(\d)\. ", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert done.stdout.count("   ok, ") == 5
    assert "42 is the answer" in done.stdout
    assert "numbers that came: 1 to 30, 30 in all" in done.stdout
    assert not alive(daemon_pid(done.stdout))
    assert place.processes() == []
    assert list(place.folder.iterdir()) == []
    assert elapsed < 20


def test_at_a_terminal_it_goes_on_serving_until_ctrl_c(place: Place) -> None:
    with pexpect.spawn(
        sys.executable, QUICK_START, env=place.environment, encoding="utf-8", timeout=20
    ) as terminal:
        terminal.expect("listens on (unix://[^\r\n]+)")
        url = str(terminal.match.group(1))
        terminal.expect("Ctrl-C ends it")

        async def use() -> str:
            async with connect(url) as executor:
                return (await executor.run(["echo", "still there"])).text

        assert asyncio.run(use()) == "still there\n"

        terminal.sendintr()
        terminal.expect("The daemon is stopped")
        terminal.expect(pexpect.EOF)
        terminal.wait()
        assert (terminal.exitstatus, terminal.signalstatus) == (0, None)

    assert place.processes() == []
    assert list(place.folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_stops_the_daemon_too(place: Place, number: signal.Signals) -> None:
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, *QUICK_START],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=place.environment,
        ) as process:
            assert process.stdout is not None
            daemon = daemon_pid(process.stdout.readline())
            while "after" not in process.stdout.readline():
                pass
            process.send_signal(number)
            rest, errors = process.communicate(timeout=20)
        if process.returncode:
            break  # else all was over before the signal

    assert (process.returncode, errors) == (130, ""), rest
    assert wait_gone(daemon)
    assert place.processes() == []
    assert list(place.folder.iterdir()) == []


def test_a_failed_step_is_named_with_the_place_of_the_log(place: Place) -> None:
    place.environment["PATH"] = "/nonexistent"

    done = run_without_terminal(place)

    assert done.returncode == 1
    assert "FAILED: step 1: process/start: No such file or directory" in done.stderr
    log = re.search(r"The daemon's log: (\S+)", done.stderr)
    assert log is not None
    assert Path(log[1]).exists()
    assert place.processes() == []


def test_a_daemon_that_cannot_start_is_told(place: Place) -> None:
    place.environment["TMPDIR"] = str(place.folder / ("x" * 100))
    os.mkdir(place.environment["TMPDIR"])

    done = run_without_terminal(place)

    assert done.returncode == 1
    assert "FAILED: the daemon ended with status 1 before it was ready" in done.stderr


def test_it_can_use_a_daemon_that_runs(place: Place, shared_url: str) -> None:
    done = run_without_terminal(place, "--url", shared_url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("   ok, ") == 5


def test_without_that_daemon_it_fails_with_advice(place: Place) -> None:
    done = run_without_terminal(place, "--url", "unix:///nonexistent/socket")

    assert done.returncode == 1
    assert "Start a daemon with: execserver serve" in done.stderr

"""The command line with a daemon of the test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import pytest

from execclient import ProcessInfo, connect
from tests.conformance.endpoint import SharedServers
from tests.conftest import StartServer
from tests.support.wire import Server

ONE_DAEMON = frozenset({"test_help_and_completion", "test_loaded_modules"})
"""Modules whose tests share a daemon: neither its folder nor its processes matter to them."""

EXECSERVER = [sys.executable, "-m", "execserver"]

Done = subprocess.CompletedProcess[bytes]


@dataclass
class CommandLine:
    """Runs `execserver ARGUMENTS` against one daemon."""

    url: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
        own = {"EXECSERVER_URL": self.url, "TERM": "xterm", "COLUMNS": "200"}
        own["XDG_STATE_HOME"] = str(self.folder.parent / "state")
        return {**kept, **own, "HISTFILE": os.devnull}  # of the shells that tests type into

    def __call__(self, *arguments: str, data: bytes | None = None) -> Done:
        """Run to the end, with pipes; without data for its input that is /dev/null."""
        with self.start(*arguments, stdin=subprocess.DEVNULL if data is None else subprocess.PIPE) as process:
            try:
                output, errors = process.communicate(data, timeout=40)
            except BaseException:
                process.kill()
                raise
        return Done([*arguments], process.returncode, output, errors)

    def start(
        self, *arguments: str, stdin: int = subprocess.PIPE, stdout: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start, with pipes unless told otherwise."""
        return subprocess.Popen(
            [*EXECSERVER, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.folder,
        )

    def processes(self) -> list[ProcessInfo]:
        """What the daemon knows of all sessions."""

        async def ask() -> list[ProcessInfo]:
            async with connect(self.url) as executor:
                return await executor.processes(all_sessions=True, argv=True)

        return asyncio.run(ask())


@pytest.fixture
def server(
    request: pytest.FixtureRequest, start_server: StartServer, shared_servers: SharedServers, tmp_path: Path
) -> Server:
    """A daemon of this test, or of its module."""
    if request.path.stem in ONE_DAEMON:
        return shared_servers.get("unix")
    return start_server(f"unix://{tmp_path}/s", "--session-ttl", "30")


@pytest.fixture
def execserver(server: Server, tmp_path: Path) -> CommandLine:
    """The command line, with it."""
    folder = tmp_path / "here"
    folder.mkdir()
    return CommandLine(server.url, folder)


@pytest.fixture
def outside() -> Path:
    """A folder that no policy makes writable: the folders of a test are below a temporary folder."""
    found = next(
        (folder for folder in (Path("/var/lib"), Path("/opt"), Path.home()) if os.access(folder, os.W_OK)),
        None,
    )
    if found is None:
        pytest.skip("no folder outside of the temporary ones can be written here")
    return found


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for what has no event of its own: the state of another program."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def job_of(execserver: CommandLine, name: str) -> psutil.Process:
    """The command that the one shell at the daemon runs, once keys reach it: bash gives it the terminal
    and executes it then.
    """
    jobs: list[psutil.Process] = []

    def found() -> bool:
        (shell,) = (each.pid for each in execserver.processes() if each.exit_code is None)
        jobs[:] = (child for child in psutil.Process(shell).children() if child.name() == name)
        return bool(jobs)

    until(found)
    return jobs[0]


def until_continued(job: psutil.Process) -> None:
    """Wait until a stopped job goes on: bash names it, gives it the terminal, and then continues it."""
    until(lambda: job.status() != psutil.STATUS_STOPPED)


def serving_process(server: Server) -> psutil.Process:
    """The server below the supervisor."""
    return next(
        child for child in psutil.Process(server.pid).children() if child.status() != psutil.STATUS_ZOMBIE
    )

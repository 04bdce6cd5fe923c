"""A daemon with processes, and a console that shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from execclient.console.pages import STATIC
from tests.conftest import StartServer
from tests.support.wire import Server

EXECSERVER = [sys.executable, "-m", "execserver"]

Start = Callable[..., "ConsoleProcess"]


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    assert (STATIC / "index.html").is_file(), "the page is not built: make console"


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> Server:
    return start_server(f"unix://{tmp_path}/s", "--session-ttl", "60")


def kill_server(server: Server) -> None:
    """Kill the server as `kill -9` does; the daemon starts another one, and the processes go on."""
    psutil.Process(server.pid).children()[0].send_signal(signal.SIGKILL)


class ConsoleProcess:
    """`execserver console`."""

    def __init__(self, url: str, *options: str, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
        self._errors = (folder / "console.log").open("w+b")
        self.process = subprocess.Popen(
            [*EXECSERVER, "console", "--url", url, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**kept, "XDG_STATE_HOME": str(folder / "state")},
            cwd=folder,
        )
        self.link = self.next_link()

    def next_link(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().strip()
        assert line, self.log
        return line

    @property
    def log(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        status = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        return status


@contextmanager
def console_process(url: str, *options: str, folder: Path) -> Iterator[ConsoleProcess]:
    console = ConsoleProcess(url, *options, folder=folder)
    try:
        yield console
    finally:
        if console.process.poll() is None:
            console.stop()


@pytest.fixture
def start_console(server: Server, tmp_path: Path) -> Iterator[Start]:
    """Starts `execserver console` at the daemon of the test."""
    with ExitStack() as stack:

        def start(*options: str) -> ConsoleProcess:
            return stack.enter_context(console_process(server.url, *options, folder=tmp_path))

        yield start

"""A daemon with processes, and a console that shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from execclient.console.pages import STATIC
from execclient.sync import Executor, connect
from tests.console.window import Window
from tests.docs.browser import browser
from tests.support.wire import PATIENCE, Server

EXECSERVER = [sys.executable, "-m", "execserver"]

Start = Callable[..., "ConsoleProcess"]


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    assert (STATIC / "index.html").is_file(), "the page is not built: make console"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon for all tests of a module: each has sessions of its own, and a killed server is replaced."""
    folder = tmp_path_factory.mktemp("daemon")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    environment = {**kept, "XDG_STATE_HOME": str(folder / "state")}
    daemon = Server(f"unix://{folder}/s", "--session-ttl", "60", env=environment, cwd=folder)
    yield daemon
    assert daemon.stop() == 0


def kill_server(server: Server) -> None:
    """Kill the server as `kill -9` does; the daemon starts another one, and the processes go on."""
    server_process(server).send_signal(signal.SIGKILL)


def server_process(server: Server) -> psutil.Process:
    """The server below the supervisor, beside commands that another one had started; waits for a new one."""
    deadline = time.monotonic() + PATIENCE
    while True:
        for each in psutil.Process(server.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if "execserver.cli" in " ".join(each.cmdline()):
                    return each
        assert time.monotonic() < deadline, "there is no server"
        time.sleep(0.02)


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


# -- the page in Chromium


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with browser(Path("/"), tmp_path_factory.mktemp("profile")) as opened:
        yield Window(opened)


@pytest.fixture
def no_errors(window: Window) -> Iterator[None]:
    """No test may leave an error of the page, and none of its policy: nothing in it is blocked."""
    window.look()
    yield
    assert [each for each in window.browser.errors() if "favicon" not in each] == []


@pytest.fixture
def executor(server: Server) -> Iterator[Executor]:
    with connect(server.url) as opened:
        yield opened

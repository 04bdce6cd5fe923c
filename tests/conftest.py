"""Fixtures for every test that needs a running server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# Its plugin does so at the end of a run, used or not. Python 3.11.7 may fail to parse what is imported while
# the garbage of a whole run is collected ("AST constructor recursion depth mismatch", gh-106905).
import hypothesis
import pytest

from tests.support.wire import Server

# An example may take long where other programs have the processors; each test has a time limit of its own.
hypothesis.settings.register_profile("without deadline", deadline=None)
hypothesis.settings.load_profile("without deadline")


def _undo_background() -> None:
    """Give the programs that tests start what a shell gives to a command in the foreground.

    A job of `&`, nohup or a service manager has signals ignored or blocked, perhaps a closed stdin, and its
    children inherit each of these. A signal that was ignored stays without effect on pytest itself, but for
    SIGINT, by which tests interrupt calls.
    """
    # Python ignores these two itself, and sets them right in its children.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)  # exec makes the default of it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


_undo_background()  # before any fixture starts a program


@pytest.fixture(scope="session", autouse=True)
def _state_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Daemons that inherit our environment keep their state out of the account's own home folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A known environment for servers, with a home folder of its own and names worth filtering."""
    home = tmp_path_factory.mktemp("home")
    (home / ".codex").mkdir()
    return {
        "HOME": str(home),
        # By the variable: below HOME a daemon would look for what an earlier version has left in /tmp.
        "XDG_STATE_HOME": str(home / "state"),
        "EXECSERVER_CONFIG": "",  # nothing of the machine's own
        "CODEX_HOME": str(home / ".codex"),
        "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
        "LANG": "C",
        "LOGNAME": "tester",
        "USER": "tester",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",
        "PLAIN_ONE": "plain",
        "PLAIN_TWO": "also plain",
        "SOME_TOKEN": "t",
        "API_KEY_FILE": "k",
        "A_SECRET_THING": "s",
        "monkey": "contains key in small letters",
    }


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(environment: dict[str, str], tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers that end with the test; each must end with status 0.

    `start_server("unix:///PATH", "--flag", env={"ADDED": "1"}, cwd=...)`.
    """
    servers: list[Server] = []

    def start(listen: str, *flags: str, env: Mapping[str, str] | None = None, cwd: Path = tmp_path) -> Server:
        server = Server(listen, *flags, env={**environment, **(env or {})}, cwd=cwd)
        servers.append(server)
        return server

    yield start
    statuses = [server.stop() for server in servers]
    assert statuses == [0] * len(servers), [server.url for server in servers]

"""The daemon on which other projects' suites run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wire import Server
from tests.third_party.chaos import Chaos, chaos

_CHAOS = pytest.StashKey[Chaos]()

WITHOUT_CHAOS = "without_chaos"
"""The mark of tests that `--chaos` leaves out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", action="store_true", help="cut connections and kill the server all the time")
    parser.addoption("--chaos-seed", type=int, default=1, help="of the times between two cuts")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{WITHOUT_CHAOS}: a lost connection shows nothing in these tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If connections are cut, leave out the pages, and tests of options, formats and permissions."""
    if config.getoption("--chaos"):
        left_out = [
            item
            for item in items
            if item.get_closest_marker(WITHOUT_CHAOS) or item.path.stem == "test_how_to"
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon on a Unix socket, with a home folder of its own."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(prefix="exec-", dir="/tmp") as folder:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "EXECSERVER_CONFIG": "",
            "LANG": "C.UTF-8",
        }
        server = Server(f"unix://{folder}/daemon", env=environment, cwd=home)
        yield server
        assert server.stop() == 0, server.stderr


@pytest.fixture(scope="session")
def url(daemon: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the daemon is; with `--chaos`, a proxy in front of it."""
    if not request.config.getoption("--chaos"):
        yield daemon.url
        return
    seed = request.config.getoption("--chaos-seed")
    with (
        tempfile.TemporaryDirectory(prefix="exec-", dir="/tmp") as folder,
        chaos(daemon, Path(folder), seed) as done,
    ):
        request.config.stash[_CHAOS] = done
        yield done.url
    # A suite that is over before anything was cut has shown nothing.
    assert done.cuts, "no connection was cut"
    assert done.kills, "no server was killed"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if done := config.stash.get(_CHAOS, None):
        terminalreporter.write_line(f"chaos: {done.cuts} connections cut, {done.kills} servers killed")

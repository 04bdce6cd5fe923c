"""A real daemon whose files are patched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from execclient import Executor, connect
from tests.support.wire import Server


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The directory that is patched, apart from where the daemon runs."""
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def shared_server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon for all tests of a module: what they patch is apart."""
    folder = tmp_path_factory.mktemp("daemon")
    server = Server(f"unix://{folder}/s", env=environment, cwd=folder)
    yield server
    assert server.stop() == 0


@pytest.fixture
async def executor(shared_server: Server) -> AsyncIterator[Executor]:
    """A session with it."""
    async with connect(shared_server.url) as connected:
        yield connected


@pytest.fixture(params=["unix", "stdio"])
async def any_executor(
    request: pytest.FixtureRequest,
    shared_server: Server,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Executor]:
    """A session with a daemon, over each transport in turn; over `stdio:` it has one of its own."""
    if request.param == "stdio":
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        url = "stdio:"
    else:
        url = shared_server.url
    async with connect(url) as connected:
        yield connected

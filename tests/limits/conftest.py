"""Fixtures for tests of limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits.groups import PREFIX, abandoned_groups, remove_group, wait_for
from tests.support.wire import Client, Server


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a Unix socket. It must leave no control group behind."""
    yield from _served(environment, tmp_path_factory.mktemp("limits"))


@pytest.fixture
def server_of_one_test(environment: dict[str, str], tmp_path: Path) -> Iterator[Server]:
    """Another one."""
    yield from _served(environment, tmp_path)


def _served(environment: dict[str, str], folder: Path) -> Iterator[Server]:
    before = abandoned_groups()
    server = Server(f"unix://{folder}/socket", env=environment, cwd=folder, prefix=PREFIX)
    yield server
    assert server.stop() == 0
    remove_group(server.pid)
    wait_for(lambda: abandoned_groups() <= before)  # those of other tests are there before their locks


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A connection with extension members."""
    with server.connect(extensions=True) as client:
        yield client

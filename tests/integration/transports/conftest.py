from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.transports.peers import Server

MakeServer = Callable[..., Server]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """`make_server("ws", ping_seconds=0.1)`: a server that is closed with the test."""
    servers: list[Server] = []

    def make(transport: str, **options: Any) -> Server:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(Server(transport, folder, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(params=["stdio", "unix", "ws", "ws+unix"])
def server(request: pytest.FixtureRequest, make_server: MakeServer) -> Server:
    """A server on each transport in turn."""
    return make_server(request.param)

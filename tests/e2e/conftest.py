"""The end-to-end suite: each test comes in by every door.

`door` is one of the names of `EVERY_DOOR`; `endpoint` connects there, `client` is a connection that is
ready. `@pytest.mark.sockets` leaves out stdio, where the end of the connection is the end of the daemon;
`@pytest.mark.not_relayed(REASON)` a relay, `@pytest.mark.relayed` everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.endpoint import EVERY_DOOR, Endpoint, SharedServers, serving
from tests.support.wire import Client

TRANSPORTS = frozenset(name.partition("/")[0] for name in EVERY_DOOR)


class ForgetfulServers(SharedServers):
    """Servers that end a detached session after a second."""

    FLAGS = ("--session-ttl", "1")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "sockets: not over stdio",
        "not_relayed(reason): not over a relay, which is different there, and why",
        "relayed: over a relay only",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "door" not in metafunc.fixturenames:
        return
    left_out = {
        transport
        for transport, marker in (("stdio", "sockets"), ("relay", "not_relayed"))
        if metafunc.definition.get_closest_marker(marker)
    }
    only = ("relay",) if metafunc.definition.get_closest_marker("relayed") else TRANSPORTS
    metafunc.parametrize(
        "door", [name for name in EVERY_DOOR if name.partition("/")[0] in set(only) - left_out]
    )


@pytest.fixture(scope="module")
def servers(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    """One server on a Unix socket, one on TCP and one behind a relay, for the whole module."""
    yield from serving(SharedServers(environment, tmp_path_factory.mktemp("launch")))


@pytest.fixture(scope="module")
def forgetful_servers(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedServers]:
    """The same, but what is detached soon ends."""
    yield from serving(ForgetfulServers(environment, tmp_path_factory.mktemp("launch")))


@pytest.fixture
def endpoint(door: str, servers: SharedServers) -> Iterator[Endpoint]:
    """Connects by the door of this run."""
    endpoint = Endpoint(door, servers)
    yield endpoint
    endpoint.close()


@pytest.fixture
def forgetful_endpoint(door: str, forgetful_servers: SharedServers) -> Iterator[Endpoint]:
    """Connects by the door of this run, to a server that soon ends what is detached."""
    endpoint = Endpoint(door, forgetful_servers)
    yield endpoint
    endpoint.close()


@pytest.fixture
def lean(servers: SharedServers) -> Iterator[Client]:
    """A connection by the plainest door, to compare with."""
    endpoint = Endpoint("unix", servers)
    yield endpoint.connect()
    endpoint.close()


@pytest.fixture
def client(endpoint: Endpoint) -> Client:
    """A connection that is ready."""
    return endpoint.connect()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of the test's own, without links in its path."""
    return tmp_path.resolve()

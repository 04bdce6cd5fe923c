"""The conformance suite runs each test over several transports.

`endpoint` connects; `client` is a connection that is ready, `newcomer` one before its
handshake. All three follow the one parameter `transport`: Unix socket and WebSocket (the
modules of `ONE_TRANSPORT`: Unix socket), and stdio as well for tests marked `everywhere` (a
server a test: kept to a representative part); those of the modules in `RELAYED` through a relay,
too. `@pytest.mark.transports("ws")` picks others.
`@pytest.mark.statement("E1")` names what is proved, by its number in `docs/protocol.md`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.endpoint import (
    EVERYWHERE,
    OWN_SERVER,
    SOCKETS,
    Endpoint,
    SharedServers,
    serving,
    socket_folder,
)
from tests.integration.http.origin import Answer, Origin, Serve
from tests.support.wire import Client, Server

ONE_TRANSPORT = frozenset(
    {
        "test_batches", "test_causes", "test_control", "test_edits", "test_environment_policy", "test_files",
        "test_handles", "test_http_network", "test_network_decisions", "test_processes", "test_sandbox",
        "test_sandbox_files", "test_sandbox_processes", "test_search", "test_search_pages", "test_survive",
        "test_tty", "test_walk", "test_watch", "test_watches",
    }
)  # fmt: skip
"""Modules whose subject lies behind the decoded message, where the framing is forgotten (`tests/e2e` has some
of each by every transport). They run over a Unix socket, and over stdio if marked `everywhere`."""

RELAYED = frozenset({"test_http", "test_scheduling"})
"""For what lies between client and daemon matters to the order of things and to large messages, and streams
take a way of their own. All tests that are marked `everywhere` pass; a relay a module costs a second."""


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "statement(*ids): the statements of docs/protocol.md that a test proves",
        "transports(*names): run over these transports",
        "everywhere: run over stdio too",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" not in metafunc.fixturenames:
        return
    chosen = metafunc.definition.get_closest_marker("transports")
    everywhere = metafunc.definition.get_closest_marker("everywhere")
    names = chosen.args if chosen else EVERYWHERE if everywhere else SOCKETS
    if not chosen and metafunc.definition.path.stem in ONE_TRANSPORT and OWN_SERVER:
        names = tuple(name for name in names if name != "ws")
    if everywhere and not chosen and metafunc.definition.path.stem in RELAYED and OWN_SERVER:
        names = (*names, "relay")
    metafunc.parametrize("transport", names)


# Not for the whole session: tests of membership, which run later, kill what lives below pytest.
@pytest.fixture(scope="module")
def shared_servers(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedServers]:
    """Servers for one module."""
    yield from serving(SharedServers(environment, tmp_path_factory.mktemp("launch")))


@pytest.fixture
def endpoint(transport: str, shared_servers: SharedServers) -> Iterator[Endpoint]:
    """Connects over the transport of this run."""
    endpoint = Endpoint(transport, shared_servers)
    yield endpoint
    endpoint.close()


@pytest.fixture
def client(endpoint: Endpoint) -> Client:
    """A connection that is ready."""
    return endpoint.connect()


@pytest.fixture
def newcomer(endpoint: Endpoint) -> Client:
    """A connection before its handshake."""
    return endpoint.connect(handshake=False)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of the test's own, without links in its path."""
    return tmp_path.resolve()


@pytest.fixture
def launch_folder(shared_servers: SharedServers) -> str:
    """Where the servers were started."""
    return str(shared_servers.cwd.resolve())


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts origins that end with the test."""
    origins: list[Origin] = []

    def start(answer: Answer) -> Origin:
        origins.append(Origin(answer))
        return origins[-1]

    yield start
    for origin in origins:
        origin.close()


@pytest.fixture
def irreplaceable(here: Path) -> Iterator[Path]:
    """A file that may be written and not replaced: for root a mount point, else one in a closed folder."""
    (here / "closed").mkdir()
    target = here / "closed" / "file"
    target.write_text("old")
    if os.geteuid() == 0:
        (here / "elsewhere").write_text("old")
        subprocess.run(["mount", "--bind", here / "elsewhere", target], check=True)
    (here / "closed").chmod(0o555)
    yield target
    (here / "closed").chmod(0o755)
    if os.geteuid() == 0:
        subprocess.run(["umount", target], check=True)


@pytest.fixture
def on_a_small_disk(environment: dict[str, str], here: Path) -> Iterator[Server]:
    """A daemon whose spool folder has 256 KiB, in a mount namespace of its own."""
    disk, sockets = here / "disk", socket_folder()
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=256k,mode=700 none "$0" && exec "$@"'
    prefix = ["unshare", "-rm", "/bin/sh", "-c", mount, str(disk)]
    flags = ("--spool-dir", f"{disk}/state")
    with Server(f"unix://{sockets}/socket", *flags, env=environment, cwd=here, prefix=prefix) as server:
        yield server
    shutil.rmtree(sockets)

"""What runs in a sandbox with the network cannot become a client of a daemon, and so write outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import wait_for
from tests.sandbox.profiles import WORKSPACE_WITH_NETWORK
from tests.support.wire import Client, Json, Server, path_uri

PROGRAM = (Path(__file__).parent / "escaping_client.py").read_text()

WAYS = ("holds", "ends", "child", "message", "hops")

REFUSED = "connection refused"


class Daemons:
    """Daemons of one user: one that listens on a path, and one on an open port."""

    def __init__(self, host: Host) -> None:
        self.host = host
        folder = host.base / "another"
        folder.mkdir(exist_ok=True)
        host.user.give(folder)
        started = {"env": host.env, "cwd": folder, "prefix": host.user.prefix}
        self.on_path = Server(f"unix://{folder}/socket", **started)
        self.on_port = Server("ws://127.0.0.1:0", **started)
        self.client = self.on_port.connect(extensions=True)

    def end(self) -> None:
        self.client.close()
        assert [self.on_path.stop(), self.on_port.stop()] == [0, 0]


@pytest.fixture(scope="module")
def daemons(anyones_host: Host) -> Iterator[Daemons]:
    daemons = Daemons(anyones_host)
    yield daemons
    daemons.end()


@pytest.fixture(params=["another's socket", "another's port", "its own port"])
def door(request: pytest.FixtureRequest, daemons: Daemons) -> tuple[Client, Server]:
    """A client that starts the commands, and the daemon that they turn to."""
    if request.param == "its own port":
        return daemons.client, daemons.on_port
    return daemons.host.client, daemons.on_path if "socket" in request.param else daemons.on_port


def address(server: Server) -> str:
    return str(server.port) if server.url.startswith("ws:") else server.url.removeprefix("unix://")


def attack(client: Client, tree: Tree, way: str, server: Server, sandbox: Json = None) -> Path:
    """Start the program; the file that it wants to have written."""
    target = tree.out / "written"
    argv = ["python3", "-c", PROGRAM, way, address(server), str(target)]
    client.start(*argv, cwd=path_uri(tree.ws), env=tree.env, sandbox=sandbox)
    return target


@pytest.mark.parametrize("way", WAYS)
def test_a_sandboxed_command_is_no_client(daemons: Daemons, door: tuple[Client, Server], way: str) -> None:
    tree = daemons.host.tree()
    client, server = door
    before = server.stderr.count(REFUSED)

    target = attack(client, tree, way, server, tree.context(WORKSPACE_WITH_NETWORK))

    wait_for(lambda: target.exists() or server.stderr.count(REFUSED) > before, "the daemon's decision")
    assert not target.exists()


@pytest.mark.parametrize("way", ["holds", "child"])
def test_the_same_without_a_sandbox_is_a_client(
    daemons: Daemons, door: tuple[Client, Server], way: str
) -> None:
    client, server = door
    if way == "child" and server is daemons.on_path:
        pytest.skip("the process that connected to a path must live")

    target = attack(client, daemons.host.tree(), way, server)

    wait_for(target.exists, "the file")

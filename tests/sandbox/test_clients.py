"""A sandboxed command with the network cannot become a client of a daemon to write outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import wait_for
from tests.sandbox.profiles import WORKSPACE_WITH_NETWORK, at, restricted, special
from tests.sandbox.test_backends import needs_landlock
from tests.support.relay_service import RelayService
from tests.support.wire import Client, Json, Process, Server, path_uri

PROGRAM = (Path(__file__).parent / "escaping_client.py").read_text()

WAYS = ("holds", "mapped", "ends", "child", "thread", "message", "hops", "untagged")

REFUSED = "connection refused"


class Daemons:
    """Daemons of one user: one that listens on a path, and one on an open port."""

    def __init__(self, host: Host) -> None:
        self.host = host
        folder = host.base / "another"
        folder.mkdir(exist_ok=True)
        host.user.give(folder)
        self.on_path, self.on_port = (
            Server(listen, env=host.env, cwd=folder, prefix=host.user.prefix)
            for listen in (f"unix://{folder}/socket", "ws://127.0.0.1:0")
        )
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


def attack(
    client: Client, tree: Tree, way: str, server: Server, sandbox: Json = None
) -> tuple[Path, Process]:
    """Start the program; the file that it wants to have written, and its process."""
    target = tree.out / "written"
    argv = ["python3", "-c", PROGRAM, way, address(server), str(target)]
    return target, client.start(*argv, cwd=path_uri(tree.ws), env=tree.env, sandbox=sandbox)


@pytest.mark.parametrize("way", WAYS)
def test_a_sandboxed_command_is_no_client(daemons: Daemons, door: tuple[Client, Server], way: str) -> None:
    tree = daemons.host.tree()
    client, server = door
    before = server.stderr.count(REFUSED)

    target, _ = attack(client, tree, way, server, tree.context(WORKSPACE_WITH_NETWORK))

    wait_for(lambda: target.exists() or server.stderr.count(REFUSED) > before, "the daemon's decision")
    assert not target.exists()


@pytest.mark.parametrize("way", ["holds", "mapped", "child"])
def test_the_same_without_a_sandbox_is_a_client(
    daemons: Daemons, door: tuple[Client, Server], way: str
) -> None:
    client, server = door
    if way == "child" and server is daemons.on_path:
        pytest.skip("a client on a path is the process that connected, and it ends here")

    target, _ = attack(client, daemons.host.tree(), way, server)

    wait_for(target.exists, "the file")


@needs_landlock
@pytest.mark.parametrize("way", ["holds", "thread", "message", "untagged"])
@pytest.mark.parametrize("listens_on", ["path", "port"])
def test_a_command_under_landlock_is_no_client_either(
    make_host: Callable[..., Host], tmp_path: Path, way: str, listens_on: str
) -> None:
    host = make_host("--bubblewrap", str(tmp_path / "none"), "--allow-landlock")
    tree = host.tree()
    folder = host.base / "another"
    folder.mkdir()
    listen = f"unix://{folder}/socket" if listens_on == "path" else "ws://127.0.0.1:0"
    with Server(listen, env=host.env, cwd=folder) as server:
        outside, _ = attack(host.client, host.tree(), "holds", server)
        wait_for(outside.exists, "the file of one without a sandbox")

        granted = restricted(
            special("minimal", "read"), at(folder, "read"), at(tree.base, "read"), network="enabled"
        )
        target, process = attack(host.client, tree, way, server, tree.context(granted))

        if listens_on == "path" or way == "untagged":
            # The kernel makes it no Unix socket, and leaves its tag as it is.
            process.wait_closed()
            assert b"PermissionError" in process.output or b"ValueError" in process.output
        else:
            wait_for(lambda: target.exists() or REFUSED in server.stderr, "the daemon's decision")
        assert not target.exists()


ASK = """
import socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.connect(sys.argv[1])
asking.sendall(b"GET /environments HTTP/1.1\\r\\nHost: relay\\r\\nConnection: close\\r\\n\\r\\n")
print(asking.makefile().read())
"""


def test_a_relay_tells_a_sandboxed_command_nothing(host: Host) -> None:
    tree = host.tree()
    with RelayService(tree.base / "relay") as relay:
        control = str(relay.state / "control.sock")

        said = [
            host.run(tree, ["python3", "-c", ASK, control], sandbox).output
            for sandbox in (None, tree.context(WORKSPACE_WITH_NETWORK))
        ]
        assert relay.stop() == 0

    assert said[0].startswith(b"HTTP/1.1 200")
    assert said[1].startswith(b"HTTP/1.1 403")
    assert b"in a sandbox or a container" in said[1]

"""One way to reach a server, whatever the transport: what the conformance tests talk to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.sandbox_user import remove_tree
from tests.support.relay_service import RelayService
from tests.support.relayed_server import RelayedServer
from tests.support.wire import Client, Server, spawn_stdio

SOCKETS = ("unix", "ws")
EVERYWHERE = ("stdio", *SOCKETS)

EVERY_DOOR = (
    *EVERYWHERE,
    "unix-ws",
    "stdio/standard", "stdio/sized", "unix/standard", "unix/sized", "unix-ws/standard", "ws/standard",
    "relay", "relay/standard",
)  # fmt: skip
"""Every way in: transport, and behind the slash the dialect if it is not the lean one; `sized` is the
standard dialect in `Content-Length` framing. `relay` is a relay's plain door, and a stream of sealed records
behind it."""

OWN_SERVER = "EXECSERVER_TEST_COMMAND" not in os.environ
"""False when the suite is held against another executor, which lacks our flags."""


def socket_folder() -> Path:
    """A folder short enough for a socket's path, for its owner only."""
    return Path(tempfile.mkdtemp(prefix="exec-", dir="/tmp"))


def start_server(
    transport: str, folder: Path, flags: tuple[str, ...], environment: Mapping[str, str], cwd: Path
) -> Server:
    """A server for a transport that is not stdio. A Unix socket and a relay's state are in the folder."""
    if transport == "relay":
        return RelayedServer(folder / "relay", *flags, env=environment, cwd=cwd)
    listen = "ws://127.0.0.1:0" if transport == "ws" else f"unix://{folder}/socket"
    return Server(listen, *flags, env=environment, cwd=cwd)


class SharedServers:
    """One long-lived server a transport for the whole test session."""

    # Closed connections leave detached sessions behind; the default of 80 s would pile
    # up the processes of a whole run.
    FLAGS = ("--session-ttl", "10") if OWN_SERVER else ()

    def __init__(self, environment: dict[str, str], cwd: Path) -> None:
        self.environment = environment
        self.cwd = cwd
        self.deaths: list[str] = []
        self._servers: dict[str, Server] = {}
        self._folder = socket_folder()

    def get(self, transport: str) -> Server:
        """The server of a transport; one that died is replaced, and remembered."""
        server = self._servers.get(transport)
        if server is not None and not server.running:
            self.deaths.append(f"{server.url}: {server.stderr[-1000:]}")
            server.stop()
            server = None
        if server is None:
            server = start_server(transport, self._folder, self.FLAGS, self.environment, self.cwd)
            self._servers[transport] = server
        return server

    def stop(self) -> dict[str, int]:
        """End them all; their exit statuses."""
        statuses = {name: server.stop() for name, server in self._servers.items()}
        remove_tree(self._folder)
        return statuses


def serving(servers: SharedServers) -> Iterator[SharedServers]:
    """For a fixture: servers of which none may die, and each must end with status 0."""
    yield servers
    statuses = servers.stop()
    assert not servers.deaths, servers.deaths
    assert not any(statuses.values()), statuses


class Endpoint:
    """Connects over one transport, to the shared server or to one of its own."""

    def __init__(
        self,
        transport: str,
        shared: SharedServers,
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        *,
        own: bool = False,
    ) -> None:
        self.name = transport
        self.transport, _, kind = transport.partition("/")
        self.standard = bool(kind)
        self.sized = kind == "sized"
        self.clients: list[Client] = []
        self.endpoints: list[Endpoint] = []
        self._shared = shared
        self._flags = flags
        self._env = {**shared.environment, **(env or {})}
        self._own = own
        self._server: Server | None = None
        self._folder: Path | None = None

    def private(self, *flags: str, env: Mapping[str, str] | None = None) -> Endpoint:
        """The same transport with a server of its own, started with these flags."""
        endpoint = Endpoint(self.name, self._shared, flags, env, own=True)
        self.endpoints.append(endpoint)
        return endpoint

    @property
    def server(self) -> Server:
        """The server behind a socket transport."""
        if not self._own:
            return self._shared.get(self.transport.removesuffix("-ws"))
        if self._server is None:
            self._folder = socket_folder()
            self._server = start_server(
                self.transport, self._folder, self._flags, self._env, self._shared.cwd
            )
        return self._server

    @property
    def relay(self) -> RelayService:
        """What is between, on the transport `relay`."""
        assert isinstance(self.server, RelayedServer)
        return self.server.relay

    def connect(
        self, *, handshake: bool = True, resume: str | None = None, extensions: bool = False
    ) -> Client:
        """A connection that ends with the test. On stdio each is a server of its own."""
        if self.transport == "stdio":
            client = spawn_stdio(
                self._flags, self._env, self._shared.cwd, standard=self.standard, headers=self.sized
            )
        else:
            client = self.server.connect(
                handshake=False,
                standard=self.standard,
                sized=self.sized,
                upgrade=self.transport == "unix-ws",
            )
        self.clients.append(client)
        if handshake:
            client.handshake(resume, extensions=extensions)
        return client

    def close(self) -> None:
        """End connections and servers, and check that they ended well."""
        for client in self.clients:
            client.close()
        statuses = [client.stdio.process.returncode for client in self.clients if self.transport == "stdio"]
        for endpoint in self.endpoints:
            endpoint.close()
        with contextlib.ExitStack() as stack:
            if self._folder is not None:
                stack.callback(remove_tree, self._folder)
            if self._server is not None:
                statuses.append(self._server.stop())
        assert not any(statuses), f"{self.transport}: exit statuses {statuses}"

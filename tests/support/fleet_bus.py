"""Buses of relays over real NATS servers, and peers that exchange numbered frames over them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats
from nats.aio.client import Client

from execserver.relay.fleet.bus import NatsBus
from execserver.relay.service.bus import BusMessage


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class NatsServer:
    """One process."""

    def __init__(self, folder: Path, name: str, port: int, more: str) -> None:
        self.name = name
        self.port = port
        self.url = f"nats://127.0.0.1:{port}"
        self._folder = folder
        config = folder / f"{name}.conf"
        config.write_text(f'server_name: {name}\nhost: "127.0.0.1"\nport: {port}\n{more}\n')
        self._config = config
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        program = Path(sys.executable).parent / "nats-server"
        command = [str(program) if program.exists() else str(shutil.which("nats-server"))]
        with (self._folder / f"{self.name}.log").open("ab") as output:
            self.process = subprocess.Popen([*command, "-c", str(self._config)], stdout=output, stderr=output)
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, "the NATS server does not start"
            time.sleep(0.02)

    def send_signal(self, number: int) -> None:
        """Send a signal to it."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it now (idempotent)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def nats_servers(folder: Path, size: int = 1, more: str = "") -> Iterator[list[NatsServer]]:
    """A cluster of NATS servers."""
    ports = free_ports(size * 2)
    clients, routes = ports[:size], ports[size:]
    urls = ", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)
    servers = []
    for index in range(size):
        cluster = f'cluster {{name: c, host: "127.0.0.1", port: {routes[index]}, routes: [{urls}]}}'
        servers.append(
            NatsServer(folder, f"s{index + 1}", clients[index], (cluster if size > 1 else "") + "\n" + more)
        )
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            if server.process is not None:
                server.send_signal(signal.SIGCONT)
            server.kill()


def connector(*servers: NatsServer, errors: list[Exception] | None = None) -> Callable[[], asyncio.Future]:  # type: ignore[type-arg]
    """Makes connections to the first of some servers that can be reached."""

    async def note(error: Exception) -> None:
        if errors is not None:
            errors.append(error)

    async def connect() -> Client:
        return await nats.connect(
            [server.url for server in servers],
            error_cb=note,
            connect_timeout=1,
            dont_randomize=True,
            reconnect_time_wait=0.1,
            max_reconnect_attempts=-1,
        )

    return connect  # type: ignore[return-value]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def buses(*groups: tuple[NatsServer, ...]) -> AsyncIterator[list[NatsBus]]:
    """A ready bus for each group of servers, in which it prefers the first."""
    made = [NatsBus(connector(*servers)) for servers in groups]
    try:
        for bus in made:
            await bus.start()
        await until(lambda: all(bus.ready and len(bus.links.nodes) >= len(made) - 1 for bus in made))
        yield made
    finally:
        for bus in made:
            await bus.close()


class Peer:
    """An address that records what arrives at it."""

    def __init__(self, bus: NatsBus, name: str) -> None:
        self.bus = bus
        self.address = bus.address(name)
        self.received: list[BusMessage] = []
        bus.subscribe(self.address, self.received.append)

    def send(self, receiver: Peer, kind: str = "frame", text: str = "", frame: bytes = b"") -> bool:
        """Publish a message to another peer."""
        return self.bus.publish(receiver.address, BusMessage(kind, self.address, text, "data", frame))  # type: ignore[arg-type]

    def kinds(self) -> list[str]:
        """The kinds of what arrived, in order."""
        return [message.kind for message in self.received]

    def texts(self) -> list[str]:
        """The stream ids of the frames that arrived, in order."""
        return [message.stream_id for message in self.received if message.kind == "frame"]


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

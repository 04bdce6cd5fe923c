"""Buses of relays over NATS servers, and peers that record what arrives."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from execserver.relay.fleet.bus import NatsBus
from execserver.relay.fleet.connection import NatsConnection
from execserver.relay.service.bus import BusMessage
from execserver.relay.service.settings import NatsSettings


def new_bus(urls: str, prefix: str = "execserver") -> NatsBus:
    """A bus that is not started: `urls` as `--nats` takes them."""
    settings = NatsSettings.parse(urls, prefix=prefix)
    return NatsBus(lambda: NatsConnection(settings, "bus"), prefix)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        await asyncio.sleep(0.01)


def reaches(bus: NatsBus, *nodes: str) -> bool:
    """Whether a bus takes messages to other relays. It does so after their first packets, and not when it has
    heard from them.
    """
    links = bus.links._links
    return all(node in links and not links[node].is_dropped for node in nodes)


@asynccontextmanager
async def buses(*urls: str) -> AsyncIterator[list[NatsBus]]:
    """Buses that are ready and reach each other, each for some URLs."""
    made = [new_bus(each) for each in urls]
    try:
        for bus in made:
            await bus.start()
        await until(
            lambda: all(
                bus.ready and reaches(bus, *(each.node for each in made if each is not bus)) for bus in made
            )
        )
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

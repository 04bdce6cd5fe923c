"""What one relay process takes for many who are connected and say nothing, and how fast they come.

The executors and clients are sockets of this process, registered and introduced as real ones are, each with
its own ticket. Nothing is behind them: a relay copies handshakes and records without looking into them, so a
stream that was claimed costs it what one with an encrypted channel does. They share a key, which it keeps
once for each all the same. The last row is of whole connections, with handshakes at both ends.

Rates are those of one relay and one generator on this machine, and the generator does the greater part of
the work; what the relay itself could do is told by its processor time.
"""

import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks import process_tree
from benchmarks.relay_traffic import Way
from benchmarks.workloads.model import Measured, Row
from execprotocol.relay import frames
from execprotocol.relay.dial import FrameSocket, dial
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.registry_client import RegistryClient
from execserver.relay.service.token_file import TokenStore
from tests.support.relay_service import RelayService, wait_until

AT_ONCE = 16
"""Connections under way: enough that neither side waits for the other."""

DESCRIPTORS_BESIDE = 100
"""Of the generator, besides its sockets."""

SETTLE_SECONDS = 1.0
"""Before memory is looked at: the last upgrades have been answered, and their requests forgotten."""

WHOLE_CONNECTIONS_AT_ONCE = 8

GONE_SECONDS = 30.0
"""For a relay to see the end of thousands of sockets."""

ROWS = (
    Row("executor_memory", "memory of the relay for an idle executor", "KiB"),
    Row("stream_memory", "memory of the relay for an idle stream, its client's socket included", "KiB"),
    Row("executors_rate", "executors: register and dial", "1/s", "higher"),
    Row("executors_cpu", "… processor time of the relay for each", "ms"),
    Row("streams_rate", "clients: connect, dial and claim a stream", "1/s", "higher"),
    Row("streams_cpu", "… processor time of the relay for each", "ms"),
    Row(
        "connects_rate",
        "whole connections to one server, 8 under way, first answer included",
        "1/s",
        "higher",
    ),
    Row("memory_kept", "memory that the relay keeps for the next, once all are gone", "MiB"),
)


@dataclass(frozen=True)
class Crowd:
    """How many come."""

    executors: int = 1_000
    streams: int = 5_000
    connections: int = 200


FULL = Crowd()
QUICK = Crowd(executors=20, streams=100, connections=16)


class CrowdError(Exception):
    """This machine does not let so many sockets be open."""


class _Silent:
    """A peer that only is there (`dial.FrameListener`)."""

    def __init__(self) -> None:
        self.socket: FrameSocket
        self.lost = asyncio.Event()

    def socket_opened(self, socket: FrameSocket) -> None:
        """The relay has agreed."""
        self.socket = socket

    def frame_received(self, message: bytes) -> None:
        """It gets no messages."""

    def room(self) -> None:
        """It says nothing either."""

    def socket_lost(self, reason: str) -> None:
        """It is over."""
        self.lost.set()


async def idle(crowd: Crowd, state: Path) -> Measured:
    """Let executors come to a relay of their own, then their clients, and then let all go.

    Raises:
        CrowdError: too few descriptors are permitted.
    """
    raise_descriptor_limit(crowd.executors + crowd.streams + DESCRIPTORS_BESIDE)
    names = [f"box-{number}" for number in range(crowd.executors)]
    tokens = TokenStore(state, create=True)
    executor_token = tokens.create("executor", names)[1]
    client_token = tokens.create("client", names)[1]
    key = KeyPair.generate().public
    with RelayService(state, "--log-level", "warning") as relay:
        executors = RegistryClient(relay.url, given(executor_token))
        clients = RegistryClient(relay.url, given(client_token))
        peers: list[_Silent] = []

        async def executor(name: str) -> None:
            peer = _Silent()
            await dial((await executors.register(name, key)).url, peer)
            peers.append(peer)

        async def stream(name: str) -> None:
            peer = _Silent()
            await dial((await clients.connect(name, key)).url, peer)
            peer.socket.send(frames.resume(str(uuid4())))
            peers.append(peer)

        try:
            # One of each first: what they are the first to load or allocate is not theirs.
            await executor(names[0])
            await _counted(relay, "execserver_relay_environments_online", 1)
            await stream(names[0])
            start = await _resident(relay)

            executors_rate, executors_cpu = await _come(relay, executor, names[1:])
            await _counted(relay, "execserver_relay_environments_online", crowd.executors)
            with_executors = await _resident(relay)

            targets = [names[number % len(names)] for number in range(1, crowd.streams)]
            streams_rate, streams_cpu = await _come(relay, stream, targets)
            await _counted(relay, "execserver_relay_streams", crowd.streams)
            with_streams = await _resident(relay)
        finally:
            await asyncio.gather(executors.aclose(), clients.aclose())
            for peer in peers:
                peer.socket.abort()
            await asyncio.gather(*(peer.lost.wait() for peer in peers))
        await _counted(relay, "execserver_relay_environments_online", 0)
        await _counted(relay, "execserver_relay_streams", 0)
        kept = await _resident(relay) - start
    return {
        "executor_memory": (with_executors - start) * 1024 / (crowd.executors - 1),
        "stream_memory": (with_streams - with_executors) * 1024 / (crowd.streams - 1),
        "executors_rate": executors_rate,
        "executors_cpu": executors_cpu,
        "streams_rate": streams_rate,
        "streams_cpu": streams_cpu,
        "memory_kept": kept,
    }


async def whole_connections(crowd: Crowd, way: Way) -> Measured:
    """Clients with a real executor at the other end."""

    async def connection(_: str) -> None:
        async with way.connect() as client:
            await client.call("environment/status", {})

    began = time.perf_counter()
    await each(connection, [""] * crowd.connections, WHOLE_CONNECTIONS_AT_ONCE)
    return {"connects_rate": crowd.connections / (time.perf_counter() - began)}


async def _come(
    relay: RelayService, one: Callable[[str], Awaitable[None]], names: list[str]
) -> tuple[float, float]:
    """How many come a second, and milliseconds of the relay's processor time for each."""
    gc.collect()
    gc.disable()  # thousands of sockets of ours are no garbage
    cpu, began = process_tree.cpu_seconds(relay.pid), time.perf_counter()
    try:
        await each(one, names, AT_ONCE)
    finally:
        gc.enable()
    seconds = time.perf_counter() - began
    return len(names) / seconds, (process_tree.cpu_seconds(relay.pid) - cpu) * 1e3 / len(names)


async def each(one: Callable[[str], Awaitable[None]], names: Iterable[str], at_once: int) -> None:
    """Call `one` with each name, several at a time."""
    left = iter(names)

    async def worker() -> None:
        for name in left:
            await one(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


async def _counted(relay: RelayService, metric: str, wanted: int) -> None:
    await asyncio.to_thread(
        wait_until, lambda: relay.metrics()[metric] == wanted, GONE_SECONDS, f"{metric} is not {wanted}"
    )


async def _resident(relay: RelayService) -> float:
    """MiB."""
    await asyncio.sleep(SETTLE_SECONDS)
    return process_tree.memory(relay.pid).resident


def given(token: str) -> Callable[[], Awaitable[str]]:
    """What a `RegistryClient` takes its token from."""

    async def give() -> str:
        return token

    return give


def raise_descriptor_limit(wanted: int) -> None:
    """Let this process have so many descriptors. Raises `CrowdError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise CrowdError(f"{wanted} descriptors are needed, and at most {hard} permitted (`ulimit -Hn`)")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

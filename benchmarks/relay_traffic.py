"""What one and the same client program gets from a server directly, and through a relay.

Both servers, the relay and the clients run on this machine, over loopback and without TLS; the client is
`execclient`, so that what it costs is in both figures. A megabyte is 10^6 bytes of content, as the program
gets it: neither base64 nor JSON, frames or tags count.
"""

import asyncio
import gc
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import execclient
from benchmarks import process_tree
from benchmarks.workloads.model import MIB, Measured, Row, percentile
from tests.interop.relay_peers import our_executor, our_listener
from tests.support.relay_service import RelayService

ENVIRONMENT = "box"
CLIENTS = 4
WARM_UP = 50

ROWS = (
    Row("rtt_p50", "small request, fs/getMetadata, p50", "µs"),
    Row("rtt_p95", "small request, fs/getMetadata, p95", "µs"),
    Row("rtt_streaming", "the same while output streams to another client, p50", "µs"),
    Row("output", "output of dd bs=1M, iterated over", "MB/s", "higher"),
    Row("read_file", "fs/readFile, one answer", "MB/s", "higher"),
    Row("read_blocks", "download, in blocks", "MB/s", "higher"),
    Row("write_file", "fs/writeFile, one request", "MB/s", "higher"),
    Row("four_requests", "small requests of 4 clients at once", "req/s", "higher"),
    Row("four_output", "output to 4 clients at once, in all", "MB/s", "higher"),
    Row("connect", "connect, to the first answer", "ms"),
    Row("executor_cpu", "processor time of the server per GB of output", "s"),
    Row("relay_cpu", "processor time of what is between per GB of output", "s"),
)
"""The last is of the relay alone."""


@dataclass(frozen=True)
class Traffic:
    """How much goes over the wire in a round."""

    round_trips: int = 2_000
    output_mib: int = 256
    file_mib: int = 32
    blocks_mib: int = 64
    connects: int = 20


FULL = Traffic()
QUICK = Traffic(round_trips=200, output_mib=16, file_mib=4, blocks_mib=8, connects=3)


@dataclass(frozen=True)
class Way:
    """How clients get to a server."""

    url: str
    token: str | None
    server: int
    """Its process."""
    between: tuple[int, ...]
    """The processes between it and the clients: relays, and NATS."""

    def connect(self) -> execclient.connect:
        """A new client."""
        return execclient.connect(self.url, token=self.token)


class Ways:
    """A server that listens, and one that a relay leads to: running from `with` to its end.

    Args:
        scratch: a folder for all that they keep.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._open = ExitStack()
        self.direct: Way
        self.relayed: Way

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            listener = opening.enter_context(our_listener(self._scratch / "listener"))
            relay = opening.enter_context(RelayService(self._scratch / "relay"))
            executor = opening.enter_context(our_executor(relay, ENVIRONMENT, self._scratch / "executor"))
            self.direct = Way(listener.first_line(), None, listener.pid, ())
            token = relay.token("client", ENVIRONMENT)
            executor.wait_online(relay, ENVIRONMENT)
            self.relayed = Way(relay.client_url(ENVIRONMENT), token, executor.pid, (relay.pid,))
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()


async def measure(way: Way, traffic: Traffic, scratch: Path) -> Measured:
    """One round: every row, as far as the way has it."""
    file, blocks = scratch / "file", scratch / "blocks"
    for path, size in ((file, traffic.file_mib), (blocks, traffic.blocks_mib)):
        if not path.exists():
            path.write_bytes(os.urandom(size * MIB))
    measured: dict[str, float] = {}
    async with way.connect() as client:
        with _collector_off():
            times = await _round_trips(client, traffic.round_trips)
            measured["rtt_p50"], measured["rtt_p95"] = percentile(times, 0.5), percentile(times, 0.95)

            before = _cpu(way)
            measured["output"] = await _output(client, traffic.output_mib)
            gigabytes = traffic.output_mib * MIB / 1e9
            used = [(after - earlier) / gigabytes for earlier, after in zip(before, _cpu(way), strict=True)]
            measured["executor_cpu"] = used[0]
            if way.between:
                measured["relay_cpu"] = used[1]

            began = time.perf_counter()
            whole = await client.fs.read_bytes(file)
            measured["read_file"] = _rate(len(whole), traffic.file_mib, began)
            began = time.perf_counter()
            await client.fs.write_bytes(scratch / "written", whole)
            measured["write_file"] = _rate(len(whole), traffic.file_mib, began)
            measured["read_blocks"] = await _blocks(client, blocks, traffic.blocks_mib)
    measured |= await _together(way, traffic)
    measured["connect"] = await _connects(way, traffic.connects)
    return measured


async def _together(way: Way, traffic: Traffic) -> Measured:
    """Several clients, each with a connection of its own."""
    clients = [await way.connect() for _ in range(CLIENTS)]
    try:
        with _collector_off():
            began = time.perf_counter()
            await asyncio.gather(*(_round_trips(client, traffic.round_trips) for client in clients))
            requests = CLIENTS * (traffic.round_trips + WARM_UP) / (time.perf_counter() - began)

            began = time.perf_counter()
            share = traffic.output_mib // CLIENTS
            await asyncio.gather(*(_output(client, share) for client in clients))
            output = share * CLIENTS * MIB / 1e6 / (time.perf_counter() - began)

            streaming = asyncio.create_task(_output(clients[0], traffic.output_mib))
            times: list[float] = []
            while not streaming.done():
                times += await _round_trips(clients[1], 1, warm_up=0)
                await asyncio.sleep(0.002)  # requests back to back would be in the stream's way
            await streaming
    finally:
        for client in clients:
            await client.close()
    return {
        "four_requests": requests,
        "four_output": output,
        "rtt_streaming": percentile(times, 0.5),
    }


async def _round_trips(client: execclient.Executor, count: int, warm_up: int = WARM_UP) -> list[float]:
    """Microseconds of each."""
    times = []
    for _ in range(count + warm_up):
        began = time.perf_counter()
        await client.call("fs/getMetadata", {"path": "file:///etc/passwd"})
        times.append((time.perf_counter() - began) * 1e6)
    return times[warm_up:]


async def _output(client: execclient.Executor, mib: int) -> float:
    began = time.perf_counter()
    size = 0
    async for chunk in await client.start(["dd", "if=/dev/zero", "bs=1M", f"count={mib}", "status=none"]):
        size += len(chunk.data)
    return _rate(size, mib, began)


async def _blocks(client: execclient.Executor, path: Path, mib: int) -> float:
    """A download that goes nowhere: it asks for blocks ahead, as one to a file does."""
    with open(os.devnull, "wb") as nowhere:
        sizes: list[int] = []
        began = time.perf_counter()
        await client.fs.download(
            path, nowhere, progress=lambda progress: sizes.append(progress.done), verify=False
        )
        return _rate(sizes[-1], mib, began)


async def _connects(way: Way, count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        async with way.connect():
            times.append((time.perf_counter() - began) * 1e3)
    return percentile(times, 0.5)


def _rate(size: int, mib: int, began: float) -> float:
    seconds = time.perf_counter() - began
    if size != mib * MIB:
        raise AssertionError(f"{size} bytes instead of {mib} MiB")
    return size / 1e6 / seconds


def _cpu(way: Way) -> tuple[float, float]:
    """Seconds of the server, its supervisor included but not its commands, and of what is between."""
    return process_tree.cpu_seconds(way.server), sum(map(process_tree.cpu_seconds, way.between))


@contextmanager
def _collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""The same traffic over three paths: directly, through one relay, and through two with NATS between them.

With two relays, the executor's socket is at one and the client's at the other. All of it is on this machine,
over loopback and without TLS, with one NATS server.

The rows of frames have neither an executor nor encryption: both ends are sockets of this process, which
exchange frames as a relay forwards them. In place of a direct way they have a plain TCP connection on which
the same bytes go with their length in front. So they show what a path costs by itself.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol
from uuid import uuid4

from benchmarks import relay_traffic
from benchmarks.relay_crowd import given
from benchmarks.relay_traffic import ENVIRONMENT, Traffic, Way
from benchmarks.workloads.model import MIB, Measured, Row, percentile
from execprotocol.relay import frames
from execprotocol.relay.dial import FrameSocket, dial
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.registry_client import RegistryClient
from tests.interop.relay_peers import our_executor, our_listener
from tests.support.nats_servers import NatsServers
from tests.support.relay_service import RelayService

Side = Literal["direct", "relayed", "fleet"]
SIDES: tuple[Side, ...] = ("direct", "relayed", "fleet")

FRAMES_ENVIRONMENT = "frames"
SMALL_BYTES, LARGE_BYTES = 128, 48 << 10
"""Payloads of frames: a short request, and a record of output."""
WARM_UP = 50
LENGTH_BYTES = 4
BUFFER_BYTES = 1 << 20
"""Of a plain TCP connection: as a queue of a relay, so that neither end waits for the other at each frame."""

ROWS = (
    Row("frame_rtt", f"a frame of {SMALL_BYTES} bytes, there and back, p50", "µs"),
    Row("frame_rate", f"frames of {LARGE_BYTES >> 10} KiB, executor to client", "MB/s", "higher"),
    *(
        row
        for row in relay_traffic.ROWS
        if row.name in ("rtt_p50", "rtt_p95", "output", "read_blocks", "four_output", "connect", "relay_cpu")
    ),
)


class End(Protocol):
    """One of the two ends of a path."""

    async def send(self, frame: bytes) -> None:
        """Send a frame, once there is room."""

    async def receive(self) -> bytes:
        """The next frame."""


class Ends(NamedTuple):
    """The executor's end and the client's, and the stream of their frames."""

    far: End
    near: End
    stream: str


@dataclass(frozen=True)
class TrafficPath:
    """One of the three paths."""

    way: Way
    relays: tuple[RelayService, RelayService] | None
    """The executor's and the client's; None: there is no relay."""
    tokens: tuple[str, str] = ("", "")
    """Of the two ends for `FRAMES_ENVIRONMENT`."""


@contextmanager
def paths(scratch: Path) -> Iterator[dict[Side, TrafficPath]]:
    """Start what the three paths need; it ends with the context.

    Args:
        scratch: a folder for all that they keep.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(our_listener(scratch / "listener"))
        relay = stack.enter_context(RelayService(scratch / "relay"))
        nats = stack.enter_context(NatsServers(scratch / "nats"))
        near, far = (
            stack.enter_context(RelayService(scratch / name, nats=("--nats", nats.url)))
            for name in ("near", "far")
        )
        direct = Way(listener.first_line(), None, listener.pid, ())
        yield {
            "direct": TrafficPath(direct, None),
            "relayed": _path(stack, scratch / "executor", relay, relay, (relay.pid,)),
            "fleet": _path(stack, scratch / "member", far, near, (far.pid, near.pid, nats[0].pid)),
        }


def _path(
    stack: ExitStack, home: Path, far: RelayService, near: RelayService, between: tuple[int, ...]
) -> TrafficPath:
    executor = stack.enter_context(our_executor(far, ENVIRONMENT, home))
    token = near.token("client", ENVIRONMENT)
    executor.wait_online(near, ENVIRONMENT)
    way = Way(near.client_url(ENVIRONMENT), token, executor.pid, between)
    tokens = far.token("executor", FRAMES_ENVIRONMENT), near.token("client", FRAMES_ENVIRONMENT)
    return TrafficPath(way, (far, near), tokens)


async def measure(path: TrafficPath, traffic: Traffic, scratch: Path) -> Measured:
    """One round: every row, as far as the path has it."""
    measured = dict(await relay_traffic.measure(path.way, traffic, scratch))
    async with AsyncExitStack() as stack:
        if path.relays is None:
            ends = await _tcp_ends(stack)
        else:
            ends = await _relay_ends(stack, *path.relays, *path.tokens)
        measured["frame_rtt"] = await _frame_round_trips(ends, traffic.round_trips)
        measured["frame_rate"] = await _frame_rate(ends, traffic.output_mib)
    return {row.name: measured[row.name] for row in ROWS if row.name in measured}


async def _frame_round_trips(ends: Ends, count: int) -> float:
    async def echo() -> None:
        while True:
            await ends.far.send(await ends.far.receive())

    echoing = asyncio.create_task(echo())
    frame = frames.data(ends.stream, 1, bytes(SMALL_BYTES))
    times = []
    try:
        for _ in range(count + WARM_UP):
            began = time.perf_counter()
            await ends.near.send(frame)
            await ends.near.receive()
            times.append((time.perf_counter() - began) * 1e6)
    finally:
        echoing.cancel()
        await asyncio.wait({echoing})
    return percentile(times[WARM_UP:], 0.5)


async def _frame_rate(ends: Ends, mib: int) -> float:
    """Megabytes of payload in a second."""
    count = mib * MIB // LARGE_BYTES
    frame = frames.data(ends.stream, 1, bytes(LARGE_BYTES))

    async def send() -> None:
        for _ in range(count):
            await ends.far.send(frame)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        for _ in range(count):
            received = await ends.near.receive()
    if received != frame:
        raise AssertionError("another frame arrived than the one that was sent")
    return count * LARGE_BYTES / 1e6 / (time.perf_counter() - began)


# -- a plain TCP connection


class _TcpEnd:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, frame: bytes) -> None:
        self._writer.writelines((len(frame).to_bytes(LENGTH_BYTES), frame))
        await self._writer.drain()

    async def receive(self) -> bytes:
        size = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
        return await self._reader.readexactly(size)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def _tcp_ends(stack: AsyncExitStack) -> Ends:
    accepted: asyncio.Future[_TcpEnd] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda reader, writer: accepted.set_result(_TcpEnd(reader, writer)),
        "127.0.0.1",
        0,
        limit=BUFFER_BYTES,
    )
    stack.push_async_callback(server.wait_closed)
    stack.callback(server.close)
    address = server.sockets[0].getsockname()
    near = _TcpEnd(*await asyncio.open_connection(*address, limit=BUFFER_BYTES))
    far = await accepted
    stack.push_async_callback(near.close)
    stack.push_async_callback(far.close)
    return Ends(far, near, str(uuid4()))


# -- sockets to relays


class RelayEnd:
    """One end of a path through relays (`dial.FrameListener`)."""

    def __init__(self) -> None:
        self._socket: FrameSocket
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._has_room = asyncio.Event()
        self._lost = asyncio.Event()
        self._reason = ""

    def socket_opened(self, socket: FrameSocket) -> None:
        """The relay has agreed."""
        self._socket = socket

    def frame_received(self, message: bytes) -> None:
        """Keep a frame for `receive`."""
        self._frames.put_nowait(message)

    def room(self) -> None:
        """Let `send` go on."""
        self._has_room.set()

    def socket_lost(self, reason: str) -> None:
        """It is over, and so is `receive`."""
        self._reason = reason
        self._lost.set()
        self._frames.put_nowait(b"")

    async def send(self, frame: bytes) -> None:
        """As `End.send`."""
        while self._socket.is_full:
            self._has_room.clear()
            await self._has_room.wait()
        self._socket.send(frame)

    async def receive(self) -> bytes:
        """As `End.receive`."""
        frame = await self._frames.get()
        if not frame:
            raise ConnectionError(f"a relay ended the socket: {self._reason}")
        return frame

    async def close(self) -> None:
        """End the socket."""
        self._socket.abort()
        await self._lost.wait()


async def _relay_ends(
    stack: AsyncExitStack, far_relay: RelayService, near_relay: RelayService, far_token: str, near_token: str
) -> Ends:
    key = KeyPair.generate().public
    far, near = RelayEnd(), RelayEnd()
    registry = RegistryClient(far_relay.url, given(far_token))
    await dial((await registry.register(FRAMES_ENVIRONMENT, key)).url, far)
    stack.push_async_callback(far.close)
    await asyncio.to_thread(near_relay.wait_online, FRAMES_ENVIRONMENT)
    registry = RegistryClient(near_relay.url, given(near_token))
    await dial((await registry.connect(FRAMES_ENVIRONMENT, key)).url, near)
    stack.push_async_callback(near.close)
    stream = str(uuid4())
    await near.send(frames.resume(stream))
    await far.receive()
    return Ends(far, near, stream)

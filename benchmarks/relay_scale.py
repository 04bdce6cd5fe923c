"""What one more executor, client, report or frame costs each process of a fleet: memory and processor time.

    python -m benchmarks.relay_scale                     # about a minute
    python -m benchmarks.relay_scale --quick             # small sizes, not to be quoted

There are two relays and one NATS server. Executors are at one relay, the clients at the other, so that every
frame goes through NATS. Both are sockets of this process, as in `relay_crowd.py`, and share a key.

The cost of one is the difference between before and after many, divided by their number. So it is that of the
work, and not of the rate at which this machine does it; the rates are of all processes on its cores.
"""

import argparse
import asyncio
import gc
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from benchmarks import process_tree, report
from benchmarks.compare import time_limit
from benchmarks.relay_crowd import (
    AT_ONCE,
    DESCRIPTORS_BESIDE,
    SETTLE_SECONDS,
    CrowdError,
    each,
    given,
    raise_descriptor_limit,
)
from benchmarks.relay_paths import LARGE_BYTES, SMALL_BYTES, RelayEnd
from execprotocol.relay import frames
from execprotocol.relay.contract import StatusRequest
from execprotocol.relay.dial import dial
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.registry_client import RegistryClient
from tests.support.nats_servers import NatsServers
from tests.support.relay_service import RelayService, wait_until

BEGIN = "<!-- scale: begin (written by `python -m benchmarks.relay_scale --markdown`) -->"
END = "<!-- scale: end -->"

SECONDS = 240.0
"""Limit of a run."""

PROCESSES = ("executor's relay", "client's relay", "NATS")

HEADER = ("one more …", *(f"{kind}, {process}" for kind in ("ms", "KiB") for process in PROCESSES), "rate")


@dataclass(frozen=True)
class Scale:
    """How many of each."""

    executors: int = 1_000
    streams: int = 1_000
    """One of each executor: its relay may then hold an executor for as long as the way to NATS is full."""
    reports: int = 2_000
    small_frames: int = 100_000
    large_frames: int = 4_000


FULL = Scale()
QUICK = Scale(executors=20, streams=20, reports=40, small_frames=2_000, large_frames=100)

ENVIRONMENTS_STREAM = "KV_execserver_environments"

FRAME_STREAMS = 16
"""Streams that carry frames at the same time."""


@dataclass
class Cost:
    """What one more of a kind costs, for each of `PROCESSES`."""

    title: str
    milliseconds: list[float] = field(default_factory=list)
    kibibytes: list[float] = field(default_factory=list)
    rate: float = 0.0

    def cells(self) -> tuple[str, ...]:
        """As every table shows it."""
        memory = [_memory(each) for each in self.kibibytes] or [""] * len(PROCESSES)
        times = [report.number(round(each, 4)) for each in self.milliseconds]
        rate = f"{report.number(self.rate)}/s" if self.rate else ""
        return (self.title, *(times or [""] * len(PROCESSES)), *memory, rate)


class Meter:
    """Measures the processes of a fleet while many of one kind come.

    Args:
        processes: their ids, in the order of `PROCESSES`.
    """

    def __init__(self, processes: list[int]) -> None:
        self._processes = processes
        self.costs: list[Cost] = []

    @contextmanager
    def of(self, title: str, count: int, *, memory: bool = False) -> Iterator[Cost]:
        """Measure what happens inside: `count` of a kind."""
        before = [process_tree.memory(each).resident for each in self._processes] if memory else []
        cost = Cost(title)
        used = [process_tree.cpu_seconds(each) for each in self._processes]
        began = time.perf_counter()
        yield cost
        cost.rate = count / (time.perf_counter() - began)
        cost.milliseconds = [
            (process_tree.cpu_seconds(each) - earlier) * 1e3 / count
            for each, earlier in zip(self._processes, used, strict=True)
        ]
        if memory:
            time.sleep(SETTLE_SECONDS)
            cost.kibibytes = [
                (process_tree.memory(each).resident - earlier) * 1024 / count
                for each, earlier in zip(self._processes, before, strict=True)
            ]
        self.costs.append(cost)


class Crowd:
    """Executors at one relay, and clients of them at another one."""

    def __init__(self, far: RelayService, near: RelayService, executors: int) -> None:
        self.names = [f"box-{number}" for number in range(executors)]
        self._relays = far, near
        self._key = KeyPair.generate().public
        self._far = RegistryClient(far.url, given(far.token("executor", *self.names)))
        self._near = RegistryClient(near.url, given(near.token("client", *self.names)))
        self._registrations: dict[str, str] = {}
        self._executors: dict[str, RelayEnd] = {}
        self.streams: list[tuple[RelayEnd, RelayEnd, str]] = []
        """Of each stream the executor's end, the client's, and its id."""

    async def add_executor(self, name: str) -> None:
        """Register and dial."""
        end = RelayEnd()
        registered = await self._far.register(name, self._key)
        await dial(registered.url, end)
        self._registrations[name] = registered.registration_id
        self._executors[name] = end

    async def add_stream(self, name: str) -> None:
        """Connect, dial and claim a stream."""
        end, stream = RelayEnd(), str(uuid4())
        await dial((await self._near.connect(name, self._key)).url, end)
        await end.send(frames.resume(stream))
        self.streams.append((self._executors[name], end, stream))

    async def report(self, name: str) -> None:
        """Report the load of an executor."""
        await self._far.report(name, StatusRequest(self._registrations[name], 1, 1, False))

    async def send_frames(self, count: int, size: int) -> None:
        """Send frames from executors to clients, in several streams at a time, and wait for the last."""
        chosen = self.streams[:FRAME_STREAMS]
        share = count // len(chosen)

        async def send(far: RelayEnd, near: RelayEnd, stream: str) -> None:
            frame = frames.data(stream, 1, bytes(size))
            async with asyncio.TaskGroup() as group:
                group.create_task(_repeat(lambda: far.send(frame), share))
                await _repeat(near.receive, share)

        async with asyncio.TaskGroup() as group:
            for each_stream in chosen:
                group.create_task(send(*each_stream))

    async def close(self) -> None:
        """End every socket."""
        await asyncio.gather(self._far.aclose(), self._near.aclose())
        ends = [*self._executors.values(), *(near for _, near, _ in self.streams)]
        await asyncio.gather(*(end.close() for end in ends))


async def _repeat(call: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count):
        await call()


async def run(scale: Scale, folder: Path) -> list[Cost]:
    """Measure everything once.

    Raises:
        CrowdError: too few descriptors are permitted.
    """
    raise_descriptor_limit(scale.executors + scale.streams + DESCRIPTORS_BESIDE)
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServers(folder / "nats"))
        far, near = (
            stack.enter_context(
                RelayService(folder / name, "--log-level", "warning", nats=("--nats", nats.url))
            )
            for name in ("far", "near")
        )
        meter = Meter([far.pid, near.pid, nats[0].pid])
        crowd = Crowd(far, near, scale.executors)
        gc.disable()  # thousands of sockets of this process are no garbage
        try:
            # One of each first: what is loaded or allocated only once is not measured.
            await crowd.add_executor(crowd.names[0])
            await _online(near, 1)
            await crowd.add_stream(crowd.names[0])
            await crowd.report(crowd.names[0])

            with meter.of("executor: register and dial", scale.executors - 1, memory=True):
                await each(crowd.add_executor, crowd.names[1:], AT_ONCE)
                await _online(near, scale.executors)
            meter.costs.append(Cost("record of an executor in its bucket", kibibytes=[0, 0, _record(nats)]))
            with meter.of("client: connect, dial and claim a stream", scale.streams, memory=True):
                await each(crowd.add_stream, _turns(crowd.names, scale.streams), AT_ONCE)
            with meter.of("report of an executor's load", scale.reports):
                await each(crowd.report, _turns(crowd.names, scale.reports), AT_ONCE)
            for count, size in ((scale.small_frames, SMALL_BYTES), (scale.large_frames, LARGE_BYTES)):
                title = f"{size} bytes" if size < 1024 else f"{size >> 10} KiB"
                with meter.of(f"frame of {title}, executor to client", count):
                    await crowd.send_frames(count, size)
        finally:
            gc.enable()
            await crowd.close()
    return meter.costs


def _turns(names: list[str], count: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(names), count))


async def _online(relay: RelayService, count: int) -> None:
    name = "execserver_relay_environments_online"
    await asyncio.to_thread(wait_until, lambda: relay.metrics()[name] >= count)


def _record(nats: NatsServers) -> float:
    """The size of a value of the bucket of environments, with what NATS keeps with it, in KiB."""
    (account,) = nats[0].read("/jsz?streams=1")["account_details"]
    (state,) = [each["state"] for each in account["stream_detail"] if each["name"] == ENVIRONMENTS_STREAM]
    return float(state["bytes"] / state["messages"] / 1024)


def _memory(kibibytes: float) -> str:
    return report.number(kibibytes) if kibibytes >= 0.05 else "0"


def table(costs: list[Cost]) -> str:
    """For a terminal."""
    return report.aligned([HEADER, *(cost.cells() for cost in costs)])


def markdown(costs: list[Cost], scale: Scale) -> str:
    """The circumstances, and the table."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    sizes = f"{scale.executors} executors, {scale.streams} streams"
    text = [
        f"{time.strftime('%Y-%m-%d')}, {sizes}. {facts}.",
        "",
        f"| {' | '.join(HEADER)} |",
        f"| --- |{' --: |' * (len(HEADER) - 1)}",
        *(f"| {' | '.join(cost.cells())} |".replace("  ", " ") for cost in costs),
    ]
    return "\n".join(text) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.relay_scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, for trying things out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every value")
    options = report.parse_options(parser, arguments, BEGIN, END)
    scale = QUICK if options.quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as folder,
        time_limit(SECONDS),
    ):
        try:
            costs = asyncio.run(run(scale, Path(folder)))
        except CrowdError as error:
            print(error, file=sys.stderr)
            return 2
    print(table(costs))
    if options.json:
        rows = [vars(cost) for cost in costs]
        options.json.write_text(json.dumps({"machine": report.machine(), "rows": rows}, indent=1) + "\n")
    if options.markdown:
        report.put_between(options.markdown, BEGIN, END, markdown(costs, scale))
    return 0


if __name__ == "__main__":
    sys.exit(main())

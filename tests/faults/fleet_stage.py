"""A fleet: NATS servers, relays behind a load balancer, and executors in pools. Every part can be killed.

async with fleet(folder, relays=3) as stage:
    await stage.add_executors("alpha", 10)
    async with stage.connect("alpha") as executor:
        ...
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.js.errors import NoKeysError

from execclient import Executor, Process, connect
from execserver.relay.service.control_socket import ask_relay
from tests.faults import counters
from tests.faults.service import Service
from tests.support.nats_servers import NatsServers
from tests.support.relay_proxy import Proxy
from tests.support.relay_service import RelayService, wait_until
from tests.support.wire import PATIENCE

STEP_BYTES = 4096
"""What a session sends at a time: 256 numbered lines."""

IDLE_GAUGES = ("execserver_relay_streams",)
"""What every relay counts down to 0 when its last client has left."""


class Fleet:
    """The parts of a running fleet."""

    def __init__(self, folder: Path, nats: NatsServers, relays: list[RelayService], balancer: Proxy) -> None:
        self.folder = folder
        self.nats = nats
        self.relays = relays
        self.balancer = balancer
        self.executors: list[Service] = []
        self._tokens: dict[tuple[str, str], str] = {}

    async def token(self, role: str, pool: str) -> str:
        """A role's token for a pool, made at its first use."""
        if (role, pool) not in self._tokens:
            made = await asyncio.to_thread(self.relays[0].token, role, flags=("--pool", pool))
            self._tokens[role, pool] = made
        return self._tokens[role, pool]

    async def add_executors(self, pool: str, count: int, relay: str = "") -> None:
        """Start executors of a pool, and wait until all of them are online.

        Args:
            pool: its name.
            count: how many.
            relay: the URL that they get; by default that of the load balancer.
        """
        token = await self.token("executor", pool)
        first = len(self.executors)
        made = [
            asyncio.to_thread(self._executor, pool, token, relay or self.balancer.url, number)
            for number in range(first, first + count)
        ]
        self.executors += await asyncio.gather(*made)
        await asyncio.to_thread(wait_until, lambda: len(self.online()) == len(self.executors))

    def _executor(self, pool: str, token: str, url: str, number: int) -> Service:
        folder = self.folder / f"x{number}"
        folder.mkdir()
        return Service(
            "unix",
            folder,
            *("--remote", url, "--pool", pool),
            env={"EXECSERVER_CONFIG": "", "EXECSERVER_REMOTE_TOKEN": token},
        )

    async def connect(self, pool: str, relay: str = "", **arguments: Any) -> connect:
        """A client of a pool, in this process; by way of the load balancer, unless a relay's URL is given."""
        url = f"relay+{relay or self.balancer.url}?pool={pool}"
        return connect(url, token=await self.token("client", pool), **arguments)

    def online(self) -> list[str]:
        """The environments with an executor's socket, as the first relay that answers knows them."""
        rows = json.loads(ask_relay(self.relays[0].state, "/environments"))
        return [row["environment"] for row in rows]

    def wait_whole(self) -> None:
        """Wait until every NATS server is up to date, every relay is ready and every executor is online."""
        self.nats.wait_ready()
        for relay in self.relays:
            relay.wait_ready()
        wait_until(lambda: len(self.online()) == len(self.executors), PATIENCE, "an executor is offline")

    def gauges(self) -> Counter[str]:
        """The sum over the relays of what must be 0 without clients."""
        total: Counter[str] = Counter()
        for relay in self.relays:
            samples = relay.metrics()
            total.update({name: int(samples[name]) for name in IDLE_GAUGES})
        return total

    async def unused_grants(self) -> list[str]:
        """The keys of tickets and authorizations that were handed out and neither used nor expired."""
        # The list comes from any of the servers.
        await asyncio.to_thread(self.nats.wait_equal, "KV_execserver_grants")
        client = await nats.connect(self.nats.url.split(","))
        try:
            bucket = await client.jetstream().key_value("execserver_grants")
            return await bucket.keys()
        except NoKeysError:
            return []
        finally:
            await client.close()

    async def end_executors(self) -> list[str]:
        """End every executor; what went wrong."""
        ends = await asyncio.gather(
            *(asyncio.to_thread(each.end) for each in self.executors), return_exceptions=True
        )
        self.executors = []
        return [str(end) for end in ends if end != 0]


@asynccontextmanager
async def fleet(folder: Path, *, relays: int, **options: Any) -> AsyncIterator[Fleet]:
    """A fleet without executors. At the end nothing of it is left.

    Args:
        folder: short, of the test's own.
        relays: how many relays.
        options: of `NatsServers`; three of them by default.
    """
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(
            await asyncio.to_thread(NatsServers, folder / "nats", **{"count": 3, **options})
        )
        states = [folder / f"r{number}" for number in range(relays)]
        started = [RelayService(state, nats=("--nats", servers.url), start=False) for state in states]
        for relay in started:
            stack.enter_context(relay)
        await asyncio.gather(*(asyncio.to_thread(relay.start) for relay in started))
        balancer = await stack.enter_async_context(Proxy(*(relay.url for relay in started)))
        stage = Fleet(folder, servers, started, balancer)
        stack.push_async_callback(stage.end_executors)
        await asyncio.to_thread(stage.wait_whole)
        yield stage


class CounterSession:
    """Numbered lines to a command that returns them, at a steady pace, until it is told to finish.

    Args:
        executor: the client's session.
        pause: seconds between two steps of `STEP_BYTES`.
    """

    def __init__(self, executor: Executor, pause: float) -> None:
        self.executor = executor
        self.check = counters.CounterCheck()
        self.last = time.monotonic()
        """When bytes came last."""
        self.longest_gap = 0.0
        """The most seconds between two arrivals."""
        self._pause = pause
        self.sent = 0
        """How many bytes went to the command."""
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Stream until `finish` is called, and check everything.

        Raises:
            AssertionError: bytes were lost, doubled or changed.
        """
        process = await self.executor.start(["cat"], stdin=True)
        self.last = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._put(process))
            async for _, data in process:
                self.check.take(data)
                self._moved()
        assert await process.wait() == 0
        assert self.check.position == self.sent
        assert self.check.digest.hexdigest() == counters.digest_of(self.sent)

    def finish(self) -> None:
        """Send nothing more."""
        self._over.set()

    async def advance(self, within: float, steps: int = 3) -> float:
        """Wait until some steps more have come back; how long that took.

        Raises:
            TimeoutError: not in time.
        """
        begin, due = time.monotonic(), self.sent + steps * STEP_BYTES
        async with asyncio.timeout(within):
            while self.check.position < due:
                await asyncio.sleep(self._pause / 4)
        return time.monotonic() - begin

    def _moved(self) -> None:
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self.last)
        self.last = now

    async def _put(self, process: Process) -> None:
        while not self._over.is_set():
            await process.write(counters.stretch(self.sent, STEP_BYTES))
            self.sent += STEP_BYTES
            try:
                await asyncio.wait_for(self._over.wait(), self._pause)
            except TimeoutError:
                continue
        await process.close_stdin()


@asynccontextmanager
async def counting(*sessions: CounterSession) -> AsyncIterator[None]:
    """Sessions that stream during the block, and are checked at its end."""
    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(session.run())
        yield
        for session in sessions:
            session.finish()


def processes_of(folder: Path) -> list[str]:
    """The processes that name a folder in their command line or environment, except this one's own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
            except OSError:  # it has ended
                continue
            if any(str(folder).encode() in text for text in texts):
                found.append(f"{entry.name}: {texts[0].replace(bytes(1), b' ').decode()}")
    return found

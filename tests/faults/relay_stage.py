"""A relay with a real executor and clients, all parts of which can be cut off, killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from execclient import Executor, Process, connect
from tests.faults import counters
from tests.faults.service import Serve, Service
from tests.support.relay_proxy import Proxy
from tests.support.relay_service import RelayService, environment
from tests.support.wire import PATIENCE

ENVIRONMENT = "box"
ROOT = Path(__file__).parents[2]


class Stage:
    """One relay, and a proxy for each side."""

    def __init__(self, relay: RelayService, tokens: list[str], sides: list[Proxy], serve: Serve) -> None:
        self.relay = relay
        self.executor_side, self.client_side = sides
        self._executor_token, self.client_token = tokens
        self._serve = serve

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"relay+{self.client_side.url}?environment={ENVIRONMENT}"

    async def executor(self, **options: Any) -> Service:
        """A service that is online."""
        service: Service = await asyncio.to_thread(
            self._serve,
            "unix",
            *("--remote", self.executor_side.url, "--environment-id", ENVIRONMENT),
            env={"EXECSERVER_CONFIG": "", "EXECSERVER_REMOTE_TOKEN": self._executor_token},
            **options,
        )
        await self.online()
        return service

    async def online(self) -> None:
        """Wait until an executor's socket is at the relay."""
        await asyncio.to_thread(self.relay.wait_online, ENVIRONMENT)

    def connect(self, **arguments: Any) -> connect:
        """A client in this process."""
        return connect(self.url, token=self.client_token, **arguments)

    @asynccontextmanager
    async def client(self, credit: Path, blocks: int) -> AsyncIterator[ClientProcess]:
        """A client in a process of its own."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.relay_client", self.url, credit, str(blocks)),
            env=environment() | {"EXECSERVER_TOKEN": self.client_token},
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield ClientProcess(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def restart(self, *, kill: bool) -> None:
        """End the relay and start it again."""
        await asyncio.to_thread(self.relay.kill if kill else self.relay.stop)
        await asyncio.to_thread(self.relay.start)


@asynccontextmanager
async def staged(folder: Path, serve: Serve) -> AsyncIterator[Stage]:
    """A stage without an executor."""
    with await asyncio.to_thread(RelayService, folder / "relay") as relay:
        make = [asyncio.to_thread(relay.token, role, ENVIRONMENT) for role in ("executor", "client")]
        tokens = await asyncio.gather(*make)
        async with Proxy(relay.url) as executor_side, Proxy(relay.url) as client_side:
            yield Stage(relay, tokens, [executor_side, client_side], serve)


class ClientProcess:
    """A client in a process of its own (`relay_client.py`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self.process.stdout.readline()).decode().rstrip("\n")

    async def reached(self, position: int) -> None:
        """Wait until it has got so far."""
        while int(await self.line()) < position:
            pass

    async def end(self) -> tuple[str, int, int]:
        """Wait for its end: checksum, exit code of the writer, recoveries."""
        while not (line := await self.line()).startswith("over "):
            assert line, f"it ended: {await self.process.wait()}"
        digest, code, recoveries = line.split()[1:]
        return digest, int(code), int(recoveries)


class Credit:
    """How much a writer may write: a byte in a fifo for each block."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # For both, so that neither end waits for the other.
        self._descriptor = os.open(path, os.O_RDWR)

    def give(self, blocks: int) -> None:
        """Allow so many more."""
        os.write(self._descriptor, bytes(blocks))

    def close(self) -> None:
        """Allow nothing more."""
        os.close(self._descriptor)


class Streams:
    """Numbered lines in both directions at once: a process that writes, and one that reads. Nothing moves
    before it is let go.

    Args:
        executor: where.
        credit: how much the writer may write.
        blocks: of `counters.BLOCK_BYTES`, in each direction.
    """

    def __init__(self, executor: Executor, credit: Credit, blocks: int) -> None:
        self.executor = executor
        self.check = counters.CounterCheck()
        self._credit = credit
        self._blocks = blocks
        self._given = self._written = 0
        self._unwritten: deque[int] = deque()
        self._moved = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: Process
        self._reader: Process

    async def __aenter__(self) -> Self:
        size = self._blocks * counters.BLOCK_BYTES
        self._writer = await self.executor.start(counters.writer(self._credit.path, self._blocks))
        self._reader = await self.executor.start(counters.reader(size), stdin=True)
        self._tasks = [asyncio.create_task(each) for each in (self._take(), self._put())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def give(self, blocks: int) -> None:
        """Let so many blocks go, both ways, and do not wait for them."""
        blocks = min(blocks, self._blocks - self._given)
        self._credit.give(blocks)
        async with self._moved:
            self._unwritten.extend(range(self._given, self._given + blocks))
            self._given += blocks
            self._moved.notify_all()

    async def caught_up(self, recoveries: int = 0, within: float = PATIENCE) -> None:
        """Wait until everything that was let go is where it belongs, and so many connections were replaced.

        Raises:
            TimeoutError: not in time.
        """
        due = self._given * counters.BLOCK_BYTES

        def everything() -> bool:
            failed = [task for task in self._tasks if task.done() and task.exception() is not None]
            if failed:
                failed[0].result()
            return self.check.position == due and self._written == self._given

        async with asyncio.timeout(within):
            async with self._moved:
                await self._moved.wait_for(everything)
            while self.executor.recoveries < recoveries:
                await asyncio.sleep(0.002)  # nobody tells

    async def finish(self) -> str:
        """Let go of all that is left, wait for the ends, and check everything; the checksum."""
        await self.give(self._blocks)
        await self.caught_up()
        await asyncio.gather(*self._tasks)
        size = self._blocks * counters.BLOCK_BYTES
        expected = counters.digest_of(size)
        answer = b"".join([data async for _, data in self._reader])
        assert (self.check.position, self.check.digest.hexdigest()) == (size, expected)
        assert answer.decode() == f"{expected}\n"
        assert [await self._writer.wait(), await self._reader.wait()] == [7, 9]
        return expected

    async def _take(self) -> None:
        async for _, data in self._writer:
            await self._told(partial(self.check.take, data))

    async def _put(self) -> None:
        for _ in range(self._blocks):
            async with self._moved:
                await self._moved.wait_for(lambda: self._unwritten)
            block = self._unwritten.popleft()
            await self._reader.write(counters.stretch(block * counters.BLOCK_BYTES, counters.BLOCK_BYTES))
            await self._told(self._wrote)

    def _wrote(self) -> None:
        self._written += 1

    async def _told(self, change: Callable[[], None]) -> None:
        async with self._moved:
            try:
                change()
            finally:
                self._moved.notify_all()

"""A client whose connection is cut over and over: whoever uses the library sees nothing of it."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from execclient import Process, connect
from tests.faults.service import Serve
from tests.faults.sizes import LONG, Report
from tests.support.cutting_proxy import Cut, cutting

CUTS = 1000 if LONG else 25
KILL_EVERY = 50 if LONG else 8
"""Every so many cuts the server is killed below its supervisor."""

COUNTER = """
import os, signal, time
# No print: it may come into the middle of one.
signal.signal(signal.SIGINT, lambda *_: (os.write(1, b"end\\n"), os._exit(0)))
n = 0
while True:
    n += 1
    print(n, flush=True)
    time.sleep(0.0005)
"""

pytestmark = [pytest.mark.over("unix", "ws"), pytest.mark.timeout(1800 if LONG else 120)]


class Counting:
    """Checks numbered lines as they come, whatever their chunks."""

    def __init__(self) -> None:
        self.count = 0
        self.ended = False
        self._rest = b""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line == b"end":
                self.ended = True
                continue
            assert not self.ended, line
            self.count += 1
            assert line == b"%d" % self.count, (line, self.count)

    async def follow(self, process: Process) -> None:
        async for chunk in process:
            self.take(chunk.data)
        assert (self.ended, self._rest) == (True, b"")


def random_cut(chance: random.Random) -> Cut:
    # Now within the handshake or the catching up, now in the midst of the stream.
    size = chance.choice((600, 3000, 30_000))
    return chance.choice(("to client", "to server")), chance.randrange(1, size)


async def test_random_cuts_and_kills_lose_and_double_nothing(
    transport: str, serve: Serve, folder: Path, report: Report
) -> None:
    service = serve(transport)
    chance = random.Random(61)
    begin = time.monotonic()
    cutting_now = False
    kills = kills_due = 0
    kill = asyncio.Event()
    enough = asyncio.Event()

    def plan() -> Cut | None:
        nonlocal kills_due
        if not cutting_now:
            return None
        if proxy.cuts >= CUTS:
            enough.set()
            return None
        if proxy.cuts // KILL_EVERY > kills_due:
            kills_due += 1
            kill.set()
        return random_cut(chance)

    async def kill_servers() -> None:
        nonlocal kills
        while True:
            await kill.wait()
            kill.clear()
            service.signal_server(signal.SIGKILL)
            await asyncio.to_thread(service.wait_for_new_server)
            kills += 1

    async with cutting(service.url, folder, plan) as proxy, connect(proxy.url) as executor:
        echo = await executor.start(["cat"], stdin=True)
        counter = await executor.start([sys.executable, "-c", COUNTER])
        there, back = Counting(), Counting()
        readers = [
            asyncio.create_task(there.follow(counter)),
            asyncio.create_task(back.follow(echo)),
        ]
        written = 0

        async def write() -> None:
            nonlocal written
            while not enough.is_set():
                written += 1
                await echo.write(b"%d\n" % written)
            await echo.write(b"end\n")

        cutting_now = True
        proxy.cut()
        killing = asyncio.create_task(kill_servers())
        writing = asyncio.create_task(write())
        done, _ = await asyncio.wait({writing, killing, *readers}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        assert done == {writing}
        await counter.interrupt()
        await echo.close_stdin()
        await asyncio.gather(*readers)
        killing.cancel()
        codes = await counter.wait(), await echo.wait()

        report(
            f"{transport}: {proxy.cuts} cuts, {kills} kills, {executor.recoveries} recoveries in "
            f"{time.monotonic() - begin:.0f} s; {there.count} numbers from a counter, "
            f"{back.count} there and back"
        )
    assert codes == (0, 0)
    assert proxy.cuts >= CUTS
    assert kills >= 2
    assert back.count == written
    assert there.count > CUTS

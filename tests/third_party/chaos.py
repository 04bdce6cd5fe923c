"""A daemon that fails all the time: its connections are cut, its server is killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.cutting_proxy import CuttingProxy, cutting
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Server

CUT_EVERY = (0.05, 0.5)
"""Seconds between two cuts, at random."""
KILL_EVERY = 2.0
"""Seconds between two kills of the server."""


@dataclass
class Chaos:
    """What was done to a daemon.

    Attributes:
        url: where clients connect to it.
        cuts: connections that were cut.
        kills: servers that were killed.
    """

    url: str
    cuts: int = 0
    kills: int = 0


@contextmanager
def chaos(server: Server, folder: Path, seed: int) -> Iterator[Chaos]:
    """Cut and kill from a thread until the end of the block.

    Args:
        server: a daemon on a Unix socket.
        folder: for the socket of the proxy; short.
        seed: of the times between two cuts.
    """
    done = Chaos("")
    started, stop = threading.Event(), threading.Event()

    async def run() -> None:
        async with cutting(server.url, folder) as proxy:
            done.url = proxy.url
            started.set()
            tasks = [
                asyncio.create_task(_cut(proxy, done, random.Random(seed))),
                asyncio.create_task(_kill(server.pid, done)),
            ]
            await asyncio.to_thread(stop.wait)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    failed: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
            started.set()

    thread = threading.Thread(target=in_thread, name="chaos")
    thread.start()
    try:
        started.wait()
        yield done
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


async def _cut(proxy: CuttingProxy, done: Chaos, times: random.Random) -> None:
    while True:
        await asyncio.sleep(times.uniform(*CUT_EVERY))
        done.cuts += proxy.cut()


async def _kill(supervisor: int, done: Chaos) -> None:
    while True:
        await asyncio.sleep(KILL_EVERY)
        pid = await asyncio.to_thread(server_of, supervisor, PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            done.kills += 1

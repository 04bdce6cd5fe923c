"""Faults of NATS itself: what relays that share it say, what goes on meanwhile, and how they recover.

A relay is never started again here. `near` is a client at the executor's relay, `far` one at the other relay.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import pytest_asyncio

from execclient import ConnectionFailed
from tests.faults import counters
from tests.faults.fleet_stage import CounterSession, Fleet, counting, fleet, processes_of
from tests.faults.sizes import LONG
from tests.sandbox_user import remove_tree
from tests.support.relay_service import wait_until

RECOVERY_SECONDS = 10.0
"""How long a relay may need until it is ready again, from when NATS is."""
PAUSE = 0.1
BURST_BYTES = 16 << 20
"""More than what fits a socket and `max_pending`, and less than what an executor keeps of a process."""

long_form = pytest.mark.skipif(not LONG, reason="takes 20 s: run by `make faults`")

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="faults-"))
    yield path
    remove_tree(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(shared_folder: Path) -> AsyncIterator[Fleet]:
    """Three NATS servers, and two relays, the first of which has an executor; in service at every begin."""
    async with fleet(shared_folder, relays=2) as stage:
        await stage.add_executors("pool", 1, stage.relays[0].url)
        pids = [relay.pid for relay in stage.relays]
        yield stage
        assert [relay.pid for relay in stage.relays] == pids
        assert await stage.end_executors() == []
    assert processes_of(shared_folder) == []


@asynccontextmanager
async def sessions(stage: Fleet) -> AsyncIterator[tuple[CounterSession, CounterSession]]:
    """A near and a far session that stream; everything is in service again before they are checked."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await stage.connect("pool", relay.url)) for relay in stage.relays
        ]
        near, far = (CounterSession(client, PAUSE) for client in clients)
        async with counting(near, far):
            await asyncio.gather(near.advance(5), far.advance(5))
            yield near, far
            await ready_again(stage)
            await asyncio.gather(near.advance(5), far.advance(RECOVERY_SECONDS))
    assert near.executor.recoveries == 0
    assert near.longest_gap < 5.0


@contextmanager
def small_disk(path: Path) -> Iterator[tuple[list[str], Path]]:
    """A folder that is a file system of 16 MiB in a mount namespace, which goes with the block: a command
    that starts a program in that namespace, and the folder's path from outside.
    """
    path.mkdir()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = f"mount -t tmpfs -o size=16m tmpfs {path} && echo mounted && exec sleep 600"
    with subprocess.Popen([*unshare, "/bin/sh", "-c", script], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"mounted\n", "a mount namespace is needed"
            enter = ["nsenter", "--mount", "--target", str(holder.pid)]
            if os.geteuid() != 0:
                enter += ["--user", "--preserve-credentials"]
            yield enter, Path(f"/proc/{holder.pid}/root{path}")
        finally:
            holder.kill()


async def ready_again(stage: Fleet) -> None:
    """Wait until NATS serves, and then for the relays, which may take `RECOVERY_SECONDS`."""
    await asyncio.to_thread(stage.nats.wait_ready)
    deadline = time.monotonic() + RECOVERY_SECONDS
    for relay in stage.relays:
        await asyncio.to_thread(relay.wait_ready, deadline - time.monotonic())


async def unready(stage: Fleet, reason: str) -> None:
    """Wait until every relay says that it is not ready, and why, on its page and in its log."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    for relay in stage.relays:
        while not (fault := await asyncio.to_thread(relay.fault)):
            assert time.monotonic() < deadline, "it is ready"
            await asyncio.sleep(0.1)
        assert re.search(reason, fault), fault
        assert re.search(reason, relay.log), relay.log[-3000:]


async def test_without_a_quorum_streams_go_on_and_new_clients_are_told_why_not(stage: Fleet) -> None:
    async with sessions(stage) as (near, _):
        for server in stage.nats.servers[:2]:
            server.kill()
        await unready(stage, "NATS")
        await near.advance(5, steps=20)
        with pytest.raises(ConnectionFailed, match="NATS"):
            async with await stage.connect("pool", stage.relays[0].url):
                pass
        await asyncio.to_thread(stage.nats.start)


async def test_streams_within_a_relay_go_on_while_all_nats_servers_are_restarted(stage: Fleet) -> None:
    async with sessions(stage) as (near, _):
        for server in stage.nats.servers:
            server.kill()
        await unready(stage, "NATS")
        await near.advance(5, steps=20)
        await asyncio.to_thread(stage.nats.start)


@long_form
async def test_a_nats_server_that_hangs_is_given_up_for_another_one(stage: Fleet) -> None:
    async with sessions(stage) as (_, far):
        for server in stage.nats.servers:  # a relay is connected to one of them, another one leads
            server.pause()
            try:
                await far.advance(RECOVERY_SECONDS)
                for relay in stage.relays:
                    await asyncio.to_thread(relay.wait_ready, RECOVERY_SECONDS)
                await far.advance(RECOVERY_SECONDS)
            finally:
                server.resume()
            await ready_again(stage)


async def test_a_full_disk_of_nats_is_told_and_streams_go_on(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        launcher, outside = stack.enter_context(small_disk(folder / "disk"))
        options: dict[str, Any] = {"stores": [folder / "disk" / "store"], "launcher": launcher}
        stage = await stack.enter_async_context(fleet(folder, relays=2, count=1, **options))
        await stage.add_executors("pool", 1, stage.relays[0].url)
        client = await nats.connect(stage.nats.url)
        stack.push_async_callback(client.close)
        records = await client.jetstream().key_value("execserver_environments")
        async with sessions(stage) as (near, far):
            filler = outside / "filler"
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            # The relays write little: this takes what is left of a block.
            with suppress(nats.errors.Error):
                await records.put(
                    "relay.other", json.dumps({"node": "other", "url": "u" * 8192, "started": 0}).encode()
                )
            await unready(stage, "NATS")
            await asyncio.gather(near.advance(5, steps=10), far.advance(5, steps=10))
            filler.unlink()
            stage.nats[0].stop()  # it stores nothing more until it is started again
            await asyncio.to_thread(stage.nats.start)
        assert await stage.end_executors() == []


@long_form
async def test_a_relay_that_nats_drops_as_a_slow_consumer_recovers(folder: Path) -> None:
    content = folder / "counters"
    content.write_bytes(counters.stretch(0, BURST_BYTES))
    async with fleet(folder, relays=2, count=1, settings="max_pending: 1MB") as stage:
        await stage.add_executors("pool", 1, stage.relays[0].url)
        relay = stage.relays[1]
        async with sessions(stage), await stage.connect("pool", relay.url) as far:
            check = counters.CounterCheck()
            process = await far.start(["cat", content])
            check.take((await anext(process)).data)
            relay.signal(signal.SIGSTOP)
            try:
                await asyncio.to_thread(wait_until, lambda: "Slow Consumer" in stage.nats[0].log)
            finally:
                relay.signal(signal.SIGCONT)
            async for _, data in process:
                check.take(data)
            assert check.position == BURST_BYTES
            assert far.recoveries >= 1
        assert "connection to NATS lost" in relay.log
        assert await stage.end_executors() == []

"""Streams through a relay while everything on their way is cut, killed and stopped.

`make faults` runs the long forms: 1,000 cuts and 20 restarts of the relay in 128 MiB each way. They print
what they did; `docs/explanation/reliability.md` quotes it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from execclient import SessionLost
from tests.faults import counters
from tests.faults.relay_client import PROCESS_ID
from tests.faults.relay_stage import Credit, Stage, Streams, staged
from tests.faults.service import Serve
from tests.faults.sizes import LONG, Report

CLIENT_CUTS, EXECUTOR_CUTS, RESTARTS = (940, 60, 20) if LONG else (22, 3, 2)
"""An executor waits before it dials again, up to 7.5 s after several losses in a row."""
KILLS = 10 if LONG else 2
PAUSE_SECONDS = 50.0 if LONG else 1.0
"""The long one is longer than the relay waits for pongs, and shorter than other timeouts."""
BLOCKS_A_FAULT = 2
"""Of 64 KiB, in each direction: what is written during a recovery fits what the daemon keeps."""
MOMENT = 0.012
"""Seconds within which a fault follows the traffic that it is to hit."""
BYTES_BEFORE_A_CUT = BLOCKS_A_FAULT * counters.BLOCK_BYTES
"""Every direction carries as many in each turn, and a third more for their encoding."""


@pytest.fixture
async def stage(folder: Path, serve: Serve) -> AsyncIterator[Stage]:
    async with staged(folder, serve) as stage:
        yield stage


@pytest.fixture
def credit(folder: Path) -> Iterator[Credit]:
    credit = Credit(folder / "credit")
    yield credit
    credit.close()


@pytest.mark.timeout(1800 if LONG else 120)
async def test_a_stream_each_way_survives_cuts_and_restarts_of_the_relay_without_losing_a_byte(
    stage: Stage, credit: Credit, report: Report
) -> None:
    chance = random.Random(99)
    sides = ["client"] * CLIENT_CUTS + ["executor"] * EXECUTOR_CUTS
    chance.shuffle(sides)
    faults = [(side, chance.choice(("now", "to peer", "to relay"))) for side in sides]
    for number in range(RESTARTS):
        faults.insert(chance.randrange(len(faults)), ("relay", ("SIGKILL", "SIGTERM")[number % 2]))
    await stage.executor()
    longest = 0.0
    begin = time.monotonic()
    async with (
        stage.connect() as executor,
        Streams(executor, credit, BLOCKS_A_FAULT * len(faults)) as streams,
    ):
        for number, (side, how) in enumerate(faults, 1):
            proxy = stage.client_side if side == "client" else stage.executor_side
            if how in ("to peer", "to relay"):
                [socket] = proxy.sockets
                socket.cut_after(
                    "to peer" if how == "to peer" else "to relay", 1 + chance.randrange(BYTES_BEFORE_A_CUT)
                )
            await streams.give(BLOCKS_A_FAULT)
            given = time.monotonic()
            if how not in ("to peer", "to relay"):
                await asyncio.sleep(chance.random() * MOMENT)
            if side == "relay":
                await stage.restart(kill=how == "SIGKILL")
            elif how == "now":
                assert proxy.cut_sockets() == 1
            await streams.caught_up(recoveries=number)
            longest = max(longest, time.monotonic() - given)
        digest = await streams.finish()
        assert executor.recoveries == len(faults)
    report(
        f"{CLIENT_CUTS} cuts of the client's socket, {EXECUTOR_CUTS} of the executor's and {RESTARTS} "
        f"restarts of the relay in {time.monotonic() - begin:.0f} s: "
        f"{streams.check.position / 1e6:.0f} MB each way, sha256 {digest[:16]} both, none lost, "
        f"none doubled; the longest way back took {longest:.1f} s"
    )


@pytest.mark.timeout(300 if LONG else 120)
async def test_a_stream_survives_kills_of_the_executors_server_which_keeps_its_key(
    stage: Stage, credit: Credit, report: Report
) -> None:
    service = await stage.executor(may_fail=True)
    key = stage.relay.environments()[0]["key"]
    begin = time.monotonic()
    async with stage.connect() as executor, Streams(executor, credit, BLOCKS_A_FAULT * KILLS) as streams:
        for number in range(1, KILLS + 1):
            await streams.give(BLOCKS_A_FAULT)
            service.signal_server(signal.SIGKILL)
            await asyncio.to_thread(service.wait_for_new_server)
            await streams.caught_up(recoveries=number)
        await streams.finish()
    assert stage.relay.environments()[0]["key"] == key
    report(f"{KILLS} kills of an executor's server behind a relay in {time.monotonic() - begin:.0f} s")


async def test_another_client_goes_on_in_the_session_of_a_client_that_was_killed(
    stage: Stage, credit: Credit
) -> None:
    await stage.executor()
    async with stage.client(credit.path, 8) as killed:
        session_id = await killed.line()
        credit.give(4)
        await killed.reached(2 * counters.BLOCK_BYTES)
        killed.process.kill()
        await killed.process.wait()
    credit.give(2)  # while no peer is connected
    check = counters.CounterCheck()
    async with stage.connect(session_id=session_id) as executor:
        process = await executor.attach(PROCESS_ID)
        credit.give(2)
        async for _, data in process:
            check.take(data)
        assert await process.wait() == 7
    assert check.position == 8 * counters.BLOCK_BYTES


@pytest.mark.timeout(600 if LONG else 120)
async def test_a_stream_goes_on_after_each_part_of_its_way_stood_still(
    stage: Stage, credit: Credit, report: Report
) -> None:
    service = await stage.executor()
    async with stage.client(credit.path, 12) as client:
        await client.line()
        for turn, pid in enumerate((client.process.pid, service.server_pid, stage.relay.pid), 1):
            os.kill(pid, signal.SIGSTOP)
            try:
                credit.give(2)
                await asyncio.sleep(PAUSE_SECONDS)  # what a pause is
                credit.give(2)
            finally:
                os.kill(pid, signal.SIGCONT)
            await client.reached(turn * 4 * counters.BLOCK_BYTES)
        digest, code, recoveries = await client.end()
    assert (digest, code) == (counters.digest_of(12 * counters.BLOCK_BYTES), 7)
    if not LONG:
        assert recoveries == 0  # no peer gave up
    report(f"client, executor and relay stopped for {PAUSE_SECONDS:.0f} s each: {recoveries} recoveries")


async def test_a_client_whose_executor_was_killed_for_good_is_told_so_in_time(stage: Stage) -> None:
    service = await stage.executor(may_fail=True)
    async with stage.connect(recovery_timeout=2.0) as executor:
        process = await executor.start(["sleep", "600"])
        begin = time.monotonic()
        service.process.kill()
        with pytest.raises(SessionLost, match="no executor is connected for the environment box"):
            await process.wait()
        assert 1.5 < time.monotonic() - begin < 10.0


async def test_a_client_whose_executor_was_followed_by_another_one_is_told_so_at_once(stage: Stage) -> None:
    service = await stage.executor(may_fail=True)
    async with stage.connect(recovery_timeout=60.0) as executor:
        process = await executor.start(["sleep", "600"])
        service.process.kill()
        await asyncio.to_thread(service.server_ended, 10)
        await stage.executor()
        with pytest.raises(SessionLost, match="was replaced by another one"):
            await process.wait(10)

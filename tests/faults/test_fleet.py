"""A fleet of relays with NATS between them, while everything in it is killed at random.

`make faults` runs the long form: 20 executors in two pools and 100 sessions for 5 minutes. It prints what it
did; `docs/explanation/reliability.md` quotes it. `EXECSERVER_FAULTS_SEED` repeats the choices of a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.fleet_stage import CounterSession, Fleet, counting, fleet, processes_of
from tests.faults.service import Service, eventually
from tests.faults.sizes import LONG, Report

POOLS = {"alpha": 10, "beta": 10} if LONG else {"alpha": 2, "beta": 1}
"""How many executors are in each."""
RELAYS, SESSIONS = (3, 100) if LONG else (2, 9)
SECONDS = 300.0 if LONG else 6.0
PAUSE = 0.5 if LONG else 0.1
"""Between two steps of a session, in seconds."""
ROUND_SECONDS = 6.0 if LONG else 2.0
"""Within which all faults of a round begin."""
EXECUTORS_A_ROUND = 2 if LONG else 1
GAP_SECONDS = 10.0
"""The longest time without progress of a session."""
GRANT_SECONDS = 125.0
"""After which no ticket and no authorization is kept any longer."""


class Faults:
    """Rounds of kills: in each one NATS server, one relay and some executors' servers, each at a moment of
    its own.
    """

    def __init__(self, stage: Fleet, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._stage = stage
        self._chance = random.Random(seed)

    async def round(self) -> None:
        """Kill, start again, and wait until everything is in service."""
        stage, chance = self._stage, self._chance
        relay = chance.choice(stage.relays)
        nats = chance.choice(stage.nats.servers)
        faults = [
            self._restart("relay", relay.kill, relay.start, *self._times()),
            self._restart("NATS server", nats.kill, nats.start, *self._times()),
        ]
        for executor in chance.sample(stage.executors, EXECUTORS_A_ROUND):
            faults.append(self._kill_server(executor, self._times()[0]))
        await asyncio.gather(*faults)
        await asyncio.to_thread(stage.wait_whole)

    def _times(self) -> tuple[float, float]:
        """When a kill is due, and how long its victim is away; in seconds."""
        return self._chance.uniform(0, ROUND_SECONDS), self._chance.uniform(0.1, 2.0)

    async def _restart(
        self, kind: str, kill: Callable[[], object], start: Callable[[], object], due: float, away: float
    ) -> None:
        await asyncio.sleep(due)
        self.kills[kind] += 1
        await asyncio.to_thread(kill)
        await asyncio.sleep(away)
        await asyncio.to_thread(start)

    async def _kill_server(self, executor: Service, due: float) -> None:
        await asyncio.sleep(due)
        self.kills["server of an executor"] += 1
        executor.signal_server(signal.SIGKILL)
        await asyncio.to_thread(executor.wait_for_new_server)


@pytest.mark.timeout(900 if LONG else 90)
async def test_counters_survive_kills_of_nats_servers_relays_and_executors(
    folder: Path, report: Report
) -> None:
    seed = int(os.environ.get("EXECSERVER_FAULTS_SEED") or random.randrange(1 << 32))
    print(f"EXECSERVER_FAULTS_SEED={seed}")
    async with fleet(folder, relays=RELAYS) as stage, AsyncExitStack() as stack:
        for pool, count in POOLS.items():
            await stage.add_executors(pool, count)
        faults = Faults(stage, seed)
        sessions = []
        for number in range(SESSIONS):
            client = await stage.connect(list(POOLS)[number % len(POOLS)])
            sessions.append(CounterSession(await stack.enter_async_context(client), PAUSE))
        begin = time.monotonic()
        async with counting(*sessions):
            while time.monotonic() < begin + SECONDS:
                await faults.round()
            await asyncio.gather(*(session.advance(within=GAP_SECONDS) for session in sessions))
        seconds = time.monotonic() - begin
        longest = max(session.longest_gap for session in sessions)
        figures = (
            f"seed {seed}: {', '.join(f'{count} kills of a {kind}' for kind, count in faults.kills.items())} "
            f"in {seconds:.0f} s; {SESSIONS} sessions recovered "
            f"{sum(session.executor.recoveries for session in sessions)} times and moved "
            f"{sum(session.sent for session in sessions) / 1e6:.0f} MB each way, none lost, none doubled; "
            f"the longest time without progress was {longest:.1f} s"
        )
        print(figures)
        report(figures)
        assert longest <= GAP_SECONDS
        await stack.aclose()
        assert eventually(lambda: not +stage.gauges(), within=10), stage.gauges()
        # What was given to clients for a relay that was killed then is unused until it expires.
        unused = set(await stage.unused_grants())
        async with await stage.connect("alpha") as client:
            await client.run(["true"])
        assert set(await stage.unused_grants()) <= unused
        if LONG:
            await asyncio.sleep(GRANT_SECONDS)
            assert await stage.unused_grants() == []
        assert await stage.end_executors() == []
    assert processes_of(folder) == []

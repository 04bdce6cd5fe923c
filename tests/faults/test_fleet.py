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
from functools import partial
from pathlib import Path

import pytest

from tests.faults.fleet_stage import CounterSession, Fleet, counting, fleet, processes_of
from tests.faults.service import Service, eventually
from tests.faults.sizes import LONG, Report
from tests.support.servers import server_of
from tests.support.wire import PATIENCE

POOLS = {"alpha": 10, "beta": 10} if LONG else {"alpha": 2, "beta": 1}
"""How many executors are in each."""
RELAYS, SESSIONS = (3, 100) if LONG else (2, 9)
SECONDS = 300.0 if LONG else 6.0
PAUSE = 0.5 if LONG else 0.1
"""Between two steps of a session, in seconds."""
PAUSE_SECONDS, AWAY_SECONDS = (2.0, 3.0) if LONG else (0.5, 1.0)
"""The longest time before a kill, and until what was killed is started again."""
EXECUTORS_A_ROUND = 2 if LONG else 1
GAP_SECONDS = 12.0
"""The longest time without progress of a session. The servers of NATS take up to 9 s to choose a leader."""
GRANT_SECONDS = 125.0
"""After which no ticket and no authorization is kept any longer."""


class Faults:
    """Kills with SIGKILL, of whatever comes next in an order by chance: in each round one NATS server, one
    relay and some executors' servers. Each is away for a moment, and the next kill follows soon after
    everything is in service again and every session goes on: a session waits for both of two faults at once.
    """

    def __init__(self, stage: Fleet, sessions: list[CounterSession], seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._stage = stage
        self._sessions = sessions
        self._chance = random.Random(seed)

    async def round(self) -> None:
        """Kill one of each kind, and wait until everything is in service."""
        stage, chance = self._stage, self._chance
        relay, nats = chance.choice(stage.relays), chance.choice(stage.nats.servers)
        faults: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
            ("relay", relay.kill, relay.start),
            ("NATS server", nats.kill, nats.start),
        ]
        for executor in chance.sample(stage.executors, EXECUTORS_A_ROUND):
            killed, restarted = partial(kill_server, executor), partial(server_of, executor.pid, PATIENCE)
            faults.append(("server of an executor", killed, restarted))
        chance.shuffle(faults)
        for kind, kill, start in faults:
            await asyncio.sleep(chance.uniform(0, PAUSE_SECONDS))
            self.kills[kind] += 1
            await asyncio.to_thread(kill)
            await asyncio.sleep(chance.uniform(0, AWAY_SECONDS))
            await asyncio.to_thread(start)
            await asyncio.to_thread(stage.wait_whole)
            await asyncio.gather(*(session.advance(within=GAP_SECONDS) for session in self._sessions))


def kill_server(executor: Service) -> None:
    """Kill the process that is the server of an executor now; its supervisor starts another one."""
    os.kill(server_of(executor.pid, PATIENCE), signal.SIGKILL)


@pytest.mark.timeout(900 if LONG else 120)
async def test_counters_survive_kills_of_nats_servers_relays_and_executors(
    folder: Path, report: Report
) -> None:
    seed = int(os.environ.get("EXECSERVER_FAULTS_SEED") or random.randrange(1 << 32))
    print(f"EXECSERVER_FAULTS_SEED={seed}")
    async with fleet(folder, relays=RELAYS) as stage, AsyncExitStack() as stack:
        for pool, count in POOLS.items():
            await stage.add_executors(pool, count)
        sessions: list[CounterSession] = []
        faults = Faults(stage, sessions, seed)
        for number in range(SESSIONS):
            client = await stage.connect(list(POOLS)[number % len(POOLS)])
            sessions.append(CounterSession(await stack.enter_async_context(client), PAUSE))
        begin = time.monotonic()
        async with counting(*sessions):
            while time.monotonic() < begin + SECONDS:
                await faults.round()
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
        async with await stage.connect("alpha") as executor:
            await executor.run(["true"])
        assert set(await stage.unused_grants()) <= unused
        if LONG:
            await asyncio.sleep(GRANT_SECONDS)
            assert await stage.unused_grants() == []
        assert await stage.end_executors() == []
    assert processes_of(folder) == []

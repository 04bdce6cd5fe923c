"""Pools of a fleet: members at one relay serve clients of another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from execclient import PoolFull
from tests.support.nats_servers import NatsServers
from tests.support.relay_pools import Pool, member_of
from tests.support.relay_service import RelayService, wait_until

Relays = tuple[RelayService, RelayService]


@pytest.fixture(scope="module")
def relays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relays]:
    """Two relays of one fleet."""
    with NatsServers(tmp_path_factory.mktemp("nats"), 1) as nats, ExitStack() as stack:
        one, other = (
            stack.enter_context(RelayService(tmp_path_factory.mktemp("relay"), nats=("--nats", nats.url)))
            for _ in range(2)
        )
        yield one, other


@pytest.fixture(autouse=True)
def nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "TOKEN_FILE", "EXECUTOR_KEY_SHA256"):
        monkeypatch.delenv(f"EXECSERVER_{name}", raising=False)


async def test_clients_of_any_relay_share_the_members_at_all(relays: Relays, tmp_path: Path) -> None:
    one, other = relays
    pool = Pool(one, "shared", tmp_path)
    with (
        pool.member("first", "--capacity", "2") as first,
        pool.member("second", "--capacity", "2", "--label", "gpu", at=other) as second,
    ):
        async with AsyncExitStack() as stack:
            chosen = []
            for base, loads in ((one, (0, 1)), (other, (1, 1)), (one, (1, 2)), (other, (2, 2))):
                executor = await stack.enter_async_context(pool.connect(base=base.url))
                chosen.append(member_of(executor))
                assert (await executor.run(["echo", "hello"])).text == "hello\n"
                await asyncio.to_thread(pool.wait_for_loads, *loads)
            assert Counter(chosen) == {first: 2, second: 2}
            for base in relays:
                with pytest.raises(PoolFull):
                    await pool.connect("&wait=0", base=base.url)
            await executor.close()
            async with pool.connect("&wait=10", base=one.url) as late:
                assert member_of(late) == chosen[-1]
        async with pool.connect("&label=gpu&wait=10") as labelled:
            assert member_of(labelled) == second
        here, there = (
            {row["environment"]: row for row in relay.environments() if row["pool"] == "shared"}
            for relay in relays
        )
    assert here.keys() == there.keys() == {first, second}
    assert here[first]["node"] == there[first]["node"] != here[second]["node"]
    assert (here[second]["labels"], here[second]["streams"]) == ({"gpu": ""}, None)


async def test_a_member_at_a_dead_relay_is_not_chosen(relays: Relays, tmp_path: Path) -> None:
    one, other = relays
    pool = Pool(other, "dead", tmp_path)
    with pool.member("at-one", at=one) as lost, pool.member("at-other", at=other) as kept:
        one.kill()
        try:
            wait_until(lambda: pool.loads.keys() == {kept})
            for _ in range(3):
                async with pool.connect() as executor:
                    assert member_of(executor) == kept
        finally:
            one.start()
        wait_until(lambda: pool.loads.keys() == {kept, lost})
        async with AsyncExitStack() as stack:
            executors = [await stack.enter_async_context(pool.connect()) for _ in range(2)]
            assert {member_of(executor) for executor in executors} == {kept, lost}
            assert [(await executor.run(["echo", "on"])).text for executor in executors] == ["on\n"] * 2

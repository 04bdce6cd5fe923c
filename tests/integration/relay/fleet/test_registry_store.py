"""Every store of the registry keeps what it promises (`RegistryStore`): in memory, and at NATS servers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.store import (
    EnvironmentRecord,
    ExecutorStatus,
    Outdated,
    PoolMember,
    RegistryStore,
)
from tests.support.fleet_stores import grant, open_store, record, until
from tests.support.nats_servers import NatsServers

RACES, ROUNDS = 100, 200


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("nats"), 3) as servers:
        yield servers


@contextlib.asynccontextmanager
async def memory_stores(_: Callable[[], NatsServers]) -> AsyncIterator[tuple[RegistryStore, RegistryStore]]:
    store = MemoryStore()
    yield store, store


@contextlib.asynccontextmanager
async def fleet_stores(
    servers: Callable[[], NatsServers],
) -> AsyncIterator[tuple[RegistryStore, RegistryStore]]:
    prefix = secrets.token_hex(4)
    nats = servers()
    async with open_store(nats[0].url, prefix) as one, open_store(nats[1].url, prefix) as other:
        yield one, other


@pytest.fixture(params=[memory_stores, fleet_stores], ids=["memory", "nats"])
async def stores(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[RegistryStore, RegistryStore]]:
    """The stores of two relays of a fleet; twice the same one without a fleet."""
    async with request.param(lambda: request.getfixturevalue("servers")) as both:
        yield both


Stores = tuple[RegistryStore, RegistryStore]


async def test_a_record_is_read_as_it_was_saved(stores: Stores) -> None:
    one, other = stores
    saved = record("box", node="n")
    saved = EnvironmentRecord(
        "box", saved.current, record("box", "older").current, PoolMember("gpu", {"zone": "eu"}, 3, "1.0")
    )
    revision = await one.save(saved, 0)
    for store in stores:
        found = await store.environment("box")
        assert found is not None
        assert found.record == saved
        assert found.revision == revision
    assert await other.environment("another") is None


async def test_a_record_is_created_once(stores: Stores) -> None:
    one, other = stores
    await one.save(record("box"), 0)
    with pytest.raises(Outdated):
        await other.save(record("box", "other"), 0)
    found = await other.environment("box")
    assert found is not None
    assert found.record == record("box")


async def test_a_save_or_removal_by_an_old_revision_is_refused(stores: Stores) -> None:
    one, other = stores
    first = await one.save(record("box"), 0)
    second = await other.save(record("box", "second"), first)
    assert second != first
    with pytest.raises(Outdated):
        await one.save(record("box", "third"), first)
    with pytest.raises(Outdated):
        await one.remove("box", first)
    found = await one.environment("box")
    assert found is not None
    assert found.record == record("box", "second")


async def test_a_removed_record_is_gone_and_can_be_created_again(stores: Stores) -> None:
    one, other = stores
    first = await one.save(record("box"), 0)
    await other.remove("box", first)
    assert await one.environment("box") is None
    with pytest.raises(Outdated):
        await one.save(record("box"), first)
    again = await one.save(record("box", "again"), 0)
    assert again not in (0, first)
    with pytest.raises(Outdated):
        await other.save(record("box"), 0)


async def test_own_changes_are_listed_at_once_and_those_of_others_soon(stores: Stores) -> None:
    one, other = stores
    revision = await one.save(record("box"), 0)
    assert one.environments() == {"box": record("box")}
    await until(lambda: other.environments() == {"box": record("box")})
    await one.remove("box", revision)
    assert one.environments() == {}
    await until(lambda: other.environments() == {})


async def test_every_store_is_told_of_every_change_once_and_in_order(stores: Stores) -> None:
    one, other = stores
    told: list[list[tuple[str, str | None]]] = [[], []]

    def teller(at: int) -> Callable[[str, EnvironmentRecord | None], None]:
        def changed(environment_id: str, new: EnvironmentRecord | None) -> None:
            assert new is None or new.current is not None
            told[at].append((environment_id, new.current.id if new is not None and new.current else None))

        return changed

    one.on_change(teller(0))
    other.on_change(teller(1))
    revision = 0
    for number in range(20):
        revision = await one.save(record("box", f"r{number}"), revision)
        await until(lambda: len(told[1]) == len(told[0]))
    await one.remove("box", revision)
    expected = [("box", f"r{number}") for number in range(20)] + [("box", None)]
    await until(lambda: len(told[1]) >= len(expected))
    assert told == [expected, expected]


async def test_a_grant_is_found_by_its_kind_and_digest_only(stores: Stores) -> None:
    one, other = stores
    await one.add_grant("ticket", b"d" * 32, grant("box", 5.5))
    found = await other.grant("ticket", b"d" * 32)
    assert found is not None
    assert found.grant == grant("box", 5.5)
    assert await other.grant("authorization", b"d" * 32) is None
    assert await other.grant("ticket", b"e" * 32) is None


async def test_a_grant_is_used_once(stores: Stores) -> None:
    one, other = stores
    await one.add_grant("authorization", b"d" * 32, grant("box"))
    found = await other.grant("authorization", b"d" * 32)
    assert found is not None
    assert not await one.use_up("authorization", b"d" * 32, found.revision + 1)
    assert await one.use_up("authorization", b"d" * 32, found.revision)
    assert not await other.use_up("authorization", b"d" * 32, found.revision)
    assert await other.grant("authorization", b"d" * 32) is None


async def test_of_two_relays_that_use_a_grant_at_the_same_moment_one_succeeds(stores: Stores) -> None:
    one, other = stores
    for number in range(RACES):
        digest = number.to_bytes(32, "big")
        await one.add_grant("ticket", digest, grant("box"))
        found = await one.grant("ticket", digest)
        assert found is not None
        revision = found.revision
        used = await asyncio.gather(*(store.use_up("ticket", digest, revision) for store in (one, other)))
        assert sorted(used) == [False, True], number


async def test_of_two_relays_that_save_at_the_same_moment_one_succeeds(stores: Stores) -> None:
    revision = 0
    for number in range(RACES):
        saved = await asyncio.gather(
            *(
                store.save(record("box", f"{name}{number}"), revision)
                for name, store in zip("ab", stores, strict=True)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(each, Outdated) for each in saved) == 1, saved
        (revision,) = (each for each in saved if isinstance(each, int))
        found = await stores[0].environment("box")
        assert found is not None
        assert found.revision == revision


async def test_a_read_at_another_relay_is_never_stale(stores: Stores) -> None:
    one, other = stores
    revision = 0
    for number in range(ROUNDS):
        revision = await one.save(record("box", f"r{number}"), revision)
        found = await other.environment("box")
        assert found is not None
        assert found.record == record("box", f"r{number}")
        digest = number.to_bytes(32, "big")
        await other.add_grant("ticket", digest, grant("box"))
        assert await one.grant("ticket", digest) is not None


async def test_the_newest_status_is_kept(stores: Stores) -> None:
    one, other = stores
    await one.report("box", ExecutorStatus("r", 1, reported=1.0))
    await one.report("box", ExecutorStatus("r", 2, draining=True, reported=2.0))
    assert one.statuses() == {"box": ExecutorStatus("r", 2, draining=True, reported=2.0)}
    await until(lambda: other.statuses() == one.statuses())

"""The store of a relay without others: revisions, grants that are used once, and news."""

from __future__ import annotations

import pytest

from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.memory_store import EXPIRED_SECONDS, MemoryStore
from execserver.relay.service.store import (
    EnvironmentRecord,
    ExecutorStatus,
    Grant,
    Outdated,
    Registration,
)

KEY = PublicKeys(bytes(32), bytes(1184))


def a_record(registration_id: str) -> EnvironmentRecord:
    return EnvironmentRecord("box", Registration("box", registration_id, KEY, "token", 0.0, b"digest"))


def a_grant(expires: float) -> Grant:
    return Grant("box", "r1", "token", KEY.fingerprint, expires)


async def test_a_record_is_saved_from_its_newest_revision_only() -> None:
    store = MemoryStore()
    first = await store.save(a_record("r1"), 0)
    with pytest.raises(Outdated):
        await store.save(a_record("r2"), 0)
    second = await store.save(a_record("r2"), first)
    with pytest.raises(Outdated):
        await store.remove("box", first)

    assert await store.environment("box") == (a_record("r2"), second)
    assert store.environments() == {"box": a_record("r2")}
    await store.remove("box", second)
    assert await store.environment("box") is None
    with pytest.raises(Outdated):
        await store.save(a_record("r3"), second)
    assert await store.save(a_record("r3"), 0) not in (first, second)


async def test_each_change_is_told_before_it_returns() -> None:
    store = MemoryStore()
    news: list[tuple[str, EnvironmentRecord | None]] = []
    store.on_change(lambda environment, record: news.append((environment, record)))

    revision = await store.save(a_record("r1"), 0)
    assert news == [("box", a_record("r1"))]
    await store.remove("box", revision)
    await store.remove("box", 0)  # there is none

    assert news[1:] == [("box", None)]


async def test_a_grant_is_used_up_once_and_of_one_kind() -> None:
    store = MemoryStore()
    await store.add_grant("ticket", b"1", a_grant(60.0))
    found = await store.grant("ticket", b"1")
    assert found is not None

    assert await store.grant("authorization", b"1") is None
    assert not await store.use_up("authorization", b"1", found.revision)
    assert not await store.use_up("ticket", b"1", found.revision + 1)
    assert await store.use_up("ticket", b"1", found.revision)
    assert not await store.use_up("ticket", b"1", found.revision)
    assert await store.grant("ticket", b"1") is None


async def test_an_expired_grant_is_kept_for_a_minute() -> None:
    store = MemoryStore()
    await store.add_grant("ticket", b"old", a_grant(60.0))
    await store.add_grant("ticket", b"new", a_grant(61.0))

    store.sweep(60.0 + EXPIRED_SECONDS - 0.1)
    assert await store.grant("ticket", b"old") is not None
    store.sweep(60.0 + EXPIRED_SECONDS)

    assert await store.grant("ticket", b"old") is None
    assert await store.grant("ticket", b"new") is not None


async def test_the_newest_status_goes_with_its_environment() -> None:
    store = MemoryStore()
    revision = await store.save(a_record("r1"), 0)
    await store.report("box", ExecutorStatus("r1", 1))
    await store.report("box", ExecutorStatus("r1", 2))
    assert store.statuses() == {"box": ExecutorStatus("r1", 2)}

    await store.remove("box", revision)

    assert store.statuses() == {}

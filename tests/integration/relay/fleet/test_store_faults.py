"""The store of a fleet while NATS servers are killed, stopped, full or without JetStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.relay.fleet.connection import NatsConnection
from execserver.relay.fleet.store import NatsStore
from execserver.relay.service.settings import NatsSettings
from execserver.relay.service.store import EnvironmentRecord, ExecutorStatus, Stored, StoreUnavailable
from tests.support.fleet_stores import grant, open_store, record, until
from tests.support.mounts import Mount, mounting
from tests.support.nats_servers import NatsServers

# A client leaves a connection that a killed server did not answer to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:.*StreamWriter:pytest.PytestUnraisableExceptionWarning")

SECONDS = 40.0
"""An election takes up to 9 s, and a stream that was just started may need another."""


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    yield from mounting(tmp_path_factory)


async def unavailable(store: NatsStore, *, more: bool = False) -> str:
    """The error of a write: of the same record again, or of more and more."""
    for number in range(1000):
        try:
            environment_id = f"box{number}" if more else "box"
            found = await store.environment(environment_id)
            await store.save(record(environment_id), found.revision if found is not None else 0)
        except StoreUnavailable as error:
            return str(error)
    raise AssertionError("the store is available")


async def save(store: NatsStore, environment_id: str, *, seconds: float = SECONDS) -> None:
    """Save a new record, again until the store is available."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = await store.environment(environment_id)
            await store.save(record(environment_id), found.revision if found is not None else 0)
            return
        except StoreUnavailable:
            assert time.monotonic() < deadline


def number_of(found: Stored | None) -> int:
    return int(found.record.current.id) if found is not None and found.record.current is not None else 0


@pytest.mark.timeout(150)
async def test_no_acknowledged_save_is_lost_while_servers_are_killed(tmp_path: Path) -> None:
    with NatsServers(tmp_path, 3) as nats:
        async with open_store(nats.url, "f") as one, open_store(nats.url, "f") as other:
            acknowledged = dict.fromkeys("abc", 0)
            ended = asyncio.Event()

            async def work(store: NatsStore, environment_id: str) -> None:
                number = 0
                while not ended.is_set():
                    try:
                        found = await store.environment(environment_id)
                        assert number_of(found) >= acknowledged[environment_id]
                        number += 1
                        revision = found.revision if found is not None else 0
                        await store.save(record(environment_id, f"{number}"), revision)
                    except StoreUnavailable:
                        continue  # it may have been kept
                    acknowledged[environment_id] = number

            workers = [asyncio.ensure_future(work(*each)) for each in ((one, "a"), (one, "b"), (other, "c"))]
            for _ in range(2):
                await asyncio.sleep(0.3)
                victim = await asyncio.to_thread(nats.leader_of, "KV_f_environments")
                victim.kill()
                before = dict(acknowledged)
                await until(lambda: all(acknowledged[each] != before[each] for each in "abc"), SECONDS)  # noqa: B023
                victim.start()
                await asyncio.to_thread(nats.wait_ready, SECONDS)
            ended.set()
            await asyncio.gather(*workers)
            for environment_id, number in acknowledged.items():
                founds = [await store.environment(environment_id) for store in (one, other)]
                assert founds[0] == founds[1]
                assert number_of(founds[0]) >= number
            await until(lambda: one.environments() == other.environments())
            assert {each: number_of(await one.environment(each)) for each in "abc"} == {
                each: int(kept.current.id) for each, kept in one.environments().items() if kept.current
            }


@pytest.mark.timeout(150)
async def test_without_a_majority_saves_are_refused_until_it_is_back(tmp_path: Path) -> None:
    with NatsServers(tmp_path, 3) as nats:
        # This one stays at the server that stays.
        async with open_store(nats[0].url, "f") as store:
            await save(store, "box")
            nats[1].kill()
            nats[2].kill()
            text = await unavailable(store)
            assert "bucket f_environments" in text
            assert "more than half of its servers must run" in text
            await until(lambda: "more than half of its servers must run" in store.fault, SECONDS)
            began = time.monotonic()
            await unavailable(store)
            assert time.monotonic() - began < 8, "requests wait long although the fault is known"
            nats.start()
            await until(lambda: not store.fault, SECONDS)
            await save(store, "after")
            assert store.environments().keys() == {"box", "after"}


@pytest.mark.timeout(150)
async def test_a_restart_of_all_servers_loses_grants_only_and_copies_are_complete_again(
    tmp_path: Path,
) -> None:
    with NatsServers(tmp_path, 3) as nats:
        async with open_store(nats.url, "f") as store:
            kept = {f"box{number}" for number in range(10)}
            for environment_id in kept:
                await save(store, environment_id)
            await store.report("box1", ExecutorStatus("r", 1))
            await store.add_grant("ticket", b"d" * 32, grant("box1"))
            for server in nats.servers:
                server.kill()
            text = await unavailable(store)
            assert "no connection to NATS" in text
            await asyncio.to_thread(nats.start)
            await until(lambda: not store.fault, SECONDS)
            assert await store.grant("ticket", b"d" * 32) is None
            await save(store, "after")
            assert store.environments().keys() == kept | {"after"}
            await store.report("box2", ExecutorStatus("r", 2))
            await until(lambda: store.statuses() == {"box2": ExecutorStatus("r", 2)})


@pytest.mark.timeout(120)
async def test_a_copy_learns_of_what_changed_while_its_connection_was_lost(tmp_path: Path) -> None:
    with NatsServers(tmp_path, 3, advertise=False) as nats:
        async with open_store(nats[0].url, "f") as store, open_store(nats[1].url, "f") as other:
            for environment_id in ("stays", "changes", "goes"):
                await save(other, environment_id)
            await until(lambda: len(store.environments()) == 3)
            told: list[tuple[str, EnvironmentRecord | None]] = []
            store.on_change(lambda *change: told.append(change))
            nats[0].kill()
            changing, going = await other.environment("changes"), await other.environment("goes")
            assert changing is not None
            assert going is not None
            await other.save(record("changes", "new"), changing.revision)
            await other.remove("goes", going.revision)
            await save(other, "comes")
            assert told == []
            nats[0].start()
            await until(lambda: store.environments() == other.environments(), SECONDS)
            assert sorted(each for each, _ in told) == ["changes", "comes", "goes"]
            assert dict(told)["goes"] is None


@pytest.mark.timeout(120)
async def test_a_full_disk_is_named_and_the_store_goes_on_when_there_is_room(
    tmp_path: Path, mount: Mount
) -> None:
    disk = mount("tmpfs", "size=4m")
    with NatsServers(tmp_path, stores=[disk / "store"]) as nats:
        async with open_store(nats.url, "f") as store:
            await save(store, "box")
            filler = disk / "filler"
            with open(filler, "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)):
                        pass
                except OSError:
                    pass
            text = await unavailable(store)
            assert "disk" in text
            await until(lambda: "disk" in store.fault, SECONDS)
            filler.unlink()
            if not nats[0].is_healthy():  # it turns JetStream off until it is started again
                nats[0].kill()
                nats.start()
            await until(lambda: not store.fault, SECONDS)
            await save(store, "after")
            assert store.environments().keys() == {"box", "after"}


@pytest.mark.timeout(120)
async def test_a_limit_of_the_servers_is_named_and_the_store_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with NatsServers(tmp_path, max_file=200_000) as nats:
        async with open_store(nats.url, "f") as store:
            assert "max_file" in await unavailable(store, more=True)
            saved = set(store.environments())
            await until(lambda: "max_file" in store.fault)
            nats[0].kill()
            nats[0].configuration = nats[0].configuration.replace("max_file: 200000", "max_file: 20000000")
            nats.start()
            await until(lambda: not store.fault, SECONDS)
            await save(store, "after")
            assert set(store.environments()) == saved | {"after"}


async def test_a_server_without_jetstream_is_named(tmp_path: Path) -> None:
    with NatsServers(tmp_path, jetstream=False) as nats:
        settings = NatsSettings.parse(nats.url)
        connection = NatsConnection(settings, "test")
        await connection.open(5)
        store = NatsStore(connection, settings, "n")
        with pytest.raises(StoreUnavailable, match="with JetStream"):
            await store.start("http://127.0.0.1")
        assert "with JetStream" in store.fault
        await store.close()
        await connection.close()


@pytest.mark.timeout(120)
async def test_buckets_in_memory_are_created_again_after_a_restart_of_a_single_server(tmp_path: Path) -> None:
    with NatsServers(tmp_path) as nats:
        async with open_store(nats.url, "f") as store:
            await store.report("box", ExecutorStatus("r", 1))
            nats[0].kill()
            nats.start()
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    await store.add_grant("ticket", b"d" * 32, grant("box"))
                    break
                except StoreUnavailable:
                    assert time.monotonic() < deadline
            assert await store.grant("ticket", b"d" * 32) is not None
            await store.report("box", ExecutorStatus("r", 2))
            await until(lambda: store.statuses() == {"box": ExecutorStatus("r", 2)})


@pytest.mark.parametrize("record", [b'{"environment_id": 5}', b'{"environment_id": "\xff"}'])
async def test_an_invalid_record_is_named_and_left_out_of_lists(tmp_path: Path, record: bytes) -> None:
    with NatsServers(tmp_path) as nats:
        async with open_store(nats.url, "f") as store:
            await save(store, "box")
            context = store._connection.client.jetstream()
            await context.publish("$KV.f_environments.box", record)
            with pytest.raises(StoreUnavailable, match=r"invalid record .*f_environments, box"):
                await store.environment("box")
            await until(lambda: store.environments() == {})


async def test_members_of_a_newer_version_are_ignored(tmp_path: Path) -> None:
    with NatsServers(tmp_path) as nats:
        async with open_store(nats.url, "f") as store:
            context = store._connection.client.jetstream()
            await context.publish("$KV.f_environments.box", b'{"environment_id": "box", "colour": "red"}')
            found = await store.environment("box")
            assert found is not None
            assert found.record == EnvironmentRecord("box")

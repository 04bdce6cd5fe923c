"""Pools: which executor a client gets, and which clients count as waiting. Time is a number here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from execprotocol.relay.contract import ContractError, PoolEntry, RegisterRequest, StatusRequest
from execprotocol.relay.keys import KeyPair, PublicKeys
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.pools import (
    MAX_MEMBERS,
    MAX_SHOWN_LABELS,
    MAX_WAITING,
    SENT_SECONDS,
    WAITING_SECONDS,
    PoolFull,
    PoolOffline,
    Pools,
    StaleRegistration,
    TooManyMembers,
    member_of,
)
from execserver.relay.service.registry import EXECUTOR_TICKET_SECONDS, RelayRegistry
from execserver.relay.service.store import EnvironmentRecord, ExecutorSocket, PoolMember, Registration
from tests.support.registry_nodes import Fleet as NodesOfOneStore

KEY = PublicKeys(bytes(32), bytes(1184))


class Fleet:
    """One relay's pools, with members that the test puts there."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store, self.bus = MemoryStore(), MemoryBus()
        self.pools = Pools(self.store, self.bus, lambda: self.now)
        self._revisions: dict[str, int] = {}

    async def add(
        self,
        number: int,
        labels: Mapping[str, str] = {},
        capacity: int | None = None,
        *,
        pool: str = "gpu",
        connected: bool = True,
        node: str = "",
    ) -> str:
        """A member, or its next state."""
        name = f"{pool}--{number:016x}"
        socket = ExecutorSocket(node or self.bus.node, name) if connected else None
        registration = Registration(name, f"r-{name}", KEY, "token", self.now, b"", socket)
        record = EnvironmentRecord(name, registration, None, PoolMember(pool, labels, capacity))
        self._revisions[name] = await self.store.save(record, self._revisions.get(name, 0))
        return name

    async def remove(self, name: str) -> None:
        await self.store.remove(name, self._revisions.pop(name))

    async def report(
        self, name: str, sessions: int, opened: int | None = None, *, draining: bool = False
    ) -> None:
        opened = sessions if opened is None else opened
        await self.pools.report(name, StatusRequest(f"r-{name}", sessions, opened, draining))

    def choose(self, *labels: str, client: str = "client", pool: str = "gpu", **wanted: str) -> str:
        return self.pools.choose(pool, {**dict.fromkeys(labels), **wanted}, client)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


# -- the choice


async def test_the_executor_with_the_fewest_sessions_is_chosen(fleet: Fleet) -> None:
    names = [await fleet.add(number) for number in range(3)]
    for name, sessions in zip(names, (5, 2, 7), strict=True):
        await fleet.report(name, sessions)

    assert fleet.choose() == names[1]


async def test_with_capacities_the_share_counts_and_not_the_number(fleet: Fleet) -> None:
    small, large = await fleet.add(1, capacity=4), await fleet.add(2, capacity=100)
    await fleet.report(small, 2)
    await fleet.report(large, 40)

    assert fleet.choose() == large


async def test_clients_that_were_sent_count_until_a_report_has_them(fleet: Fleet) -> None:
    names = {await fleet.add(number) for number in range(4)}
    chosen = [fleet.choose() for _ in range(8)]
    assert Counter(chosen) == dict.fromkeys(names, 2)

    for name in names:
        await fleet.report(name, 2)  # now they are sessions, and not counted twice
    first, *others = names
    await fleet.report(first, 3)
    assert {fleet.choose() for _ in others} == set(others)


async def test_a_report_from_before_the_session_does_not_make_room(fleet: Fleet) -> None:
    only = await fleet.add(1, capacity=1)
    assert fleet.choose() == only
    await fleet.report(only, 0)  # the periodic one, on its way while the client connects

    with pytest.raises(PoolFull):
        fleet.choose()


async def test_a_client_that_never_opens_a_session_counts_for_some_seconds_only(fleet: Fleet) -> None:
    only = await fleet.add(1, capacity=1)
    fleet.choose()
    fleet.now += SENT_SECONDS - 0.1
    with pytest.raises(PoolFull):
        fleet.choose()
    fleet.now += 0.1
    assert fleet.choose() == only


async def test_a_session_that_opened_and_ended_between_two_reports_counts_no_more(fleet: Fleet) -> None:
    only = await fleet.add(1, capacity=1)
    assert fleet.choose() == only
    await fleet.report(only, 0, opened=1)
    assert fleet.choose() == only


async def test_a_new_server_that_counts_from_zero_is_no_harm(fleet: Fleet) -> None:
    only = await fleet.add(1, capacity=2)
    await fleet.report(only, 1, opened=50)
    fleet.choose()
    await fleet.report(only, 1, opened=0)
    with pytest.raises(PoolFull):
        fleet.choose()
    await fleet.report(only, 1, opened=1)
    fleet.choose()


async def test_ties_are_broken_at_random(fleet: Fleet) -> None:
    names = {await fleet.add(number) for number in range(3)}
    firsts = set()
    for _ in range(100):
        firsts.add(fleet.choose())
        fleet.now += SENT_SECONDS
    assert firsts == names


async def test_the_capacity_is_a_limit(fleet: Fleet) -> None:
    names = [await fleet.add(number, capacity=2) for number in range(2)]
    assert Counter(fleet.choose() for _ in range(4)) == dict.fromkeys(names, 2)
    with pytest.raises(PoolFull, match="of 2 connected executors of the pool gpu, 2 are at their capacity"):
        fleet.choose()

    for name in names:
        await fleet.report(name, 2)
    await fleet.report(names[1], 1, opened=2)  # a session has ended
    assert fleet.choose() == names[1]
    with pytest.raises(PoolFull):
        fleet.choose()


async def test_a_draining_executor_is_not_chosen_until_it_is_back(fleet: Fleet) -> None:
    idle, busy = await fleet.add(1), await fleet.add(2)
    await fleet.report(busy, 9)
    await fleet.report(idle, 0, draining=True)
    assert fleet.choose() == busy
    await fleet.report(busy, 9, draining=True)
    with pytest.raises(PoolFull, match="0 are at their capacity and 2 are draining"):
        fleet.choose()
    await fleet.report(idle, 0)
    assert fleet.choose() == idle


async def test_labels_are_asked_for_by_name_or_by_value(fleet: Fleet) -> None:
    eu = await fleet.add(1, {"zone": "eu", "ssd": ""})
    us = await fleet.add(2, {"zone": "us"})
    await fleet.report(eu, 5)

    assert fleet.choose("ssd") == fleet.choose(zone="eu") == fleet.choose("zone", ssd="") == eu
    assert fleet.choose() == fleet.choose("zone") == us
    with pytest.raises(PoolOffline, match="has zone=asia; there is ssd, zone=eu, zone=us"):
        fleet.choose(zone="asia")
    with pytest.raises(PoolOffline, match="has ssd, zone=us"):
        fleet.choose("ssd", zone="us")


async def test_only_connected_executors_are_chosen(fleet: Fleet) -> None:
    await fleet.add(1, connected=False)
    await fleet.add(2, node="a-relay-that-is-dead")
    with pytest.raises(PoolOffline, match="no executor of the pool gpu is connected"):
        fleet.choose()
    alive = await fleet.add(3)
    assert fleet.choose() == alive
    with pytest.raises(PoolOffline):
        fleet.pools.choose("gpu", {}, "client", without={alive})
    await fleet.remove(alive)
    with pytest.raises(PoolOffline):
        fleet.choose()


async def test_pools_and_executors_without_a_pool_are_apart(fleet: Fleet) -> None:
    gpu, _ = await fleet.add(1), await fleet.add(1, pool="gpu-2")
    await fleet.store.save(EnvironmentRecord("gpu--0000000000000009"), 0)  # a stock executor with such a name

    assert {fleet.choose() for _ in range(5)} == {gpu}
    with pytest.raises(PoolOffline):
        fleet.choose(pool="gp")


async def test_members_that_were_there_before_are_known() -> None:
    fleet = Fleet()
    name = await fleet.add(1)
    assert Pools(fleet.store, fleet.bus, lambda: 0.0).choose("gpu", {}, "client") == name


# -- reports


async def test_a_status_of_another_registration_is_refused(fleet: Fleet) -> None:
    name = await fleet.add(1)
    for registration_id in ("r-old", f"r-gpu--{2:016x}"):
        with pytest.raises(StaleRegistration):
            await fleet.pools.report(name, StatusRequest(registration_id, 9, 9, draining=True))
    with pytest.raises(StaleRegistration):
        await fleet.pools.report("gpu--unknown", StatusRequest("r-gpu--unknown", 9, 9, draining=True))

    assert fleet.choose() == name
    assert dict(fleet.store.statuses()) == {}


# -- several relays over one store


async def test_a_relay_chooses_among_executors_of_all_relays_by_reports_that_came_to_any() -> None:
    now, nodes = [1000.0], NodesOfOneStore(lambda: now[0], MemoryStore())
    here, there = nodes.node(), nodes.node()
    one, two = KeyPair.generate().public, KeyPair.generate().public
    names = [f"gpu--{key.fingerprint[:16]}" for key in (one, two)]
    for node, name, key in ((here, names[0], one), (there, names[1], two)):
        registered = await node.registry.register(name, key, "token", PoolMember("gpu", {}, 2))
        await node.registry.socket_opened(registered.registration, name, lambda _why: None)
        status = StatusRequest(registered.registration.id, 0, 0, draining=False)
        await (there if node is here else here).registry.pools.report(name, status)

    chosen = [here.registry.pools.choose("gpu", {}, f"{number}") for number in range(4)]
    assert Counter(chosen) == dict.fromkeys(names, 2)
    with pytest.raises(PoolFull):
        here.registry.pools.choose("gpu", {}, "late")
    nodes.alive.discard(there.bus.node)
    with pytest.raises(PoolFull, match="of 1 connected executors"):
        here.registry.pools.choose("gpu", {}, "late")
    now[0] += SENT_SECONDS
    assert here.registry.pools.choose("gpu", {}, "late") == names[0]


# -- waiting clients


async def test_refused_clients_wait_until_they_are_served(fleet: Fleet) -> None:
    only = await fleet.add(1, capacity=1)
    await fleet.report(only, 1)
    for client in ("a", "b", "a"):
        with pytest.raises(PoolFull):
            fleet.choose(client=client)
    with pytest.raises(PoolOffline):
        fleet.choose(client="c", pool="empty")
    assert fleet.pools.waiting() == {"gpu": 2, "empty": 1}

    await fleet.report(only, 0)
    fleet.choose(client="a")
    assert fleet.pools.waiting() == {"gpu": 1, "empty": 1}


async def test_a_client_that_no_longer_asks_does_not_wait(fleet: Fleet) -> None:
    for client in ("a", "b"):
        with pytest.raises(PoolOffline):
            fleet.choose(client=client)
    fleet.now += WAITING_SECONDS - 1
    with pytest.raises(PoolOffline):
        fleet.choose(client="a")
    fleet.now += 1
    assert fleet.pools.waiting() == {"gpu": 1}
    fleet.now += WAITING_SECONDS
    assert fleet.pools.waiting() == {"gpu": 0}
    assert fleet.pools.waiting() == {}


async def test_the_number_of_waiting_clients_is_limited_and_old_ones_make_room(fleet: Fleet) -> None:
    for number in range(MAX_WAITING + 5):
        with pytest.raises(PoolOffline):
            fleet.choose(client=f"{number}")
    assert fleet.pools.waiting() == {"gpu": MAX_WAITING}
    fleet.now += WAITING_SECONDS
    with pytest.raises(PoolOffline):
        fleet.choose(client="late")
    assert fleet.pools.waiting() == {"gpu": 1}


# -- registrations


async def test_a_token_for_a_pool_makes_no_more_than_so_many_records(fleet: Fleet) -> None:
    registry = RelayRegistry(fleet.store, fleet.bus, lambda: fleet.now, lambda _: True)

    async def register(number: int, pool: str = "gpu") -> None:
        name = f"{pool}--{number:016x}"
        member = PoolMember(pool, {}, None) if number % 2 else None  # it need not describe itself
        await registry.register(name, KEY, "token", member)

    for number in range(MAX_MEMBERS):
        await register(number)
    with pytest.raises(TooManyMembers, match="gpu has 10000"):
        await register(MAX_MEMBERS)
    assert len(fleet.store.environments()) == MAX_MEMBERS

    await register(7)  # a member that comes back
    await register(0, "other")
    await registry.register("box", KEY, "token")
    fleet.now += EXECUTOR_TICKET_SECONDS
    await registry.sweep()
    await register(MAX_MEMBERS)


async def test_a_refusal_reads_no_more_labels_than_it_shows(fleet: Fleet) -> None:
    read = 0

    class Counted(dict[str, str]):
        def items(self) -> Any:
            nonlocal read
            read += 1
            return super().items()

    for number in range(100):
        await fleet.add(number, Counted({f"l{number}-{each}": "x" for each in range(10)}))

    with pytest.raises(PoolOffline) as refused:
        fleet.choose("none")

    assert str(refused.value).count("=x") == MAX_SHOWN_LABELS
    assert read == MAX_SHOWN_LABELS // 10 + 1


def test_a_member_must_have_the_key_of_its_id() -> None:
    own, other = KeyPair.generate().public, KeyPair.generate().public
    entry = PoolEntry({"ssd": ""}, 4, "1.0")
    name = f"gpu--{own.fingerprint[:16]}"

    assert member_of(name, RegisterRequest(own, entry)) == PoolMember("gpu", {"ssd": ""}, 4, "1.0")
    assert member_of(name, RegisterRequest(own)) is None
    for pool in (entry, None):
        with pytest.raises(ContractError, match="`environment_id` is that of a pool's member"):
            member_of(name, RegisterRequest(other, pool))


def test_an_environment_in_no_pool_takes_any_key_and_no_description() -> None:
    key = KeyPair.generate().public
    assert member_of("box", RegisterRequest(key)) is None
    with pytest.raises(ContractError, match="`pool` is for environments"):
        member_of("box", RegisterRequest(key, PoolEntry()))

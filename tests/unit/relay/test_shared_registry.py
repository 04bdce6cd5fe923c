"""Registries of several relays over one store that takes its time: each decides as if there were only one."""

from __future__ import annotations

import asyncio

import pytest

from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.registry import (
    EXECUTOR_TICKET_SECONDS,
    HARNESS_TICKET_SECONDS,
    ConnectResult,
    EnvironmentTaken,
    ExecutorOffline,
    Harness,
    RegisterResult,
    TicketRefused,
)
from execserver.relay.service.store import PoolMember, StoreUnavailable
from tests.support.registry_nodes import DistantStore, Fleet, Node

BOX = "box"


def keys(seed: int) -> PublicKeys:
    return PublicKeys(bytes((seed,)) * 32, bytes((seed,)) * 1184)


FIRST, SECOND, HARNESS = map(keys, range(3))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> DistantStore:
    return DistantStore()


@pytest.fixture
def fleet(clock: Clock, store: DistantStore) -> Fleet:
    return Fleet(clock, store)


@pytest.fixture
def one(fleet: Fleet) -> Node:
    return fleet.node()


@pytest.fixture
def two(fleet: Fleet) -> Node:
    return fleet.node()


async def connected_to(node: Node) -> str:
    """The address of the socket that a new harness is led to."""
    granted = await node.registry.connect(BOX, HARNESS, "client")
    return (await node.registry.redeem_harness(BOX, granted.ticket)).executor_address


def asked(granted: ConnectResult) -> ValidateRequest:
    return ValidateRequest(granted.registration.id, HARNESS, granted.authorization)


# -- one environment, several relays


@pytest.mark.statement("R4")
async def test_an_incumbent_at_one_relay_keeps_its_place_against_another_key_at_another(
    one: Node, two: Node
) -> None:
    _, address = await one.online(BOX, FIRST)

    with pytest.raises(EnvironmentTaken):
        await two.register(BOX, SECOND)

    assert await connected_to(two) == address
    assert one.ended == {}


async def test_of_two_executors_that_register_at_two_relays_at_the_same_moment_one_wins(
    one: Node, two: Node
) -> None:
    results = await asyncio.gather(
        one.register(BOX, FIRST), two.register(BOX, SECOND), return_exceptions=True
    )

    (winner,) = [each for each in results if isinstance(each, RegisterResult)]
    (loser,) = [each for each in results if isinstance(each, BaseException)]
    assert isinstance(loser, EnvironmentTaken)
    other = one if winner.registration.key == SECOND else two
    address = await other.dial(BOX, winner.ticket)  # its ticket is valid at every relay
    assert await connected_to(one) == await connected_to(two) == address


async def test_two_registrations_of_one_key_at_the_same_moment_are_both_accepted_and_the_later_stays(
    one: Node, two: Node
) -> None:
    results = await asyncio.gather(one.register(BOX, FIRST), two.register(BOX, FIRST))

    dialed = await asyncio.gather(*(one.dial(BOX, each.ticket) for each in results), return_exceptions=True)

    (refused,) = [each for each in dialed if isinstance(each, BaseException)]
    (address,) = [each for each in dialed if isinstance(each, str)]
    assert isinstance(refused, TicketRefused)
    assert await connected_to(two) == address


@pytest.mark.parametrize("again", ["the same URL", "a new registration"])
async def test_a_newer_socket_at_another_relay_ends_the_older_one(one: Node, two: Node, again: str) -> None:
    registered, older = await one.online(BOX, FIRST)
    if again == "a new registration":
        newer = await two.register(BOX, FIRST)
        assert await connected_to(two) == older  # it serves until the new one is there
        address, why = await two.dial(BOX, newer.ticket), "replaced"
    else:
        address, why = await two.dial(BOX, registered.ticket), "redialed"

    assert one.ended == {older: why}
    await one.registry.socket_closed(BOX, older)
    assert await connected_to(one) == await connected_to(two) == address
    assert two.ended == {}
    assert two.registry.online == 1


async def test_sockets_that_open_at_two_relays_at_the_same_moment_leave_one_of_them(
    one: Node, two: Node
) -> None:
    registered = await one.register(BOX, FIRST)

    addresses = set(await asyncio.gather(one.dial(BOX, registered.ticket), two.dial(BOX, registered.ticket)))

    ended = one.ended | two.ended
    assert len(ended) == 1
    assert {await connected_to(one)} == addresses - ended.keys()


async def test_a_relay_that_died_frees_its_environments_at_once(
    fleet: Fleet, one: Node, two: Node, clock: Clock
) -> None:
    registered, _ = await one.online(BOX, FIRST)
    before = await two.registry.connect(BOX, HARNESS, "client")

    fleet.alive.discard(one.bus.node)

    assert two.registry.online == 0
    assert not two.registry.environments()[0].online
    with pytest.raises(ExecutorOffline):
        await two.registry.connect(BOX, HARNESS, "client")
    with pytest.raises(TicketRefused) as refused:
        await two.registry.redeem_harness(BOX, before.ticket)
    assert (refused.value.status, refused.value.reason) == (410, "route_unavailable")
    _, address = await two.online(BOX, SECOND)
    assert await connected_to(two) == address
    with pytest.raises(TicketRefused):
        await two.dial(BOX, registered.ticket)


async def test_an_executor_of_a_dead_relay_dials_the_same_url_at_another(
    fleet: Fleet, one: Node, two: Node
) -> None:
    registered, _ = await one.online(BOX, FIRST)
    fleet.alive.discard(one.bus.node)

    address = await two.dial(BOX, registered.ticket)

    assert await connected_to(two) == address


async def test_a_relay_that_was_only_taken_for_dead_ends_the_socket_whose_place_was_given_away(
    fleet: Fleet, one: Node, two: Node
) -> None:
    _, older = await one.online(BOX, FIRST)
    fleet.alive.discard(one.bus.node)
    _, newer = await two.online(BOX, SECOND)

    fleet.alive.add(one.bus.node)

    assert one.ended == {older: "replaced"}
    await one.registry.socket_closed(BOX, older)
    assert await connected_to(one) == newer


async def test_every_relay_lists_the_environments_of_all_and_where_their_sockets_are(
    one: Node, two: Node
) -> None:
    _, address = await one.online(BOX, FIRST)
    await two.online("other", SECOND)

    listed = two.registry.environments()

    assert listed == one.registry.environments()
    assert [each.environment_id for each in listed] == [BOX, "other"]
    assert listed[0].socket is not None
    assert (listed[0].socket.node, listed[0].socket.address) == (one.bus.node, address)


async def test_what_an_executor_says_as_a_member_of_a_pool_is_kept_with_its_registration(
    one: Node, store: DistantStore
) -> None:
    member = PoolMember("builders", {"zone": "eu"}, capacity=4, version="1.0")
    await one.registry.register(BOX, FIRST, "executor", member)
    assert store.environments()[BOX].member == member

    await one.registry.register(BOX, FIRST, "executor")
    assert store.environments()[BOX].member is None


# -- tickets


@pytest.mark.statement("R6", "R7")
async def test_a_ticket_of_one_relay_is_used_at_another_once(one: Node, two: Node) -> None:
    _, address = await one.online(BOX, FIRST)
    granted = await one.registry.connect(BOX, HARNESS, "client")

    harness = await two.registry.redeem_harness(BOX, granted.ticket)

    assert (harness.executor_address, harness.token_id) == (address, "client")
    for node in (one, two):
        with pytest.raises(TicketRefused) as refused:
            await node.registry.redeem_harness(BOX, granted.ticket)
        assert refused.value.status == 401
    assert await one.registry.validate(BOX, asked(granted))
    assert not await two.registry.validate(BOX, asked(granted))


@pytest.mark.statement("R6", "R7")
async def test_a_ticket_that_is_used_at_two_relays_at_the_same_moment_admits_one_harness(
    one: Node, two: Node
) -> None:
    await one.online(BOX, FIRST)
    for _ in range(20):
        granted = await one.registry.connect(BOX, HARNESS, "client")

        redeemed = await asyncio.gather(
            *(node.registry.redeem_harness(BOX, granted.ticket) for node in (one, two, two)),
            return_exceptions=True,
        )
        validated = await asyncio.gather(
            *(node.registry.validate(BOX, asked(granted)) for node in (one, two, two))
        )

        assert sorted(type(each).__name__ for each in redeemed) == [
            "Harness",
            "TicketRefused",
            "TicketRefused",
        ]
        assert sorted(validated) == [False, False, True]


async def test_a_ticket_of_one_relay_expires_at_another(one: Node, two: Node, clock: Clock) -> None:
    await one.online(BOX, FIRST)
    granted = await one.registry.connect(BOX, HARNESS, "client")
    clock.now += HARNESS_TICKET_SECONDS

    assert not await two.registry.validate(BOX, asked(granted))
    with pytest.raises(TicketRefused) as refused:
        await two.registry.redeem_harness(BOX, granted.ticket)
    assert (refused.value.status, refused.value.reason) == (410, "expired")


# -- tokens


async def test_a_revoked_token_ends_at_every_relay(fleet: Fleet, one: Node, two: Node) -> None:
    _, address = await one.online(BOX, FIRST, "t1")
    waiting = await two.register("other", SECOND, "t1")
    granted = [await one.registry.connect(BOX, HARNESS, "c1") for _ in range(3)]
    at_one = await one.registry.redeem_harness(BOX, granted[0].ticket)
    at_two = await two.registry.redeem_harness(BOX, granted[1].ticket)
    assert two.registry.token_ids() >= {"t1", "c1"}

    fleet.revoked |= {"t1", "c1"}
    ended: list[tuple[Harness, ...]] = [node.registry.revoked({"t1", "c1"}) for node in (one, two)]

    assert ended == [(at_one,), (at_two,)]
    assert one.ended == {address: "revoked"}
    with pytest.raises(TicketRefused):
        await two.registry.redeem_harness(BOX, granted[2].ticket)
    assert not await two.registry.validate(BOX, asked(granted[2]))
    with pytest.raises(TicketRefused):
        await one.registry.redeem_executor("other", waiting.ticket)
    await asyncio.gather(one.registry.settle(), two.registry.settle())
    await one.registry.socket_closed(BOX, address)
    assert one.registry.environments() == two.registry.environments() == []
    assert one.registry.token_ids() == two.registry.token_ids() == set()


async def test_a_token_that_ends_while_its_executor_dials_admits_no_socket(fleet: Fleet, one: Node) -> None:
    registered = await one.register(BOX, FIRST, "t1")
    registration = await one.registry.redeem_executor(BOX, registered.ticket)
    fleet.revoked.add("t1")

    with pytest.raises(TicketRefused):
        await one.registry.socket_opened(registration, "late", lambda _why: None)
    await one.registry.socket_closed(BOX, "late")

    assert one.registry.online == 0


# -- while the store is out of reach


async def test_requests_fail_with_the_fault_of_the_store_and_work_again_after_it(
    one: Node, store: DistantStore
) -> None:
    registered, _ = await one.online(BOX, FIRST)
    granted = await one.registry.connect(BOX, HARNESS, "client")
    store.fault = "no quorum"

    for request in (
        one.register(BOX, FIRST),
        one.dial(BOX, registered.ticket),
        one.registry.connect(BOX, HARNESS, "client"),
        one.registry.redeem_harness(BOX, granted.ticket),
        one.registry.validate(BOX, asked(granted)),
    ):
        with pytest.raises(StoreUnavailable, match="no quorum"):
            await request

    store.fault = ""
    assert (await one.registry.redeem_harness(BOX, granted.ticket)).registration.key == FIRST
    assert await one.registry.validate(BOX, asked(granted))


async def test_the_end_of_a_socket_that_could_not_be_kept_is_kept_later(
    one: Node, two: Node, store: DistantStore
) -> None:
    _, address = await one.online(BOX, FIRST)
    store.fault = "no quorum"
    await one.registry.socket_closed(BOX, address)
    await one.registry.settle()
    assert two.registry.online == 1

    store.fault = ""
    await one.registry.settle()

    assert two.registry.online == 0
    await two.online(BOX, SECOND)


async def test_the_late_end_of_a_socket_leaves_the_next_one_alone(
    one: Node, two: Node, store: DistantStore
) -> None:
    registered, address = await one.online(BOX, FIRST)
    store.fault = "no quorum"
    await one.registry.socket_closed(BOX, address)
    store.fault = ""
    newer = await two.dial(BOX, registered.ticket)

    await one.registry.settle()

    assert await connected_to(one) == newer


async def test_a_socket_whose_record_was_kept_without_an_answer_is_taken_out_again(
    one: Node, two: Node, store: DistantStore
) -> None:
    registered = await one.register(BOX, FIRST)
    registration = await one.registry.redeem_executor(BOX, registered.ticket)
    store.loses_answers = True

    with pytest.raises(StoreUnavailable):
        await one.registry.socket_opened(registration, "unknown", lambda _why: None)
    assert two.registry.online == 1
    store.loses_answers = False
    await one.registry.socket_closed(BOX, "unknown")

    assert two.registry.online == 0


async def test_a_write_that_takes_effect_after_its_socket_was_given_up_is_undone(
    one: Node, two: Node, store: DistantStore
) -> None:
    _, address = await one.online(BOX, FIRST)
    stored = await store.environment(BOX)
    assert stored is not None
    await one.registry.socket_closed(BOX, address)
    assert two.registry.online == 0

    after = await store.environment(BOX)
    assert after is not None
    await store.save(stored.record, after.revision)  # what was on its way all the time
    assert two.registry.online == 1
    await one.registry.settle()

    assert two.registry.online == 0


async def test_a_token_ends_the_sockets_of_a_relay_that_cannot_reach_the_store(
    fleet: Fleet, one: Node, two: Node, store: DistantStore
) -> None:
    _, address = await one.online(BOX, FIRST, "t1")
    store.fault = "no quorum"
    fleet.revoked.add("t1")

    one.registry.revoked({"t1"})
    await one.registry.socket_closed(BOX, address)
    await one.registry.settle()

    assert one.ended == {address: "revoked"}
    store.fault = ""
    await one.registry.settle()
    assert two.registry.environments() == []


async def test_sweeping_goes_on_where_it_had_to_stop(one: Node, store: DistantStore, clock: Clock) -> None:
    await one.register(BOX, FIRST)
    await one.register("other", FIRST)
    clock.now += EXECUTOR_TICKET_SECONDS
    store.fault = "no quorum"
    await one.registry.sweep()
    assert len(one.registry.environments()) == 2

    store.fault = ""
    await one.registry.sweep()

    assert one.registry.environments() == []


# -- news that come late


async def test_old_news_end_no_new_socket(one: Node, two: Node, store: DistantStore) -> None:
    registered = await one.register(BOX, FIRST)
    stored = await store.environment(BOX)
    assert stored is not None
    store.delayed = {}
    address = await one.dial(BOX, registered.ticket)

    store.delayed[BOX] = stored.record  # as it was before the socket
    store.deliver()
    await one.registry.settle()

    assert one.ended == {}
    assert await connected_to(two) == address


async def test_a_socket_that_was_replaced_before_any_news_of_it_came_is_ended(
    one: Node, two: Node, store: DistantStore
) -> None:
    registered = await one.register(BOX, FIRST)
    store.delayed = {}
    older = await one.dial(BOX, registered.ticket)
    newer = await two.dial(BOX, registered.ticket)

    store.deliver()  # of the newest record only
    await one.registry.settle()

    assert one.ended == {older: "redialed"}
    await two.registry.settle()
    assert two.ended == {}
    assert await connected_to(one) == newer


async def test_a_socket_that_was_replaced_before_the_answer_of_the_store_came_is_ended(
    one: Node, two: Node, store: DistantStore
) -> None:
    registered = await one.register(BOX, FIRST)
    store.delayed, answer = {}, asyncio.Event()
    store.answer = answer
    dialing = asyncio.create_task(one.dial(BOX, registered.ticket))
    while two.registry.online == 0:
        await asyncio.sleep(0)
    store.answer = None
    newer = await two.dial(BOX, registered.ticket)
    store.deliver()  # of the newest record only

    answer.set()
    older = await dialing
    await one.registry.settle()

    assert one.ended == {older: "redialed"}
    assert await connected_to(one) == newer

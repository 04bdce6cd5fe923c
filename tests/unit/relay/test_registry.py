"""The registry: registrations of environments, tickets and authorizations. Time is a number here."""

from __future__ import annotations

from collections.abc import Set

import pytest

from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.environment_records import SocketEnd
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.registry import (
    DIAL_SECONDS,
    EXECUTOR_TICKET_SECONDS,
    HARNESS_TICKET_SECONDS,
    MAX_OUTSTANDING,
    ConnectResult,
    EnvironmentTaken,
    ExecutorOffline,
    RegisterResult,
    RelayRegistry,
    TicketRefused,
    TooManyTickets,
)
from execserver.relay.service.store import Registration

ENVIRONMENT, OTHER = "build-1", "build-2"


Ends = dict[str, SocketEnd]


def keys(seed: int) -> PublicKeys:
    return PublicKeys(bytes((seed,)) * 32, bytes((seed,)) * 1184)


FIRST, SECOND, HARNESS, THIEF = map(keys, range(4))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def revoked() -> set[str]:
    """Tokens that are not valid."""
    return set()


@pytest.fixture
def registry(clock: Clock, revoked: set[str]) -> RelayRegistry:
    return a_registry(clock, revoked)


def a_registry(clock: Clock, revoked: Set[str] = frozenset(), most: int = MAX_OUTSTANDING) -> RelayRegistry:
    return RelayRegistry(MemoryStore(), MemoryBus(), clock, lambda token: token not in revoked, most)


async def bring_online(
    registry: RelayRegistry, environment: str = ENVIRONMENT, key: PublicKeys = FIRST
) -> RegisterResult:
    registered = await registry.register(environment, key, f"executor-{environment}")
    await opened(registry, await registry.redeem_executor(environment, registered.ticket))
    return registered


async def opened(
    registry: RelayRegistry, registration: Registration, address: str = "", ends: Ends | None = None
) -> None:
    """Open a socket, by default at an address of its registration; `ends` takes why it has to be closed."""
    place = address or registration.id
    known = ends if ends is not None else {}
    await registry.socket_opened(registration, place, lambda why: known.update({place: why}))


async def closed(registry: RelayRegistry, registration: Registration, address: str = "") -> None:
    await registry.socket_closed(registration.environment_id, address or registration.id)


def asked(granted: ConnectResult, key: PublicKeys = HARNESS) -> ValidateRequest:
    return ValidateRequest(granted.registration.id, key, granted.authorization)


async def refusal(
    registry: RelayRegistry, environment: str, ticket: str, *, role: str = "harness"
) -> tuple[int, str]:
    redeem = registry.redeem_harness if role == "harness" else registry.redeem_executor
    with pytest.raises(TicketRefused) as refused:
        await redeem(environment, ticket)
    return refused.value.status, refused.value.reason


# -- the place of an executor


async def test_an_executor_registers_dials_and_is_online(registry: RelayRegistry) -> None:
    registered = await registry.register(ENVIRONMENT, FIRST, "t1")
    assert registry.online == 0

    registration = await registry.redeem_executor(ENVIRONMENT, registered.ticket)
    await opened(registry, registration)

    assert registration == registered.registration
    assert registry.online == 1
    assert registration.id
    assert registered.ticket not in repr(registration)


@pytest.mark.statement("R4")
async def test_an_incumbent_with_a_live_socket_keeps_its_place(registry: RelayRegistry, clock: Clock) -> None:
    await bring_online(registry)
    clock.now += 10 * EXECUTOR_TICKET_SECONDS

    with pytest.raises(EnvironmentTaken, match=ENVIRONMENT):
        await registry.register(ENVIRONMENT, SECOND, "t2")

    assert (await registry.connect(ENVIRONMENT, HARNESS, "c")).registration.key == FIRST


async def test_a_standby_gets_the_place_as_soon_as_the_incumbent_lost_its_socket(
    registry: RelayRegistry,
) -> None:
    first = await bring_online(registry)
    await closed(registry, first.registration)

    await bring_online(registry, key=SECOND)

    assert (await registry.connect(ENVIRONMENT, HARNESS, "c")).registration.key == SECOND
    assert await refusal(registry, ENVIRONMENT, first.ticket, role="executor") == (410, "unknown_route")


async def test_a_newcomer_that_still_dials_is_not_evicted_by_the_next_one(
    registry: RelayRegistry, clock: Clock
) -> None:
    await registry.register(ENVIRONMENT, FIRST, "t1")
    clock.now += DIAL_SECONDS - 0.1
    with pytest.raises(EnvironmentTaken):
        await registry.register(ENVIRONMENT, SECOND, "t2")

    clock.now += 0.2
    await registry.register(ENVIRONMENT, SECOND, "t2")


async def test_two_newcomers_do_not_evict_each_other_for_ever(registry: RelayRegistry) -> None:
    winner = await registry.register(ENVIRONMENT, FIRST, "t1")
    for _ in range(3):
        with pytest.raises(EnvironmentTaken):
            await registry.register(ENVIRONMENT, SECOND, "t2")

    await opened(registry, await registry.redeem_executor(ENVIRONMENT, winner.ticket))
    with pytest.raises(EnvironmentTaken):
        await registry.register(ENVIRONMENT, SECOND, "t2")


@pytest.mark.statement("R4")
async def test_the_same_key_always_gets_in_and_its_older_socket_goes_when_the_new_one_comes(
    registry: RelayRegistry,
) -> None:
    ends: Ends = {}
    older = await registry.register(ENVIRONMENT, FIRST, "t1")
    await opened(registry, older.registration, ends=ends)

    newer = await registry.register(ENVIRONMENT, FIRST, "t1")
    # Until the new socket is there, the older one serves.
    assert (await registry.connect(ENVIRONMENT, HARNESS, "c")).registration.id == older.registration.id
    assert await refusal(registry, ENVIRONMENT, older.ticket, role="executor") == (410, "unknown_route")

    await opened(registry, await registry.redeem_executor(ENVIRONMENT, newer.ticket))
    assert ends == {older.registration.id: "replaced"}
    await closed(registry, older.registration)
    assert (await registry.connect(ENVIRONMENT, HARNESS, "c")).registration.id == newer.registration.id


async def test_the_older_socket_of_a_key_that_never_dials_again_keeps_the_place(
    registry: RelayRegistry, clock: Clock
) -> None:
    older = await bring_online(registry)
    await registry.register(ENVIRONMENT, FIRST, "t1")
    await registry.register(ENVIRONMENT, FIRST, "t1")
    clock.now += 2 * DIAL_SECONDS

    with pytest.raises(EnvironmentTaken):
        await registry.register(ENVIRONMENT, SECOND, "t2")
    await closed(registry, older.registration)
    assert registry.token_ids() == {"t1"}  # nothing rests on the older one's any more
    await registry.register(ENVIRONMENT, SECOND, "t2")


async def test_a_second_socket_of_a_registration_keeps_it_online_when_the_first_ends(
    registry: RelayRegistry,
) -> None:
    ends: Ends = {}
    registered = await registry.register(ENVIRONMENT, FIRST, "t1")
    await opened(registry, registered.registration, "first", ends)
    registration = await registry.redeem_executor(ENVIRONMENT, registered.ticket)
    await opened(registry, registration, "second", ends)
    assert ends == {"first": "redialed"}

    await closed(registry, registration, "first")
    assert registry.online == 1
    await closed(registry, registration, "second")
    await closed(registry, registration, "second")
    assert registry.online == 0


async def test_a_place_taken_between_ticket_and_socket_is_not_taken_back(
    registry: RelayRegistry, clock: Clock
) -> None:
    slow = await registry.register(ENVIRONMENT, FIRST, "t1")
    registration = await registry.redeem_executor(ENVIRONMENT, slow.ticket)
    clock.now += DIAL_SECONDS
    await bring_online(registry, key=SECOND)

    with pytest.raises(TicketRefused):
        await opened(registry, registration)
    await closed(registry, registration)

    assert (await registry.connect(ENVIRONMENT, HARNESS, "c")).registration.key == SECOND


# -- an executor's ticket


@pytest.mark.statement("R6")
async def test_an_executor_redials_its_url_for_an_hour(registry: RelayRegistry, clock: Clock) -> None:
    registered = await bring_online(registry)
    clock.now += EXECUTOR_TICKET_SECONDS - 1
    again = await registry.redeem_executor(ENVIRONMENT, registered.ticket)
    assert again.id == registered.registration.id

    clock.now += 1
    assert await refusal(registry, ENVIRONMENT, registered.ticket, role="executor") == (410, "expired")
    assert registry.online == 1  # the socket that is there stays


async def test_an_unknown_executor_ticket_is_410_so_that_a_forgetful_relay_heals(
    registry: RelayRegistry,
) -> None:
    assert await refusal(registry, "never-seen", "x", role="executor") == (410, "unknown_route")
    await bring_online(registry)
    assert await refusal(registry, ENVIRONMENT, "", role="executor") == (410, "unknown_route")
    assert await refusal(registry, ENVIRONMENT, "no\udcffticket", role="executor") == (410, "unknown_route")


# -- tickets and authorizations of harnesses


async def test_a_harness_gets_a_ticket_is_admitted_and_validated_once(registry: RelayRegistry) -> None:
    executor = (await bring_online(registry)).registration
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c1")

    harness = await registry.redeem_harness(ENVIRONMENT, granted.ticket)
    assert (harness.registration.id, harness.token_id) == (executor.id, "c1")
    assert await registry.validate(ENVIRONMENT, asked(granted))

    assert await refusal(registry, ENVIRONMENT, granted.ticket) == (401, "unknown_route")
    assert not await registry.validate(ENVIRONMENT, asked(granted))


async def test_without_an_executor_there_is_no_ticket(registry: RelayRegistry) -> None:
    with pytest.raises(ExecutorOffline, match="never-seen"):
        await registry.connect("never-seen", HARNESS, "c")
    registered = await registry.register(ENVIRONMENT, FIRST, "t")
    with pytest.raises(ExecutorOffline):  # it has not dialed
        await registry.connect(ENVIRONMENT, HARNESS, "c")
    await opened(registry, registered.registration)
    await closed(registry, registered.registration)
    with pytest.raises(ExecutorOffline):
        await registry.connect(ENVIRONMENT, HARNESS, "c")


@pytest.mark.statement("R6", "R7")
async def test_a_ticket_expires_after_a_minute(registry: RelayRegistry, clock: Clock) -> None:
    await bring_online(registry)
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c")
    clock.now += HARNESS_TICKET_SECONDS

    assert await refusal(registry, ENVIRONMENT, granted.ticket) == (410, "expired")
    assert not await registry.validate(ENVIRONMENT, asked(granted))


async def test_a_ticket_leads_nowhere_once_its_executor_is_gone(registry: RelayRegistry) -> None:
    registered = await bring_online(registry)
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c")
    await closed(registry, registered.registration)
    await bring_online(registry, key=SECOND)

    assert await refusal(registry, ENVIRONMENT, granted.ticket) == (410, "route_unavailable")
    assert not await registry.validate(ENVIRONMENT, asked(granted))


@pytest.mark.statement("R7")
async def test_an_authorization_is_bound_to_the_harness_key_and_survives_a_thief_who_shows_it(
    registry: RelayRegistry,
) -> None:
    await bring_online(registry)
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c")

    assert not await registry.validate(ENVIRONMENT, asked(granted, THIEF))
    assert await registry.validate(ENVIRONMENT, asked(granted))


@pytest.mark.statement("R7", "R8")
async def test_an_authorization_is_bound_to_the_registration(registry: RelayRegistry) -> None:
    await bring_online(registry)
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c")
    request = ValidateRequest("another", HARNESS, granted.authorization)

    assert not await registry.validate(ENVIRONMENT, request)
    assert await registry.validate(ENVIRONMENT, asked(granted))


async def test_a_ticket_is_no_authorization_and_the_other_way_round(registry: RelayRegistry) -> None:
    executor = await bring_online(registry)
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c")

    swapped = ValidateRequest(executor.registration.id, HARNESS, granted.ticket)
    assert not await registry.validate(ENVIRONMENT, swapped)
    assert await refusal(registry, ENVIRONMENT, granted.authorization) == (401, "unknown_route")
    assert await refusal(registry, ENVIRONMENT, executor.ticket) == (401, "unknown_route")
    assert await refusal(registry, ENVIRONMENT, granted.ticket, role="executor") == (410, "unknown_route")


async def test_unused_tickets_are_limited_and_expired_ones_make_room(clock: Clock) -> None:
    registry = a_registry(clock, most=2)
    await bring_online(registry)
    await bring_online(registry, OTHER)
    used = await registry.connect(ENVIRONMENT, HARNESS, "c")
    await registry.connect(ENVIRONMENT, HARNESS, "c")

    with pytest.raises(TooManyTickets, match="2 tickets"):
        await registry.connect(ENVIRONMENT, HARNESS, "c")
    await registry.connect(OTHER, HARNESS, "c")  # has its own room

    await registry.redeem_harness(ENVIRONMENT, used.ticket)
    with pytest.raises(TooManyTickets):  # its authorization still waits
        await registry.connect(ENVIRONMENT, HARNESS, "c")
    assert await registry.validate(ENVIRONMENT, asked(used))
    await registry.connect(ENVIRONMENT, HARNESS, "c")
    clock.now += HARNESS_TICKET_SECONDS
    await registry.connect(ENVIRONMENT, HARNESS, "c")
    await registry.connect(ENVIRONMENT, HARNESS, "c")


# -- two tenants


@pytest.mark.statement("R8")
async def test_what_one_environment_hands_out_is_worth_nothing_in_another(registry: RelayRegistry) -> None:
    here, there = await bring_online(registry), await bring_online(registry, OTHER, SECOND)
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c")

    assert await refusal(registry, OTHER, granted.ticket) == (401, "unknown_route")
    assert await refusal(registry, OTHER, here.ticket, role="executor") == (410, "unknown_route")
    assert not await registry.validate(OTHER, asked(granted))
    foreign = ValidateRequest(there.registration.id, HARNESS, granted.authorization)
    assert not await registry.validate(OTHER, foreign)
    assert not await registry.validate(ENVIRONMENT, foreign)

    assert (
        await registry.redeem_harness(ENVIRONMENT, granted.ticket)
    ).registration.id == here.registration.id
    assert await registry.validate(ENVIRONMENT, asked(granted))


async def test_the_same_key_in_two_environments_makes_two_places(registry: RelayRegistry) -> None:
    here, there = await bring_online(registry), await bring_online(registry, OTHER)

    await closed(registry, here.registration)

    assert (await registry.connect(OTHER, HARNESS, "c")).registration.id == there.registration.id
    with pytest.raises(ExecutorOffline):
        await registry.connect(ENVIRONMENT, HARNESS, "c")


# -- tokens that end


async def test_the_end_of_an_executors_token_ends_its_registration_and_no_other(
    registry: RelayRegistry, revoked: set[str]
) -> None:
    ends: Ends = {}
    gone = await registry.register(ENVIRONMENT, FIRST, "t1")
    await opened(registry, gone.registration, ends=ends)
    stays = await bring_online(registry, OTHER)

    revoked.add("t1")
    assert registry.revoked(revoked) == ()
    assert ends == {gone.registration.id: "revoked"}
    await registry.settle()

    assert await refusal(registry, ENVIRONMENT, gone.ticket, role="executor") == (410, "unknown_route")
    await closed(registry, gone.registration)  # as its socket was closed
    assert registry.token_ids() == {stays.registration.token_id}
    with pytest.raises(ExecutorOffline):
        await registry.connect(ENVIRONMENT, HARNESS, "c")
    assert (await registry.connect(OTHER, HARNESS, "c")).registration.id == stays.registration.id


async def test_the_end_of_a_clients_token_takes_its_sockets_and_what_it_did_not_use_yet(
    registry: RelayRegistry, revoked: set[str]
) -> None:
    await bring_online(registry)
    inside = await registry.redeem_harness(
        ENVIRONMENT, (await registry.connect(ENVIRONMENT, HARNESS, "c1")).ticket
    )
    other = await registry.redeem_harness(
        ENVIRONMENT, (await registry.connect(ENVIRONMENT, HARNESS, "c2")).ticket
    )
    unused = await registry.connect(ENVIRONMENT, HARNESS, "c1")
    assert registry.token_ids() >= {"c1", "c2", f"executor-{ENVIRONMENT}"}

    revoked.add("c1")
    assert registry.revoked({"c1"}) == (inside,)

    assert (registry.admits(inside), registry.admits(other)) == (False, True)
    assert await refusal(registry, ENVIRONMENT, unused.ticket) == (401, "unknown_route")
    assert not await registry.validate(ENVIRONMENT, asked(unused))
    assert "c1" not in registry.token_ids()
    assert registry.revoked({"c2"}) == (other,)


async def test_an_older_socket_under_another_token_keeps_the_place(
    registry: RelayRegistry, revoked: set[str]
) -> None:
    older = await registry.register(ENVIRONMENT, FIRST, "t1")
    await opened(registry, older.registration)
    newer = await registry.register(ENVIRONMENT, FIRST, "t2")

    revoked.add("t2")
    registry.revoked(revoked)
    await registry.settle()

    assert await refusal(registry, ENVIRONMENT, newer.ticket, role="executor") == (410, "unknown_route")
    assert (await registry.connect(ENVIRONMENT, HARNESS, "c")).registration.id == older.registration.id


async def test_a_harness_whose_socket_ended_is_not_named_any_more(registry: RelayRegistry) -> None:
    await bring_online(registry)
    harness = await registry.redeem_harness(
        ENVIRONMENT, (await registry.connect(ENVIRONMENT, HARNESS, "c1")).ticket
    )
    registry.harness_closed(harness)
    registry.harness_closed(harness)

    assert registry.revoked({"c1"}) == ()


# -- sweeping and listing


async def test_sweeping_forgets_only_what_expired(registry: RelayRegistry, clock: Clock) -> None:
    online = await bring_online(registry)
    await registry.register(OTHER, SECOND, "t2")
    granted = await registry.connect(ENVIRONMENT, HARNESS, "c1")

    clock.now += HARNESS_TICKET_SECONDS + 1
    await registry.sweep()
    assert await refusal(registry, ENVIRONMENT, granted.ticket) == (410, "expired")
    late = await registry.connect(ENVIRONMENT, HARNESS, "c2")
    clock.now += 2 * HARNESS_TICKET_SECONDS
    await registry.sweep()
    assert await refusal(registry, ENVIRONMENT, late.ticket) == (401, "unknown_route")
    assert {each.environment_id for each in registry.environments()} == {ENVIRONMENT, OTHER}

    clock.now += EXECUTOR_TICKET_SECONDS
    await registry.sweep()
    assert [each.environment_id for each in registry.environments()] == [ENVIRONMENT]
    assert registry.token_ids() == {online.registration.token_id}


async def test_environments_are_listed_with_their_state_and_since_when(
    registry: RelayRegistry, clock: Clock
) -> None:
    await registry.register(OTHER, SECOND, "t2")
    registered = await bring_online(registry)
    clock.now += 7

    here, there = registry.environments()

    assert here[:5] == (ENVIRONMENT, registered.registration.id, FIRST.fingerprint, True, 7.0)
    assert (there.environment_id, there.online, there.seconds) == (OTHER, False, 7.0)
    await closed(registry, registered.registration)
    clock.now += 2
    assert registry.environments()[0][3:6] == (False, 2.0, None)

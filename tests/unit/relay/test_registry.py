"""The registry: registrations of environments, tickets and authorizations. Time is a number here."""

from __future__ import annotations

import pytest

from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.registry import (
    DIAL_SECONDS,
    EXECUTOR_TICKET_SECONDS,
    HARNESS_TICKET_SECONDS,
    ConnectResult,
    EnvironmentTaken,
    ExecutorOffline,
    RegisterResult,
    RelayRegistry,
    TicketRefused,
    TooManyTickets,
)

ENVIRONMENT, OTHER = "build-1", "build-2"


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
def registry(clock: Clock) -> RelayRegistry:
    return RelayRegistry(clock)


def bring_online(
    registry: RelayRegistry, environment: str = ENVIRONMENT, key: PublicKeys = FIRST
) -> RegisterResult:
    registered = registry.register(environment, key, f"executor-{environment}")
    registry.socket_opened(registry.redeem_executor(environment, registered.ticket))
    return registered


def asked(granted: ConnectResult, key: PublicKeys = HARNESS) -> ValidateRequest:
    return ValidateRequest(granted.registration.id, key, granted.authorization)


def refusal(
    registry: RelayRegistry, environment: str, ticket: str, *, role: str = "harness"
) -> tuple[int, str]:
    redeem = registry.redeem_harness if role == "harness" else registry.redeem_executor
    with pytest.raises(TicketRefused) as refused:
        redeem(environment, ticket)
    return refused.value.status, refused.value.reason


# -- the place of an executor


def test_an_executor_registers_dials_and_is_online(registry: RelayRegistry) -> None:
    registered = registry.register(ENVIRONMENT, FIRST, "t1")
    assert registry.online == 0

    registration = registry.redeem_executor(ENVIRONMENT, registered.ticket)
    assert registry.socket_opened(registration) == ()

    assert registration is registered.registration
    assert registry.online == 1
    assert registration.id
    assert registered.ticket not in repr(registration)


@pytest.mark.statement("R4")
def test_an_incumbent_with_a_live_socket_keeps_its_place(registry: RelayRegistry, clock: Clock) -> None:
    bring_online(registry)
    clock.now += 10 * EXECUTOR_TICKET_SECONDS

    with pytest.raises(EnvironmentTaken, match=ENVIRONMENT):
        registry.register(ENVIRONMENT, SECOND, "t2")

    assert registry.connect(ENVIRONMENT, HARNESS, "c").registration.key == FIRST


def test_a_standby_gets_the_place_as_soon_as_the_incumbent_lost_its_socket(registry: RelayRegistry) -> None:
    first = bring_online(registry)
    registry.socket_closed(first.registration)

    bring_online(registry, key=SECOND)

    assert registry.connect(ENVIRONMENT, HARNESS, "c").registration.key == SECOND
    assert refusal(registry, ENVIRONMENT, first.ticket, role="executor") == (410, "unknown_route")


def test_a_newcomer_that_still_dials_is_not_evicted_by_the_next_one(
    registry: RelayRegistry, clock: Clock
) -> None:
    registry.register(ENVIRONMENT, FIRST, "t1")
    clock.now += DIAL_SECONDS - 0.1
    with pytest.raises(EnvironmentTaken):
        registry.register(ENVIRONMENT, SECOND, "t2")

    clock.now += 0.2
    registry.register(ENVIRONMENT, SECOND, "t2")


def test_two_newcomers_do_not_evict_each_other_for_ever(registry: RelayRegistry) -> None:
    winner = registry.register(ENVIRONMENT, FIRST, "t1")
    for _ in range(3):
        with pytest.raises(EnvironmentTaken):
            registry.register(ENVIRONMENT, SECOND, "t2")

    registry.socket_opened(registry.redeem_executor(ENVIRONMENT, winner.ticket))
    with pytest.raises(EnvironmentTaken):
        registry.register(ENVIRONMENT, SECOND, "t2")


@pytest.mark.statement("R4")
def test_the_same_key_always_gets_in_and_its_older_socket_goes_when_the_new_one_comes(
    registry: RelayRegistry,
) -> None:
    older = bring_online(registry)

    newer = registry.register(ENVIRONMENT, FIRST, "t1")
    # Until the new socket is there, the older one serves.
    assert registry.connect(ENVIRONMENT, HARNESS, "c").registration is older.registration
    assert refusal(registry, ENVIRONMENT, older.ticket, role="executor") == (410, "unknown_route")

    replaced = registry.socket_opened(registry.redeem_executor(ENVIRONMENT, newer.ticket))
    assert replaced == (older.registration,)
    registry.socket_closed(older.registration)
    assert registry.connect(ENVIRONMENT, HARNESS, "c").registration is newer.registration


def test_the_older_socket_of_a_key_that_never_dials_again_keeps_the_place(
    registry: RelayRegistry, clock: Clock
) -> None:
    older = bring_online(registry)
    registry.register(ENVIRONMENT, FIRST, "t1")
    registry.register(ENVIRONMENT, FIRST, "t1")
    clock.now += 2 * DIAL_SECONDS

    with pytest.raises(EnvironmentTaken):
        registry.register(ENVIRONMENT, SECOND, "t2")
    registry.socket_closed(older.registration)
    assert registry.token_ids() == {"t1"}  # nothing rests on the older one's any more
    registry.register(ENVIRONMENT, SECOND, "t2")


def test_a_second_socket_of_a_registration_keeps_it_online_when_the_first_ends(
    registry: RelayRegistry,
) -> None:
    registered = bring_online(registry)
    registration = registry.redeem_executor(ENVIRONMENT, registered.ticket)
    assert registry.socket_opened(registration) == ()

    registry.socket_closed(registration)
    assert registry.online == 1
    registry.socket_closed(registration)
    assert registry.online == 0


def test_a_place_taken_between_ticket_and_socket_is_not_taken_back(
    registry: RelayRegistry, clock: Clock
) -> None:
    slow = registry.register(ENVIRONMENT, FIRST, "t1")
    registration = registry.redeem_executor(ENVIRONMENT, slow.ticket)
    clock.now += DIAL_SECONDS
    bring_online(registry, key=SECOND)

    with pytest.raises(TicketRefused):
        registry.socket_opened(registration)

    assert not registration.connected
    assert registry.connect(ENVIRONMENT, HARNESS, "c").registration.key == SECOND


# -- an executor's ticket


@pytest.mark.statement("R6")
def test_an_executor_redials_its_url_for_an_hour(registry: RelayRegistry, clock: Clock) -> None:
    registered = bring_online(registry)
    clock.now += EXECUTOR_TICKET_SECONDS - 1
    assert registry.redeem_executor(ENVIRONMENT, registered.ticket) is registered.registration

    clock.now += 1
    assert refusal(registry, ENVIRONMENT, registered.ticket, role="executor") == (410, "expired")
    assert registry.online == 1  # the socket that is there stays


def test_an_unknown_executor_ticket_is_410_so_that_a_forgetful_relay_heals(registry: RelayRegistry) -> None:
    assert refusal(registry, "never-seen", "x", role="executor") == (410, "unknown_route")
    bring_online(registry)
    assert refusal(registry, ENVIRONMENT, "", role="executor") == (410, "unknown_route")
    assert refusal(registry, ENVIRONMENT, "no\udcffticket", role="executor") == (410, "unknown_route")


# -- tickets and authorizations of harnesses


def test_a_harness_gets_a_ticket_is_admitted_and_validated_once(registry: RelayRegistry) -> None:
    executor = bring_online(registry).registration
    granted = registry.connect(ENVIRONMENT, HARNESS, "c1")

    harness = registry.redeem_harness(ENVIRONMENT, granted.ticket)
    assert (harness.registration, harness.token_id) == (executor, "c1")
    assert registry.validate(ENVIRONMENT, asked(granted))

    assert refusal(registry, ENVIRONMENT, granted.ticket) == (401, "unknown_route")
    assert not registry.validate(ENVIRONMENT, asked(granted))


def test_without_an_executor_there_is_no_ticket(registry: RelayRegistry) -> None:
    with pytest.raises(ExecutorOffline, match="never-seen"):
        registry.connect("never-seen", HARNESS, "c")
    registered = registry.register(ENVIRONMENT, FIRST, "t")
    with pytest.raises(ExecutorOffline):  # it has not dialed
        registry.connect(ENVIRONMENT, HARNESS, "c")
    registry.socket_opened(registered.registration)
    registry.socket_closed(registered.registration)
    with pytest.raises(ExecutorOffline):
        registry.connect(ENVIRONMENT, HARNESS, "c")


@pytest.mark.statement("R6", "R7")
def test_a_ticket_expires_after_a_minute(registry: RelayRegistry, clock: Clock) -> None:
    bring_online(registry)
    granted = registry.connect(ENVIRONMENT, HARNESS, "c")
    clock.now += HARNESS_TICKET_SECONDS

    assert refusal(registry, ENVIRONMENT, granted.ticket) == (410, "expired")
    assert not registry.validate(ENVIRONMENT, asked(granted))


def test_a_ticket_leads_nowhere_once_its_executor_is_gone(registry: RelayRegistry) -> None:
    registered = bring_online(registry)
    granted = registry.connect(ENVIRONMENT, HARNESS, "c")
    registry.socket_closed(registered.registration)
    bring_online(registry, key=SECOND)

    assert refusal(registry, ENVIRONMENT, granted.ticket) == (410, "route_unavailable")
    assert not registry.validate(ENVIRONMENT, asked(granted))


@pytest.mark.statement("R7")
def test_an_authorization_is_bound_to_the_harness_key_and_survives_a_thief_who_shows_it(
    registry: RelayRegistry,
) -> None:
    bring_online(registry)
    granted = registry.connect(ENVIRONMENT, HARNESS, "c")

    assert not registry.validate(ENVIRONMENT, asked(granted, THIEF))
    assert registry.validate(ENVIRONMENT, asked(granted))


@pytest.mark.statement("R7", "R8")
def test_an_authorization_is_bound_to_the_registration(registry: RelayRegistry) -> None:
    bring_online(registry)
    granted = registry.connect(ENVIRONMENT, HARNESS, "c")
    request = ValidateRequest("another", HARNESS, granted.authorization)

    assert not registry.validate(ENVIRONMENT, request)
    assert registry.validate(ENVIRONMENT, asked(granted))


def test_a_ticket_is_no_authorization_and_the_other_way_round(registry: RelayRegistry) -> None:
    executor = bring_online(registry)
    granted = registry.connect(ENVIRONMENT, HARNESS, "c")

    swapped = ValidateRequest(executor.registration.id, HARNESS, granted.ticket)
    assert not registry.validate(ENVIRONMENT, swapped)
    assert refusal(registry, ENVIRONMENT, granted.authorization) == (401, "unknown_route")
    assert refusal(registry, ENVIRONMENT, executor.ticket) == (401, "unknown_route")
    assert refusal(registry, ENVIRONMENT, granted.ticket, role="executor") == (410, "unknown_route")


def test_unused_tickets_are_limited_and_expired_ones_make_room(clock: Clock) -> None:
    registry = RelayRegistry(clock, most=2)
    bring_online(registry)
    bring_online(registry, OTHER)
    used = registry.connect(ENVIRONMENT, HARNESS, "c")
    registry.connect(ENVIRONMENT, HARNESS, "c")

    with pytest.raises(TooManyTickets, match="2 tickets"):
        registry.connect(ENVIRONMENT, HARNESS, "c")
    registry.connect(OTHER, HARNESS, "c")  # has its own room

    registry.redeem_harness(ENVIRONMENT, used.ticket)
    with pytest.raises(TooManyTickets):  # its authorization still waits
        registry.connect(ENVIRONMENT, HARNESS, "c")
    assert registry.validate(ENVIRONMENT, asked(used))
    registry.connect(ENVIRONMENT, HARNESS, "c")
    clock.now += HARNESS_TICKET_SECONDS
    registry.connect(ENVIRONMENT, HARNESS, "c")
    registry.connect(ENVIRONMENT, HARNESS, "c")


# -- two tenants


@pytest.mark.statement("R8")
def test_what_one_environment_hands_out_is_worth_nothing_in_another(registry: RelayRegistry) -> None:
    here, there = bring_online(registry), bring_online(registry, OTHER, SECOND)
    granted = registry.connect(ENVIRONMENT, HARNESS, "c")

    assert refusal(registry, OTHER, granted.ticket) == (401, "unknown_route")
    assert refusal(registry, OTHER, here.ticket, role="executor") == (410, "unknown_route")
    assert not registry.validate(OTHER, asked(granted))
    foreign = ValidateRequest(there.registration.id, HARNESS, granted.authorization)
    assert not registry.validate(OTHER, foreign)
    assert not registry.validate(ENVIRONMENT, foreign)

    assert registry.redeem_harness(ENVIRONMENT, granted.ticket).registration is here.registration
    assert registry.validate(ENVIRONMENT, asked(granted))


def test_the_same_key_in_two_environments_makes_two_places(registry: RelayRegistry) -> None:
    here, there = bring_online(registry), bring_online(registry, OTHER)

    registry.socket_closed(here.registration)

    assert registry.connect(OTHER, HARNESS, "c").registration is there.registration
    with pytest.raises(ExecutorOffline):
        registry.connect(ENVIRONMENT, HARNESS, "c")


# -- tokens that end


def test_the_end_of_an_executors_token_ends_its_registration_and_no_other(
    registry: RelayRegistry,
) -> None:
    gone = bring_online(registry)
    stays = bring_online(registry, OTHER)

    revoked = registry.revoked({gone.registration.token_id})

    assert revoked.registrations == (gone.registration,)
    assert refusal(registry, ENVIRONMENT, gone.ticket, role="executor") == (410, "unknown_route")
    registry.socket_closed(gone.registration)  # as its socket is ended
    with pytest.raises(ExecutorOffline):
        registry.connect(ENVIRONMENT, HARNESS, "c")
    assert registry.connect(OTHER, HARNESS, "c").registration is stays.registration


def test_the_end_of_a_clients_token_takes_its_sockets_and_what_it_did_not_use_yet(
    registry: RelayRegistry,
) -> None:
    bring_online(registry)
    inside = registry.redeem_harness(ENVIRONMENT, registry.connect(ENVIRONMENT, HARNESS, "c1").ticket)
    other = registry.redeem_harness(ENVIRONMENT, registry.connect(ENVIRONMENT, HARNESS, "c2").ticket)
    unused = registry.connect(ENVIRONMENT, HARNESS, "c1")
    assert registry.token_ids() >= {"c1", "c2", f"executor-{ENVIRONMENT}"}

    revoked = registry.revoked({"c1"})

    assert revoked == ((), (inside,))
    assert (registry.admits(inside), registry.admits(other)) == (False, True)
    assert refusal(registry, ENVIRONMENT, unused.ticket) == (401, "unknown_route")
    assert not registry.validate(ENVIRONMENT, asked(unused))
    assert "c1" not in registry.token_ids()
    assert registry.revoked({"c2"}).harnesses == (other,)


def test_an_older_socket_under_another_token_keeps_the_place(registry: RelayRegistry) -> None:
    older = registry.register(ENVIRONMENT, FIRST, "t1")
    registry.socket_opened(older.registration)
    newer = registry.register(ENVIRONMENT, FIRST, "t2")

    assert registry.revoked({"t2"}).registrations == (newer.registration,)

    assert registry.connect(ENVIRONMENT, HARNESS, "c").registration is older.registration


def test_a_harness_whose_socket_ended_is_not_named_any_more(registry: RelayRegistry) -> None:
    bring_online(registry)
    harness = registry.redeem_harness(ENVIRONMENT, registry.connect(ENVIRONMENT, HARNESS, "c1").ticket)
    registry.harness_closed(harness)
    registry.harness_closed(harness)

    assert registry.revoked({"c1"}).harnesses == ()


# -- sweeping and listing


def test_sweeping_forgets_only_what_expired(registry: RelayRegistry, clock: Clock) -> None:
    online = bring_online(registry)
    registry.register(OTHER, SECOND, "t2")
    granted = registry.connect(ENVIRONMENT, HARNESS, "c1")

    clock.now += HARNESS_TICKET_SECONDS + 1
    registry.sweep()
    assert refusal(registry, ENVIRONMENT, granted.ticket) == (410, "expired")
    late = registry.connect(ENVIRONMENT, HARNESS, "c2")
    clock.now += 2 * HARNESS_TICKET_SECONDS
    registry.sweep()
    assert refusal(registry, ENVIRONMENT, late.ticket) == (401, "unknown_route")
    assert {each.environment_id for each in registry.environments()} == {ENVIRONMENT, OTHER}

    clock.now += EXECUTOR_TICKET_SECONDS
    registry.sweep()
    assert [each.environment_id for each in registry.environments()] == [ENVIRONMENT]
    assert registry.token_ids() == {online.registration.token_id}


def test_environments_are_listed_with_their_state_and_since_when(
    registry: RelayRegistry, clock: Clock
) -> None:
    registry.register(OTHER, SECOND, "t2")
    registered = bring_online(registry)
    clock.now += 7

    here, there = registry.environments()

    assert here == (ENVIRONMENT, registered.registration.id, FIRST.fingerprint, True, 7.0)
    assert (there.environment_id, there.online, there.seconds) == (OTHER, False, 7.0)
    registry.socket_closed(registered.registration)
    clock.now += 2
    assert registry.environments()[0][3:] == (False, 2.0)

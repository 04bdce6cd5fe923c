"""The relay's metrics: their names, where their numbers come from, and the page."""

from __future__ import annotations

import re
from dataclasses import fields

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from execprotocol.relay.keys import KeyPair, PublicKeys
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.errors import Guard
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.pages import MetricsReader, metrics_page
from execserver.relay.service.registry import RelayRegistry
from execserver.relay.service.registry_http import PublicUrls, RegistryHttp
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from execserver.relay.service.store import (
    EnvironmentRecord,
    ExecutorSocket,
    ExecutorStatus,
    PoolMember,
    Registration,
)
from execserver.relay.service.token_file import TokenStore
from execserver.telemetry.definitions import DEFINITIONS
from execserver.telemetry.measures import RequestCounts
from execserver.telemetry.relay_definitions import RELAY_DEFINITIONS, RelayNumbers

KEY = PublicKeys(bytes(32), bytes(1184))


class NoTimer:
    def cancel(self) -> None: ...


class Relay:
    """The parts of a relay that have numbers."""

    def __init__(self) -> None:
        self.draining = False
        self.bus, self.store, self.guard = MemoryBus(), MemoryStore(), Guard()
        self.registry = RelayRegistry(self.store, self.bus, lambda: 0.0, lambda _token: True)
        self.rendezvous = Rendezvous(self.bus, lambda: 0.0, lambda _seconds, _call: NoTimer())
        tokens = TokenStore.__new__(TokenStore)  # no request is made
        self.registry_http = RegistryHttp(self.registry, tokens, PublicUrls("", "http", ""), self.is_draining)
        sockets = RendezvousHttp(self.registry, self.rendezvous, self.is_draining)
        self.metrics = MetricsReader(
            self.registry, self.registry_http, self.rendezvous, sockets, self.guard, self.is_draining
        )

    def is_draining(self) -> bool:
        return self.draining


def samples_of(page: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse_text(page.decode())
        for sample in family.samples
    }


def test_names_follow_the_conventions_and_are_those_of_no_daemon() -> None:
    names = [each.name for each in RELAY_DEFINITIONS]

    assert len({*names, *(each.name for each in DEFINITIONS)}) == len(names) + len(DEFINITIONS)
    for each in RELAY_DEFINITIONS:
        assert re.fullmatch(r"execserver_relay_[a-z]+(_[a-z]+)*", each.name)
        assert each.name.endswith("_total") == (each.kind == "counter"), each.name
        assert each.help.endswith(".")
        assert "|" not in each.help  # it stands in a table


def test_each_number_has_one_metric_with_a_label_where_there_are_several() -> None:
    members = {each.name: each for each in fields(RelayNumbers)}

    assert sorted(each.number for each in RELAY_DEFINITIONS) == sorted(members)
    for each in RELAY_DEFINITIONS:
        assert bool(each.labels) == ("dict" in str(members[each.number].type)), each.name


def test_the_page_shows_what_was_counted() -> None:
    numbers = RelayNumbers(streams=7, frames={"executor": 3, "client": 4}, refusals={"401": 2})

    plain, other = (
        metrics_page(numbers, ""),
        metrics_page(numbers, "application/openmetrics-text; version=1.0.0"),
    )

    found = samples_of(plain.body)
    assert found["execserver_relay_streams",] == 7
    assert found["execserver_relay_frames_total", "client"] == 4
    assert found["execserver_relay_refusals_total", "401"] == 2
    assert found["process_open_fds",] > 0
    names = {family.name for family in parse_openmetrics(other.body.decode())}  # type: ignore[no-untyped-call]
    assert {each.name.removesuffix("_total") for each in RELAY_DEFINITIONS} <= names


def test_the_page_of_a_fleet_has_histograms_and_pools() -> None:
    counts = RequestCounts()
    counts.add(0.003, 0)
    counts.add(0.3, 1)
    numbers = RelayNumbers(
        fleet_nodes=3,
        store_operations={"save": counts},
        store_errors={"save": 1},
        pool_executors={("gpu", "online"): 2, ("gpu", "draining"): 1},
    )

    found = samples_of(metrics_page(numbers, "").body)

    assert found["execserver_relay_fleet_nodes",] == 3
    assert found["execserver_relay_store_errors_total", "save"] == 1
    assert found["execserver_relay_store_duration_seconds_bucket", "0.005", "save"] == 1
    assert found["execserver_relay_store_duration_seconds_count", "save"] == 2
    assert found["execserver_relay_pool_executors", "gpu", "draining"] == 1


def test_a_relay_without_nats_shows_nothing_of_a_fleet() -> None:
    names = {name for name, *_ in samples_of(metrics_page(RelayNumbers(), "").body)}

    assert "execserver_relay_streams" in names
    words = ("fleet", "nats", "bus", "link", "store", "health", "pool")
    assert not [name for name in names if name.removeprefix("execserver_relay_").startswith(words)]


async def test_members_of_pools_are_counted_by_what_they_reported() -> None:
    relay = Relay()
    for number, (sessions, draining, is_connected) in enumerate(
        ((3, False, True), (1, True, True), (0, False, False))
    ):
        name = f"gpu--{number:016x}"
        socket = ExecutorSocket(relay.bus.node, name) if is_connected else None
        registration = Registration(name, f"r-{number}", KEY, "token", 0.0, b"", socket)
        member = PoolMember("gpu", capacity=4)
        await relay.store.save(EnvironmentRecord(name, registration, None, member), 0)
        await relay.store.report(name, ExecutorStatus(f"r-{number}", sessions, sessions, draining, 0.0))
    idle = f"cpu--{0:016x}"
    unlimited = EnvironmentRecord(
        idle, Registration(idle, "r", KEY, "token", 0.0, b""), None, PoolMember("cpu")
    )
    await relay.store.save(unlimited, 0)

    numbers = relay.metrics.numbers()

    assert numbers.pool_executors == {
        ("gpu", "online"): 1,
        ("gpu", "draining"): 1,
        ("cpu", "online"): 0,
        ("cpu", "draining"): 0,
    }
    assert numbers.pool_sessions == {"gpu": 4, "cpu": 0}
    assert numbers.pool_capacity == {"gpu": 4}


async def test_the_watcher_reads_every_number_where_it_is_counted() -> None:
    relay = Relay()
    registry, rendezvous, guard = relay.registry, relay.rendezvous, relay.guard
    registered = await registry.register("box", KeyPair.generate().public, "token")
    await registry.register("other", KeyPair.generate().public, "token")
    await registry.socket_opened(registered.registration, "e1", lambda _why: None)
    rendezvous.counters.bytes_down = 11
    rendezvous.counters.holds, rendezvous.counters.failed_holds = 5, 2
    relay.registry_http.outcomes["register", "conflict"] += 1
    guard.refusals["503"] += 1
    relay.draining = True

    numbers = relay.metrics.numbers()

    assert (numbers.environments, numbers.environments_online, numbers.draining) == (2, 1, 1)
    assert numbers.bytes == {"executor": 0, "client": 11}
    assert numbers.pauses == {"helped": 3, "failed": 2}
    assert numbers.registrations == {"accepted": 0, "conflict": 1}
    assert numbers.refusals == {"503": 1}
    assert numbers.largest_queue_bytes == {"executor": 0, "client": 0}

"""The table of a relay's metrics: name, help text, and the number of each.

A relay is a program of its own, so these are never on a daemon's page. No label holds text from a peer, but
for the names of pools, which the operator's tokens contain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from execserver.telemetry.exposition import MetricKind
from execserver.telemetry.measures import RequestCounts


@dataclass(slots=True)
class RelayNumbers:
    """All numbers of a relay at one moment. A dictionary has a number for each value of its label, or for
    each tuple of values of its labels. None: a relay without NATS does not have it.
    """

    uptime_seconds: float = 0
    draining: int = 0
    environments: int = 0
    environments_online: int = 0
    clients: int = 0
    streams: int = 0
    frames: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)
    queued_bytes: dict[str, int] = field(default_factory=dict)
    largest_queue_bytes: dict[str, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, int] = field(default_factory=dict)
    registrations: dict[str, int] = field(default_factory=dict)
    introductions: dict[str, int] = field(default_factory=dict)
    validations: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    # Of a fleet (`Fleet.add_numbers`).
    fleet_nodes: int | None = None
    nats_connected: int | None = None
    nats_reconnects: int | None = None
    bus_frames: dict[str, int] = field(default_factory=dict)
    bus_bytes: dict[str, int] = field(default_factory=dict)
    bus_queued_bytes: int | None = None
    bus_undecodable: int | None = None
    link_ends: dict[str, int] = field(default_factory=dict)
    store_operations: dict[str, RequestCounts] = field(default_factory=dict)
    """By operation; the code is 1 for those that failed."""
    store_errors: dict[str, int] = field(default_factory=dict)
    health_write_age_seconds: float | None = None
    # Of pools, in the whole fleet.
    pool_executors: dict[tuple[str, str], int] = field(default_factory=dict)
    pool_sessions: dict[str, int] = field(default_factory=dict)
    pool_capacity: dict[str, int] = field(default_factory=dict)
    pool_waiting: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RelayDefinition:
    """One metric: `number` names a member of `RelayNumbers`, `labels` the labels if it is a dictionary."""

    name: str
    kind: MetricKind
    help: str
    number: str
    labels: tuple[str, ...] = ()


RELAY_DEFINITIONS: tuple[RelayDefinition, ...] = (
    RelayDefinition(
        "execserver_relay_uptime_seconds", "gauge", "Seconds since the relay began.", "uptime_seconds"
    ),
    RelayDefinition("execserver_relay_draining", "gauge", "1 once the relay is draining.", "draining"),
    RelayDefinition(
        "execserver_relay_environments",
        "gauge",
        "Environments with a registration, whether or not their executor is connected.",
        "environments",
    ),
    RelayDefinition(
        "execserver_relay_environments_online",
        "gauge",
        "Environments whose executor has a live socket.",
        "environments_online",
    ),
    RelayDefinition(
        "execserver_relay_clients",
        "gauge",
        "Live sockets of clients, including plain WebSockets.",
        "clients",
    ),
    RelayDefinition("execserver_relay_streams", "gauge", "Streams that are open.", "streams"),
    RelayDefinition(
        "execserver_relay_frames_total",
        "counter",
        "Frames forwarded, by destination: `executor` or `client`.",
        "frames",
        ("to",),
    ),
    RelayDefinition("execserver_relay_bytes_total", "counter", "The same, in bytes.", "bytes", ("to",)),
    RelayDefinition(
        "execserver_relay_dropped_frames_total",
        "counter",
        "Messages not forwarded, by reason: `text`, `undecodable`, or an unknown stream.",
        "dropped",
        ("reason",),
    ),
    RelayDefinition(
        "execserver_relay_resets_total",
        "counter",
        "Resets of streams: by the `executor`, by the client (`harness`), or by the relay, whose reasons "
        "begin with `relay_`.",
        "resets",
        ("reason",),
    ),
    RelayDefinition(
        "execserver_relay_queued_bytes",
        "gauge",
        "Bytes that the kernel has not taken yet, by destination.",
        "queued_bytes",
        ("to",),
    ),
    RelayDefinition(
        "execserver_relay_largest_queue_bytes",
        "gauge",
        "The longest queue of one peer.",
        "largest_queue_bytes",
        ("to",),
    ),
    RelayDefinition(
        "execserver_relay_closed_sockets_total",
        "counter",
        "Sockets that the relay closed, by reason. `slow_consumer`: the peer did not read.",
        "closed",
        ("reason",),
    ),
    RelayDefinition(
        "execserver_relay_pauses_total",
        "counter",
        "Pauses in reading from an executor because a client did not take its frames: a pause `helped`, or "
        "`failed` and the frames queue.",
        "pauses",
        ("outcome",),
    ),
    RelayDefinition(
        "execserver_relay_registrations_total",
        "counter",
        "Registrations of executors: `accepted`, or `conflict` when another one holds the environment.",
        "registrations",
        ("outcome",),
    ),
    RelayDefinition(
        "execserver_relay_introductions_total",
        "counter",
        "Clients that asked for an environment or a pool: `accepted`, `offline`, or `full` if all executors "
        "of the pool that match are at capacity or draining.",
        "introductions",
        ("outcome",),
    ),
    RelayDefinition(
        "execserver_relay_validations_total",
        "counter",
        "Handshakes that an executor asked about: `valid` or `invalid`.",
        "validations",
        ("outcome",),
    ),
    RelayDefinition(
        "execserver_relay_refusals_total",
        "counter",
        "Requests and upgrades refused, by the HTTP status of the answer.",
        "refusals",
        ("status",),
    ),
    RelayDefinition(
        "execserver_relay_fleet_nodes",
        "gauge",
        "Relays that share the NATS cluster and are alive, this one included, as this one knows.",
        "fleet_nodes",
    ),
    RelayDefinition(
        "execserver_relay_nats_connected",
        "gauge",
        "1 while the relay is connected to NATS.",
        "nats_connected",
    ),
    RelayDefinition(
        "execserver_relay_nats_reconnects_total",
        "counter",
        "Times that a lost connection to NATS was restored.",
        "nats_reconnects",
    ),
    RelayDefinition(
        "execserver_relay_bus_frames_total",
        "counter",
        "Messages between this relay and others, by direction: `in` or `out`.",
        "bus_frames",
        ("direction",),
    ),
    RelayDefinition(
        "execserver_relay_bus_bytes_total",
        "counter",
        "The same, in bytes of NATS messages.",
        "bus_bytes",
        ("direction",),
    ),
    RelayDefinition(
        "execserver_relay_bus_queued_bytes",
        "gauge",
        "Bytes for other relays that NATS has not taken yet.",
        "bus_queued_bytes",
    ),
    RelayDefinition(
        "execserver_relay_bus_undecodable_total",
        "counter",
        "NATS messages on the subjects of relays that no relay sent, or one of an incompatible version.",
        "bus_undecodable",
    ),
    RelayDefinition(
        "execserver_relay_link_ends_total",
        "counter",
        "How often all sockets with a peer at one other relay were ended, by cause: a `gap` in what arrived; "
        "a `reset`, a gap there; `overflow`, a queue of 64 MiB, which ends only those of the executors that "
        "take most of it; `oversized`, a frame above `max_payload`; `dead`, no beat of that relay. Their "
        "sessions are resumed.",
        "link_ends",
        ("cause",),
    ),
    RelayDefinition(
        "execserver_relay_store_errors_total",
        "counter",
        "Operations of the store that NATS did not carry out, by operation.",
        "store_errors",
        ("operation",),
    ),
    RelayDefinition(
        "execserver_relay_store_duration_seconds",
        "histogram",
        "How long operations of the store took, those that failed included.",
        "store_operations",
        ("operation",),
    ),
    RelayDefinition(
        "execserver_relay_health_write_age_seconds",
        "gauge",
        "Time since the relay last wrote its row of the store, which it does every 2 seconds.",
        "health_write_age_seconds",
    ),
    RelayDefinition(
        "execserver_relay_pool_executors",
        "gauge",
        "Connected executors of a pool in the whole fleet: `online`, or `draining`.",
        "pool_executors",
        ("pool", "state"),
    ),
    RelayDefinition(
        "execserver_relay_pool_sessions",
        "gauge",
        "Sessions at the connected executors of a pool, in the whole fleet.",
        "pool_sessions",
        ("pool",),
    ),
    RelayDefinition(
        "execserver_relay_pool_capacity",
        "gauge",
        "Sessions that the online executors of a pool with a capacity take, in the whole fleet.",
        "pool_capacity",
        ("pool",),
    ),
    RelayDefinition(
        "execserver_relay_pool_waiting",
        "gauge",
        "Clients that this relay could give no executor of the pool in the last 15 seconds, and that have "
        "got none since.",
        "pool_waiting",
        ("pool",),
    ),
)

"""The table of a relay's metrics: name, help text, and the number of each.

A relay is a program of its own, so these are never on a daemon's page. No label holds text from a peer: the
names of pools are those that tokens have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class RelayNumbers:
    """All numbers of a relay at one moment. A dictionary has a number for each value of its label."""

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
    pool_waiting: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RelayDefinition:
    """One metric: `number` names a member of `RelayNumbers`, `labels` the label if it is a dictionary."""

    name: str
    kind: Literal["counter", "gauge"]
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
        "execserver_relay_pool_waiting",
        "gauge",
        "Clients that asked this relay for an executor of the pool in the last 15 seconds, and got none.",
        "pool_waiting",
        ("pool",),
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
)

"""What the network proxy of a process permits, and the record of what it decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from execprotocol.network import Decision, NetworkProtocol, NetworkRequest, ProxySettings

Decider = Callable[[NetworkRequest], Awaitable[Decision]]
"""Asks about a host without a verdict. A failure and every answer but `allow` deny."""


class ProxyLimits(Struct, frozen=True):
    """Limits of one proxy."""

    connections: int = 256
    """Connections of the command at once. More are answered with 503, or refused by SOCKS5."""

    header_bytes: int = 65_536
    """Bytes of the head of a request or a response."""

    connect_s: float = 30.0
    """Seconds for resolving a name and connecting to one of its addresses."""

    idle_s: float = 600.0
    """Seconds without a byte in either direction, after which a connection is closed."""

    total_bytes: int | None = None
    """Bytes to and from all hosts in the life of the proxy; null for no limit. Beyond it every connection is
    closed and every request refused."""


class ProxyPolicy(Struct, frozen=True):
    """What a proxy permits, within which limits."""

    settings: ProxySettings
    """The settings of the start."""

    limits: ProxyLimits = ProxyLimits()
    """The limits."""

    decision_timeout_s: float | None = None
    """Seconds to wait for an answer of the decider; null asks for nothing and denies."""

    upstream: str | None = None
    """The URL of the HTTP proxy in the daemon's environment, used if the settings allow it."""


class NetworkDecision(Struct, frozen=True, rename="camel"):
    """A decision of a proxy: `execprotocol.network.PolicyDecisionEvent` without its `processId`."""

    timestamp: str
    scope: Literal["domain", "non_domain"]
    decision: Literal["allow", "deny", "ask"]
    source: str
    reason: str
    protocol: NetworkProtocol
    host: str
    port: int
    method: str | None
    client: str | None
    policy_override: bool

"""What the network proxy of a process permits, and the record of what it decided."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Literal, NamedTuple

from msgspec import Struct

from execprotocol.network import Decision, NetworkProtocol, NetworkRequest, ProxySettings
from execserver.network.addresses import Host, HostError, parse_host, split_port, unmapped

Decider = Callable[[NetworkRequest], Awaitable[Decision]]
"""Asks about a host without a verdict. A failure and every answer but `allow` deny."""


class ProxyLimits(Struct, frozen=True):
    """Limits of one proxy."""

    connections: int = 256
    """Connections of the command at once. More are answered with 503, or refused by SOCKS5."""

    header_bytes: int = 65_536
    """Bytes of the head of a request or a response; one that arrives fast may be a little larger."""

    head_s: float = 60.0
    """Seconds for the head of a request, from its first byte."""

    connect_s: float = 30.0
    """Seconds for resolving a name and connecting to one of its addresses."""

    idle_s: float = 600.0
    """Seconds without a byte in either direction, after which a connection is closed."""

    total_bytes: int | None = None
    """Bytes to and from all hosts in the life of the proxy; null for no limit. A connection that goes
    beyond it is closed, and every request after that is refused."""


class ProxyPolicy(Struct, frozen=True):
    """What a proxy permits, within which limits."""

    settings: ProxySettings
    """The settings of the start."""

    limits: ProxyLimits = ProxyLimits()
    """The limits."""

    decision_timeout_s: float | None = None
    """Seconds in which the decider answers; null asks for nothing and denies. A decider that takes a second
    more counts for a denial."""

    upstream: str | None = None
    """The URL of the HTTP proxy in the daemon's environment, used if the settings allow it and not for
    SOCKS5."""


class NetworkDecision(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A decision of a proxy: `execprotocol.network.PolicyDecisionEvent` without its `processId`."""

    timestamp: str
    scope: Literal["domain", "non_domain"]
    decision: Literal["allow", "deny", "ask"]
    source: str
    reason: str
    protocol: NetworkProtocol
    host: str
    port: int
    method: str | None = None
    client: str | None
    policy_override: bool


class RuleError(ValueError):
    """A pattern of the settings is not valid. The text is the wire's."""

    def __init__(self, text: str, field: str) -> None:
        """Args:
        text: what is wrong with which pattern.
        field: the member of the settings.
        """
        super().__init__(f"invalid network proxy config: {text}")
        self.field = field


class _Pattern(NamedTuple):
    name: re.Pattern[str] | None
    """Matches the names; null for every host."""

    literal: str | None
    """The host, if the pattern is one."""

    port: int | None

    @property
    def is_global(self) -> bool:
        return self.name is None and self.literal is None


class DomainRules:
    """The verdicts of `domains` and `reviewDomains`.

    A pattern is a host, `*.example.com` for its subdomains, `**.example.com` for both, or `*` for all; it
    may have `*` and `?` elsewhere too. `host:port` is for that port only. Patterns with `*` or `?`, but for
    `*` itself, match names and no addresses. An IPv4 address that is mapped into an IPv6 address is denied
    with either, and allowed with its own notation only.
    """

    def __init__(self, settings: ProxySettings) -> None:
        """Read the patterns.

        Raises:
            RuleError: a pattern is not valid, or `*` is to be denied.
        """
        self._patterns: dict[str, list[_Pattern]] = {"allow": [], "deny": [], "none": []}
        for text, verdict in (settings.domains or {}).items():
            pattern = _parse_pattern(text, "domains")
            if verdict == "deny" and pattern.is_global:
                raise RuleError(
                    f"invalid value for network.denied_domains: {text} "
                    "(allowed exact hosts or scoped wildcards like *.example.com or **.example.com)",
                    "domains",
                )
            self._patterns[verdict].append(pattern)
        self._review = [_parse_pattern(text, "reviewDomains") for text in settings.review_domains]

    def verdict(self, host: Host, port: int) -> Literal["allow", "deny"] | None:
        """What the patterns say about a host; deny wins."""
        for same in _notations(host):
            if any(_matches(pattern, same, port) for pattern in self._patterns["deny"]):
                return "deny"
            if any(_matches(pattern, same, port) for pattern in self._review):
                return None
        if any(_matches(pattern, host, port) for pattern in self._patterns["allow"]):
            return "allow"
        return None

    def names(self, host: Host, port: int) -> bool:
        """Whether a host itself is allowed, and not by a wildcard."""
        return any(
            pattern.literal == host.text and pattern.port in (None, port)
            for pattern in self._patterns["allow"]
        )


def _parse_pattern(text: str, field: str) -> _Pattern:
    try:
        body, port = split_port(text.strip())
        if body in ("*", "**.*"):
            return _Pattern(None, None, port)
        prefix = next((prefix for prefix in ("**.", "*.") if body.startswith(prefix)), "")
        rest = body.removeprefix(prefix)
        if not rest:
            raise RuleError("domain pattern is empty", field)
        has_wildcards = "*" in rest or "?" in rest
        # Checked as a name with a letter in the place of each wildcard.
        host = parse_host(rest.replace("*", "x").replace("?", "x") if has_wildcards else rest)
        if (prefix or has_wildcards) and (host.address is not None or host.is_ambiguous):
            raise HostError("an address has no wildcards")
    except HostError:
        raise RuleError(f"unsupported domain pattern syntax: {text}", field) from None
    if not prefix and not has_wildcards:
        return _Pattern(None, host.text, port)
    name = re.escape(rest.lower().removesuffix(".") if has_wildcards else host.text)
    name = name.replace(r"\*", ".*").replace(r"\?", ".")
    start = {"": "", "*.": r".+\.", "**.": r"(?:.+\.)?"}[prefix]
    return _Pattern(re.compile(f"{start}{name}\\Z"), None, port)


def _notations(host: Host) -> tuple[Host, ...]:
    """A host, and the other notation of an IPv4 address."""
    address = None if host.address is None else unmapped(host.address)
    if not isinstance(address, IPv4Address):
        return (host,)
    mapped = f"::ffff:{address}"
    return Host(str(address), address), Host(mapped, IPv6Address(mapped))


def _matches(pattern: _Pattern, host: Host, port: int) -> bool:
    if pattern.port not in (None, port):
        return False
    if pattern.literal is not None:
        return pattern.literal == host.text
    if pattern.name is None:
        return True
    return host.address is None and pattern.name.match(host.text) is not None

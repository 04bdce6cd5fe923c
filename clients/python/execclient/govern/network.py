"""The hosts that a command may reach: the network between none and all.

    command ──> network proxy of the daemon ──> deny ──> allow ──> asked, with `ask` ──> reached, or denied

Rules kept in this file:

1. A value that could be taken for more or for less than it means is refused: schemes, paths, other wildcards.
2. What is neither allowed nor approved is denied.

No I/O.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from execclient.connection.connection import Json
from execprotocol.limits import LARGEST_PORT, MAX_HOST_BYTES

if TYPE_CHECKING:
    from execclient.results import NetworkDecision, NetworkRequest

__all__ = [
    "NetworkAccess",
    "NetworkMode",
    "NetworkProtocol",
    "NetworkTarget",
    "canonical_host",
    "covers",
    "denial_text",
    "host_and_port",
    "split_port",
]

NetworkMode = Literal["full", "limited"]

NetworkProtocol = Literal["http", "https", "socks5_tcp", "socks5_udp"]
"""How a command asks the proxy for a host: by a plain request, by CONNECT, or by SOCKS5."""

ASK_SECONDS = 300.0
"""How long a question waits for its answer. A person needs minutes; most programs give up sooner, and then
find the answer at their next attempt."""

LONGEST_ASK_SECONDS = 86_400.0

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
"""A host name in ASCII. Resolvers accept underscores."""

_WILDCARDS = ("**.", "*.")


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """The hosts that a command may reach, through a network proxy of the daemon.

    In a sandbox there is no other way out. Without a sandbox only programs that use the proxy variables
    (`HTTPS_PROXY` and its kin) are limited.

    A host is `example.com`; `*.example.com`, its subdomains; `**.example.com`, both; `*`, all public ones; or
    an IP address. Every port is included, unless one follows: `example.com:443`, `[2001:db8::1]:443`.

    Raises:
        TypeError, ValueError: a value is not valid; the message names the field.
    """

    allow: tuple[str, ...] = ()
    """The hosts that may be reached. Private, loopback and link-local addresses must be listed themselves."""
    deny: tuple[str, ...] = ()
    """The hosts that may not, whatever allows them."""
    ask: bool = False
    """Whether other hosts are asked about (`on_network_request` of `connect`, or a reviewer of a `Toolset`);
    otherwise they are denied."""
    mode: NetworkMode = "full"
    """`limited` permits plain requests by GET, HEAD and OPTIONS only: no HTTPS."""
    allow_local: bool = False
    """Whether allowed names may have private, loopback and link-local addresses, and `*` includes these."""
    ask_timeout: float = ASK_SECONDS
    """Seconds for which a question waits for its answer, at most a day; then the host is denied."""

    def __post_init__(self) -> None:
        for field in ("allow", "deny"):
            given = getattr(self, field)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise TypeError(f"{field} is a tuple of hosts, not {given!r}; for one host: ({given!r},)")
            hosts = tuple(dict.fromkeys(_pattern(each, field) for each in given))
            object.__setattr__(self, field, hosts)  # frozen: there is no other way to set a field
        if any(covers(pattern, "*", None) for pattern in self.deny):
            raise ValueError("deny: '*' is every host: leave it out, since what is not allowed is denied")
        if self.mode not in ("full", "limited"):
            raise ValueError(f"mode: {self.mode!r} is neither 'full' nor 'limited'")
        for field in ("ask", "allow_local"):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"{field} is True or False, not {getattr(self, field)!r}")
        if not isinstance(self.ask_timeout, int | float):
            raise TypeError(f"ask_timeout is a number of seconds, not {self.ask_timeout!r}")
        if not 0 < self.ask_timeout <= LONGEST_ASK_SECONDS:
            raise ValueError(f"ask_timeout: {self.ask_timeout} is no number of seconds above 0, up to a day")

    def verdict(self, target: NetworkTarget) -> Literal["allow", "deny"] | None:
        """The verdict on a host; None without one."""
        host, port = target.host, target.port
        if any(covers(pattern, host, port) for pattern in self.deny):
            return "deny"
        return "allow" if any(covers(pattern, host, port) for pattern in self.allow) else None

    def wire(
        self, *, asks: bool | None = None, withheld: Container[str] = (), denied: Iterable[str] = ()
    ) -> dict[str, Json]:
        """The member `networkProxy` of `process/start`.

        Args:
            asks: whether the client answers questions; by default `ask`.
            withheld: patterns of `allow` that the client decides on instead.
            denied: further patterns to deny.
        """
        domains = {pattern: "allow" for pattern in self.allow if pattern not in withheld}
        domains |= dict.fromkeys((*self.deny, *denied), "deny")
        settings = {
            "enabled": True,
            "enableSocks5": True,
            "mode": self.mode,
            "domains": domains,
            "allowLocalBinding": self.allow_local,
        }
        proxy: dict[str, Json] = {"proxy": settings}
        if self.ask if asks is None else asks:
            proxy["policyDecisionTimeoutMs"] = max(1, round(self.ask_timeout * 1000))
        return proxy

    def describe(self, *, has_rules: bool = False) -> tuple[str, ...]:
        """Sentences for an approver: which hosts may be reached.

        Args:
            has_rules: whether rules allow hosts besides.
        """
        reached = [*self.allow, *(["the hosts that rules allow"] if has_rules else [])]
        if not (reached or self.ask):
            return ("no network",)
        return (
            f"reach {', '.join(reached)} on the network" if reached else "reach no host unasked",
            *((f"never {', '.join(self.deny)}",) if self.deny else ()),
            *(("ask about other hosts",) if self.ask else ()),
        )


@dataclass(frozen=True, slots=True)
class NetworkTarget:
    """A host that a command wants to reach."""

    host: str
    """As `canonical_host` writes it."""
    port: int
    protocol: NetworkProtocol

    @classmethod
    def of(cls, about: NetworkRequest | NetworkDecision) -> NetworkTarget:
        """The target of a question or a decision of the daemon."""
        protocol = about.protocol
        return cls(about.host, about.port, "https" if protocol == "https_connect" else protocol)

    @property
    def is_literal(self) -> bool:
        """Whether it is an IP address or `localhost`, and no other name."""
        return self.host == "localhost" or ":" in self.host or self.host.rpartition(".")[2].isdigit()

    def __str__(self) -> str:
        return f"{host_and_port(self.host, self.port)} ({self.protocol})"


_DENIALS = {
    "not_allowed": "no rule and no setting allows it",
    "not_allowed_local": "it has no address, or a private or local one",
    "denied": "the settings or the rules deny it",
    "method_not_allowed": "the network is limited to GET, HEAD and OPTIONS",
    "mitm_required": "the network is limited to plain requests, without HTTPS",
}


def denial_text(target: NetworkTarget, reason: str) -> str:
    """Why the proxy denied a host, in words; another text than a word of the proxy is the reviewer's own."""
    if reason == "not_allowed_local" and target.is_literal:
        return "it is a private or local address, which has to be allowed itself"
    return _DENIALS.get(reason, reason)


def host_and_port(host: str, port: int | None) -> str:
    """A host with its port, if there is one: `example.com:443`, `[::1]:80`."""
    if port is None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def covers(pattern: str, host: str, port: int | None) -> bool:
    """Whether a pattern of `NetworkAccess` covers a host, as `canonical_host` writes it.

    Args:
        pattern: as `NetworkAccess` keeps it.
        host: the host.
        port: the port; None for any: whether it covers one of them.
    """
    name, only = split_port(pattern)
    if None not in (only, port) and only != port:
        return False
    if name == "*":
        return True
    for mark in _WILDCARDS:
        if name.startswith(mark):
            base = name[len(mark) :]
            return host.endswith(f".{base}") or (mark == "**." and host == base)
    return host == name


def split_port(text: str) -> tuple[str, int | None]:
    """A host and its port, as `host_and_port` writes them. An IPv6 address without brackets has no port.

    Raises:
        ValueError: the brackets or the port are not valid.
    """
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or rest[:1] not in ("", ":"):
            raise ValueError("an IPv6 address in brackets is followed by nothing or by a port: [::1]:443")
        port = rest[1:] if rest else None
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        return text, None
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= LARGEST_PORT):
        raise ValueError(f"a port is a number from 1 to {LARGEST_PORT}")
    return host, int(port)


def canonical_host(text: str) -> str:
    """A host as the proxy names it: in lower case, without a final dot; an IP address in its short form.

    Raises:
        ValueError: it is no host; the message says what it has to be.
    """
    given = text.strip().removesuffix(".")
    try:
        return ipaddress.ip_address(given).compressed
    except ValueError:
        pass
    host = given.lower()
    if not host.isascii():
        raise ValueError("a name with other letters than ASCII has to be in its form for the network: xn--…")
    if "*" in host:
        raise ValueError("* stands alone or begins a name: *.example.com, **.example.com")
    if len(host) > MAX_HOST_BYTES or not _NAME.fullmatch(host):
        raise ValueError("it has to be the name of a host or an IP address, without a path")
    if host.rpartition(".")[2].isdigit():
        raise ValueError("an IPv4 address has four numbers from 0 to 255, without leading zeros")
    return host


def _pattern(text: object, field: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{field}: {text!r} is no text")
    given = text.strip()
    mark = next((each for each in _WILDCARDS if given.startswith(each)), "")
    try:
        if "://" in given:
            raise ValueError("it has to be a host, without scheme and path")
        name, port = split_port(given.removeprefix(mark))
        host = name if name == "*" and not mark else canonical_host(name)
        if mark and (":" in host or host.rpartition(".")[2].isdigit()):
            raise ValueError("an IP address has no subdomains")
    except ValueError as error:
        raise ValueError(f"{field}: {text!r}: {error}") from None
    return mark + host_and_port(host, port)

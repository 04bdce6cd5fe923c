"""The network proxy of a process: its settings, its questions and its decisions
(`docs/protocol.md`, "Network proxy").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

from msgspec import Meta

from execprotocol.model import EXTENSION, U64, Params, WireError, u64, wire_type

NetworkProtocol = Literal["http", "https_connect", "socks5_tcp", "socks5_udp"]
"""How a command asked the proxy for a host: a plain request, CONNECT, or SOCKS5."""


def _callback_ms(value: Any) -> int:
    number = u64(value)
    if not number:
        raise WireError("network policy decision callback timeout must be nonzero")
    return number


if TYPE_CHECKING:
    CallbackMs: TypeAlias = int
else:
    CallbackMs = wire_type(_callback_ms, int, **{**U64.schema, "minimum": 1})


class ProxySettings(Params):
    """What the proxy of a process permits."""

    enabled: bool = False
    """Whether there is a proxy; false is refused."""

    enable_socks5: bool = False
    """Whether it also speaks SOCKS5, on a port of its own."""

    enable_socks5_udp: bool = False
    """Whether SOCKS5 may associate UDP. This executor refuses every association."""

    allow_upstream_proxy: bool = False
    """Whether HTTP requests and CONNECT may go through the HTTP proxy that the daemon's environment names.
    Hosts are judged before, as without it. `NO_PROXY` is not considered."""

    dangerously_allow_all_unix_sockets: bool = False
    """Whether every Unix socket may be reached. Without effect: this executor's proxy reaches none."""

    mode: Literal["limited", "full"] = "full"
    """`limited` permits the methods GET, HEAD and OPTIONS only, and so no CONNECT."""

    domains: dict[str, Literal["allow", "deny", "none"]] | None = None
    """Verdicts by host: `example.com`; `*.example.com`, its subdomains; `**.example.com`, both; `*`, all; an
    IP address; each also with a port, as in `example.com:443`. `deny` wins, and `none` is no verdict. A host
    without a verdict is denied, or asked about."""

    review_domains: list[str] = []
    """Hosts, as in `domains`, for which `allow` does not count: they are denied, or asked about."""

    unix_sockets: dict[str, Literal["allow", "deny"]] | None = None
    """Verdicts by path of Unix sockets. Without effect: this executor's proxy reaches none."""

    allow_local_binding: bool = False
    """Whether names of public hosts may have private, loopback and link-local addresses."""


class NetworkProxy(Params):
    """A network proxy for one process."""

    proxy: ProxySettings
    """What it permits."""

    audit_metadata: dict[str, Any] = {}
    """Words of the client for its own records; without effect."""

    environment_id: str | None = None
    """The client's name for the environment; without effect."""

    execution_id: str | None = None
    """The client's name for the execution; without effect."""

    policy_decision_timeout_ms: CallbackMs | None = None
    """How long the proxy waits for the client's answer about a host without a verdict, in milliseconds, not
    0; without an answer the host is denied. Null asks for nothing and denies."""


class NetworkRequest(Params):
    """A host that a command wants to reach."""

    protocol: NetworkProtocol
    """How the command asked for it."""

    host: Annotated[str, Meta(max_length=253)]
    """Its name in lower case without a final dot, or its IP address."""

    port: int
    """Its TCP or UDP port."""


class PolicyRequestParams(Params):
    """Ask the client whether a process may reach a host."""

    process_id: str
    """The client's name for the process."""

    request: NetworkRequest
    """The host, and how the command asked for it."""

    question_id: Annotated[str | None, EXTENSION] = None
    """The name of the question, which it keeps when it is asked again after a lost connection."""


class Decision(Params):
    """The answer of a client. Everything but `allow` denies."""

    type: Literal["allow", "deny", "ask"]
    """`ask` means that a person would have to decide, and denies."""

    reason: str | None = None
    """Why, in at most 1,024 bytes; for the command's error and for the record. Null is `not_allowed`."""

    scope: Annotated[Literal["once", "session"] | None, EXTENSION] = None
    """For how long `allow` and `deny` hold: `once`, for this question; `session`, for the same protocol, host
    and port in the session, also after a reconnect. Null is `session` on a connection with extensions, and
    `once` on others. `ask` is never kept."""


class PolicyRequestResult(Params):
    """The client's answer to `network/policyRequest`."""

    decision: Decision
    """What it decided."""


class PolicyDecisionEvent(TypedDict):
    """A decision of the proxy of a process."""

    processId: str
    """The client's name for the process."""

    timestamp: str
    """When, in UTC, as RFC 3339 with milliseconds."""

    scope: Literal["domain", "non_domain"]
    """What was decided about: a host, or something else such as a method."""

    decision: Literal["allow", "deny", "ask"]
    """What was decided."""

    source: str
    """What decided: `baseline_policy`, `mode_guard`, `proxy_state` or `decider`, which is the client."""

    reason: str
    """Why, such as `not_allowed`; the client's own words if it decided."""

    protocol: NetworkProtocol
    """How the command asked."""

    host: str
    """The host that the command asked for."""

    port: int
    """The port that the command asked for."""

    method: NotRequired[str]
    """The HTTP method; without one it was SOCKS5."""

    client: str | None
    """The address of the command's end of the connection to the proxy."""

    policyOverride: bool
    """Whether the client decided otherwise than the settings."""

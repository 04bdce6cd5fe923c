"""Judges each request of a command: by the rules, by the client's answer, by the addresses of the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from msgspec import structs

from execprotocol.network import Decision, NetworkProtocol, NetworkRequest
from execserver.network.addresses import Host, is_local, is_local_host
from execserver.network.resolver import Endpoint, ResolveError, Resolver
from execserver.network.rules import Decider, DomainRules, NetworkDecision, ProxyPolicy

NOT_ALLOWED, LOCAL, DENIED, METHOD, TUNNEL = (
    "not_allowed",
    "not_allowed_local",
    "denied",
    "method_not_allowed",
    "mitm_required",
)
_MESSAGES = {
    NOT_ALLOWED: "Domain not in allowlist.",
    LOCAL: "Sandbox policy blocks local/private network addresses.",
    DENIED: "Domain denied by the sandbox policy.",
    METHOD: "Method not allowed in limited mode.",
    TUNNEL: "MITM required for limited HTTPS.",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_GRACE_S = 1.0
"""How much longer than the server a proxy waits, so that it takes every answer that the server takes."""
_MAX_KEPT = 4096


class Target(NamedTuple):
    """What a command wants to reach."""

    protocol: NetworkProtocol
    host: Host
    port: int
    method: str | None
    """The HTTP method; null with SOCKS5."""

    client: str
    """The address of the command's end of the connection."""


class DeniedError(Exception):
    """A request is denied, which has been reported."""

    def __init__(self, decision: NetworkDecision, message: str) -> None:
        """Args:
        decision: the decision that denies it.
        message: for the command.
        """
        super().__init__(message)
        self.decision = decision
        self.message = message


class Judge:
    """Permits or denies requests, and reports each decision.

    Args:
        policy: what is permitted.
        asks: asked about a host without a verdict, if the policy has a time for that.
        report: called with each decision.
    """

    def __init__(
        self, policy: ProxyPolicy, asks: Decider | None, report: Callable[[NetworkDecision], None]
    ) -> None:
        """Read the rules.

        Raises:
            RuleError: a pattern of the policy is not valid.
        """
        self._policy = policy
        self._rules = DomainRules(policy.settings)
        self._asks = asks if policy.decision_timeout_s is not None else None
        self._report = report
        self._resolver = Resolver()
        self._questions: dict[tuple[str, str, int], asyncio.Task[Decision]] = {}
        self._allowed: dict[tuple[str, str, int], None] = {}

    @property
    def is_limited(self) -> bool:
        """Whether only requests without an effect are permitted, and no tunnels."""
        return self._policy.settings.mode == "limited"

    async def permit(self, target: Target, *, by_name: bool = False) -> list[Endpoint]:
        """Judge a request.

        Args:
            target: what the command wants to reach.
            by_name: whether another proxy connects to the host. Then a name is not looked up where local
                addresses are permitted.

        Returns:
            The endpoints of the host, each of them judged; none if it was not looked up.

        Raises:
            DeniedError: it is denied.
            ResolveError: the name has no address; only where local addresses are permitted.
        """
        if self.is_limited and target.protocol == "socks5_tcp" and target.port != 443:
            raise self._deny(target, METHOD, source="mode_guard")
        source = await self._judge_host(target)
        if self.is_limited and target.method not in _SAFE_METHODS:
            self._allow(target, source)
            reason = METHOD if target.protocol == "http" else TUNNEL
            raise self._deny(target, reason, source="mode_guard")
        if by_name and target.host.address is None and self._policy.settings.allow_local_binding:
            self._allow(target, source)
            return []
        endpoints = await self._judge_addresses(target)
        self._allow(target, source)
        return endpoints

    def refuse_unix_socket(self, method: str, client: str) -> None:
        """Report that a command has asked for a Unix socket, of which the proxy reaches none."""
        target = Target("http", Host("unix-socket"), 0, method, client)
        self._deny(target, "unix_socket_unsupported", source="proxy_state")

    async def _judge_host(self, target: Target) -> Literal["baseline_policy", "decider"]:
        """Judge the host by its text, and return what permitted it."""
        host, port = target.host, target.port
        verdict = self._rules.verdict(host, port)
        if verdict == "deny":
            raise self._deny(target, DENIED)
        if self._is_barred(host, port):
            raise self._deny(target, LOCAL)
        if verdict == "allow":
            if host.is_ambiguous:
                raise self._deny(target, LOCAL, "Write the IP address as four decimal numbers.")
            return "baseline_policy"
        if self._asks is None or host.is_ambiguous:
            raise self._deny(target, NOT_ALLOWED)
        decision = await self._ask(target)
        if decision.type == "allow":
            return "decider"
        reason = NOT_ALLOWED if decision.reason is None else decision.reason or "policy_denied"
        raise self._deny(target, reason, source="decider", decision=decision.type)

    def _is_barred(self, host: Host, port: int) -> bool:
        return (
            not self._policy.settings.allow_local_binding
            and is_local_host(host)
            and not self._rules.names(host, port)
        )

    async def _judge_addresses(self, target: Target) -> list[Endpoint]:
        """Look the host up once, and judge all of its addresses."""
        host, port = target.host, target.port
        permits_local = self._policy.settings.allow_local_binding
        try:
            endpoints = await self._resolver.resolve(host, port, self._policy.limits.connect_s)
        except ResolveError as error:
            if permits_local:
                raise
            # As the reference does: an address that is unknown may be a local one.
            raise self._deny(target, LOCAL, str(error)) from None
        for endpoint in endpoints:
            seen = Host(str(endpoint.address), endpoint.address)
            if self._rules.verdict(seen, port) == "deny":
                raise self._deny(target, DENIED)
            loops = host.text == "localhost" and endpoint.address.is_loopback
            if is_local(endpoint.address) and not (permits_local or host.address is not None or loops):
                raise self._deny(target, LOCAL)
        return endpoints

    async def _ask(self, target: Target) -> Decision:
        """The client's decision; equal requests wait for the same one. Permission for the session is kept: it
        holds while no server is there, too.
        """
        key = (target.protocol, target.host.text, target.port)
        if key in self._allowed:
            return Decision(type="allow")
        question = self._questions.get(key)
        if question is None:
            request = NetworkRequest(protocol=target.protocol, host=target.host.text, port=target.port)
            question = self._questions[key] = asyncio.ensure_future(self._question(request))
            question.add_done_callback(lambda _: self._questions.pop(key))
        decision = await asyncio.shield(question)
        if decision.type == "allow" and decision.scope == "session":
            if len(self._allowed) >= _MAX_KEPT:
                self._allowed.pop(next(iter(self._allowed)))
            self._allowed[key] = None
        return decision

    async def _question(self, request: NetworkRequest) -> Decision:
        assert self._asks is not None
        try:
            async with asyncio.timeout((self._policy.decision_timeout_s or 0) + _GRACE_S):
                return await self._asks(request)
        except Exception:
            return Decision(type="deny")

    def _allow(self, target: Target, source: Literal["baseline_policy", "decider"]) -> None:
        overrides = source == "decider"
        reason = NOT_ALLOWED if overrides else "allow"
        event = _event(target, decision="allow", source=source, reason=reason)
        self._report(structs.replace(event, policy_override=overrides))

    def _deny(
        self,
        target: Target,
        reason: str,
        message: str | None = None,
        *,
        source: str = "baseline_policy",
        decision: Literal["deny", "ask"] = "deny",
    ) -> DeniedError:
        event = _event(target, decision=decision, source=source, reason=reason)
        self._report(event)
        return DeniedError(event, message or _MESSAGES.get(reason, "Request blocked by network policy."))


def _event(
    target: Target, *, decision: Literal["allow", "deny", "ask"], source: str, reason: str
) -> NetworkDecision:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return NetworkDecision(
        timestamp=now.replace("+00:00", "Z"),
        scope="non_domain" if source in ("mode_guard", "proxy_state") else "domain",
        decision=decision,
        source=source,
        reason=reason,
        protocol=target.protocol,
        host=target.host.text,
        port=target.port,
        method=target.method,
        client=target.client,
        policy_override=False,
    )

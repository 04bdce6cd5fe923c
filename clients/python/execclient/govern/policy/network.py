"""Decides on a host that a command asks the network proxy for.

    denied by the settings ──> rules ──> allowed by the settings ──> asked about, or denied

Rules kept in this file:

1. `deny` of the settings wins over every rule, and a rule over `allow`.
2. The proxy itself lets pass only hosts that no rule asks about or forbids, and denies only what is forbidden
   for every protocol; it asks the client for the rest.

No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from execclient.connection.connection import Json
from execclient.govern.approval_policy import ApprovalPolicy
from execclient.govern.network import NetworkAccess, NetworkTarget, covers, host_and_port
from execclient.govern.policy.rules import NetworkRule, RuleSet

NetworkSource = Literal["network_rule", "network_access", "approval_policy"]
"""The source of a decision: a rule on the host; the settings; or that no question is allowed."""


@dataclass(frozen=True, slots=True)
class NetworkRequirement:
    """The decision on a host, with its reason."""

    kind: Literal["allow", "ask", "deny"]
    source: NetworkSource
    reason: str | None = None
    """For the reviewer; for the command and the model if the kind is `deny`."""
    amendment: NetworkRule | None = None
    """The rule that would make the question unnecessary."""


def decide_network(
    target: NetworkTarget, *, access: NetworkAccess, rules: RuleSet, approval: ApprovalPolicy
) -> NetworkRequirement:
    """Decide on a host."""
    verdict = access.verdict(target)
    if verdict == "deny":
        return NetworkRequirement("deny", "network_access", "the settings deny this host")
    rule = rules.network_match(target)
    if rule is not None:
        return decide_by_rule(rule, approval)
    if verdict == "allow":
        return NetworkRequirement("allow", "network_access")
    if not access.ask:
        return NetworkRequirement("deny", "network_access", "no rule and no setting allows this host")
    if not approval.asks_for_sandbox:
        return NetworkRequirement("deny", "approval_policy", _unasked(approval))
    amendment = NetworkRule(target.host, target.protocol, "allow", port=target.port)
    return NetworkRequirement("ask", "network_access", amendment=amendment)


def proxy_of(access: NetworkAccess, rules: RuleSet) -> dict[str, Json]:
    """The member `networkProxy` of a start whose client decides with `decide_network`.

    The proxy denies by itself what rules forbid for every protocol, also while no client is connected, and to
    a name with a forbidden address.
    """
    strict = [rule for rule in rules.network_rules if rule.decision != "allow"]
    forbidden = [rule for rule in strict if _is_forbidden(rule, rules)]
    undecided = [rule for rule in strict if rule not in forbidden]
    withheld = {
        pattern
        for pattern in access.allow
        if any(covers(pattern, rule.host, rule.port) for rule in undecided)
    }
    return access.wire(
        asks=access.ask or len(forbidden) < len(rules.network_rules),
        withheld=withheld,
        denied=[host_and_port(rule.host, rule.port) for rule in forbidden],
    )


def _is_forbidden(rule: NetworkRule, rules: RuleSet) -> bool:
    """Whether rules forbid the host of a rule for every protocol."""
    return all(
        other.decision == "forbidden"
        for other in rules.network_rules
        if other.host == rule.host and (other.port == rule.port or None in (other.port, rule.port))
    )


def decide_by_rule(rule: NetworkRule, approval: ApprovalPolicy) -> NetworkRequirement:
    """The decision of the rule that decides on a host."""
    if rule.decision == "allow":
        return NetworkRequirement("allow", "network_rule")
    if rule.decision == "forbidden":
        return NetworkRequirement("deny", "network_rule", rule.justification or "a rule forbids this host")
    if not approval.asks_for_rules:
        return NetworkRequirement("deny", "approval_policy", _unasked(approval))
    return NetworkRequirement("ask", "network_rule", rule.justification or "a rule asks about this host")


def _unasked(approval: ApprovalPolicy) -> str:
    return f"the approval policy {approval.name} allows no question about this host"

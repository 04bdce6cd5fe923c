from __future__ import annotations

from pathlib import Path

import pytest

from execclient.govern.approval_policy import NEVER, ON_REQUEST, ApprovalPolicy, granular
from execclient.govern.network import NetworkAccess, NetworkProtocol, NetworkTarget
from execclient.govern.policy.network import decide_network, proxy_of
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rule_files import load_rules, parse_rules
from execclient.govern.policy.rules import NO_RULES, NetworkRule, RuleSet
from execclient.results import NetworkRequest

RULES = parse_rules(
    """
network_rule("good.example", "https", "allow")
network_rule("web.example", "https", "allow")
network_rule("web.example", "http", "deny", "only with TLS")
network_rule("evil.example", "https", "deny", "known to leak")
network_rule("asked.example", "https", "prompt", "costs money")
network_rule("both.example", "https", "allow")
network_rule("both.example", "https", "deny")
network_rule("port.example:8443", "https", "allow")
network_rule("[::1]:80", "http", "allow")
""",
    "rules",
)


def kind(
    host: str,
    protocol: NetworkProtocol = "https",
    port: int = 443,
    *,
    access: NetworkAccess | None = None,
    rules: RuleSet = RULES,
    approval: ApprovalPolicy = ON_REQUEST,
) -> str:
    target = NetworkTarget(host, port, protocol)
    found = decide_network(target, access=access or NetworkAccess(), rules=rules, approval=approval)
    return f"{found.kind} by {found.source}"


@pytest.mark.parametrize(
    ("host", "protocol", "port", "expected"),
    [
        ("good.example", "https", 443, "allow"),
        ("good.example", "https", 8443, "allow"),
        ("good.example", "http", 80, None),
        ("www.good.example", "https", 443, None),
        ("web.example", "https", 443, "allow"),
        ("web.example", "http", 80, "forbidden"),
        # A tunnel carries any protocol, so that a rule on one of them that forbids counts for it, too.
        ("web.example", "socks5_tcp", 80, "forbidden"),
        ("evil.example", "http", 80, "forbidden"),
        ("evil.example", "socks5_tcp", 22, "forbidden"),
        ("asked.example", "socks5_tcp", 443, "prompt"),
        ("both.example", "https", 443, "forbidden"),
        ("port.example", "https", 8443, "allow"),
        ("port.example", "https", 443, None),
        ("::1", "http", 80, "allow"),
        ("::1", "http", 81, None),
    ],
)
def test_the_strictest_rule_about_a_host_decides(
    host: str, protocol: NetworkProtocol, port: int, expected: str | None
) -> None:
    rule = RULES.network_match(NetworkTarget(host, port, protocol))

    assert (None if rule is None else rule.decision) == expected


def test_a_denial_of_the_settings_wins_over_rules_and_a_rule_over_an_allowance() -> None:
    access = NetworkAccess(allow=("*",), deny=("good.example",))

    assert kind("good.example", access=access) == "deny by network_access"
    assert kind("evil.example", access=access) == "deny by network_rule"
    assert kind("asked.example", access=access) == "ask by network_rule"
    assert kind("other.example", access=access) == "allow by network_access"


def test_an_unlisted_host_is_asked_about_only_where_that_was_chosen() -> None:
    assert kind("other.example") == "deny by network_access"
    assert kind("other.example", access=NetworkAccess(ask=True)) == "ask by network_access"


@pytest.mark.parametrize(
    ("approval", "by_rule", "unlisted"),
    [
        (ON_REQUEST, "ask by network_rule", "ask by network_access"),
        (NEVER, "deny by approval_policy", "deny by approval_policy"),
        (
            granular(sandbox_approval=False, rules=True, mcp_elicitations=False),
            "ask by network_rule",
            "deny by approval_policy",
        ),
        (
            granular(sandbox_approval=True, rules=False, mcp_elicitations=False),
            "deny by approval_policy",
            "ask by network_access",
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_question_that_the_approval_policy_does_not_allow_denies(
    approval: ApprovalPolicy, by_rule: str, unlisted: str
) -> None:
    access = NetworkAccess(ask=True)

    assert kind("asked.example", access=access, approval=approval) == by_rule
    assert kind("other.example", access=access, approval=approval) == unlisted


def test_only_a_host_without_rules_gets_a_proposed_rule_for_just_this_port_and_protocol() -> None:
    asks = NetworkAccess(ask=True)
    by_rule, unlisted = (
        decide_network(
            NetworkTarget(host, 8443, "https"), access=asks, rules=RULES, approval=ON_REQUEST
        ).amendment
        for host in ("asked.example", "other.example")
    )

    assert by_rule is None
    assert unlisted == NetworkRule("other.example", "https", "allow", port=8443)


def test_the_proxy_does_not_let_pass_by_itself_what_a_rule_asks_about() -> None:
    access = NetworkAccess(allow=("*.example", "pypi.org", "good.test"), deny=("bad.test",))

    proxy = proxy_of(access, RULES)

    assert proxy["proxy"]["domains"] == {
        "pypi.org": "allow",
        "good.test": "allow",
        "bad.test": "deny",
        "evil.example": "deny",
    }
    assert proxy["policyDecisionTimeoutMs"] == 300_000
    assert "policyDecisionTimeoutMs" not in proxy_of(access, NO_RULES)


def test_the_proxy_denies_by_itself_what_rules_forbid_for_every_protocol() -> None:
    rules = parse_rules(
        """
network_rule("10.0.0.5", "https", "deny")
network_rule("two.example", "https", "deny")
network_rule("two.example", "http", "deny")
network_rule("port.example:22", "socks5_tcp", "deny")
network_rule("port.example:443", "https", "allow")
network_rule("mixed.example", "http", "deny")
network_rule("mixed.example:443", "https", "allow")
""",
        "rules",
    )
    domains = proxy_of(NetworkAccess(allow=("**.example", "*:8443")), rules)["proxy"]["domains"]

    assert domains == {
        "10.0.0.5": "deny",
        "two.example": "deny",
        "port.example:22": "deny",
    }
    only = RuleSet(network_rules=rules.network_rules[:3])
    alone = proxy_of(NetworkAccess(allow=("*",)), only)
    assert alone["proxy"]["domains"] == {"*": "allow", "10.0.0.5": "deny", "two.example": "deny"}
    assert "policyDecisionTimeoutMs" not in alone, "there is nothing to ask the client"


def test_a_question_on_the_wire_names_the_protocol_as_rules_do() -> None:
    assert NetworkTarget.of(NetworkRequest("p", "https_connect", "a.example", 443)) == NetworkTarget(
        "a.example", 443, "https"
    )
    assert str(NetworkTarget("::1", 80, "http")) == "[::1]:80 (http)"


@pytest.mark.parametrize("host", ["xn--mnchen-3ya.example", "::1", "10.0.0.1"])
def test_a_rule_that_was_added_is_in_force_now_and_in_every_later_process(tmp_path: Path, host: str) -> None:
    policy = Policy(amendments=tmp_path / "rules/default.rules")
    rule = NetworkRule(host, "https", "allow", port=443)

    policy.amend_network(rule)
    policy.amend_network(rule)

    later = load_rules([tmp_path / "rules/default.rules"])
    assert len((tmp_path / "rules/default.rules").read_text().splitlines()) == 1
    for rules in (policy.rules, later):
        assert kind(host, rules=rules) == "allow by network_rule"
        assert kind(host, port=444, rules=rules) == "deny by network_access"
        assert kind(host, "http", rules=rules) == "deny by network_access"
    assert policy.revision == Policy(later).revision


def test_a_rule_that_cannot_be_saved_is_not_in_force(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    policy = Policy(amendments=tmp_path / "file/default.rules")

    with pytest.raises(OSError, match="File exists"):
        policy.amend_network(NetworkRule("a.example", "https", "allow"))

    assert policy.rules is NO_RULES


def test_a_rule_about_a_host_that_no_request_can_name_is_refused() -> None:
    from execclient.errors import PolicyError

    for host in ("münchen.example", "010.0.0.1", "a_.b!"):
        with pytest.raises(PolicyError, match="network_rule host"):
            parse_rules(f'network_rule("{host}", "https", "deny")', "rules")

from __future__ import annotations

import pytest

from execserver.network.addresses import parse_host
from execserver.network.rules import DomainRules, RuleError
from tests.support.network_proxy import Verdicts


def verdict(domains: Verdicts, host: str, port: int = 443) -> str | None:
    return DomainRules(domains).verdict(parse_host(host), port)


def test_without_rules_there_is_no_verdict() -> None:
    assert DomainRules(None).verdict(parse_host("example.com"), 443) is None


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("example.com", "example.com", True),
        ("Example.COM.", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "notexample.com", False),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "xexample.com", False),
        ("*.example.com", "example.com.evil.net", False),
        ("**.example.com", "example.com", True),
        ("**.example.com", "a.b.example.com", True),
        ("**.example.com", "notexample.com", False),
        ("region*.example.com", "region1.example.com", True),
        ("region*.example.com", "x.region1.example.com", False),
        ("h?st.example", "host.example", True),
        ("h?st.example", "hst.example", False),
        ("*", "example.com", True),
        ("*", "8.8.8.8", True),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("*.bücher.example", "www.xn--bcher-kva.example", True),
        ("[::1]", "::1", True),
        ("::ffff:10.0.0.5", "10.0.0.5", True),
        ("10.0.0.5", "::ffff:10.0.0.5", True),
        ("8.8.8.?", "8.8.8.8", False),
        ("*.8.8.8", "8.8.8.8", False),
    ],
)
def test_a_pattern_matches_as_it_says(pattern: str, host: str, matches: bool) -> None:
    assert verdict({pattern: "allow"}, host) == ("allow" if matches else None)


def test_a_pattern_with_a_port_is_for_that_port() -> None:
    assert verdict({"example.com:8443": "allow"}, "example.com", 8443) == "allow"
    assert verdict({"example.com:8443": "allow"}, "example.com", 443) is None
    assert verdict({"[2001:db8::1]:22": "allow"}, "2001:db8::1", 22) == "allow"
    assert verdict({"*:443": "allow"}, "example.com", 80) is None


def test_deny_wins_over_every_allow() -> None:
    rules: Verdicts = {"**.example.com": "deny", "www.example.com": "allow", "*": "allow"}
    assert verdict(rules, "www.example.com") == "deny"
    assert verdict(rules, "example.org") == "allow"


def test_only_a_literal_names_a_host_itself() -> None:
    host = parse_host("127.0.0.1")
    assert DomainRules({"127.0.0.1": "allow"}).names(host, 80)
    assert DomainRules({"127.0.0.1:80": "allow"}).names(host, 80)
    assert not DomainRules({"127.0.0.1:80": "allow"}).names(host, 81)
    assert not DomainRules({"*": "allow"}).names(host, 80)
    assert not DomainRules({"127.0.0.1": "deny"}).names(host, 80)


@pytest.mark.parametrize(
    "pattern",
    ["", " ", "*.", "**.", "a b", "http://example.com", "a/b", "*.8.8.8.8", "a:0", "[::1", "[a-z].example"],
)
def test_what_is_no_pattern_is_refused_with_the_pattern(pattern: str) -> None:
    with pytest.raises(RuleError, match=r"network\.allowed_domains") as caught:
        DomainRules({"fine.example": "allow", pattern: "allow"})
    assert f": {pattern} (allowed exact hosts" in str(caught.value)


def test_everything_cannot_be_denied() -> None:
    with pytest.raises(RuleError) as caught:
        DomainRules({"*": "deny"})
    assert str(caught.value) == (
        "invalid network proxy config: invalid value for network.denied_domains: * "
        "(allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"
    )

from __future__ import annotations

import pytest

from execprotocol.network import ProxySettings
from execserver.network.addresses import parse_host
from execserver.network.rules import DomainRules, RuleError
from tests.support.network_proxy import Verdicts


def rules(domains: Verdicts | None, review: tuple[str, ...] = ()) -> DomainRules:
    return DomainRules(ProxySettings(domains=domains, review_domains=list(review)))


def verdict(domains: Verdicts, host: str, port: int = 443) -> str | None:
    return rules(domains).verdict(parse_host(host), port)


def test_without_rules_there_is_no_verdict() -> None:
    assert rules(None).verdict(parse_host("example.com"), 443) is None


@pytest.mark.statement("Q3")
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
        ("::ffff:a00:5", "::ffff:10.0.0.5", True),
        ("::ffff:10.0.0.5", "10.0.0.5", False),
        ("10.0.0.5", "::ffff:10.0.0.5", False),
    ],
)
def test_a_pattern_matches_as_it_says(pattern: str, host: str, matches: bool) -> None:
    assert verdict({pattern: "allow"}, host) == ("allow" if matches else None)


@pytest.mark.statement("Q3")
def test_a_pattern_with_a_port_is_for_that_port() -> None:
    assert verdict({"example.com:8443": "allow"}, "example.com", 8443) == "allow"
    assert verdict({"example.com:8443": "allow"}, "example.com", 443) is None
    assert verdict({"[2001:db8::1]:22": "allow"}, "2001:db8::1", 22) == "allow"
    assert verdict({"*:443": "allow"}, "example.com", 80) is None


def test_deny_wins_over_every_allow() -> None:
    verdicts: Verdicts = {"**.example.com": "deny", "www.example.com": "allow", "*": "allow"}
    assert verdict(verdicts, "www.example.com") == "deny"
    assert verdict(verdicts, "example.org") == "allow"


@pytest.mark.parametrize(("written", "asked"), [("8.8.8.8", "::ffff:8.8.8.8"), ("::ffff:8.8.8.8", "8.8.8.8")])
def test_deny_and_review_are_for_either_notation_of_an_address(written: str, asked: str) -> None:
    assert verdict({written: "deny", "*": "allow"}, asked) == "deny"
    assert rules({"*": "allow"}, (written,)).verdict(parse_host(asked), 443) is None


def test_none_is_no_verdict() -> None:
    assert verdict({"example.com": "none"}, "example.com") is None
    assert verdict({"example.com": "none", "*": "allow"}, "example.com") == "allow"


def test_for_a_host_under_review_allow_does_not_count() -> None:
    reviewing = rules({"*": "allow", "bad.example.com": "deny"}, ("*.example.com", "10.0.0.1"))
    assert reviewing.verdict(parse_host("www.example.com"), 443) is None
    assert reviewing.verdict(parse_host("bad.example.com"), 443) == "deny"
    assert reviewing.verdict(parse_host("example.org"), 443) == "allow"
    assert rules({"example.com": "allow"}, ("*",)).verdict(parse_host("example.com"), 443) is None


def test_only_a_literal_names_a_host_itself() -> None:
    host = parse_host("127.0.0.1")
    assert rules({"127.0.0.1": "allow"}).names(host, 80)
    assert rules({"127.0.0.1:80": "allow"}).names(host, 80)
    assert not rules({"127.0.0.1:80": "allow"}).names(host, 81)
    assert not rules({"*": "allow"}).names(host, 80)
    assert not rules({"127.0.0.1": "deny"}).names(host, 80)


@pytest.mark.statement("Q3")
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", "domain pattern is empty"),
        (" ", "domain pattern is empty"),
        ("*.", "domain pattern is empty"),
        *(
            (pattern, f"unsupported domain pattern syntax: {pattern}")
            for pattern in (
                "a b",
                "http://a.example",
                "a/b",
                "*.8.8.8.8",
                "8.8.*.8",
                "a:0",
                "[::1",
                "[a-z].example",
            )
        ),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_pattern(pattern: str, text: str) -> None:
    with pytest.raises(RuleError) as caught:
        rules({"fine.example": "allow", pattern: "allow"})
    assert (str(caught.value), caught.value.field) == (f"invalid network proxy config: {text}", "domains")
    with pytest.raises(RuleError) as caught:
        rules(None, (pattern,))
    assert caught.value.field == "reviewDomains"


def test_everything_cannot_be_denied() -> None:
    with pytest.raises(RuleError):
        rules({"**.*": "deny"})
    with pytest.raises(RuleError) as caught:
        rules({"*": "deny"})
    assert str(caught.value) == (
        "invalid network proxy config: invalid value for network.denied_domains: * "
        "(allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"
    )

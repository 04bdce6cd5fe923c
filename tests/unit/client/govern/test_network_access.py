from __future__ import annotations

from typing import Any

import pytest

from execclient.govern.network import NetworkAccess, NetworkTarget, canonical_host, host_and_port

HOSTS = ("example.com", "a.example.com", "b.a.example.com", "notexample.com", "10.0.0.1", "::1")


def verdict(access: NetworkAccess, host: str, port: int = 443) -> str | None:
    return access.verdict(NetworkTarget(host, port, "https"))


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("example.com", {"example.com"}),
        ("Example.COM.", {"example.com"}),
        ("*.example.com", {"a.example.com", "b.a.example.com"}),
        ("**.example.com", {"example.com", "a.example.com", "b.a.example.com"}),
        ("*", set(HOSTS)),
        ("10.0.0.1", {"10.0.0.1"}),
        ("0:0::1", {"::1"}),
        ("[::1]", {"::1"}),
    ],
)
def test_a_pattern_covers_what_the_proxy_lets_it_cover(pattern: str, covered: set[str]) -> None:
    access = NetworkAccess(allow=(pattern,))

    assert {host for host in HOSTS if verdict(access, host) == "allow"} == covered


def test_a_pattern_with_a_port_covers_that_port_only() -> None:
    access = NetworkAccess(allow=("*.example.com:443", "[::1]:80", "*:8443"), deny=("a.example.com:8443",))

    assert access.allow == ("*.example.com:443", "[::1]:80", "*:8443")
    assert verdict(access, "a.example.com", 443) == "allow"
    assert verdict(access, "a.example.com", 80) is None
    assert verdict(access, "a.example.com", 8443) == "deny"
    assert verdict(access, "::1", 80) == verdict(access, "x.test", 8443) == "allow"
    assert verdict(access, "::1", 443) is None


def test_a_denied_host_is_denied_however_it_is_allowed() -> None:
    access = NetworkAccess(allow=("*", "a.example.com"), deny=("**.example.com",))

    assert [verdict(access, host) for host in HOSTS] == ["deny", "deny", "deny", "allow", "allow", "allow"]
    assert verdict(NetworkAccess(), "example.com") is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"allow": ("https://example.com",)},
            "allow: 'https://example.com': .* without scheme",
        ),
        ({"allow": ("example.com:0",)}, "allow: 'example.com:0': a port is a number from 1 to 65535"),
        ({"allow": ("example.com:65536",)}, "a port is a number"),
        ({"allow": ("example.com:",)}, "a port is a number"),
        ({"allow": ("example.com:٣",)}, "a port is a number"),
        ({"allow": ("[::1]x",)}, "brackets"),
        ({"deny": ("*:443",)}, "deny: '\\*' is every host"),
        ({"deny": ("example.com/x",)}, "deny: 'example.com/x'"),
        ({"allow": ("",)}, "allow: ''"),
        ({"allow": ("a b",)}, "allow: 'a b'"),
        ({"allow": ("a.*.com",)}, "allow: .* stands alone or begins a name"),
        ({"allow": ("*example.com",)}, "allow: .* stands alone or begins a name"),
        ({"allow": ("**",)}, "allow: .* stands alone or begins a name"),
        ({"allow": ("*.10.0.0.1",)}, "allow: .* an IP address has no subdomains"),
        ({"allow": ("010.0.0.1",)}, "allow: '010.0.0.1': an IPv4 address has four numbers"),
        ({"allow": ("127.1",)}, "four numbers from 0 to 255"),
        ({"allow": ("[::1",)}, "allow"),
        ({"allow": ("example.com\n",)}, None),
        ({"allow": ("ex\x1bample.com",)}, "allow"),
        ({"allow": ("münchen.example",)}, "xn--"),
        ({"allow": ("a" * 64 + ".x" * 100,)}, "allow"),
        ({"deny": ("*",)}, "deny: '\\*' is every host: leave it out"),
        ({"mode": "half"}, "mode: 'half' is neither 'full' nor 'limited'"),
        ({"ask_timeout": 0}, "ask_timeout: 0 "),
        ({"ask_timeout": float("nan")}, "ask_timeout: nan "),
    ],
)
def test_what_could_be_taken_for_something_else_is_refused_by_its_field(
    fields: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert NetworkAccess(**fields).allow == ("example.com",)
        return
    with pytest.raises(ValueError, match=message):
        NetworkAccess(**fields)


@pytest.mark.parametrize("value", ["example.com", None, 5])
def test_one_host_is_not_taken_for_a_list_of_letters(value: Any) -> None:
    with pytest.raises(TypeError, match="allow is a tuple of hosts"):
        NetworkAccess(allow=value)


@pytest.mark.parametrize(
    ("field", "value"), [("ask", "no"), ("allow_local", "false"), ("allow_local", 0), ("ask_timeout", "5")]
)
def test_text_that_python_would_take_for_true_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{field} is .*, not {value!r}"):
        NetworkAccess(**{field: value})


def test_a_host_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="deny: 5 is no text"):
        NetworkAccess(deny=(5,))  # type: ignore[arg-type]


def test_the_wire_has_the_verdicts_and_the_time_only_where_the_client_answers() -> None:
    access = NetworkAccess(
        allow=("pypi.org", "*.pythonhosted.org"), deny=("evil.example",), mode="limited", ask_timeout=2.5
    )

    assert access.wire() == {
        "proxy": {
            "enabled": True,
            "enableSocks5": True,
            "mode": "limited",
            "domains": {"pypi.org": "allow", "*.pythonhosted.org": "allow", "evil.example": "deny"},
            "allowLocalBinding": False,
        }
    }
    asking = access.wire(asks=True, withheld={"pypi.org"})
    assert asking["policyDecisionTimeoutMs"] == 2500
    assert asking["proxy"]["domains"] == {"*.pythonhosted.org": "allow", "evil.example": "deny"}
    assert NetworkAccess(ask=True).wire()["policyDecisionTimeoutMs"] == 300_000


def test_the_sentences_for_an_approver_name_the_hosts() -> None:
    assert NetworkAccess().describe() == ("no network",)
    assert NetworkAccess(("pypi.org",)).describe() == ("reach pypi.org on the network",)
    assert NetworkAccess().describe(has_rules=True) == ("reach the hosts that rules allow on the network",)
    assert NetworkAccess(("*",), ("evil.example",), ask=True).describe() == (
        "reach * on the network",
        "never evil.example",
        "ask about other hosts",
    )


def test_a_port_follows_an_ipv6_address_in_brackets() -> None:
    assert host_and_port("::1", 80) == "[::1]:80"
    assert host_and_port("::1", None) == "::1"
    assert canonical_host("EXAMPLE.com.") == "example.com"

"""The client, which shows and answers what is permitted, reads hosts and patterns as the proxy does."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.govern.network import NetworkAccess, NetworkTarget, canonical_host
from execprotocol.network import ProxySettings
from execserver.network.addresses import parse_host
from execserver.network.rules import DomainRules

_HOSTS = (
    "example.com", "a.example.com", "b.a.example.com", "Example.COM.", "notexample.com", "com",
    "x-1_2.example.com", "localhost", "127.0.0.1", "10.0.0.1", "::1", "2001:DB8::1", "2001:db8:0:0::1",
)  # fmt: skip
_PORTS = ("", ":80", ":443")


def _with_port(host: str, port: str) -> str:
    return f"[{host}]{port}" if ":" in host and port else host + port


_PATTERNS = [
    *(_with_port(host, port) for host in _HOSTS for port in _PORTS),
    *(f"{mark}{host}{port}" for mark in ("*.", "**.") for host in _HOSTS[:6] for port in _PORTS),
]
_FEW = st.lists(st.sampled_from(_PATTERNS), max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["*", "*:80", *_PATTERNS]), max_size=3), _FEW, st.sampled_from(_HOSTS))
def test_the_client_and_the_proxy_say_the_same(allow: list[str], deny: list[str], host: str) -> None:
    access = NetworkAccess(allow=tuple(allow), deny=tuple(deny))
    rules = DomainRules(msgspec.convert(access.wire()["proxy"], ProxySettings))
    seen = parse_host(host)
    assert canonical_host(host) == seen.text
    for port in (80, 443, 8080):
        target = NetworkTarget(canonical_host(host), port, "http")
        assert access.verdict(target) == rules.verdict(seen, port)

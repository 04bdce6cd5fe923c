"""What `relay serve` may be told: each value that cannot be used, and the words about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from execserver.relay.service.settings import ListenAddress, RelaySettings, RelaySettingsError, is_host

LOOPBACK = "http://127.0.0.1:0"


def parse(listen: str = LOOPBACK, **values: Any) -> RelaySettings:
    return RelaySettings.parse(listen=listen, state_dir="state", **values)


def test_paths_are_those_of_the_folder_that_it_was_started_in() -> None:
    settings = parse("https://192.0.2.1:443", tls_cert="cert.pem", tls_key="key.pem")

    assert settings.state_dir == Path.cwd() / "state"
    assert (settings.certificate, settings.key) == (Path.cwd() / "cert.pem", Path.cwd() / "key.pem")


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("http://127.0.0.1:0", ListenAddress("http", "127.0.0.1", 0), "http://127.0.0.1:7"),
        ("http://[::1]:80/", ListenAddress("http", "::1", 80), "http://[::1]:7"),
        (
            "http://127.1.2.3:80/a/b-c/",
            ListenAddress("http", "127.1.2.3", 80, "/a/b-c"),
            "http://127.1.2.3:7/a/b-c",
        ),
    ],
)
def test_addresses_that_are_accepted(text: str, address: ListenAddress, url: str) -> None:
    assert parse(text).listen == address
    assert parse(text).listen.url(7) == url


@pytest.mark.parametrize(
    ("listen", "named"),
    [
        ("http://0.0.0.0:0", "--tls-cert"),
        ("http://[::]:0", "--public-url"),
        ("http://192.0.2.1:80", "in the clear"),
        ("https://127.0.0.1:0", "--tls-cert FILE and --tls-key FILE"),
        ("http://localhost:0", "literal address"),
        ("127.0.0.1:0", "http://IP:PORT"),
        ("http://127.0.0.1", "http://IP:PORT"),
        ("http://127.0.0.1:99999", "http://IP:PORT"),
        ("http://127.0.0.1:x", "http://IP:PORT"),
        ("http://user@127.0.0.1:0", "http://IP:PORT"),
        ("http://[fe80::1%25eth0]:0", "http://IP:PORT"),
        ("http://[::1:0", "http://IP:PORT"),
        ("ws://127.0.0.1:0", "http://IP:PORT"),
        ("http://127.0.0.1:0/?a=b", "http://IP:PORT"),
        ("http://127.0.0.1:0/#a", "http://IP:PORT"),
        ("http://127.0.0.1:0/a b", "path"),
        ("http://127.0.0.1:0/a%20b", "path"),
        ("http://127.0.0.1:0/../x", "path"),
        ("http://127.0.0.1:0//x", "path"),
        ("http://127.0.0.1:0/{environment}", "path"),
    ],
)
def test_a_listen_address_that_cannot_be_used(listen: str, named: str) -> None:
    with pytest.raises(RelaySettingsError, match="--listen") as caught:
        parse(listen)

    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tls_cert": "x"}, "https://"),
        ({"tls_key": "x"}, "https://"),
        ({"public_url": "wss://x"}, "--public-url"),
        ({"public_url": "https://"}, "--public-url"),
        ({"public_url": "https://x/?a=b"}, "--public-url"),
        ({"public_url": "https://user:secret@x"}, "--public-url"),
        ({"public_url": "https://x:0"}, "--public-url"),
        ({"public_url": "https://x/a b"}, "--public-url"),
        ({"public_url": "https://[::1"}, "--public-url"),
        ({"plain_door": ["box", "a/b"]}, "--plain-door 'a/b'"),
        ({"plain_door": [""]}, "--plain-door"),
        ({"metrics_listen": "https://127.0.0.1:0"}, "--metrics-listen"),
        ({"metrics_listen": "http://127.0.0.1:0/metrics"}, "--metrics-listen takes no path"),
    ],
)
def test_other_values_that_cannot_be_used(values: dict[str, Any], named: str) -> None:
    with pytest.raises(RelaySettingsError) as caught:
        parse(**values)

    assert named in str(caught.value)


def test_a_public_url_ends_without_a_slash() -> None:
    assert (
        parse(public_url="https://relay.example:8443/base/").public_url == "https://relay.example:8443/base"
    )


@pytest.mark.parametrize(
    "host", ["a", "relay.example", "relay.example.", "a-b.c:1", "127.0.0.1:65535", "[::1]", "[::1]:80"]
)
def test_a_host(host: str) -> None:
    assert is_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "-a",
        "a..b",
        "a_b",
        "a:",
        "a:0",
        "a:65536",
        "a:1:2",
        "::1",
        "[::1",
        "[::g]",
        "[1.2.3.4]",
        "a/b",
        "a@b",
        "a b",
        "ä",
        "a\n",
    ],
)
def test_no_host(host: str) -> None:
    assert not is_host(host)

from __future__ import annotations

from ipaddress import ip_address

import pytest

from execserver.network.addresses import HostError, is_local, is_local_host, parse_host, split_port


@pytest.mark.statement("Q5")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Example.COM.", "example.com"),
        ("a_b.example", "a_b.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("1\uff127\u30020.0.1", "127.0.0.1"),  # a full-width digit, an ideographic full stop
        ("127.0.0.1.", "127.0.0.1"),
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("::127.0.0.1", "::7f00:1"),
        ("::ffff:10.0.0.5", "::ffff:10.0.0.5"),
        ("[::FFFF:a00:5]", "::ffff:10.0.0.5"),
    ],
)
def test_a_host_has_one_notation(written: str, read: str) -> None:
    assert parse_host(written).text == read


@pytest.mark.parametrize(
    "written",
    [
        "",
        ".",
        "a..b",
        "a b",
        "a\0.example",
        "a\r\n.example",
        "a\n",
        "user@example.com",
        "example.com/x",
        "example.com\\x",
        "example.com%00",
        "a" * 64,
        ".".join(["a" * 50] * 6),
        "[::1",
        "::1]",
        "[127.0.0.1]",
        "fe80::1%lo",
        "[fe80::1%25lo]",
        "1::2::3",
        "\ud800.example",
        "\u202e.example",
    ],
)
def test_what_is_no_host_is_refused(written: str) -> None:
    with pytest.raises(HostError):
        parse_host(written)


@pytest.mark.statement("Q5")
@pytest.mark.parametrize(
    "written",
    [
        "127.1",
        "0x7f.1",
        "0177.0.0.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "1.2.3.4.5",
        "a.0x1",
        "256.1.1.1",
    ],
)
def test_what_a_resolver_may_take_for_an_address_is_ambiguous(written: str) -> None:
    host = parse_host(written)
    assert host.is_ambiguous
    assert host.address is None


def test_a_name_with_digits_is_not_ambiguous() -> None:
    assert not parse_host("1.2.3.4.example").is_ambiguous
    assert not parse_host("10.0.0.1.nip.io").is_ambiguous


@pytest.mark.statement("Q4")
@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.31.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.19.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_outside_the_public_internet_is_local(text: str) -> None:
    assert is_local(ip_address(text))
    assert is_local_host(parse_host(text))


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.32.0.1",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2606:4700::1111",
        "2a00:1450::1",
    ],
)
def test_an_address_of_the_public_internet_is_not_local(text: str) -> None:
    assert not is_local(ip_address(text))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.com", "example.com", None),
        ("example.com:443", "example.com", 443),
        ("[::1]:8080", "[::1]", 8080),
        ("[::1]", "[::1]", None),
        ("::1", "::1", None),
        ("*:443", "*", 443),
    ],
)
def test_a_port_is_split_off(text: str, host: str, port: int | None) -> None:
    assert split_port(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["a:0", "a:65536", "a:", "a:+80", "a: 80", "a:٣", "a:8o", "[::1]:", "a:000080"]
)
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(HostError, match="port"):
        split_port(text)

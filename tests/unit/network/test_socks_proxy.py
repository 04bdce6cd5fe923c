"""The SOCKS5 proxy on loopback."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct

import pytest

from tests.support.network_proxy import PATIENCE_S, Verdicts, origin, proxy, socks_request

LOOPBACK: Verdicts = {"127.0.0.1": "allow", "localhost": "allow"}
NO_METHOD = b"\5\xff"
CHOSEN = b"\5\0"


def refusal(reply: int) -> bytes:
    return CHOSEN + bytes((5, reply, 0, 1, 0, 0, 0, 0, 0, 0))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data.upper())
        await writer.drain()
    writer.write(b"END")


@pytest.mark.parametrize(
    ("host", "kind"), [(b"127.0.0.1", 3), (b"localhost", 3), (b"LocalHost.", 3), (b"\x7f\0\0\1", 1)]
)
async def test_a_permitted_host_is_connected_to_and_half_closed(host: bytes, kind: int) -> None:
    async with origin(echo) as server, proxy(LOOPBACK) as running:
        request = socks_request(host, server.port, kind=kind)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.socks_port)
        writer.write(request + b"early ")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(2 + 4) == CHOSEN + b"\5\0\0\1"
            assert await reader.readexactly(4) == b"\x7f\0\0\1"
            assert struct.unpack("!H", await reader.readexactly(2))[0] > 0
            writer.write(b"late")
            writer.write_eof()
            assert await reader.read() == b"EARLY LATEEND"
        writer.close()
    (decision,) = running.decisions
    assert (decision.protocol, decision.decision, decision.method) == ("socks5_tcp", "allow", None)
    assert decision.host in ("127.0.0.1", "localhost")
    assert decision.port == server.port


@pytest.mark.parametrize(
    ("host", "kind", "seen", "reason"),
    [
        (b"example.com", 3, "example.com", "not_allowed"),
        (b"denied.example", 3, "denied.example", "denied"),
        (b"10.0.0.1", 3, "10.0.0.1", "not_allowed_local"),
        (b"\x0a\0\0\1", 1, "10.0.0.1", "not_allowed_local"),
        (ipaddress.ip_address("::1").packed, 4, "::1", "not_allowed_local"),
        (ipaddress.ip_address("::ffff:10.0.0.1").packed, 4, "::ffff:10.0.0.1", "not_allowed_local"),
        (ipaddress.ip_address("::ffff:127.0.0.1").packed, 4, "::ffff:127.0.0.1", "not_allowed_local"),
        (ipaddress.ip_address("fe80::1").packed, 4, "fe80::1", "not_allowed_local"),
        (b"127.1", 3, "127.1", "not_allowed"),
        (b"2130706433", 3, "2130706433", "not_allowed"),
    ],
)
async def test_a_host_that_is_not_permitted_is_not_allowed_by_the_ruleset(
    host: bytes, kind: int, seen: str, reason: str
) -> None:
    async with proxy({**LOOPBACK, "denied.example": "deny"}) as running:
        assert await running.socks(socks_request(host, 443, kind=kind), count=12) == refusal(2)
    (decision,) = running.decisions
    assert (decision.host, decision.decision, decision.reason) == (seen, "deny", reason)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"127.0.0.1\0.example.com",
        b"allowed.example\0evil.example",
        b"a\r\nb",
        b"a b",
        b"[::1]:80",
        b"127.0.0.1:80",
        b"fe80::1%lo",
        b"\xff\xfe",
        b"." * 255,
        b"a" * 255,
    ],
)
async def test_a_name_that_is_none_is_not_allowed_and_looked_up_nowhere(name: bytes) -> None:
    async with proxy({"*": "allow"}, allow_local_binding=True) as running:
        assert await running.socks(socks_request(name, 80, kind=3), count=12) == refusal(2)
    assert not running.decisions


@pytest.mark.statement("Q10")
@pytest.mark.parametrize("command", [2, 3, 0, 255])
async def test_listening_and_udp_are_refused(command: int) -> None:
    async with proxy({"*": "allow"}, allow_local_binding=True, enable_socks5_udp=True) as running:
        got = await running.socks(socks_request("127.0.0.1", 80, command=command), count=12)
    assert got == refusal(7)
    assert not running.decisions


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ((b"\5\1\2",), NO_METHOD),  # a user name and a password only
        ((b"\5\0",), NO_METHOD),
        ((b"\4\1\0\x50\x7f\0\0\1\0",), b""),
        ((b"GET / HTTP/1.1\r\n\r\n",), b""),
        ((b"\5\1\0", b"\4\1\0\1\x7f\0\0\1\0\x50"), refusal(1)),
        ((b"\5\1\0", b"\5\1\0\2"), refusal(8)),
        ((b"\5\1\0", b"\5\1\0\1\x7f\0\0\1\0\0"), refusal(2)),  # port 0
    ],
)
async def test_what_is_not_the_protocol_is_refused(messages: tuple[bytes, ...], answer: bytes) -> None:
    async with proxy({"*": "allow"}, allow_local_binding=True) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.socks_port)
        for message in messages:
            writer.write(message)
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while data := await reader.read(100):
                    got += data
            except ConnectionResetError:
                pass
        writer.close()
    assert got == answer


async def test_a_request_in_single_bytes_is_read() -> None:
    async with origin(echo) as server, proxy(LOOPBACK) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.socks_port)
        for byte in socks_request("127.0.0.1", server.port):
            writer.write(bytes([byte]))
            await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readexactly(12))[:5] == CHOSEN + b"\5\0\0"
        writer.close()


async def test_a_server_that_does_not_listen_refuses() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with proxy(LOOPBACK) as running:
            request = socks_request("127.0.0.1", bound.getsockname()[1])
            assert await running.socks(request, count=12) == refusal(5)


@pytest.mark.statement("Q7")
async def test_limited_mode_has_no_socks() -> None:
    async with proxy({"example.com": "allow"}, mode="limited") as running:
        for host, port in (("example.com", 80), ("other.example", 80), ("other.example", 443)):
            assert await running.socks(socks_request(host, port), count=12) == refusal(2)
        assert await running.socks(socks_request("example.com", 443), count=12) == refusal(2)
    assert [(one.scope, one.decision, one.reason) for one in running.decisions] == [
        ("non_domain", "deny", "method_not_allowed"),
        ("non_domain", "deny", "method_not_allowed"),
        ("domain", "deny", "not_allowed"),
        ("domain", "allow", "allow"),
        ("non_domain", "deny", "mitm_required"),
    ]

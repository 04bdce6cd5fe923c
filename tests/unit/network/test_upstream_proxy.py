"""A proxy that itself goes through the proxy of the daemon's environment."""

from __future__ import annotations

import asyncio

import pytest

from execserver.network.upstream import parse_upstream
from tests.support.network_proxy import PATIENCE_S, Verdicts, origin, proxy, socks_request

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
LOOPBACK: Verdicts = {"127.0.0.1": "allow"}


async def test_a_plain_request_keeps_its_url_and_gets_the_credentials() -> None:
    async with origin(answer=HELLO) as upstream:
        url = f"http://user:p%40ss@127.0.0.1:{upstream.port}"
        async with proxy(
            {"a.example": "allow"}, allow_upstream_proxy=True, allow_local_binding=True, upstream=url
        ) as running:
            got = await running.exchange(
                b"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\nProxy-Authorization: mine\r\n\r\n"
            )
    assert got.endswith(b"hello")
    assert upstream.head[0] == b"GET http://a.example/x HTTP/1.1"
    assert [line for line in upstream.head if b"uthorization" in line] == [
        b"Proxy-Authorization: Basic dXNlcjpwQHNz"
    ]


@pytest.mark.statement("Q12")
async def test_a_tunnel_goes_through_the_upstream_proxy_and_socks_does_not() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        writer.write((await reader.read(100)).upper())
        await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as upstream:
        url = f"127.0.0.1:{upstream.port}"
        async with proxy(LOOPBACK, allow_upstream_proxy=True, upstream=url) as running:
            reader, writer = await running.connect(f"127.0.0.1:{server.port}")
            writer.write(b"second")
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.readexactly(11) == b"firstSECOND"
            writer.close()
            assert (await running.socks(socks_request("127.0.0.1", server.port), count=4))[2:4] == b"\5\0"
    assert [(one.protocol, one.port) for one in upstream.decisions] == [("https_connect", server.port)]


async def test_a_refusal_of_the_upstream_proxy_becomes_502() -> None:
    async with proxy(None) as upstream:
        url = f"http://127.0.0.1:{upstream.port}"
        async with proxy(
            {"a.example": "allow"}, allow_upstream_proxy=True, allow_local_binding=True, upstream=url
        ) as running:
            got = await running.exchange(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert got.endswith(b"the upstream proxy answers 403")


@pytest.mark.statement("Q12")
async def test_a_name_that_cannot_be_looked_up_here_is_denied_although_the_upstream_proxy_could() -> None:
    async with origin(answer=HELLO) as upstream:
        url = f"http://127.0.0.1:{upstream.port}"
        async with proxy({"a.invalid": "allow"}, allow_upstream_proxy=True, upstream=url) as running:
            got = await running.exchange(b"GET http://a.invalid/ HTTP/1.1\r\nHost: a.invalid\r\n\r\n")
    assert b'"reason":"not_allowed_local"' in got
    assert not upstream.connections


async def test_the_rules_hold_for_the_upstream_proxy_too() -> None:
    async with origin(answer=HELLO) as upstream:
        url = f"http://127.0.0.1:{upstream.port}"
        async with proxy({"*": "allow"}, allow_upstream_proxy=True, upstream=url) as running:
            for host in ("127.0.0.1", "localhost", "127.1"):
                got = await running.exchange(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert got.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert not upstream.connections


async def test_without_permission_the_upstream_proxy_is_not_used() -> None:
    async with (
        origin(answer=HELLO) as server,
        origin(answer=HELLO) as upstream,
        proxy(LOOPBACK, upstream=f"http://127.0.0.1:{upstream.port}") as running,
    ):
        authority = f"127.0.0.1:{server.port}"
        await running.exchange(f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    assert (server.connections, upstream.connections) == (1, 0)


@pytest.mark.parametrize(
    "url", ["socks5://p:1", "https://p:1", "http://", "http://p:99999", "http://u:secret@p q"]
)
def test_the_url_of_another_kind_of_proxy_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="upstream proxy") as caught:
        parse_upstream(url)
    assert "secret" not in str(caught.value)

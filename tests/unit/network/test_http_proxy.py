"""The HTTP proxy on loopback: what reaches a server, and what reaches the command."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct

import pytest

from execserver.network.rules import ProxyLimits
from tests.support.network_proxy import PATIENCE_S, RunningProxy, Verdicts, origin, proxy

LOOPBACK: Verdicts = {"127.0.0.1": "allow"}
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def get(port: int, *, path: str = "/", method: str = "GET", headers: str = "", version: str = "1.1") -> bytes:
    return (
        f"{method} http://127.0.0.1:{port}{path} HTTP/{version}\r\nHost: 127.0.0.1:{port}\r\n{headers}\r\n"
    ).encode()


async def status_of(running: RunningProxy, request: bytes) -> int:
    return int((await running.exchange(request)).split(b" ", 2)[1])


async def test_a_permitted_request_reaches_the_server_with_its_path_and_headers() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        answer = await running.exchange(get(server.port, path="/a?b=c", headers="X-Mixed-Case: 1\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello")
    assert server.head[0] == b"GET /a?b=c HTTP/1.1"
    assert b"X-Mixed-Case: 1" in server.head
    assert b"Host: 127.0.0.1:%d" % server.port in server.head


async def test_a_permitted_request_is_reported() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        await running.exchange(get(server.port))
    (decision,) = running.decisions
    assert (decision.decision, decision.source, decision.reason) == ("allow", "baseline_policy", "allow")
    assert (decision.scope, decision.protocol, decision.method) == ("domain", "http", "GET")
    assert (decision.host, decision.port) == ("127.0.0.1", server.port)
    assert (decision.client or "").startswith("127.0.0.1:")
    assert decision.timestamp.endswith("Z")


@pytest.mark.statement("Q6")
async def test_a_denied_request_gets_the_reason_as_json_and_the_connection_stays_open() -> None:
    async with proxy(None) as running:
        request = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"
        answer = await running.exchange(request + request)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[:3] == [
        b"HTTP/1.1 403 Forbidden",
        b"content-type: application/json",
        b"x-proxy-error: blocked-by-allowlist",
    ]
    first, _, second = body.partition(b"}")
    assert first + b"}" == (
        b'{"status":"blocked","host":"example.com","reason":"not_allowed","decision":"deny",'
        b'"source":"baseline_policy","protocol":"http","port":80,"message":"Domain not in allowlist."}'
    )
    assert second.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert len(running.decisions) == 2


@pytest.mark.statement("Q6")
async def test_a_denied_tunnel_gets_the_reason_as_text_and_the_connection_stays_open() -> None:
    async with proxy({"example.com": "deny"}) as running:
        request = b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"
        answer = await running.exchange(request + request)
    assert answer.count(b"HTTP/1.1 403 Forbidden\r\n") == 2
    assert b"x-proxy-error: blocked-by-denylist\r\n" in answer
    assert answer.endswith(b"\r\n\r\nDomain denied by the sandbox policy.")
    assert [(one.reason, one.protocol, one.method) for one in running.decisions] == [
        ("denied", "https_connect", "CONNECT")
    ] * 2


@pytest.mark.statement("Q1")
@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("10.0.0.1", "not_allowed_local"),
        ("127.0.0.2", "not_allowed_local"),
        ("169.254.169.254", "not_allowed_local"),
        ("[::1]", "not_allowed_local"),
        ("[::ffff:10.0.0.1]", "not_allowed_local"),
        ("[::ffff:8.8.8.8]", "not_allowed_local"),
        ("[64:ff9b::7f00:1]", "not_allowed_local"),
        ("localhost", "not_allowed_local"),
        ("LOCALHOST.", "not_allowed_local"),
        ("127.1", "not_allowed_local"),
        ("0x7f000001", "not_allowed_local"),
        ("2130706433", "not_allowed_local"),
        ("0", "not_allowed_local"),
    ],
)
async def test_everything_allowed_does_not_allow_local_addresses(host: str, reason: str) -> None:
    async with proxy({"*": "allow"}) as running:
        for request in (
            f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
            f"CONNECT {host}:80 HTTP/1.1\r\nHost: {host}\r\n\r\n",
        ):
            assert await status_of(running, request.encode()) == 403
    assert [decision.reason for decision in running.decisions] == [reason] * 2


async def test_local_addresses_may_be_permitted_as_such() -> None:
    async with origin(answer=HELLO) as server, proxy({"*": "allow"}, allow_local_binding=True) as running:
        assert await status_of(running, get(server.port)) == 200


async def test_a_deny_of_an_address_covers_the_names_that_have_it() -> None:
    verdicts: Verdicts = {"localhost": "allow", "127.0.0.1": "deny", "::1": "deny"}
    async with origin(answer=HELLO) as server, proxy(verdicts, allow_local_binding=True) as running:
        request = f"GET http://localhost:{server.port}/ HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n"
        assert await status_of(running, request.encode()) == 403
    assert running.decisions[0].reason == "denied"
    assert not server.connections


async def test_localhost_listed_by_name_is_reached() -> None:
    async with origin(answer=HELLO) as server, proxy({"localhost": "allow"}) as running:
        request = f"GET http://localhost:{server.port}/ HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n"
        assert await status_of(running, request.encode()) == 200


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /path HTTP/1.1",
        "GET https://127.0.0.1:{port}/ HTTP/1.1",
        "GET ftp://127.0.0.1:{port}/ HTTP/1.1",
        "GET http:/127.0.0.1:{port}/ HTTP/1.1",
        "GET http:///x HTTP/1.1",
        "GET http://user@127.0.0.1:{port}/ HTTP/1.1",
        "GET http://127.0.0.1:{port}#@evil.example/ HTTP/1.1",
        "GET http://127.0.0.1:{port}\\@evil.example/ HTTP/1.1",
        "GET http://127.0.0.1%2eevil.example/ HTTP/1.1",
        "GET http://127.0.0.1:{port}:80/ HTTP/1.1",
        "GET http://127.0.0.1:0/ HTTP/1.1",
        "GET http://127.0.0.1:99999/ HTTP/1.1",
        "GET http://[127.0.0.1]:{port}/ HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "CONNECT 127.0.0.1 HTTP/1.1",
        "CONNECT 127.0.0.1:{port}/ HTTP/1.1",
        "CONNECT http://127.0.0.1:{port} HTTP/1.1",
        "CONNECT @127.0.0.1:{port} HTTP/1.1",
    ],
)
async def test_a_target_that_could_be_read_in_two_ways_is_refused(request_line: str) -> None:
    async with origin(answer=HELLO) as server, proxy({"*": "allow"}, allow_local_binding=True) as running:
        line = request_line.format(port=server.port)
        request = f"{line}\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        assert await status_of(running, request.encode()) == 400
    assert not server.connections
    assert not running.decisions


@pytest.mark.statement("Q8")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}:1", "", "a b", "user@127.0.0.1:{port}"],
)
async def test_a_host_header_other_than_the_target_is_refused(host: str) -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        given = host.format(port=server.port)
        request = f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: {given}\r\n\r\n"
        assert await status_of(running, request.encode()) == 400
    assert not server.connections


async def test_the_host_header_of_a_tunnel_is_not_looked_at() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode()
        answer = await running.exchange(request, b"GET / HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n" + HELLO)
    assert server.received == b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 5\r\n",
        "Content-Length: 3, 5\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length: 3 3\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked;a=b\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "X: a\x00b\r\n",
        "X: a\rContent-Length: 9\r\n",
        "X\x00: a\r\n",
        " Content-Length: 9\r\n",
        "Host: 127.0.0.1\r\n",
        "no colon\r\n",
    ],
)
async def test_a_request_whose_end_a_server_could_see_elsewhere_is_refused(headers: str) -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = get(server.port, method="POST", headers=headers) + b"abc"
        assert await status_of(running, request) in (400, 501)
    assert not server.connections


async def test_chunks_of_http_1_0_are_refused() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = get(server.port, method="POST", headers="Transfer-Encoding: chunked\r\n", version="1.0")
        assert await status_of(running, request + b"0\r\n\r\n") == 400
    assert not server.connections


@pytest.mark.parametrize(
    "body",
    [b"xyz\r\n", b"-1\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"3 \n\nabc", b"f" * 30],
)
async def test_chunks_that_are_not_valid_end_the_connection(body: bytes) -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = get(server.port, method="POST", headers="Transfer-Encoding: chunked\r\n")
        answer = await running.exchange(request, body)
        await asyncio.sleep(0)
    assert b"0\r\n\r\n" not in server.received
    assert answer.count(b"HTTP/1.1 ") <= 1


async def test_a_folded_header_arrives_as_one_line() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        await running.exchange(get(server.port, headers="X-Folded: a\r\n Transfer-Encoding: chunked\r\n"))
    assert b"X-Folded: a Transfer-Encoding: chunked" in server.head


@pytest.mark.statement("Q8")
async def test_each_request_of_a_connection_is_judged_by_itself() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        evil = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        answer = await running.exchange(get(server.port) + evil + get(server.port))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"403", b"200"]
    assert answer.count(b"hello") == 2
    assert [decision.host for decision in running.decisions] == ["127.0.0.1", "evil.example", "127.0.0.1"]
    assert server.connections == 2


async def test_headers_for_the_proxy_stay_with_it() -> None:
    headers = (
        "Connection: keep-alive, X-Private, Content-Length, Host\r\nX-Private: 1\r\nKeep-Alive: 5\r\n"
        "Proxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n"
        "Upgrade: h2c\r\nContent-Length: 3\r\nX-Public: 2\r\n"
    )
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        await running.exchange(get(server.port, method="POST", headers=headers) + b"abc")
    names = {line.partition(b":")[0].lower() for line in server.head[1:]}
    assert names == {b"host", b"content-length", b"x-public", b"connection"}
    assert b"Connection: close" in server.head
    assert server.received.endswith(b"\r\n\r\nabc")


async def test_a_request_without_a_host_gets_that_of_its_target() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        answer = await running.exchange(f"GET http://127.0.0.1:{server.port} HTTP/1.0\r\n\r\n".encode())
    assert b"Host: 127.0.0.1:%d" % server.port in server.head
    assert server.head[0] == b"GET / HTTP/1.1"
    assert b"onnection: close" in answer


async def test_options_of_a_whole_server_has_an_asterisk() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        await running.exchange(get(server.port, path="", method="OPTIONS"))
    assert server.head[0] == b"OPTIONS * HTTP/1.1"


async def test_chunks_and_trailers_pass_both_ways() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"5\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 11\r\nContent-Length: 9\r\n\r\n"
    )
    async with origin(answer=answer) as server, proxy(LOOPBACK) as running:
        request = get(server.port, method="POST", headers="Transfer-Encoding: chunked\r\n")
        body = b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Up: 5\r\nHost: evil\r\n\r\n"
        got = await running.exchange(request + body)
    assert server.received.endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Up: 5\r\n\r\n")
    assert got.endswith(b"\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n")


async def test_a_client_of_http_1_0_gets_chunks_without_their_frames() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"
    async with origin(answer=answer) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port, version="1.0"))
    assert got.endswith(b"\r\n\r\nhello")
    assert b"ransfer" not in got


async def test_an_answer_that_ends_with_its_connection_is_complete() -> None:
    async with origin(answer=b"HTTP/1.0 200 OK\r\n\r\nhello") as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port))
    assert got.endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body_ends_with_its_head(method: str, head: bytes) -> None:
    async with origin(answer=head) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port, method=method) * 2)
    assert server.connections == 2
    assert got.count(head[9:12]) >= 2
    assert got.count(b"HTTP/1.1") == 2
    assert got.endswith(b"\r\n\r\n")


async def test_a_denied_head_request_has_no_body() -> None:
    async with proxy(None) as running:
        request = b"HEAD http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"
        got = await running.exchange(request * 2)
    assert got.count(b"HTTP/1.1 403 Forbidden") == 2
    assert b"status" not in got


async def test_interim_answers_arrive_and_the_body_waits_for_them() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(HELLO)
        await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.open()
        headers = "Content-Length: 3\r\nExpect: 100-continue\r\n"
        writer.write(get(server.port, method="POST", headers=headers))
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 Early Hints\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 Continue\r\n")
            writer.write(b"abc")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_endless_interim_answers_are_cut() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port))
    assert got.count(b"HTTP/1.1 102 ") == 100
    assert b"HTTP/1.1 502 Bad Gateway" in got


async def test_a_denied_request_whose_body_is_still_to_come_ends_the_connection() -> None:
    async with proxy(None) as running:
        reader, writer = await running.open()
        writer.write(
            b"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 900000\r\n\r\n"
        )
        writer.write(b"x" * 500_000)
        async with asyncio.timeout(PATIENCE_S):
            got = await reader.read()
        writer.close()
    assert got.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"connection: close\r\n" in got
    assert got.endswith(b"}")


async def test_an_early_answer_arrives_whole_while_the_command_still_sends() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 200000\r\n\r\n" + b"y" * 200_000)
        await reader.read()  # else its close would be a reset, which discards the answer

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.open()
        writer.write(get(server.port, method="POST", headers="Content-Length: 3000000\r\n"))
        writer.write(b"x" * 1_000_000)
        async with asyncio.timeout(PATIENCE_S):
            got = await reader.read()
        writer.close()
    assert got.startswith(b"HTTP/1.1 413 Too Large\r\n")
    assert got.count(b"y") == 200_000


async def test_a_large_body_passes_unchanged_both_ways() -> None:
    sent = bytes(range(256)) * 20_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = await reader.readexactly(len(sent))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(got) + got)
        await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        request = get(server.port, method="POST", headers=f"Content-Length: {len(sent)}\r\n") + sent
        got = await running.exchange(request)
    assert got.partition(b"\r\n\r\n")[2] == sent


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_valid_becomes_502(answer: bytes) -> None:
    async with origin(answer=answer) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port))
    assert got.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"the server" in got


@pytest.mark.statement("Q9")
async def test_a_server_that_does_not_listen_becomes_502_with_the_reason() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        async with proxy(LOOPBACK) as running:
            plain = await running.exchange(get(port))
            tunnel = await running.exchange(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    for answer in (plain, tunnel):
        assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert answer.endswith(b"cannot connect: Connection refused")


@pytest.mark.statement("Q9")
async def test_a_server_that_does_not_answer_a_connect_becomes_504() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # the queue of the listener is full now
            async with proxy(LOOPBACK, limits=ProxyLimits(connect_s=0.5)) as running:
                got = await running.exchange(get(port))
    assert got.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
    assert got.endswith(b"no connection within 0.5 seconds")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 300000\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_cut_answer_does_not_look_complete(version: str, framing: bytes) -> None:
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        writer.write(b"186a0\r\n" + b"z" * 100_000 + b"\r\n" if b"chunked" in framing else b"z" * 100_000)
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        await arrived.wait()  # a reset takes bytes with it that have not arrived

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.open()
        writer.write(get(server.port, version=version))
        got = b""
        reset = False
        async with asyncio.timeout(PATIENCE_S):
            try:
                while data := await reader.read(65_536):
                    got += data
                    if got.count(b"z") == 100_000:
                        arrived.set()
            except ConnectionResetError:
                reset = True
        writer.close()
    assert got.count(b"z") == 100_000
    if version == "1.1" or b"Length" in framing:
        assert not got.endswith(b"0\r\n\r\n")
    else:
        assert reset


async def test_a_command_that_goes_away_ends_the_request_at_the_server() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        except ConnectionError:
            ended.set()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.open()
        writer.write(get(server.port))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


async def test_a_websocket_passes_and_then_bytes_both_ways() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b"\r\nupgrade: websocket\r\n" in head
        assert b"\r\nconnection: upgrade\r\n" in head
        assert b"\r\nsec-websocket-key: k\r\n" in head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: a\r\n\r\nfirst"
        )
        writer.write((await reader.readexactly(4)).upper())
        await writer.drain()

    headers = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: k\r\n"
    async with origin(serve) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port, headers=headers) + b"ping")
    head, _, rest = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert {b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: a"} <= set(
        head.split(b"\r\n")
    )
    assert rest == b"firstPING"


@pytest.mark.statement("Q8")
async def test_no_other_protocol_is_upgraded_to() -> None:
    headers = "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\n"
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        await running.exchange(get(server.port, headers=headers))
    assert not [line for line in server.head if line.lower().startswith((b"upgrade", b"http2"))]


@pytest.mark.statement("Q7")
async def test_limited_mode_permits_methods_without_an_effect_only() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK, mode="limited") as running:
        for method in ("GET", "HEAD", "OPTIONS"):
            assert await status_of(running, get(server.port, method=method)) == 200
        running.decisions.clear()
        got = await running.exchange(get(server.port, method="POST", headers="Content-Length: 0\r\n"))
        connect = await running.exchange(
            f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        await running.exchange(b"POST http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert json.loads(got.partition(b"\r\n\r\n")[2])["message"] == "Method not allowed in limited mode."
    assert b"x-proxy-error: blocked-by-mitm-required\r\n" in connect
    assert [(one.scope, one.decision, one.source, one.reason) for one in running.decisions] == [
        ("domain", "allow", "baseline_policy", "allow"),
        ("non_domain", "deny", "mode_guard", "method_not_allowed"),
        ("domain", "allow", "baseline_policy", "allow"),
        ("non_domain", "deny", "mode_guard", "mitm_required"),
        ("domain", "deny", "baseline_policy", "not_allowed"),
    ]
    assert server.connections == 3


@pytest.mark.statement("Q7")
async def test_limited_mode_has_no_websockets() -> None:
    headers = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    async with origin(answer=HELLO) as server, proxy(LOOPBACK, mode="limited") as running:
        assert await status_of(running, get(server.port, headers=headers)) == 200
    assert not [line for line in server.head if line.lower().startswith(b"upgrade")]


async def test_a_connect_of_http_1_0_is_served() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = f"CONNECT 127.0.0.1:{server.port} HTTP/1.0\r\n\r\nx\r\n\r\n".encode()
        assert (await running.exchange(request)).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.received == b"x\r\n\r\n"


async def test_a_request_for_a_unix_socket_is_refused() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK, unix_sockets={"/x": "allow"}) as running:
        got = await running.exchange(get(server.port, headers="x-unix-socket: /x\r\n"))
    assert got.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
    assert got.endswith(b"unix sockets unsupported")
    (decision,) = running.decisions
    assert (decision.scope, decision.source, decision.host) == ("non_domain", "proxy_state", "unix-socket")
    assert (decision.decision, decision.reason) == ("deny", "unix_socket_unsupported")
    assert not server.connections


async def test_a_version_that_does_not_exist_is_not_passed_on() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        await running.exchange(get(server.port, version="3.7"))
    assert not server.connections or server.head[0] == b"GET / HTTP/1.1"


async def test_many_requests_on_one_connection_are_served() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port) * 200)
    assert got.count(b"\r\n\r\nhello") == 200
    assert len(running.decisions) == server.connections == 200


async def test_bytes_behind_a_connect_reach_the_server_first() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\nHost: x\r\n\r\nearly\r\n\r\n".encode()
        await running.exchange(request, b"late")
    assert server.received == b"early\r\n\r\nlate"


async def test_a_connect_with_an_empty_body_is_served() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        head = f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        await running.exchange(head.encode(), b"x\r\n\r\n")
    assert server.received == b"x\r\n\r\n"


async def test_an_error_after_a_head_request_has_a_body() -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        got = await running.exchange(get(server.port, method="HEAD") + b"garbage\r\n\r\n")
    assert got.count(b"HTTP/1.1 200 OK") == 1
    assert b"\r\n\r\nillegal request line" in got


@pytest.mark.parametrize("headers", ["Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n"])
async def test_a_connect_with_a_body_is_refused(headers: str) -> None:
    async with origin(answer=HELLO) as server, proxy(LOOPBACK) as running:
        request = f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\nHost: x\r\n{headers}\r\nabc".encode()
        assert await status_of(running, request) == 400
    assert not server.connections


@pytest.mark.statement("Q11")
@pytest.mark.parametrize(
    "head",
    [
        b"GET http://a.example/" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nX: " + b"y" * 1_000_000,
    ],
)
async def test_a_head_that_is_too_long_is_refused(head: bytes) -> None:
    async with proxy(LOOPBACK) as running:
        reader, writer = await running.open()
        writer.write(head)
        async with asyncio.timeout(PATIENCE_S):
            got = await reader.read()
        writer.close()
    assert got.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert not running.decisions


@pytest.mark.statement("Q11")
async def test_a_head_that_comes_too_slowly_is_refused() -> None:
    async with proxy(LOOPBACK, limits=ProxyLimits(head_s=0.3)) as running:
        reader, writer = await running.open()
        writer.write(b"GET http://a.example/ HT")
        async with asyncio.timeout(PATIENCE_S):
            got = await reader.read()
        writer.close()
    assert got.startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"\5\1\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"\0" * 100,
    ],
)
async def test_what_is_not_http_is_refused(data: bytes) -> None:
    async with proxy({"*": "allow"}) as running:
        got = await running.exchange(data)
    assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert not running.decisions

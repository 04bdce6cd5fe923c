"""Requests with pieces of others inside: a server gets one on each connection, however it reads it."""

from __future__ import annotations

import asyncio
import contextlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.network_proxy import proxy

_LINES = (
    b"X: y",
    b"Content-Length: 4",
    b"Content-Length: 37",
    b"content-length : 0",
    b" Content-Length: 3",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-encoding:\tchunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Connection: content-length, transfer-encoding, host",
    b"Connection: close, x",
    b"Expect: 100-continue",
    b"Upgrade: websocket",
    b"Connection: upgrade",
    b"Host: evil.example",
)
_MARKS = (b"\r", b"\n", b"\r\n", b"\0", b"\x0b", b" ", b"\t", b":", b",", b";", b"5;x\n", b"0\r\n\r\n")
_BODY = b"1b\r\nPOST /smuggled HTTP/1.1\r\n\r\n\r\n0\r\n\r\n"


def _behind_the_request(raw: bytes) -> bytes:
    """What a lenient server takes for a second request behind the first."""
    head, _, body = raw.partition(b"\r\n\r\n")
    fields = [line.partition(b":") for line in re.split(rb"[\r\n]+", head)[1:]]
    named = [(name.strip().lower(), value.strip()) for name, _, value in fields]
    lengths = [value for name, value in named if name == b"content-length"]
    chunked = [value for name, value in named if name == b"transfer-encoding"]
    assert len(lengths) + len(chunked) <= 1, raw
    assert [value for name, value in named if name == b"host"] != [b"evil.example"], raw
    if lengths:
        return body[int(lengths[0]) :]
    if not chunked:
        return body
    while body:  # its end may be missing, where the proxy has broken the request off
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            return body.partition(b"\r\n")[2]
        body = body[int(size, 16) + 2 :]
    return b""


async def _pass_on(request: bytes) -> list[bytes]:
    """Send a request through a proxy, and return what the server got from each connection."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = b""
        try:
            while data := await asyncio.wait_for(reader.read(65_536), 0.05 if got else 20):
                got += data
        except TimeoutError:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        received.append(got)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with proxy({"127.0.0.1": "allow"}, mode="limited") as running:
        with contextlib.suppress(ConnectionError):
            await running.exchange(request.replace(b"%d", b"%d" % port))
        permitted = sum(one.decision == "allow" and one.scope == "domain" for one in running.decisions)
        assert len(received) <= permitted
    server.close()
    return received


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(_LINES), max_size=3),
    st.sampled_from((b"1.0", b"1.1")),
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from(_MARKS)), max_size=1),
)
def test_a_server_gets_one_request_without_an_effect(
    lines: list[bytes], version: bytes, marks: list[tuple[int, bytes]]
) -> None:
    head = b"GET http://127.0.0.1:%d/ HTTP/" + version + b"\r\nHost: 127.0.0.1:%d\r\n"
    request = head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + _BODY
    for position, mark in marks:
        request = request[:position] + mark + request[position:]
    for raw in asyncio.run(_pass_on(request)):
        assert raw.startswith((b"GET ", b"HEAD ", b"OPTIONS ")), raw
        assert _behind_the_request(raw) == b"", raw

"""A network proxy in this process, and the servers behind it: real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from execprotocol.network import ProxySettings
from execserver.network.rules import Decider, NetworkDecision, ProxyLimits, ProxyPolicy
from execserver.network.serving import Listeners, serve

PATIENCE_S = 20
"""For what takes milliseconds, on a loaded machine."""

Verdicts = dict[str, Literal["allow", "deny", "none"]]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Origin:
    """A server of the host. It keeps all that it receives."""

    def __init__(self, handler: Handler | None = None, *, answer: bytes = b"") -> None:
        """Args:
        handler: serves a connection.
        answer: without a handler, sent at the end of the head of each request, and then the end.
        """
        self.received = b""
        self.connections = 0
        self.port = 0
        self._handler = handler
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if self._handler is not None:
                await self._handler(reader, writer)
            else:
                self.received += await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer)
                await writer.drain()
                writer.write_eof()
                self.received += await reader.read()
        writer.close()

    @property
    def head(self) -> list[bytes]:
        """The lines of the first request."""
        return self.received.partition(b"\r\n\r\n")[0].split(b"\r\n")


@asynccontextmanager
async def origin(handler: Handler | None = None, *, answer: bytes = b"") -> AsyncIterator[Origin]:
    """An origin on 127.0.0.1."""
    made = Origin(handler, answer=answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


class RunningProxy:
    """A proxy that is being served."""

    def __init__(self, http: socket.socket, socks: socket.socket) -> None:
        self.port: int = http.getsockname()[1]
        self.socks_port: int = socks.getsockname()[1]
        self.decisions: list[NetworkDecision] = []

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the HTTP proxy."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, *requests: bytes) -> bytes:
        """Send bytes to the HTTP proxy, end the sending, and read until the proxy ends."""
        reader, writer = await self.open()
        try:
            for request in requests:
                writer.write(request)
                await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.close()

    async def connect(self, authority: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A tunnel by CONNECT, which has to be permitted."""
        reader, writer = await self.open()
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return reader, writer

    async def socks(self, *messages: bytes, count: int) -> bytes:
        """Send messages to the SOCKS proxy, and read at most so many bytes of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.socks_port)
        try:
            for message in messages:
                writer.write(message)
            async with asyncio.timeout(PATIENCE_S):
                try:
                    return await reader.readexactly(count)
                except asyncio.IncompleteReadError as error:
                    return error.partial
        finally:
            writer.close()


@asynccontextmanager
async def proxy(
    domains: Verdicts | None,
    *,
    asks: Decider | None = None,
    limits: ProxyLimits | None = None,
    decision_timeout_s: float | None = None,
    upstream: str | None = None,
    **settings: Any,
) -> AsyncIterator[RunningProxy]:
    """A proxy on 127.0.0.1 with these verdicts and settings."""
    http, socks = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    running = RunningProxy(http, socks)
    policy = ProxyPolicy(
        ProxySettings(enabled=True, domains=domains, **settings),
        limits or ProxyLimits(),
        decision_timeout_s if asks is None or decision_timeout_s is not None else float(PATIENCE_S),
        upstream,
    )
    task = asyncio.ensure_future(serve(Listeners(http, socks), policy, asks, running.decisions.append))
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def socks_request(host: str | bytes, port: int, *, command: int = 1, kind: int | None = None) -> bytes:
    """A greeting and a request of SOCKS5, in one piece; an address of bytes needs its kind."""
    if isinstance(host, str):
        host, kind = host.encode(), 3
    length = bytes([len(host)]) if kind == 3 else b""
    assert kind is not None
    return b"\5\1\0" + bytes((5, command, 0, kind)) + length + host + struct.pack("!H", port)

"""Connects to judged hosts, directly or through the proxy that the daemon's environment names."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

import h11

from execserver.network.http_messages import Headers
from execserver.network.judge import Judge, Target
from execserver.network.resolver import Resolver, connect
from execserver.network.rules import ProxyPolicy
from execserver.network.tunnel import Traffic
from execserver.network.upstream import UpstreamProxy, parse_upstream

_CHUNK = 65_536


class UpstreamProxyError(Exception):
    """The proxy of the daemon's environment does not connect. The text is for the command."""


class Route(NamedTuple):
    """A connection over which a plain request can be sent."""

    connection: socket.socket
    proxy_headers: Headers | None
    """What a request has besides, with its URL in place of its path; null if there is no further proxy."""


class Dialer:
    """Judges requests and connects to their targets.

    Args:
        judge: judges each one.
        policy: the time limits, and the further proxy if there is one.
        traffic: the bytes of all connections.
    """

    def __init__(self, judge: Judge, policy: ProxyPolicy, traffic: Traffic) -> None:
        """Read the URL of the further proxy.

        Raises:
            ValueError: it is not the URL of an HTTP proxy.
        """
        self.judge = judge
        self.traffic = traffic
        self._seconds = policy.limits.connect_s
        self._head_bytes = policy.limits.header_bytes
        self._resolver = Resolver()
        uses_upstream = policy.settings.allow_upstream_proxy and policy.upstream is not None
        self._upstream = parse_upstream(policy.upstream or "") if uses_upstream else None

    async def route(self, target: Target) -> Route:
        """Judge a plain request, and connect to its server or to the further proxy.

        Raises:
            DeniedError: it is denied.
            ResolveError: the host has no address.
            TrafficError: the proxy has moved all bytes that it may.
            OSError: there is no connection.
        """
        self.traffic.check()
        upstream = None if target.protocol == "socks5_tcp" else self._upstream
        endpoints = await self.judge.permit(target, by_name=upstream is not None)
        if upstream is None:
            return Route(await connect(endpoints, self._seconds), None)
        return Route(await self._connect_upstream(upstream), upstream.headers)

    async def tunnel(self, target: Target) -> tuple[socket.socket, bytes]:
        """Judge a tunnel, and connect it.

        Returns:
            The connection, and the first bytes that the host has sent already.

        Raises:
            DeniedError: it is denied.
            ResolveError: the host has no address.
            UpstreamProxyError: the further proxy refuses.
            TrafficError: the proxy has moved all bytes that it may.
            OSError: there is no connection.
        """
        connection, headers = await self.route(target)
        if headers is None:
            return connection, b""
        try:
            async with asyncio.timeout(self._seconds):
                return connection, await self._ask_for_tunnel(connection, target, headers)
        except TimeoutError:
            connection.close()
            raise UpstreamProxyError("the upstream proxy does not answer") from None
        except BaseException:
            connection.close()
            raise

    async def _connect_upstream(self, upstream: UpstreamProxy) -> socket.socket:
        resolve = self._resolver.resolve
        endpoints = await resolve(upstream.host, upstream.port, self._seconds, completes=True)
        return await connect(endpoints, self._seconds)

    async def _ask_for_tunnel(self, connection: socket.socket, target: Target, headers: Headers) -> bytes:
        """Send CONNECT to the further proxy, and return what follows its answer."""
        loop = asyncio.get_running_loop()
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._head_bytes)
        host = f"[{target.host.text}]" if ":" in target.host.text else target.host.text
        authority = f"{host}:{target.port}".encode()
        request = h11.Request(method=b"CONNECT", target=authority, headers=[(b"Host", authority), *headers])
        await loop.sock_sendall(connection, http.send(request) + http.send(h11.EndOfMessage()))
        try:
            while not isinstance(event := http.next_event(), h11.Response):
                if event is h11.NEED_DATA:
                    http.receive_data(await loop.sock_recv(connection, _CHUNK))
        except h11.RemoteProtocolError as error:
            raise UpstreamProxyError(f"the upstream proxy does not answer in HTTP: {error}") from None
        if not 200 <= event.status_code < 300:
            raise UpstreamProxyError(f"the upstream proxy answers {event.status_code}")
        return http.trailing_data[0]

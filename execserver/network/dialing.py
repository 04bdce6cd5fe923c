"""Connects to judged hosts, directly or through the proxy that the daemon's environment names."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

import h11

from execserver.network.addresses import Host, parse_host
from execserver.network.http_messages import Headers
from execserver.network.judge import Judge, Target
from execserver.network.resolver import Resolver, connect
from execserver.network.rules import ProxyPolicy
from execserver.network.tunnel import Traffic

_CHUNK = 65_536


_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def upstream_of(environment: Mapping[str, str]) -> str | None:
    """The URL of the first HTTP proxy that an environment names; `NO_PROXY` is not considered."""
    for name in _VARIABLES:
        url = environment.get(name, "").strip()
        if url:
            try:
                _parse_upstream(url)
            except ValueError:
                continue
            return url
    return None


class UpstreamProxyError(Exception):
    """The proxy of the daemon's environment does not connect. The text is for the command."""


class _Upstream(NamedTuple):
    host: Host
    port: int
    headers: Headers
    """For this proxy: its credentials."""


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
        uses_upstream = policy.settings.allow_upstream_proxy and policy.upstream
        self._upstream = _parse_upstream(policy.upstream) if uses_upstream and policy.upstream else None

    async def route(self, target: Target) -> Route:
        """Judge a plain request, and connect to its server or to the further proxy.

        Raises:
            DeniedError: it is denied.
            ResolveError: the host has no address.
            TrafficError: the proxy has moved all bytes that it may.
            OSError: there is no connection.
        """
        self.traffic.check()
        endpoints = await self.judge.permit(target, by_name=self._upstream is not None)
        if self._upstream is None:
            return Route(await connect(endpoints, self._seconds), None)
        return Route(await self._connect_upstream(self._upstream), self._upstream.headers)

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
        except BaseException:
            connection.close()
            raise

    async def _connect_upstream(self, upstream: _Upstream) -> socket.socket:
        endpoints = await self._resolver.resolve(upstream.host, upstream.port, self._seconds)
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


def _parse_upstream(text: str) -> _Upstream:
    # The URL may have a password, so that no error shows it.
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parse_host(url.hostname or ""), url.port or 80
    except ValueError:
        raise ValueError("the URL of the upstream proxy has no valid host and port") from None
    if url.scheme != "http":
        raise ValueError(f"an upstream proxy is reached by http://, and not by {url.scheme}://")
    headers = []
    if url.username or url.password:
        secret = unquote_to_bytes(url.username or "") + b":" + unquote_to_bytes(url.password or "")
        headers.append((b"Proxy-Authorization", b"Basic " + b64encode(secret)))
    return _Upstream(host, port, headers)

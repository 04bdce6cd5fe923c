"""One connection to the HTTP proxy: plain requests one after the other, or a tunnel by CONNECT."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

import h11

from execprotocol.network import NetworkProtocol
from execserver.network.dialing import Dialer, UpstreamProxyError
from execserver.network.http_messages import (
    Answer,
    Authority,
    RequestError,
    asks_for_unix_socket,
    connect_authority,
    date,
    denial,
    failure,
    forwarded,
    plain_authority,
    relayed,
    trailers,
    wants_websocket,
)
from execserver.network.judge import DeniedError, Target
from execserver.network.resolver import ResolveError
from execserver.network.rules import ProxyLimits
from execserver.network.tunnel import IdleWatch, Traffic, TrafficError, Tunnel, reset_on_close, until_sent

_CHUNK, _HEAD_CHUNK = 65_536, 8192
_MAX_INTERIM = 100
"""Interim answers (1xx) to one request."""

_LINGER_S = 2.0
_LINGER_BYTES = 4 * 1024 * 1024


class _EndedError(Exception):
    """The connection of the command has ended, or cannot go on."""


class _ServerError(Exception):
    """The server's answer cannot be passed on. The text says why."""


class HttpConnection:
    """Serves one connection of a command.

    Args:
        client: the connection, non-blocking.
        address: its other end, for reports.
        dialer: judges requests and connects.
        limits: the limits of the proxy.
        watch: ends the connection when it is idle.
    """

    def __init__(
        self, client: socket.socket, address: str, dialer: Dialer, limits: ProxyLimits, watch: IdleWatch
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._address = address
        self._dialer = dialer
        self._limits = limits
        self._watch = watch
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._method = b""

    async def serve(self) -> None:
        """Serve requests until one side ends the connection."""
        with contextlib.suppress(_EndedError):
            try:
                while await self._serve_request():
                    self._http.start_next_cycle()
            except h11.RemoteProtocolError as error:
                await self._answer(failure(error.error_status_hint, str(error)))
            await self._linger()

    async def refuse(self, status: int, text: str) -> None:
        """Answer the first request, whatever it is, and end the connection."""
        with contextlib.suppress(_EndedError):
            await self._answer(failure(status, text))
            await self._linger()

    async def _serve_request(self) -> bool:
        """Serve one request, and return whether there may be a next one."""
        request = await self._read_head()
        if request is None:
            return False
        self._method = request.method
        try:
            if request.method == b"CONNECT":
                return await self._tunnel(request)
            return await self._forward(request)
        except DeniedError as error:
            answer = denial(error)
        except RequestError as error:
            answer = failure(error.status, error.text)
        except TrafficError as error:
            answer = failure(503, str(error))
        except (ResolveError, UpstreamProxyError, _ServerError, h11.LocalProtocolError) as error:
            answer = failure(502, str(error))
        except TimeoutError as error:
            answer = failure(504, str(error))
        except OSError as error:
            answer = failure(502, f"cannot connect: {error.strerror or error}")
        return await self._answer(answer)

    async def _read_head(self) -> h11.Request | None:
        """The next request; null at the end of the connection."""
        self._method = b""
        if not self._http.trailing_data[0]:
            # Between requests a connection may be idle for as long as a tunnel.
            self._http.receive_data(await self._receive(_HEAD_CHUNK))
        try:
            async with asyncio.timeout(self._limits.head_s):
                event = await self._next_event(_HEAD_CHUNK)
        except TimeoutError:
            raise h11.RemoteProtocolError("the head of the request took too long", 408) from None
        return event if isinstance(event, h11.Request) else None

    def _target(self, request: h11.Request, to: Authority, protocol: NetworkProtocol) -> Target:
        return Target(protocol, to.host, to.port, request.method.decode("ascii"), self._address)

    async def _tunnel(self, request: h11.Request) -> bool:
        to = connect_authority(request)
        server, first = await self._dialer.tunnel(self._target(request, to, "https_connect"))
        with contextlib.closing(server):
            await self._send(b"HTTP/1.1 200 OK\r\n%s: %s\r\n\r\n" % date() + first)
            await self._join(server)
        return False

    async def _join(self, server: socket.socket) -> None:
        """Move bytes between the command and a server from now on."""
        tunnel = Tunnel(self._client, server, self._dialer.traffic, self._watch)
        with contextlib.suppress(TrafficError):
            await tunnel.run(bytes(self._http.trailing_data[0]))
        raise _EndedError

    async def _forward(self, request: h11.Request) -> bool:
        if asks_for_unix_socket(request):
            self._dialer.judge.refuse_unix_socket(request.method.decode("ascii"), self._address)
            raise RequestError(501, "unix sockets unsupported")
        to = plain_authority(request)
        websocket = wants_websocket(request) and not self._dialer.judge.is_limited
        connection, proxy_headers = await self._dialer.route(self._target(request, to, "http"))
        with contextlib.closing(connection):
            server = _Server(connection, self._dialer.traffic, self._limits.header_bytes, self._watch)
            head = forwarded(request, to, websocket=websocket, proxy_headers=proxy_headers)
            await server.send(head)
            await _until_answered(self._send_body(server, head), self._relay_answer(server))
            if self._http.our_state is h11.SWITCHED_PROTOCOL:
                await self._send(server.http.trailing_data[0])
                await self._join(connection)
        return self._is_ready()

    async def _send_body(self, server: _Server, head: h11.Request) -> None:
        """Pass the body of a request on as it comes."""
        takes_more = True
        while isinstance(event := await self._next_event(), h11.Data | h11.EndOfMessage):
            if isinstance(event, h11.EndOfMessage):
                event = trailers(event, list(head.headers))
            with contextlib.suppress(_ServerError):
                if takes_more:
                    takes_more = False
                    await server.send(event)
                    takes_more = True
            if isinstance(event, h11.EndOfMessage):
                return
        raise _EndedError

    async def _relay_answer(self, server: _Server) -> None:
        """Pass the answer of a server on: interim ones, its head, its body as it comes."""
        for _ in range(_MAX_INTERIM):
            event = await server.next_event()
            if not isinstance(event, h11.InformationalResponse):
                break
            if event.status_code == 101 or self._http.their_http_version != b"1.0":
                await self._emit(relayed(event))
            if event.status_code == 101:
                return
        if not isinstance(event, h11.Response):
            raise _ServerError("the server does not answer the request")
        head = relayed(event)
        await self._emit(head)
        try:
            while isinstance(event := await server.next_event(), h11.Data):
                await self._emit(event)
            if not isinstance(event, h11.EndOfMessage):
                raise _ServerError("the server's answer has no end")
        except (_ServerError, TrafficError):
            await self._break_off(head)
        else:
            is_old = self._http.their_http_version == b"1.0"
            await self._emit(h11.EndOfMessage() if is_old else trailers(event, list(head.headers)))

    async def _break_off(self, head: h11.Response | h11.InformationalResponse) -> None:
        """End the connection so that the command notices that the answer is not complete."""
        ends_by_close = self._http.their_http_version == b"1.0" and not any(
            name == b"content-length" for name, _ in head.headers
        )
        if ends_by_close:
            await until_sent(self._client, self._watch)
            reset_on_close(self._client)
        else:
            await self._linger()
        raise _EndedError

    async def _answer(self, answer: Answer) -> bool:
        """Send an answer of the proxy itself, and return whether there may be a next request."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise _EndedError
        # A body that has arrived whole does not prevent the next request.
        while self._http.their_state is h11.SEND_BODY:
            if not isinstance(self._http.next_event(), h11.Data | h11.EndOfMessage):
                break
        headers = answer.headers
        if self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            headers = [*headers, (b"connection", b"close")]
        reason = HTTPStatus(answer.status).phrase.encode()
        await self._emit(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        if self._method != b"HEAD":
            await self._emit(h11.Data(data=answer.body))
        await self._emit(h11.EndOfMessage())
        return self._is_ready()

    def _is_ready(self) -> bool:
        """Whether there may be a next request."""
        return self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    async def _next_event(self, size: int = _CHUNK) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of a request.

        Raises:
            h11.RemoteProtocolError: it is not valid.
        """
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._receive(size))
        return event

    async def _receive(self, size: int) -> bytes:
        try:
            data = await self._loop.sock_recv(self._client, size)
        except OSError:
            raise _EndedError from None
        self._watch.touch()
        return data

    async def _emit(self, event: h11.Event) -> None:
        await self._send(self._http.send(event) or b"")

    async def _send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._client, data)
        except OSError:
            raise _EndedError from None
        self._watch.touch()

    async def _linger(self) -> None:
        """Read what the command still sends: a close with unread bytes is a reset, which discards answers."""
        with contextlib.suppress(OSError, TimeoutError):
            self._client.shutdown(socket.SHUT_WR)
            left = _LINGER_BYTES
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (data := await self._loop.sock_recv(self._client, _CHUNK)):
                    left -= len(data)


class _Server:
    """The connection to the server of one plain request."""

    def __init__(
        self, connection: socket.socket, traffic: Traffic, header_bytes: int, watch: IdleWatch
    ) -> None:
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=header_bytes)
        self._connection = connection
        self._traffic = traffic
        self._watch = watch
        self._loop = asyncio.get_running_loop()

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event) or b""
        self._traffic.add(len(data))
        try:
            await self._loop.sock_sendall(self._connection, data)
        except OSError as error:
            raise _ServerError(f"the server has closed the connection: {error.strerror}") from None
        self._watch.touch()

    async def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                data = await self._loop.sock_recv(self._connection, _CHUNK)
                self._traffic.add(len(data))
                self._watch.touch()
                self.http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _ServerError(f"the server's answer is not valid: {error}") from None
        except OSError as error:
            raise _ServerError(f"the connection to the server broke: {error.strerror}") from None
        return event


async def _until_answered(body: Coroutine[Any, Any, None], answer: Coroutine[Any, Any, None]) -> None:
    """Run both until the answer is complete, or the body raises."""
    tasks = asyncio.ensure_future(answer), asyncio.ensure_future(body)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            tasks[1].result()
        await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

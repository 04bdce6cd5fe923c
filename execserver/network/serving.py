"""The network proxy of one process, served on listeners until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import NamedTuple

from execserver.network.dialing import Dialer
from execserver.network.http_proxy import HttpConnection
from execserver.network.judge import Judge
from execserver.network.rules import Decider, NetworkDecision, ProxyPolicy
from execserver.network.socks_proxy import SocksConnection
from execserver.network.tunnel import IdleWatch, Traffic, reset_on_close

_ACCEPT_PAUSE_S = 0.1
"""After a failure of accept, such as too many open files."""

_REFUSE_S = 2.0
_MAX_REFUSALS = 64
"""Connections at once that are being refused; those beyond them are closed without an answer."""


class Listeners(NamedTuple):
    """The sockets of a proxy, bound and listening; they may belong to another network namespace."""

    http: socket.socket
    """Plain HTTP requests and CONNECT."""

    socks: socket.socket | None
    """SOCKS5; null if the settings do not enable it."""


async def serve(
    listeners: Listeners,
    policy: ProxyPolicy,
    asks: Decider | None,
    report: Callable[[NetworkDecision], None],
) -> None:
    """Serve a proxy until the task is cancelled; then close its listeners and connections.

    Args:
        listeners: owned from now on.
        policy: what is permitted.
        asks: called for hosts without a verdict, if `policy.decision_timeout_s` is set; equal requests at the
            same time are one call. An `allow` with the scope `session` is kept for the life of the proxy.
        report: called with each decision; it must not block.

    Raises:
        ValueError: the policy has a pattern or the URL of an upstream proxy that is not valid.
    """
    given = [listener for listener in listeners if listener is not None]
    try:
        server = ProxyServer(policy, asks, report)
        async with asyncio.TaskGroup() as accepting:
            accepting.create_task(server.accept(listeners.http, HttpConnection))
            if listeners.socks is not None:
                accepting.create_task(server.accept(listeners.socks, SocksConnection))
    finally:
        for listener in given:
            listener.close()


class ProxyServer:
    """Accepts connections for one proxy, and ends them with it.

    Args:
        policy: what is permitted.
        asks: see `serve`.
        report: see `serve`.
    """

    def __init__(
        self, policy: ProxyPolicy, asks: Decider | None, report: Callable[[NetworkDecision], None]
    ) -> None:
        """Read the policy.

        Raises:
            ValueError: it is not valid.
        """
        self._limits = policy.limits
        self._dialer = Dialer(Judge(policy, asks, report), policy, Traffic(policy.limits.total_bytes))
        self._served = 0
        self._refused = 0

    async def accept(
        self, listener: socket.socket, protocol: type[HttpConnection] | type[SocksConnection]
    ) -> None:
        """Accept and serve connections until the task is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    client, address = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                    continue
                connections.create_task(self._handle(client, _text(address), protocol))

    async def _handle(
        self, client: socket.socket, address: str, protocol: type[HttpConnection] | type[SocksConnection]
    ) -> None:
        with contextlib.closing(client):
            try:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._served < self._limits.connections:
                    await self._serve(client, address, protocol)
                elif self._refused < _MAX_REFUSALS:
                    await self._refuse(client, address, protocol)
            except TimeoutError:
                reset_on_close(client)
            except Exception as error:
                # One connection must not end the others.
                reset_on_close(client)
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a connection of a network proxy failed", "exception": error}
                )

    async def _serve(
        self, client: socket.socket, address: str, protocol: type[HttpConnection] | type[SocksConnection]
    ) -> None:
        self._served += 1
        try:
            async with IdleWatch(self._limits.idle_s) as watch:
                await protocol(client, address, self._dialer, self._limits, watch).serve()
        finally:
            self._served -= 1

    async def _refuse(
        self, client: socket.socket, address: str, protocol: type[HttpConnection] | type[SocksConnection]
    ) -> None:
        self._refused += 1
        try:
            async with IdleWatch(_REFUSE_S) as watch:
                text = f"this command has its limit of {self._limits.connections} connections open"
                await protocol(client, address, self._dialer, self._limits, watch).refuse(503, text)
        finally:
            self._refused -= 1


def _text(address: tuple[str, int, *tuple[int, ...]]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

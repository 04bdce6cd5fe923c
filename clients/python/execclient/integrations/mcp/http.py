"""Serves any number of hosts over streamable HTTP, under the rules of the daemon's listeners.

All hosts share the commands: who may connect may do everything that the server may.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, cast
from urllib.parse import urlsplit

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from execclient.integrations.mcp.server import McpServer
from execclient.integrations.mcp.workspace import CannotServe, Options

PATH = "/mcp"

CLOSE_SECONDS = 2
"""For open requests after a signal."""

BACKLOG = 128

_FORM = "it is http://ADDRESS:PORT with a literal address, such as http://127.0.0.1:8766; port 0 is any"


class Guard(Protocol):
    """The rules of the daemon's listeners (`execserver.transports.http_guard`)."""

    @property
    def required(self) -> bool:
        """Whether clients must present credentials."""
        ...

    def refusal(self, headers: Iterable[tuple[str, str]], peer: socket.socket) -> tuple[int, str] | None:
        """The status and the text of the refusal; None if the request is admitted. Blocks."""
        ...


async def serve_http(options: Options, url: str, guard: Guard) -> int:
    """Listen at a URL, and serve until a signal; prints the whole URL. Returns the exit status.

    Raises:
        CannotServe: the URL is not valid, in use, or reachable from other machines without credentials.
        ConnectionFailed: and all that `Workspace.check` raises.
    """
    listener = _listener(url, guard)
    with contextlib.closing(listener):
        served = McpServer(replace(options, name=options.name or url), shared=True)
        await served.workspace.check()
        app = served.server.streamable_http_app(
            streamable_http_path=PATH,
            # The guard checks `Host` and `Origin`.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        config = uvicorn.Config(
            _Guarded(app, guard),
            http=_Protocol,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        print(f"http://{shown}:{port}{PATH}", flush=True)  # noqa: T201 - for the user and for scripts
        for each in (signal.SIGINT, signal.SIGTERM):
            # uvicorn sends a signal to the handler before its own once more, when it has closed.
            signal.signal(each, lambda *_: None)
        try:
            await uvicorn.Server(config).serve([listener])
        finally:
            await served.close()
    return 0


def _listener(url: str, guard: Guard) -> socket.socket:
    parts = urlsplit(url)
    try:
        address, port = ipaddress.ip_address(parts.hostname or ""), parts.port
    except ValueError as error:
        raise CannotServe(f"--listen: {url}: {_FORM}") from error
    if parts.scheme != "http" or port is None or parts.path not in ("", "/", PATH) or parts.username:
        raise CannotServe(f"--listen: {url}: {_FORM}")
    if not address.is_loopback and not guard.required:
        raise CannotServe(f"--listen: {url} is reachable from other machines: give --ws-auth")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(address), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotServe(f"--listen: {url}: {error.strerror}") from error


class _Protocol(H11Protocol):
    """Adds the accepted socket to the state of each request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn
        super().connection_made(transport)
        self.app_state = {**self.app_state, "socket": transport.get_extra_info("socket")}


class _Guarded:
    """An application whose requests are checked first."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            peer = cast("socket.socket", scope["state"]["socket"])
            headers = Headers(scope=scope).items()
            refusal = await asyncio.to_thread(self._guard.refusal, headers, peer)
            if refusal is not None:
                status, text = refusal
                demand = {"www-authenticate": "Bearer"} if status == 401 else None
                await PlainTextResponse(text, status, demand)(scope, receive, send)
                return
        await self._app(scope, receive, send)

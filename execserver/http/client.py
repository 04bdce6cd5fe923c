"""Requests with their redirects, proxies and the daemon's limits: what all connections share."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from execprotocol.limits import MAX_HTTP_EXCHANGES, MAX_HTTP_HELD_BYTES
from execserver.http.bodies import HeldBytes
from execserver.http.errors import TransferError
from execserver.http.proxies import Proxies, ProxyError
from execserver.http.redirects import MAX_REDIRECTS, RedirectError, following
from execserver.http.request import HttpRequest

if TYPE_CHECKING:
    from execserver.http.transport import Response, Transport


class HttpClient:
    """The daemon's HTTP client.

    Args:
        environment: the daemon's own; it names the proxies.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._proxies = Proxies(environment)
        self._loading: asyncio.Task[Transport] | None = None
        self._exchanges = 0
        self.held = HeldBytes(MAX_HTTP_HELD_BYTES)

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Count what is under way, each being a connection to a server.

        Raises:
            TransferError: there are too many.
        """
        if self._exchanges >= MAX_HTTP_EXCHANGES:
            raise TransferError(f"the executor has {MAX_HTTP_EXCHANGES} requests under way: try again later")
        self._exchanges += 1
        try:
            yield
        finally:
            self._exchanges -= 1

    async def open(self, request: HttpRequest, *, follow: bool) -> Response:
        """Send a request, follow its redirects, and give the response with its body unread.

        Raises:
            TransferError: there is no response, or a redirect cannot be followed.
        """
        transport = await self._transport()
        for _ in range(MAX_REDIRECTS + 1):
            try:
                proxy = self._proxies.of(request.target)
            except ProxyError as error:
                raise TransferError(str(error)) from None
            response = await transport.send(request.with_host(), proxy)
            if not follow:
                return response
            try:
                subsequent = following(request, response.status, response.headers)
            except RedirectError as error:
                await response.close()
                raise TransferError(str(error)) from None
            if subsequent is None:
                return response
            await response.close()
            request = subsequent
        raise TransferError("too many redirects")

    async def _transport(self) -> Transport:
        if self._loading is None:
            # 50 ms, of which other connections should not notice anything.
            self._loading = asyncio.ensure_future(asyncio.to_thread(_load))
        try:
            return await asyncio.shield(self._loading)
        except Exception:
            self._loading = None
            raise


def _load() -> Transport:
    return importlib.import_module("execserver.http.transport").Transport()  # type: ignore[no-any-return]

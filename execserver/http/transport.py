"""The one file that knows httpcore: pools of connections, one request, one response.

Imported at the first request, in a thread (`client.py`). HTTP/1.1 only; TLS by the system's trust store.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import anyio
import anyio.lowlevel
import h11
import httpcore

from execprotocol.daemon_thread import causes_of
from execprotocol.errors import os_error_text
from execserver.http.errors import TransferError
from execserver.http.proxies import Proxy
from execserver.http.request import HttpRequest

_MAX_TEXT = 200
"""Characters of somebody else's error text that are passed on."""


class Response:
    """A response whose body is read as it is asked for; what is not asked for stays with the server."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response
        self.status = response.status
        self.headers = [(_text(name).lower(), _text(value)) for name, value in response.headers]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, as it came, in pieces of at most 64 KiB.

        Raises:
            TransferError: it broke.
        """
        with _told():
            async for data in self._response.aiter_stream():
                yield data

    async def close(self) -> None:
        """Close the connection, whatever of the body was read."""
        await self._response.aclose()


class Transport:
    """Makes the daemon's connections, one for each request.

    An idle one may be closed by the server just as it gets a request, which then may not be sent twice; and
    bytes behind a response would be taken for the next one, of another client.
    """

    def __init__(self) -> None:
        # anyio loads the part for asyncio at its first use, which is to be in this thread as well.
        asyncio.run(anyio.lowlevel.checkpoint())
        self._tls = ssl.create_default_context()

    async def send(self, request: HttpRequest, proxy: Proxy | None) -> Response:
        """Send one request and wait for the head of its response.

        Raises:
            TransferError: there is none.
        """
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            proxy=None if proxy is None else _proxy(proxy, self._tls),
            max_keepalive_connections=0,
        )
        with _told(f"{request.target.authority}: "):
            try:
                return Response(await pool.handle_async_request(_encode(request, proxy)))
            except BaseException:
                # A request that is given up when its connection has just been made leaves it in the pool,
                # open and unused, for as long as the server likes it.
                await pool.aclose()
                raise


def _proxy(proxy: Proxy, tls: ssl.SSLContext) -> httpcore.Proxy:
    url = httpcore.URL(scheme=proxy.scheme, host=proxy.host, port=proxy.port, target="/")
    return httpcore.Proxy(url, auth=proxy.credentials, ssl_context=tls if proxy.scheme == "https" else None)


def _encode(request: HttpRequest, proxy: Proxy | None) -> httpcore.Request:
    target = request.target
    # A proxy gets the whole URL, for which httpcore joins host and port; a socket wants no brackets.
    host = target.host if proxy is not None and target.scheme == "http" else target.host.strip("[]")
    port = None if target.has_usual_port else target.port
    path = f"{target.host}:{target.port}" if request.method == "CONNECT" else target.path
    return httpcore.Request(
        request.method.encode(),
        httpcore.URL(scheme=target.scheme, host=host, port=port, target=path),
        headers=list(request.headers),
        content=_Body(request.body),
    )


class _Body:
    """The body of a request, let go once it is sent: httpcore keeps the request as long as the
    response, and a stream may last for hours.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        data, self._data = self._data, b""
        if data:
            yield data


@contextlib.contextmanager
def _told(about: str = "") -> Iterator[None]:
    """Turn what the libraries raise into a sentence, begun by `about`. Our request is never quoted."""
    try:
        yield
    except (httpcore.LocalProtocolError, h11.LocalProtocolError):
        raise TransferError("the request cannot be expressed in HTTP/1.1") from None
    except (
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        OSError,
        h11.RemoteProtocolError,
    ) as error:
        raise TransferError(f"{about}{_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """What the system said, which httpcore and anyio keep inside their own errors."""
    for inner in causes_of(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {inner.verify_message}"
        if isinstance(inner, ssl.SSLError):
            return f"TLS failed: {inner.reason or type(inner).__name__}"
        if isinstance(inner, socket.gaierror):
            return f"its name cannot be resolved: {inner.strerror}"
        if isinstance(inner, OSError) and inner.errno:
            return os_error_text(inner)
    return str(error)[:_MAX_TEXT] or "the connection was lost"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")

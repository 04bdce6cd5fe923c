"""Connections to servers by httpcore, through proxies: one request, one response.

The only module that imports httpcore, so it is loaded at the first request, in a thread (`client.py`).
HTTP/1.1 only; TLS by the system's trust store. `docs/protocol.md`, "HTTP".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from urllib.parse import unquote_to_bytes

import anyio
import anyio.lowlevel
import h11
import httpcore
import msgspec

from execprotocol.daemon_thread import causes_of
from execprotocol.errors import os_error_text
from execprotocol.proxies import ProxyVariables
from execserver.http.request import HttpRequest, Target, TransferError, UrlError, as_browsers_read

_MAX_TEXT = 200
"""Characters of a library's error text that are passed on."""


class HttpResponse:
    """A response whose body is read on demand; the rest stays with the server."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response
        self.status = response.status
        self.headers = [(_text(name).lower(), _text(value)) for name, value in response.headers]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it was sent, in pieces of at most 64 KiB.

        Raises:
            TransferError: the connection broke.
        """
        with _transfer_errors():
            async for data in self._response.aiter_stream():
                yield data

    async def close(self) -> None:
        """Close the connection, whether or not the body was read."""
        await self._response.aclose()


class HttpTransport:
    """Makes the daemon's connections, one for each request.

    Connections are not reused. A server may close an idle one just as a request arrives, which then may not
    be sent twice; and bytes behind a response would be taken for the next response, of another client.

    Args:
        environment: the daemon's own; it names the proxies.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        # anyio loads its asyncio part at the first use, which should be in this thread too.
        asyncio.run(anyio.lowlevel.checkpoint())
        self._tls = ssl.create_default_context()
        self._proxies = Proxies(environment)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send one request and wait for the head of its response.

        Raises:
            TransferError: there is no response.
        """
        proxy = self._proxies.of(request.target)
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            proxy=None if proxy is None else _httpcore_proxy(proxy, self._tls),
            max_keepalive_connections=0,
        )
        with _transfer_errors(f"{request.target.authority}: "):
            try:
                return HttpResponse(await pool.handle_async_request(_encode(request, proxy)))
            except BaseException:
                # A request that is cancelled when its connection has just been made leaves it in the pool,
                # open and unused, until the server closes it.
                await pool.aclose()
                raise


def _httpcore_proxy(proxy: Proxy, tls: ssl.SSLContext) -> httpcore.Proxy:
    url = httpcore.URL(scheme=proxy.scheme, host=proxy.host, port=proxy.port, target="/")
    return httpcore.Proxy(url, auth=proxy.credentials, ssl_context=tls if proxy.scheme == "https" else None)


def _encode(request: HttpRequest, proxy: Proxy | None) -> httpcore.Request:
    target = request.target
    # A proxy gets the whole URL, for which httpcore joins host and port; a socket takes no brackets.
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
    """The body of a request, released once it is sent: httpcore keeps the request as long as the response,
    and a stream may last for hours.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        data, self._data = self._data, b""
        if data:
            yield data


@contextlib.contextmanager
def _transfer_errors(about: str = "") -> Iterator[None]:
    """Turn the libraries' errors into a sentence that begins with `about`. The request is never quoted."""
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
    """The system's own error, which httpcore and anyio wrap in theirs."""
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


# -- proxies


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy, itself reached by http or https."""

    scheme: str
    host: str
    port: int
    credentials: tuple[bytes, bytes] | None


class Proxies:
    """The proxies that the variables of an environment name.

    Args:
        environment: the variables, by the rules of `execprotocol.proxies.ProxyVariables`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._variables = ProxyVariables(environment)

    def of(self, target: Target) -> Proxy | None:
        """The proxy for a target, or None to connect to it directly.

        Raises:
            TransferError: the environment names a SOCKS proxy, and only HTTP proxies are supported.
        """
        found = self._variables.of(target.scheme, target.host)
        return None if found is None else _parse_proxy(found[1])


def _parse_proxy(text: str) -> Proxy | None:
    try:
        url = as_browsers_read(text if "://" in text else f"http://{text}")
    except UrlError:
        return None
    if url.scheme.startswith("socks"):
        raise TransferError(
            "the executor's environment names a SOCKS proxy, and only HTTP proxies are supported"
        )
    if url.scheme not in ("http", "https") or not url.host or not url.port:
        return None
    credentials = None
    if url.username or url.password:
        credentials = unquote_to_bytes(url.username or ""), unquote_to_bytes(url.password or "")
    return Proxy(url.scheme, url.host.strip("[]"), url.port, credentials)

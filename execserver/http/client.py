"""The daemon's HTTP client: requests with their redirects, and response bodies in memory, within the daemon's
limits.

`docs/protocol.md`, "HTTP".
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import pybase64

from execprotocol.limits import MAX_HTTP_BODY_BYTES, MAX_HTTP_EXCHANGES, MAX_HTTP_HELD_BYTES
from execserver.http.request import Headers, HttpRequest, Target, TransferError, UrlError, parse_url

if TYPE_CHECKING:
    from execserver.http.transport import HttpResponse, HttpTransport

PIECE_BYTES = 768 << 10
"""Raw bytes of a piece of a large reply: a multiple of three, so that only the last one has padding, and
encoded in a fraction of a millisecond."""

MAX_REDIRECTS = 10
"""The reference's limit."""

_ABSOLUTE = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_OF_THE_ORIGIN = frozenset(
    {b"authorization", b"cookie", b"cookie2", b"proxy-authorization", b"www-authenticate", b"host"}
)
"""Headers that are meant for one server and are sent to no other."""

_OF_THE_BODY = frozenset({b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"})


class HttpClient:
    """Makes the requests of all connections.

    Args:
        environment: the daemon's own; it names the proxies.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._loading: asyncio.Task[HttpTransport] | None = None
        self._exchanges = 0
        self.held = HeldBytes(MAX_HTTP_HELD_BYTES)

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Count a request in progress; each is a connection to a server.

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

    async def open(self, request: HttpRequest, *, follow: bool) -> HttpResponse:
        """Send a request, follow its redirects, and return the response with its body unread.

        Raises:
            TransferError: there is no response, or a redirect cannot be followed.
        """
        transport = await self._transport()
        for _ in range(MAX_REDIRECTS + 1):
            response = await transport.send(request.with_host())
            if not follow:
                return response
            try:
                subsequent = following(request, response.status, response.headers)
            except TransferError:
                await response.close()
                raise
            if subsequent is None:
                return response
            await response.close()
            request = subsequent
        raise TransferError("too many redirects")

    async def _transport(self) -> HttpTransport:
        if self._loading is None:
            # In a thread: it takes 50 ms, which would delay other connections.
            self._loading = asyncio.ensure_future(asyncio.to_thread(_load, self._environment))
        try:
            return await asyncio.shield(self._loading)
        except Exception:
            self._loading = None
            raise


def _load(environment: Mapping[str, str]) -> HttpTransport:
    transport: HttpTransport = importlib.import_module("execserver.http.transport").HttpTransport(environment)
    return transport


# -- bodies


class HeldBytes:
    """The bytes of response bodies that the daemon holds in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.total = 0

    def add(self, size: int) -> None:
        """Count bytes.

        Raises:
            TransferError: the daemon would hold too many.
        """
        if self.total + size > self._limit:
            raise TransferError(
                f"the executor holds {self.total} bytes of other responses: ask for it with streamResponse"
            )
        self.total += size

    def subtract(self, size: int) -> None:
        """Count bytes that are no longer held."""
        self.total -= size


class WholeBody:
    """A whole body in memory, counted in `held` until `release`, which calls `released`."""

    def __init__(self, held: HeldBytes, released: Callable[[WholeBody], None]) -> None:
        self._held = held
        self._released = released
        self._counted = 0
        self.data = bytearray()

    @property
    def encoded_size(self) -> int:
        """Bytes of the body in base64."""
        return (len(self.data) + 2) // 3 * 4

    async def read(self, chunks: AsyncGenerator[bytes, None]) -> None:
        """Read the whole body.

        Raises:
            TransferError: the connection broke, or the body is too large.
        """
        async with aclosing(chunks):
            async for chunk in chunks:
                if len(self.data) + len(chunk) > MAX_HTTP_BODY_BYTES:
                    raise TransferError(
                        f"larger than {MAX_HTTP_BODY_BYTES} bytes: ask for it with streamResponse"
                    )
                self._held.add(len(chunk))
                self._counted += len(chunk)
                self.data += chunk

    def release(self) -> None:
        """Drop the bytes (idempotent)."""
        self._held.subtract(self._counted)
        self._counted = 0
        self.data = bytearray()
        self._released(self)


class EncodedPieces(AsyncGenerator[bytes, None]):
    """A body in base64, piece by piece. The end and `aclose` release it, even if no piece was read: a
    generator function would not run then.
    """

    def __init__(self, body: WholeBody) -> None:
        self._body = body
        self._start = 0

    async def asend(self, value: None) -> bytes:
        """The next piece."""
        piece = self._body.data[self._start : self._start + PIECE_BYTES]
        if not piece:
            self._body.release()
            raise StopAsyncIteration
        self._start += PIECE_BYTES
        return pybase64.b64encode(piece)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> bytes:
        """End the stream and raise."""
        self._body.release()
        raise typ


# -- redirects


def following(request: HttpRequest, status: int, headers: Iterable[tuple[str, str]]) -> HttpRequest | None:
    """The request that follows a redirect, or None if this response is not one.

    Args:
        request: the request that was answered.
        status: of the response.
        headers: of the response, their names in lower case.

    Raises:
        TransferError: the redirect leads to another scheme than http or https.
    """
    if status not in _REDIRECTS:
        return None
    location = next((value for name, value in headers if name == "location"), None)
    target = None if location is None else _resolve(request.target, location)
    if target is None:
        return None
    if status == 303:
        becomes_get = request.method != "HEAD"
    else:
        becomes_get = status in (301, 302) and request.method == "POST"
    method, body, dropped = request.method, request.body, {b"referer"}
    if becomes_get:
        method, body = "GET", b""
        dropped |= _OF_THE_BODY
    if target.origin != request.target.origin:
        dropped |= _OF_THE_ORIGIN
    kept = tuple((name, value) for name, value in request.headers if name.lower() not in dropped)
    return HttpRequest(method, target, kept + _referer(request.target, target), body)


def _resolve(base: Target, location: str) -> Target | None:
    try:
        return parse_url(location if _ABSOLUTE.match(location) else urljoin(base.url, location))
    except UrlError as error:
        text = str(error)
        if text.startswith("only supports"):
            scheme = text.rpartition(" ")[2]
            raise TransferError(f"redirect target uses unsupported URL scheme: {scheme}") from None
        return None
    except ValueError:
        return None


def _referer(previous: Target, target: Target) -> Headers:
    """The `Referer`: the whole URL to the same origin, the origin alone to another, nothing from https to
    http.
    """
    if previous.scheme == "https" and target.scheme == "http":
        return ()
    text = previous.url if previous.origin == target.origin else previous.root
    return ((b"Referer", text.encode()),)

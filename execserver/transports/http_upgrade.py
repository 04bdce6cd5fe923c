"""The HTTP of a WebSocket upgrade: parses a request head and decides the answer. No I/O.

The order of the checks is part of the wire (`docs/protocol.md`, "WebSocket"): a request with an `Origin`
comes from a browser and is refused before any other check.

Beside the upgrade there are a few pages for monitoring (`HttpPages`), under the same rules. Only a `public`
page needs no credentials.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from execserver.transports.authentication import Authenticator

MAX_HEAD_BYTES = 16 << 10
"""The head of a stock client has a few hundred bytes; tokens may add some thousand."""

ACCEPT_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
VERSION = "13"

TEXT = "text/plain; charset=utf-8"

STOPPING = "stopping"
"""The text of a 503."""

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/(1\.[01])")
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadRequestError(ValueError):
    """The bytes are not an HTTP request head."""


class Head(msgspec.Struct, frozen=True):
    """A request head. Header names are in small letters; a header may occur more than once."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key == name]

    def first(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return next(iter(self.all(name)), None)

    def tokens(self, name: str) -> set[str]:
        """A header that is a list, in small letters, all its occurrences together."""
        return {token.strip().lower() for value in self.all(name) for token in value.split(",")}


class Decision(msgspec.Struct, frozen=True):
    """The answer to a request, and whether the connection is a WebSocket after it."""

    response: bytes
    status: HTTPStatus

    @property
    def upgraded(self) -> bool:
        """Whether frames follow."""
        return self.status is HTTPStatus.SWITCHING_PROTOCOLS


class PageContent(NamedTuple):
    """The content of a page."""

    body: bytes = b""
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


class HttpPage(msgspec.Struct, frozen=True):
    """A page for GET and HEAD."""

    show: Callable[[Head], PageContent | Awaitable[PageContent]]
    """Makes the content, at once or, if that could block the loop, later."""
    public: bool = False
    """Whether the page needs no credentials."""


HttpPages = Mapping[str, HttpPage]
"""The pages by path."""

READY: HttpPages = {"/readyz": HttpPage(lambda head: PageContent(), public=True)}
"""The page that every listener has: it answers."""


def parse_head(data: bytes) -> Head:
    """Parse a request head, given without the empty line at its end.

    Raises:
        BadRequestError: not a request head.
    """
    lines = data.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise BadRequestError("request line")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or _HEADER_NAME.fullmatch(name) is None or b"\0" in value or b"\n" in value:
            raise BadRequestError("header")
        headers.append((name.decode().lower(), value.strip(b" \t").decode("latin-1")))
    method, target, version = (part.decode() for part in match.groups())
    return Head(method, target, version, tuple(headers))


def decide(
    head: Head,
    authenticator: Authenticator,
    host_names: Collection[str],
    any_host: bool = False,
    pages: HttpPages = READY,
    upgrades: bool = True,
) -> Decision | Coroutine[Any, Any, Decision]:
    """The answer to a request; a coroutine if a page makes its content later.

    Args:
        head: the request.
        authenticator: checks upgrades, and requests for pages that are not public.
        host_names: the names that `Host` may have besides literal addresses, in small letters. With another
            name, a web page could reach a local server by a name that the page's owner controls.
        any_host: ignore `Host` (Unix sockets).
        pages: the pages beside the upgrade, which is at `/`.
        upgrades: whether new connections are taken; otherwise the answer is 503.
    """
    if head.first("origin") is not None:
        return refuse(HTTPStatus.FORBIDDEN)
    if not any_host and not _host_is_ours(head, host_names):
        return refuse(HTTPStatus.FORBIDDEN)
    path = path_of(head)
    page = pages.get(path)
    if page is None and path != "/":
        return refuse(HTTPStatus.NOT_FOUND)
    with_body = head.method != "HEAD"
    if page is None or not page.public:
        refusal = authenticator.refusal(head.first("authorization"))
        if refusal is not None:
            return refuse(HTTPStatus.UNAUTHORIZED, refusal, with_body=with_body)
    if page is not None:
        return _show(page, head, with_body)
    if not upgrades:
        return refuse(HTTPStatus.SERVICE_UNAVAILABLE, STOPPING, with_body=with_body)
    return _upgrade(head)


def path_of(head: Head) -> str:
    """The path of a request, without its query."""
    return head.target.partition("?")[0]


def is_public(head: Head, pages: HttpPages) -> bool:
    """Whether a request is for a page that needs no credentials."""
    page = pages.get(path_of(head))
    return page is not None and page.public


def refuse(
    status: HTTPStatus, text: str = "", headers: Collection[str] = (), with_body: bool = True
) -> Decision:
    """An answer after which the connection ends."""
    return _answer(PageContent(text.encode(), TEXT, status), headers, with_body)


def accept_value(key: str) -> str:
    """The `Sec-WebSocket-Accept` for the key of an upgrade."""
    digest = hashlib.sha1(key.encode() + ACCEPT_SALT, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _show(page: HttpPage, head: Head, with_body: bool) -> Decision | Coroutine[Any, Any, Decision]:
    if head.method not in ("GET", "HEAD"):
        return refuse(HTTPStatus.METHOD_NOT_ALLOWED, headers=["allow: GET, HEAD"])
    content = page.show(head)
    if isinstance(content, PageContent):
        return _answer(content, (), with_body)

    async def later() -> Decision:
        return _answer(await content, (), with_body)

    return later()


def _answer(content: PageContent, headers: Collection[str], with_body: bool) -> Decision:
    status, body = content.status, content.body
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"content-length: {len(body)}", "connection: close"]
    if body:
        lines.append(f"content-type: {content.content_type}")
    lines += headers
    head = "\r\n".join([*lines, "", ""]).encode()
    return Decision(head + body if with_body else head, status)


def _upgrade(head: Head) -> Decision:
    wants = "websocket" in head.tokens("upgrade") and "upgrade" in head.tokens("connection")
    if head.method != "GET" or head.version == "1.0" or not wants:
        return refuse(HTTPStatus.BAD_REQUEST)
    if head.all("sec-websocket-version") != [VERSION]:
        return refuse(HTTPStatus.UPGRADE_REQUIRED, headers=[f"sec-websocket-version: {VERSION}"])
    key = head.first("sec-websocket-key") or ""
    if not _is_key(key):
        return refuse(HTTPStatus.BAD_REQUEST)
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "connection: upgrade",
        "upgrade: websocket",
        f"sec-websocket-accept: {accept_value(key)}",
    ]
    return Decision("\r\n".join([*lines, "", ""]).encode(), HTTPStatus.SWITCHING_PROTOCOLS)


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key.encode(), validate=True)) == 16
    except (binascii.Error, UnicodeEncodeError):
        return False


def _host_is_ours(head: Head, host_names: Collection[str]) -> bool:
    hosts = head.all("host")
    if not hosts:
        return head.version == "1.0"  # browsers always name one
    if len(hosts) > 1:
        return False
    name = re.sub(r":\d*$", "", hosts[0]).lower()
    literal = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        ipaddress.ip_address(literal)
    except ValueError:
        return name.removesuffix(".") in host_names
    return literal != name or ":" not in literal

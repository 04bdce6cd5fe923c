"""A request as it goes out, and what may be asked for. Pure.

`docs/protocol.md`, "HTTP". No error quotes the value of a header: it may be a secret.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote_to_bytes

import msgspec

from execprotocol.errors import InvalidParams
from execserver.loading import LOADER

if TYPE_CHECKING:
    from pydantic_core import Url

Headers = tuple[tuple[bytes, bytes], ...]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""What RFC 9110 calls a field value: no control character but the tab."""


class UrlError(ValueError):
    """The text is no URL that a request can go to."""


class Target(msgspec.Struct, frozen=True):
    """A parsed URL. `host` is in ASCII, an IPv6 address in brackets; `path` has the query and no
    fragment; `credentials` are what stood before the `@`.
    """

    scheme: str
    host: str
    port: int
    path: str
    credentials: tuple[bytes, bytes] | None = None

    @property
    def origin(self) -> tuple[str, int]:
        """Who is talked to: what decides whether a redirect leaves."""
        return self.host, self.port

    @property
    def has_usual_port(self) -> bool:
        """Whether the port is the scheme's own."""
        return self.port == (443 if self.scheme == "https" else 80)

    @property
    def authority(self) -> str:
        """The `Host` header."""
        return self.host if self.has_usual_port else f"{self.host}:{self.port}"

    @property
    def root(self) -> str:
        """The URL of the origin."""
        return f"{self.scheme}://{self.authority}/"

    @property
    def url(self) -> str:
        """The URL without credentials and fragment."""
        return f"{self.scheme}://{self.authority}{self.path}"


class HttpRequest(msgspec.Struct, frozen=True):
    """One request, complete: nothing is added to its headers any more."""

    method: str
    target: Target
    headers: Headers
    body: bytes = b""

    def with_host(self) -> HttpRequest:
        """The same with a `Host`, if the caller gave none."""
        if has_header(self.headers, b"host"):
            return self
        host = (b"Host", self.target.authority.encode())
        return HttpRequest(self.method, self.target, (*self.headers, host), self.body)


def as_browsers_read(text: str) -> Url:
    """The parts of a URL. The first call loads a library, which takes 10 ms.

    Raises:
        UrlError: it is no absolute URL.
        OSError: the table of descriptors is full.
    """
    pydantic_core = LOADER.load(lambda: import_module("pydantic_core"))
    try:
        return cast("Url", pydantic_core.Url(text))
    except pydantic_core.ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error", "not a URL")
        raise UrlError(f"url is invalid: {reason}") from None


def parse_url(text: str) -> Target:
    """Take a URL apart as browsers do: white space around it, `..` in its path, other spellings of an
    IPv4 address and names that are not ASCII are put right.

    Raises:
        UrlError: it is no absolute URL, or its scheme is neither http nor https.
    """
    url = as_browsers_read(text)
    if url.scheme not in ("http", "https"):
        raise UrlError(f"only supports http and https URLs, got {url.scheme}")
    if not url.host or not url.port:
        raise UrlError("url is invalid: empty host or port 0")
    path = url.path or "/"
    if url.query is not None:
        path += f"?{url.query}"
    credentials = None
    if url.username or url.password:
        credentials = unquote_to_bytes(url.username or ""), unquote_to_bytes(url.password or "")
    return Target(url.scheme, url.host, url.port, path, credentials)


def check_method(method: str) -> str:
    """The method, which is sent as it stands.

    Raises:
        InvalidParams: it is no token.
    """
    if not method.isascii() or not _TOKEN.fullmatch(method.encode()):
        raise InvalidParams("http/request method is invalid: invalid HTTP method")
    return method


def check_url(text: str) -> Target:
    """As `parse_url`, with the wire's error.

    Raises:
        InvalidParams: see `parse_url`.
    """
    try:
        return parse_url(text)
    except UrlError as error:
        raise InvalidParams(f"http/request {error}") from None


def check_header_name(name: str) -> bytes:
    """The name of a header, which is sent as it stands.

    Raises:
        InvalidParams: it is no token.
    """
    encoded = name.encode()
    if not _TOKEN.fullmatch(encoded):
        raise InvalidParams("http/request header name is invalid: invalid HTTP header name")
    return encoded


def check_header_value(name: str, value: str) -> bytes:
    """The value of a header without the white space around it, which is not part of it.

    Raises:
        InvalidParams: it has control characters.
    """
    # A variable of the environment may hold any bytes.
    encoded = value.encode("utf-8", "surrogateescape")
    if not _VALUE.fullmatch(encoded):
        raise InvalidParams(f"http/request header value is invalid for {name}: failed to parse header value")
    return encoded.strip(b" \t")


def make_request(
    method: str, target: Target, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> HttpRequest:
    """Complete a request: `Authorization` from the URL, `Accept`, `Content-Length`.

    Raises:
        InvalidParams: headers contradict the body or each other.
    """
    given = tuple(headers)
    _check_framing(given, body)
    if target.credentials is not None and not has_header(given, b"authorization"):
        token = base64.b64encode(b":".join(target.credentials))
        given = ((b"Authorization", b"Basic " + token), *given)
    if not has_header(given, b"accept"):
        given = (*given, (b"Accept", b"*/*"))
    if body and not has_header(given, b"content-length") and not has_header(given, b"transfer-encoding"):
        given = (*given, (b"Content-Length", b"%d" % len(body)))
    return HttpRequest(method, target, given, body)


def has_header(headers: Headers, name: bytes) -> bool:
    """Whether there is a header of this name, which is given in lower case."""
    return any(given.lower() == name for given, _ in headers)


def _check_framing(headers: Headers, body: bytes) -> None:
    """What frames the message must be true: a wrong length would make a server wait for ever, or take
    a part of the body for another request.
    """
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) > 1 or (lengths and (codings or lengths != [b"%d" % len(body)])):
        raise InvalidParams(
            f"http/request header content-length must be that of the body ({len(body)}): "
            "leave it out, it is added"
        )
    if codings not in ([], [b"chunked"]):
        raise InvalidParams("http/request header transfer-encoding can only be chunked")
    if sum(name.lower() == b"host" for name, _ in headers) > 1:
        raise InvalidParams("http/request header host can be given once only")

"""A request as it is sent: its URL, its headers, the limits on both, and its deadline.

`docs/protocol.md`, "HTTP". No error quotes the value of a header: it may be a secret.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Iterable
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
"""A field value of RFC 9110: no control character but the tab."""

_LONGEST_SECONDS = 10 * 365 * 24 * 3600.0
"""A timeout is a 64-bit number of milliseconds, more than a timer of the loop takes."""

_PROTECTED_VARIABLES = frozenset(
    {
        # The reference's list: credentials of the executor itself and of the services behind it.
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "CODEX_ACCESS_TOKEN",
        "CODEX_API_KEY",
        "CODEX_CONNECTORS_TOKEN",
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "CODEX_GUARDIAN_DECISIONS_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "OPENAI_API_KEY",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    }
)
"""Variables of the daemon's environment that no header may carry away: a client that may name any server
could send itself the daemon's credentials. Variables that no child sees either
(`processes/child_environment.py`) are not repeated here."""


class TransferError(Exception):
    """A request or a response did not get through. The text says why and quotes no header. Not an error of
    the wire yet.
    """


class RequestDeadline:
    """The time limit of a request, from its admission to the last byte of its body.

    Args:
        timeout_ms: from now; None for no limit.
    """

    def __init__(self, timeout_ms: int | None) -> None:
        self._timeout_ms = timeout_ms
        self._end: float | None = None
        if timeout_ms is not None:
            self._end = asyncio.get_running_loop().time() + min(timeout_ms / 1000, _LONGEST_SECONDS)

    @contextlib.asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Run the body within the deadline. Not to be nested.

        Raises:
            TransferError: the deadline has passed.
        """
        if self._timeout_ms == 0:
            raise self._passed()
        try:
            async with asyncio.timeout_at(self._end):
                yield
        except TimeoutError:
            raise self._passed() from None

    def _passed(self) -> TransferError:
        return TransferError(f"timed out after {self._timeout_ms} ms")


class UrlError(ValueError):
    """A request cannot be sent to this URL."""


class Target(msgspec.Struct, frozen=True):
    """A parsed URL. `host` is in ASCII, an IPv6 address in brackets; `path` has the query and no
    fragment; `credentials` are the part before the `@`.
    """

    scheme: str
    host: str
    port: int
    path: str
    credentials: tuple[bytes, bytes] | None = None

    @property
    def origin(self) -> tuple[str, int]:
        """The server: a redirect to another origin loses the headers meant for this one."""
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
    """One request with all of its headers."""

    method: str
    target: Target
    headers: Headers
    body: bytes = b""

    def with_host(self) -> HttpRequest:
        """This request, with a `Host` header if it had none."""
        if has_header(self.headers, b"host"):
            return self
        host = (b"Host", self.target.authority.encode())
        return HttpRequest(self.method, self.target, (*self.headers, host), self.body)


def as_browsers_read(text: str) -> Url:
    """The parts of a URL. The first call loads a library, which takes 10 ms.

    Raises:
        UrlError: not an absolute URL.
        OSError: the table of descriptors is full.
    """
    pydantic_core = LOADER.load(lambda: import_module("pydantic_core"))
    try:
        return cast("Url", pydantic_core.Url(text))
    except pydantic_core.ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error", "not a URL")
        raise UrlError(f"url is invalid: {reason}") from None


def parse_url(text: str) -> Target:
    """Parse a URL as browsers do: normalizes white space around it, `..` in its path, other spellings of an
    IPv4 address and names that are not ASCII.

    Raises:
        UrlError: not an absolute URL, or its scheme is neither http nor https.
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
    """The method, which is sent unchanged.

    Raises:
        InvalidParams: not a token.
    """
    if not method.isascii() or not _TOKEN.fullmatch(method.encode()):
        raise InvalidParams("http/request method is invalid: invalid HTTP method")
    return method


def check_url(text: str) -> Target:
    """`parse_url`, with an error of the wire.

    Raises:
        InvalidParams: see `parse_url`.
    """
    try:
        return parse_url(text)
    except UrlError as error:
        raise InvalidParams(f"http/request {error}") from None


def check_header_name(name: str) -> bytes:
    """The name of a header, which is sent unchanged.

    Raises:
        InvalidParams: not a token.
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
    """Whether there is a header of this name, given in lower case."""
    return any(given.lower() == name for given, _ in headers)


def _check_framing(headers: Headers, body: bytes) -> None:
    """Refuse headers that frame the message wrongly: a server would wait for ever, or take a part of the body
    for another request.
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


def is_protected(name: str) -> bool:
    """Whether no header may carry this variable, in whatever case it is spelled."""
    return name.upper() in _PROTECTED_VARIABLES

"""Which request follows a redirect. Pure. `docs/protocol.md`, "HTTP"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urljoin

from execserver.http.request import Headers, HttpRequest, Target, UrlError, parse_url

MAX_REDIRECTS = 10
"""As many as the reference follows."""

_ABSOLUTE = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_OF_THE_ORIGIN = frozenset(
    {b"authorization", b"cookie", b"cookie2", b"proxy-authorization", b"www-authenticate", b"host"}
)
"""Headers that are meant for one server and go to no other."""

_OF_THE_BODY = frozenset({b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"})


class RedirectError(Exception):
    """A redirect that may not be followed."""


def following(request: HttpRequest, status: int, headers: Iterable[tuple[str, str]]) -> HttpRequest | None:
    """The next request, or None when this response is the answer.

    Args:
        request: what was answered.
        status: of the response.
        headers: of the response, their names in lower case.

    Raises:
        RedirectError: it leads to something else than http or https.
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
            raise RedirectError(f"redirect target uses unsupported URL scheme: {scheme}") from None
        return None
    except ValueError:
        return None


def _referer(previous: Target, target: Target) -> Headers:
    """Where the request comes from: all of it to the same origin, the origin to another one, nothing
    from https to http.
    """
    if previous.scheme == "https" and target.scheme == "http":
        return ()
    text = previous.url if previous.origin == target.origin else previous.root
    return ((b"Referer", text.encode()),)

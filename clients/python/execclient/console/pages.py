"""The files of the page, and the headers that every response has.

The page is one document with one script and one style sheet, all from this server. Its policy permits nothing
else: no text in the document can become a script, no other server is ever contacted, and no other page can
frame this one or read its responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from picows import WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener

STATIC = Path(__file__).parent / "static"
"""Made by `make console`; in the wheel it is there already."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src ws://{host}/api; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), clipboard-read=()",
}


class ConsoleNotBuilt(Exception):
    """The files of the page are missing: this is a checkout of the source in which it was not built."""


class Pages:
    """The files of the page.

    Args:
        folder: their folder. All of them are read at once: a build that goes on does not mix two pages.

    Raises:
        ConsoleNotBuilt: the folder has no page.
    """

    def __init__(self, folder: Path = STATIC) -> None:
        if not (folder / "index.html").is_file():
            raise ConsoleNotBuilt("the page of the console is not built: run `make console` in the checkout")
        self._files = {
            f"/{path.name}": (_TYPES[path.suffix], path.read_bytes())
            for path in folder.iterdir()
            if path.suffix in _TYPES
        }
        self._files["/"] = self._files["/index.html"]

    def answer(self, request: WSUpgradeRequest, host: str) -> WSUpgradeResponseWithListener:
        """The response to a request whose `Host` is this one, and permitted."""
        found = self._files.get(request.path.decode("latin-1").partition("?")[0])
        if found is None:
            return refusal(404, "there is no such page", host)
        kind, body = found
        headers = {"Content-Type": kind, **headers_for(host)}
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(body, headers), None)


def refusal(status: int, text: str, host: str = "127.0.0.1") -> WSUpgradeResponseWithListener:
    """A response that refuses a request."""
    headers = {"Content-Type": _TYPES[".txt"], **headers_for(host)}
    response = WSUpgradeResponse.create_error_response(status, f"{text}\n".encode(), headers)
    return WSUpgradeResponseWithListener(response, None)


def headers_for(host: str) -> Mapping[str, str]:
    """The headers of a response to a page at this `Host`."""
    return {"Content-Security-Policy": _POLICY.format(host=host), **_HEADERS}

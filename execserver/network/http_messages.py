"""What a proxy reads from the heads of HTTP messages, which headers it passes on, and its own answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import h11
import msgspec

from execserver.network.addresses import Host, HostError, parse_host, split_port
from execserver.network.judge import DENIED, LOCAL, METHOD, NOT_ALLOWED, TUNNEL, DeniedError

Headers = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1. The framing of a message is not among them: h11 frames it anew by these headers.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"upgrade",
    }
)
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host"})
_ERROR_HEADERS = {
    NOT_ALLOWED: "blocked-by-allowlist",
    LOCAL: "blocked-by-allowlist",
    DENIED: "blocked-by-denylist",
    METHOD: "blocked-by-method-policy",
    TUNNEL: "blocked-by-mitm-required",
}


class RequestError(Exception):
    """A request that the proxy does not serve."""

    def __init__(self, status: int, text: str) -> None:
        """Args:
        status: the status code of the answer.
        text: for the command.
        """
        super().__init__(text)
        self.status = status
        self.text = text


class Authority(NamedTuple):
    """The host and the port of a request, and the rest of its target."""

    host: Host
    port: int
    path: bytes = b""
    """The path and query of a plain request; empty if its URL has neither."""


class Answer(NamedTuple):
    """An answer of the proxy itself."""

    status: int
    headers: Headers
    body: bytes


def connect_authority(request: h11.Request) -> Authority:
    """The target of a CONNECT request, which has to name a port and to have no body.

    Raises:
        RequestError: it does not.
    """
    framing = [field for field in request.headers if field[0] in (b"content-length", b"transfer-encoding")]
    if framing not in ([], [(b"content-length", b"0")]):
        raise RequestError(400, "CONNECT has no body")
    host, port = _split(request.target)
    if port is None:
        raise RequestError(400, "CONNECT needs a port, as in example.com:443")
    return Authority(host, port)


def plain_authority(request: h11.Request) -> Authority:
    """The target of a request for another server, which has to be an `http:` URL.

    Raises:
        RequestError: it is not, or the request could be read in two ways.
    """
    _check_framing(request)
    scheme, separator, rest = request.target.partition(b"://")
    if not separator or scheme.lower() != b"http":
        raise RequestError(400, "this is a proxy: send http:// URLs, and CONNECT for all other protocols")
    end = min((found for mark in b"/?#\\" if (found := rest.find(mark)) >= 0), default=len(rest))
    path = rest[end:]
    if b"#" in path or path.startswith(b"\\"):
        raise RequestError(400, "the URL is not valid")
    host, port = _split(rest[:end])
    given = Authority(host, port or 80, b"/" + path if path.startswith(b"?") else path)
    for name, value in request.headers:
        if name == b"host" and _host_header(value) != given[:2]:
            raise RequestError(400, "Host header does not match request target")
    return given


def asks_for_unix_socket(request: h11.Request) -> bool:
    """Whether a request is for a Unix socket, by the header that the reference has for that."""
    return any(name == b"x-unix-socket" for name, _ in request.headers)


def _host_header(value: bytes) -> tuple[Host, int]:
    host, port = _split(value)
    return host, port or 80


def _split(authority: bytes) -> tuple[Host, int | None]:
    if b"@" in authority:
        raise RequestError(400, "invalid host: credentials are sent in a header, and not in the URL")
    try:
        text, port = split_port(authority.decode("ascii"))
        return parse_host(text), port
    except UnicodeDecodeError:
        raise RequestError(400, "invalid host: encode it by IDNA") from None
    except HostError as error:
        raise RequestError(400, f"invalid host: {error}") from None


def _check_framing(request: h11.Request) -> None:
    """Refuse a request whose end a server could see elsewhere."""
    framing = [name for name, _ in request.headers if name in (b"content-length", b"transfer-encoding")]
    if len(framing) > 1:
        raise RequestError(400, "a request has either a Content-Length or a Transfer-Encoding")
    if b"transfer-encoding" in framing and request.http_version < b"1.1":
        raise RequestError(400, "HTTP/1.0 has no Transfer-Encoding")


def wants_websocket(request: h11.Request) -> bool:
    """Whether a request asks for a WebSocket."""
    if request.http_version < b"1.1":
        return False
    upgrades = [value.strip().lower() for name, value in request.headers if name == b"upgrade"]
    return upgrades == [b"websocket"] and b"upgrade" in _connection_tokens(request.headers)


def _connection_tokens(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        token.strip().lower()
        for name, value in headers
        if name.lower() in (b"connection", b"proxy-connection")
        for token in value.split(b",")
    }


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are for the other end, and not for the proxy."""
    headers = list(headers)
    dropped = _HOP_BY_HOP | (_connection_tokens(headers) - _FRAMING)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def forwarded(
    request: h11.Request, to: Authority, *, websocket: bool, proxy_headers: Headers | None
) -> h11.Request:
    """The request as the server gets it, or a further proxy if there are headers for one.

    It is the only request of its connection.
    """
    headers = end_to_end(request.headers.raw_items())
    host = f"[{to.host.text}]" if ":" in to.host.text else to.host.text
    authority = f"{host}{'' if to.port == 80 else f':{to.port}'}".encode()
    if not any(name.lower() == b"host" for name, _ in headers):
        headers.insert(0, (b"Host", authority))
    if websocket:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    else:
        headers.append((b"Connection", b"close"))
    if proxy_headers is not None:
        target = b"http://" + authority + to.path
        return h11.Request(method=request.method, target=target, headers=headers + proxy_headers)
    target = to.path or (b"*" if request.method == b"OPTIONS" else b"/")
    return h11.Request(method=request.method, target=target, headers=headers)


def trailers(end: h11.EndOfMessage, head: Headers) -> h11.EndOfMessage:
    """The end of a message with the trailers that may follow its head; none without chunks.

    A field that frames or routes a message is none: a server might join it to the head.
    """
    if not any(name.lower() == b"transfer-encoding" for name, _ in head):
        return h11.EndOfMessage()
    fields = [
        (name, value) for name, value in end_to_end(end.headers.raw_items()) if name.lower() not in _FRAMING
    ]
    return h11.EndOfMessage(headers=fields)


def relayed(answer: h11.Response | h11.InformationalResponse) -> h11.Response | h11.InformationalResponse:
    """The head of a server's answer as the command gets it."""
    headers = end_to_end(answer.headers.raw_items())
    status, reason = answer.status_code, answer.reason
    if status == 101:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    if isinstance(answer, h11.InformationalResponse):
        return h11.InformationalResponse(status_code=status, headers=headers, reason=reason)
    if not any(name.lower() == b"date" for name, _ in headers):
        headers.append(date())
    return h11.Response(status_code=status, headers=headers, reason=reason)


def denial(error: DeniedError) -> Answer:
    """The answer to a denied request, as the reference gives it."""
    decision = error.decision
    if decision.protocol == "https_connect":
        kind, body = b"text/plain", error.message.encode()
    else:
        kind = b"application/json"
        body = msgspec.json.encode(
            {
                "status": "blocked",
                "host": decision.host,
                "reason": decision.reason,
                "decision": decision.decision,
                "source": decision.source,
                "protocol": decision.protocol,
                "port": decision.port,
                "message": error.message,
            }
        )
    blocked = _ERROR_HEADERS.get(decision.reason, "blocked-by-policy").encode()
    return _answer(403, [(b"content-type", kind), (b"x-proxy-error", blocked)], body)


def failure(status: int, text: str) -> Answer:
    """An answer in plain text."""
    return _answer(status, [(b"content-type", b"text/plain")], text.encode())


def _answer(status: int, headers: Headers, body: bytes) -> Answer:
    return Answer(status, [*headers, (b"content-length", b"%d" % len(body)), date()], body)


def date() -> tuple[bytes, bytes]:
    """The header `date` of this moment."""
    return b"date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()).encode()

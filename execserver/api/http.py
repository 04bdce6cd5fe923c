"""`http/request`. `docs/protocol.md`, "HTTP"."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING

import pybase64

from execprotocol.errors import InvalidParams
from execserver.host import Host
from execserver.http.client import PIECE_BYTES, EncodedPieces, HttpClient, WholeBody
from execserver.http.request import (
    HttpRequest,
    RequestDeadline,
    check_header_name,
    check_header_value,
    check_method,
    check_url,
    is_protected,
    make_request,
)
from execserver.http.stream import BodyStream, Exchanges
from execserver.processes.child_environment import is_always_removed
from execserver.rpc.codec import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers, Result, StreamedResult

if TYPE_CHECKING:
    from execprotocol.http import HttpHeader, HttpRequestParams


class HttpHandlers:
    """The handler of this family."""

    def __init__(self, host: Host) -> None:
        self._environment = host.environment
        self._client = HttpClient(host.environment)

    def table(self) -> Handlers:
        """Method name → handler."""
        return {"http/request": self.request}

    def request(self, caller: Caller, params: HttpRequestParams) -> Awaitable[Result]:
        """Check a request and make it."""
        exchanges = caller.own(Exchanges, lambda: Exchanges(self._client))
        if params.stream_response:
            exchanges.require_free(params.request_id)
        request = self._make_request(params)
        deadline = RequestDeadline(params.timeout_ms)
        follow = params.redirect_policy == "follow"
        if params.stream_response:
            stream = exchanges.stream(params.request_id, caller)
            return _begin_stream(stream, request, deadline, follow=follow)
        return _fetch(caller, exchanges, request, deadline, follow=follow)

    def _make_request(self, params: HttpRequestParams) -> HttpRequest:
        method = check_method(params.method)
        target = check_url(params.url)
        return make_request(method, target, self._headers(params.headers), params.body_base64 or b"")

    def _headers(self, headers: list[HttpHeader]) -> Iterator[tuple[bytes, bytes]]:
        for header in headers:
            name = check_header_name(header.name)
            yield name, check_header_value(header.name, header.value + _variable(self._environment, header))


async def _begin_stream(
    stream: BodyStream, request: HttpRequest, deadline: RequestDeadline, *, follow: bool
) -> Encoded:
    response = await stream.open(request, deadline, follow=follow)
    return Encoded(_head(response.status, response.headers) + b'"}', after=stream.begin, begun=True)


async def _fetch(
    caller: Caller, exchanges: Exchanges, request: HttpRequest, deadline: RequestDeadline, *, follow: bool
) -> Encoded | StreamedResult:
    response, body = await exchanges.fetch(request, deadline, follow=follow)
    await caller.wait_to_reply()
    return _reply(_head(response.status, response.headers), body)


def _reply(head: bytes, body: WholeBody) -> Encoded | StreamedResult:
    if len(body.data) > PIECE_BYTES:
        return StreamedResult(head, EncodedPieces(body), b'"}', size=body.encoded_size)
    encoded = pybase64.b64encode(body.data)
    body.release()
    return Encoded(head + encoded + b'"}')


def _head(status: int, headers: list[tuple[str, str]]) -> bytes:
    """The result up to the body."""
    fields = encode_json([{"name": name, "value": value} for name, value in headers])
    return b'{"status":%d,"headers":%b,"bodyBase64":"' % (status, fields)


def _variable(environment: Mapping[str, str], header: HttpHeader) -> str:
    """The text that `valueEnvVar` adds to a header. Errors name the variable, never its value."""
    name = header.value_env_var
    if name is None:
        return ""
    if is_protected(name) or is_always_removed(name.upper()):
        raise InvalidParams(
            f"http/request header {header.name} cannot use executor environment variable {name}"
        )
    if name not in environment:
        raise InvalidParams(
            f"http/request header {header.name} requires executor environment variable {name}"
        )
    if not environment[name]:
        raise InvalidParams(
            f"http/request header {header.name} requires a non-empty executor environment variable {name}"
        )
    return environment[name]

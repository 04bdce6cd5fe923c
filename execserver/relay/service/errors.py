"""Errors and request logs of the relay's HTTP side.

Every request passes the `Guard`, which turns any exception into one form of error body and logs a line with
peer, path and status, and the ids of the trace that `traceparent` names. Queries, other headers and bodies
are never logged: they hold tickets and tokens.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from execprotocol.relay.contract import ContractError, error_body
from execserver.local_peers import unix_peer
from execserver.relay.service.store import StoreUnavailable
from execserver.relay.service.tokens import TokenRefused
from execserver.telemetry import tracing
from execserver.telemetry.logs import Logger

LOGGED_PATH_CHARACTERS = 400
"""Limit for logged paths. The longest valid one has an environment id of 256 characters."""

_CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    429: "too_many_requests",
    503: "unavailable",
}

log = Logger()


class HttpError(Exception):
    """An HTTP error response.

    Args:
        status: of HTTP.
        message: for people.
        code: for programs; empty: derived from the status.
        headers: added to the response.
    """

    def __init__(
        self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or _CODES.get(status, "error")
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        """The response to send."""
        return web.json_response(
            error_body(self.code, self.message), status=self.status, headers=self.headers
        )


class Guard:
    """Handles errors of all requests and logs them.

    Attributes:
        refusals: the number of refused requests, by status.
    """

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()

    def middleware(self) -> Middleware:
        """The middleware for an application."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            with tracing.named(request.headers):
                return await answer(request, handler)

        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            began = time.monotonic()
            peer = peer_of(request)  # not known any more once the socket has ended
            refusal = None
            try:
                # Only browsers send it, and a web page must not act from the network of its reader.
                if hdrs.ORIGIN in request.headers:
                    raise HttpError(403, "requests of web pages are not served")
                _refuse_confined(request)
                response = await handler(request)
            except Exception as error:
                refusal = _refusal_of(error, request)
                self.refusals[str(refusal.status)] += 1
                response = refusal.response()
            # Monitors request pages all day, and executors of pools report their load.
            is_routine = request.method == "GET" or request.rel_url.raw_path.endswith("/status")
            write = log.debug if is_routine and response.status == 200 else log.info
            write(
                "request",
                method=request.method,
                path=request.rel_url.raw_path[:LOGGED_PATH_CHARACTERS],
                status=response.status,
                peer=peer,
                seconds=round(time.monotonic() - began, 4),
                **({"reason": refusal.message} if refusal is not None else {}),
            )
            return response

        return guard


def library_log() -> logging.Logger:
    """The logger for the HTTP library. The library logs bytes that it cannot parse, which may hold tokens and
    tickets, and with which a stranger could fill the log. So only the kind of fault is logged, as debug.
    """
    quiet = logging.Logger("execserver.relay.http", logging.WARNING)
    quiet.addHandler(_LibraryLog())
    return quiet


class _LibraryLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            log.debug("request not understood", status=error.code, fault=type(error).__name__)
        else:
            log.error("http failed", reason=record.msg, exc_info=error)


def peer_of(request: web.Request) -> str:
    """The client's address: `127.0.0.1:41234` or `[::1]:41234`; `unix` on the control socket."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not isinstance(name, tuple):
        return "unix"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse_confined(request: web.Request) -> None:
    """Refuse clients of the control socket that run as another user, in a sandbox or in a container."""
    sock = None if request.transport is None else request.transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return
    # The library's own socket object does not allow to ask for the peer.
    with socket.socket(fileno=os.dup(sock.fileno())) as connection:
        _, fault = unix_peer(connection)
    if fault is not None:
        raise HttpError(
            403, f"this socket takes no client from another user, a sandbox or a container: {fault}"
        )


def _refusal_of(error: Exception, request: web.Request) -> HttpError:
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ContractError):
        return HttpError(400, str(error))
    if isinstance(error, TokenRefused):
        return HttpError(
            error.status, str(error), headers={"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        )
    if isinstance(error, StoreUnavailable):
        return HttpError(503, str(error))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return HttpError(413, "the body is longer than it may be")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return HttpError(405, f"only {allowed} here", headers={"Allow": allowed})
    if isinstance(error, web.HTTPNotFound):
        return HttpError(404, "there is nothing here; is the base URL right?")
    if isinstance(error, web.HTTPException):
        return HttpError(error.status, error.reason or "")
    if isinstance(error, ConnectionError):
        return HttpError(400, "the connection ended")  # not delivered
    log.exception("request failed", method=request.method, exc_info=error)
    return HttpError(500, "something went wrong in the relay; its log says what", "internal_error")

"""How the relay's HTTP side says no: one shape of body, one line in the log, whatever went wrong.

Every request passes the `Guard`. What it logs is who asked for what and how it ended: never a query, a header
or a body, which hold tickets and tokens.
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
from execserver.relay.service.tokens import TokenRefused
from execserver.telemetry.logs import Logger
from execserver.transports.local_peers import unix_peer

LOGGED_PATH_CHARACTERS = 400
"""Of a path: the longest that is right has an environment id of 256."""

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
    """An answer that is no success.

    Args:
        status: of HTTP.
        message: for people.
        code: for programs; by the status when empty.
        headers: besides those of every answer.
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
        """As what is sent."""
        return web.json_response(
            error_body(self.code, self.message), status=self.status, headers=self.headers
        )


class Guard:
    """What every request passes through.

    Attributes:
        refusals: how many were refused, by status.
    """

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()

    def middleware(self) -> Middleware:
        """For an application."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            began = time.monotonic()
            peer = peer_of(request)  # at the end of a socket nobody knows it any more
            refusal = None
            try:
                # Only browsers send it. None has business here, and somebody else's page must not act from
                # the place of whoever looks at it.
                if hdrs.ORIGIN in request.headers:
                    raise HttpError(403, "requests of web pages are not served")
                _refuse_confined(request)
                response = await handler(request)
            except Exception as error:
                refusal = _refusal_of(error, request)
                self.refusals[str(refusal.status)] += 1
                response = refusal.response()
            # Somebody who watches us asks for pages all day.
            tell = log.debug if request.method == "GET" and response.status == 200 else log.info
            tell(
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
    """What the HTTP library is to log to. It shows what it could not read, and in that stand tokens and
    tickets; anybody could fill the log with it, too. So of such requests only the kind of fault is told.
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
    """The other end, as `127.0.0.1:41234` or `[::1]:41234`; of the control socket `unix`."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not isinstance(name, tuple):
        return "unix"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse_confined(request: web.Request) -> None:
    """The control socket is for processes of the relay's user that are in no sandbox."""
    sock = None if request.transport is None else request.transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return
    # Not the library's own object, which does not let others ask for the peer.
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
        return HttpError(400, "the connection ended")  # nobody reads it
    log.exception("request failed", method=request.method, exc_info=error)
    return HttpError(500, "something went wrong in the relay; its log says what", "internal_error")

"""One connection to a daemon: a line a message, over a Unix socket.

Rules kept in this file:

1. Nothing is sent before the server's uid was checked: ours, or root's.
2. Messages go out in the order of the calls, whole, and are dispatched in the order of arrival.
3. Every request ends: with its answer, with `ConnectionLost`, or by being cancelled.

It knows neither sessions nor processes. `docs/protocol.md`, "Lines: stdio and Unix sockets".
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self, cast

from execclient.errors import (
    ConnectionFailed,
    ConnectionLost,
    DaemonNotRunning,
    ExecServerError,
    ProtocolFault,
    RequestTooLarge,
    UnsupportedUrl,
    UntrustedServer,
    call_failed,
)
from execserver.protocol.errors import PARSE_ERROR_ID
from execserver.protocol.limits import MAX_LINE_BYTES

Json = Any
"""A decoded JSON value; what takes it apart gives it a type."""

URL_VARIABLE = "EXECSERVER_URL"

CONNECT_SECONDS = 10.0
"""For the connect, and again for the handshake. As the stock client."""

_CREDENTIALS = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid."""


class Caller(Protocol):
    """A request and its result; what processes and files are made of."""

    async def __call__(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """The result, within `limit` seconds. Raises as `Session.call` does."""


class _Pending(NamedTuple):
    method: str
    reply: asyncio.Future[Json]


def default_url() -> str:
    """`EXECSERVER_URL`, else the socket on which a daemon listens when it is told nothing."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = f"{base.rstrip('/')}/execserver" if base.startswith("/") else f"/tmp/execserver-{os.geteuid()}"  # noqa: S108 - the server's uid is checked
    return f"unix://{folder}/execserver.sock"


def socket_path(url: str) -> str:
    """The path in a `unix:///PATH` URL.

    Raises:
        UnsupportedUrl: it is another kind of URL.
    """
    if url.startswith("unix:///") and "\0" not in url and not url.endswith("/"):
        return url.removeprefix("unix://")
    raise UnsupportedUrl(
        f"cannot connect to {url!r}: this version of execclient supports unix:///ABSOLUTE/PATH only "
        "(ws://, stdio and the relay come with a later one)"
    )


class Connection(asyncio.Protocol):
    """A connection that is open, until `lost`."""

    def __init__(
        self,
        on_event: Callable[[str, Json], None],
        on_lost: Callable[[Connection, ExecServerError], None],
    ) -> None:
        self.lost = False
        self._on_event = on_event
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._searched = 0
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()
        self._fault: str | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        on_event: Callable[[str, Json], None],
        on_lost: Callable[[Connection, ExecServerError], None],
    ) -> Self:
        """Connect, and check who answers.

        Raises:
            UnsupportedUrl: not a `unix:///PATH` URL.
            DaemonNotRunning: nobody listens.
            UntrustedServer: who listens is neither our uid nor root.
            ConnectionFailed: anything else that kept us from connecting.
        """
        path = socket_path(url)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await asyncio.get_running_loop().create_unix_connection(
                    lambda: cls(on_event, on_lost), path
                )
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise DaemonNotRunning(
                f"nobody answers at {url} ({error.strerror}). "
                f"Start a daemon with: execserver serve --listen {url}"
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {url}: {error.strerror or 'no answer'}") from error
        try:
            _check_server(transport.get_extra_info("socket"), url)
        except ConnectionFailed:
            await connection.abort()
            raise
        return connection

    async def request(self, method: str, params: Mapping[str, Json]) -> Json:
        """Send a request, and wait for its result as long as it takes.

        Raises:
            CallFailed: the server answered with an error.
            ConnectionLost: the connection ended first; `sent` says whether the request had gone out.
            RequestTooLarge: the request does not fit a message; the connection goes on.
        """
        number = next(self._ids)
        line = _encode({"id": number, "method": method, "params": params})
        if len(line) > MAX_LINE_BYTES:
            raise RequestTooLarge(
                f"{method}: {len(line)} bytes do not fit a message of at most {MAX_LINE_BYTES}"
            )
        await self._writable.wait()
        if self.lost:
            raise ConnectionLost(f"the connection was lost before {method} was sent", sent=False)
        pending = _Pending(method, asyncio.get_running_loop().create_future())
        self._pending[number] = pending
        self._transport.write(line + b"\n")
        try:
            return await pending.reply
        finally:
            self._pending.pop(number, None)

    def notify(self, method: str) -> None:
        """Send a notification without parameters."""
        self._transport.write(_encode({"method": method}) + b"\n")

    async def close(self) -> None:
        """Send what is still to be sent, and end the connection; a second call does nothing."""
        self._transport.close()
        await self._ended.wait()

    async def abort(self) -> None:
        """End the connection at once."""
        self.cut()
        await self._ended.wait()

    def cut(self) -> None:
        """End the connection at once, and do not wait until that is done."""
        self._transport.abort()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        received = self._received
        received += data
        while (end := received.find(b"\n", self._searched)) >= 0:
            line = bytes(received[:end])
            del received[: end + 1]
            self._searched = 0
            try:
                self._dispatch(line)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self._fail(f"the server sent a message that is not of the protocol: {line[:200]!r}")
            if self._fault is not None:
                return
        self._searched = len(received)

    def pause_writing(self) -> None:
        """The server does not take what we send."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over, from whichever side."""
        self.lost = True
        self._writable.set()
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_exception(self._reason(exc))
        self._pending.clear()
        self._ended.set()
        self._on_lost(self, self._reason(exc))

    # -- messages

    def _dispatch(self, line: bytes) -> None:
        message = json.loads(line)
        if "method" in message:
            self._on_event(message["method"], message.get("params"))
            return
        number = message["id"]
        if number == PARSE_ERROR_ID:
            self._fail(f"the server could not read a message of ours: {message['error']['message']}")
            return
        # The caller of an unknown id gave up waiting.
        pending = self._pending.pop(number, None)
        if pending is None or pending.reply.done():
            return
        if "error" in message:
            error = message["error"]
            pending.reply.set_exception(
                call_failed(pending.method, int(error["code"]), str(error["message"]))
            )
        else:
            pending.reply.set_result(message["result"])

    def _fail(self, text: str) -> None:
        self._fault = text
        self.cut()

    def _reason(self, error: Exception | None) -> ExecServerError:
        # One exception for each who is told: each raises its own.
        if self._fault is not None:
            return ProtocolFault(self._fault)
        return ConnectionLost("the connection to the daemon was lost" + (f": {error}" if error else ""))


def _encode(message: Mapping[str, Json]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _check_server(connected: socket.socket, url: str) -> None:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if pid == 0 and uid == 0xFFFFFFFF:
        # A listener whose queue is full: asyncio takes the kernel's "try again" for a connection.
        raise ConnectionFailed(f"cannot connect to {url}: too many clients wait there already")
    if uid not in (os.geteuid(), 0):
        raise UntrustedServer(f"the server at {url} runs as uid {uid}, which is neither ours nor root's")

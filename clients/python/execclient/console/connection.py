"""The WebSocket of one open page: requests of the page, and what is pushed to it.

Messages are JSON texts. The page sends `{id, method, params}` and gets `{id, result}` or `{id, error}`; the
server sends `{event, params}` besides. The first request is `open`, with a token or a key; before it, nothing
is sent and no other request is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from execclient import ExecServerError
from execclient.commands.failures import CommandExit
from execclient.connection.connection import Json
from execclient.console.files import Outside

log = logging.getLogger("execclient.console")

OPEN_SECONDS = 5.0
"""In which a connection must have presented its token or key."""

REFUSED_SECONDS = 1.0
"""A connection with a wrong token is held so long before it is closed, and counts as one that waits."""

MAX_MESSAGE_BYTES = 1 << 20
"""Of a message of the page: pasted text is the longest."""

MAX_OPEN_BYTES = 4096
"""Of a message before the token was accepted."""

MAX_REQUESTS = 64
"""Of one page, under way."""

TEXT: Final = WSMsgType.TEXT
CONTINUATION: Final = WSMsgType.CONTINUATION
CLOSE: Final = WSMsgType.CLOSE
PONG: Final = WSMsgType.PONG
PING: Final = WSMsgType.PING


class Invalid(Exception):
    """A request that the page must not make."""


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """A request of the page."""

    id: int
    method: str
    params: dict[str, Any] = {}


class Host(Protocol):
    """What a connection needs of its console."""

    def page_connected(self, connection: PageConnection) -> None:
        """The connection was made, and waits for its first request."""
        ...

    async def open_page(self, params: Mapping[str, Json]) -> Json | None:
        """Check the token or key of the first request; its result, or None if it does not count."""
        ...

    def page_opened(self) -> None:
        """A page has got the result of its first request."""
        ...

    async def perform(self, connection: PageConnection, method: str, params: Mapping[str, Json]) -> Json:
        """The result of a later request."""
        ...

    def page_closed(self, connection: PageConnection) -> None:
        """The connection has ended."""
        ...


class PageConnection(WSListener):  # type: ignore[misc, unused-ignore]
    """The connection of a page."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.is_open = False
        """Whether the page has presented its token or key."""
        self._host = host
        self._transport: WSTransport
        self._loop = asyncio.get_running_loop()
        self._begun: bytearray | None = None
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._sent: dict[str, bytes] = {}
        """The newest message of each event."""
        self._waiting: dict[str, bytes] = {}
        """The newest messages of events that came while the page did not read."""
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    # -- to the page

    def push(self, event: str, params: Json) -> None:
        """Send an event, unless its newest message is the same. Of a page that does not read, only the newest
        message of each event is kept.
        """
        message = msgspec.json.encode({"event": event, "params": params})
        if self._sent.get(event) == message:
            return
        self._sent[event] = message
        if self._paused:
            self._waiting[event] = message
        else:
            self._send(message)

    def close(self, code: WSCloseCode, reason: str) -> None:
        """Close the connection; the page shows the reason."""
        if not self._transport.is_disconnected:
            self._transport.send_close(code, reason.encode())
            self._transport.disconnect()

    def _send(self, message: bytes) -> None:
        if not self._transport.is_disconnected:
            self._transport.send(TEXT, message)

    # -- calls of picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The upgrade is done."""
        self._transport = transport
        self._host.page_connected(self)
        self._timer = self._loop.call_later(OPEN_SECONDS, self._too_late)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame arrived. If it is a ping, picows has responded already."""
        kind = frame.msg_type
        if kind == CLOSE:
            self._transport.disconnect()
        elif kind in (TEXT, CONTINUATION) and (kind == TEXT) == (self._begun is None):
            self._begun = (self._begun or bytearray()) + frame.get_payload_as_memoryview()
            limit = MAX_MESSAGE_BYTES if self.is_open else MAX_OPEN_BYTES
            if len(self._begun) > limit:
                self.close(WSCloseCode.MESSAGE_TOO_BIG, "the message is too long")
            elif frame.fin:
                message, self._begun = bytes(self._begun), None
                self._received(message)
        elif kind not in (PING, PONG):
            self.close(WSCloseCode.UNSUPPORTED_DATA, "a text was expected")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The connection has ended, from either side."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._requests.values():
            task.cancel()
        self._host.page_closed(self)

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """The send buffer has drained."""
        self._paused = False
        waiting, self._waiting = self._waiting, {}
        for message in waiting.values():
            self._send(message)

    # -- requests

    def _too_late(self) -> None:
        if not self.is_open:
            self.close(WSCloseCode.POLICY_VIOLATION, "no token was presented")

    def _received(self, message: bytes) -> None:
        try:
            request = msgspec.json.decode(message, type=Request)
        except (msgspec.DecodeError, RecursionError):
            self.close(WSCloseCode.POLICY_VIOLATION, "the message is not a request")
            return
        if request.method == "cancel" and self.is_open:
            cancelled = self._requests.pop(request.params.get("id", -1), None)
            if cancelled is not None:
                cancelled.cancel()
        elif request.id in self._requests or len(self._requests) >= (MAX_REQUESTS if self.is_open else 1):
            self.close(WSCloseCode.POLICY_VIOLATION, "too many requests")
        else:
            perform = self._perform if self.is_open else self._open
            task = self._requests[request.id] = self._loop.create_task(perform(request))
            task.add_done_callback(lambda _: self._requests.pop(request.id, None))

    async def _open(self, request: Request) -> None:
        result = None
        if request.method == "open":
            result = await self._host.open_page(request.params)
        if result is not None:
            self.is_open = True
            self._send(msgspec.json.encode({"id": request.id, "result": result}))
            self._host.page_opened()
            return
        log.warning("a connection without a valid token was refused")
        await asyncio.sleep(REFUSED_SECONDS)
        self.close(WSCloseCode.POLICY_VIOLATION, "the link was used before, or is of another console")

    async def _perform(self, request: Request) -> None:
        try:
            answer = {"result": await self._host.perform(self, request.method, request.params)}
        except (Invalid, Outside, ValueError, ExecServerError, CommandExit, OSError) as error:
            answer = {"error": {"kind": type(error).__name__, "message": str(error)}}
        except Exception as error:
            log.exception("%s failed", request.method)
            answer = {"error": {"kind": type(error).__name__, "message": "the console failed; see its log"}}
        self._send(msgspec.json.encode({"id": request.id, **answer}))

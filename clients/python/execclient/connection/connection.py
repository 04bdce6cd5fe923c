"""One connection to a daemon, over any channel: sends requests, receives responses and events.

Rules kept in this file:

1. Messages are sent whole, in the order of the calls, and dispatched in the order of arrival.
2. Every request ends: with its response, with `ConnectionLost`, or by cancellation.
3. Every request of the server is answered, one of an unknown method with an error.

This module knows neither sessions nor processes. `docs/protocol.md`, "Envelope".
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from execclient.connection.channel import Channel
from execclient.errors import ConnectionLost, ExecServerError, ProtocolFault, RequestTooLarge, call_failed
from execprotocol.errors import PARSE_ERROR_ID, InvalidParams, MethodNotFound
from execprotocol.limits import MAX_LINE_BYTES
from execprotocol.trace_context import active_headers

Json = Any
"""A decoded JSON value."""

OnRequest = Callable[[str, Json], Awaitable[Json] | None]
"""Returns the result, or None for an unknown method."""

OUTPUT = b'{"method":"process/output",'
CHUNK = b',"chunk":"'
HEAD_BYTES = 1024
"""The chunk of an output event begins within this length, unless other members before it are long."""

_encode = msgspec.json.Encoder().encode
"""`bytes` become base64, which takes half of the time of a `str` that is base64."""
_decode = msgspec.json.Decoder().decode


class _Pending(NamedTuple):
    method: str
    reply: asyncio.Future[Json]


class Connection:
    """A connection, from `channel_opened` until `lost`. `address.Target.open` makes one.

    Args:
        on_event: called with the method and the params of each notification. The `chunk` of a
            `process/output` is base64, as `str` or `memoryview`.
        on_lost: called once, with the reason.
        max_unanswered: bytes of requests without a response above which the next request waits; for channels
            without flow control. None for no limit.
    """

    def __init__(
        self,
        on_event: Callable[[str, Json], None],
        on_lost: Callable[[Connection, ExecServerError], None],
        max_unanswered: int | None = None,
    ) -> None:
        self.lost = False
        self.on_request: OnRequest | None = None
        """Called with the method and the params of each request of the server."""
        self._on_event = on_event
        self._on_lost = on_lost
        self._channel: Channel
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._writable = asyncio.Event()
        self._writable.set()
        self._max_unanswered = max_unanswered
        self._unanswered: dict[int, int] = {}
        """The sizes of requests, including those whose caller gave up waiting: the server still has them."""
        self._unanswered_bytes = 0
        self._answered = asyncio.Event()
        self._answered.set()
        self._ended = asyncio.Event()
        self._fault: str | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def request(self, method: str, params: Mapping[str, Json]) -> Json:
        """Send a request, and wait for its result without limit. It names the active span, if there is one.

        Raises:
            CallFailed: the server responded with an error.
            ConnectionLost: the connection ended first; `sent` says whether the request was sent.
            RequestTooLarge: the request does not fit a message; the connection stays open.
        """
        number = next(self._ids)
        fields = {"id": number, "method": method, "params": params}
        if trace := active_headers():
            fields["trace"] = trace
        message = _encode(fields)
        if len(message) > MAX_LINE_BYTES:
            raise RequestTooLarge(
                f"{method}: {len(message)} bytes do not fit a message of at most {MAX_LINE_BYTES}"
            )
        while not (self._writable.is_set() and self._answered.is_set()):
            await self._answered.wait()
            await self._writable.wait()
        if self.lost:
            raise ConnectionLost(f"the connection was lost before {method} was sent", sent=False)
        pending = _Pending(method, asyncio.get_running_loop().create_future())
        self._pending[number] = pending
        self._count(number, len(message))
        self._channel.send(message)
        try:
            return await pending.reply
        finally:
            self._pending.pop(number, None)

    def notify(self, method: str) -> None:
        """Send a notification without parameters."""
        self._channel.send(_encode({"method": method}))

    async def close(self) -> None:
        """Send all buffered data, and end the connection. A second call does nothing."""
        self._channel.close()
        await self._ended.wait()

    async def abort(self) -> None:
        """End the connection at once."""
        self.cut()
        await self._ended.wait()

    def cut(self) -> None:
        """End the connection at once, without waiting until that is done."""
        self._channel.abort()

    # -- calls of the channel

    def channel_opened(self, channel: Channel) -> None:
        """As `Receiver.channel_opened`."""
        self._channel = channel

    def message_received(self, message: bytes | bytearray) -> None:
        """As `Receiver.message_received`."""
        if self._fault is not None:
            return
        try:
            self._dispatch(message)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.protocol_broken(
                f"the server sent a message that is not of the protocol: {bytes(message[:200])!r}"
            )

    def pause_writing(self) -> None:
        """As `Receiver.pause_writing`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """As `Receiver.resume_writing`."""
        self._writable.set()

    def protocol_broken(self, text: str) -> None:
        """As `Receiver.protocol_broken`."""
        self._fault = text
        self.cut()

    def channel_lost(self, reason: str | None) -> None:
        """As `Receiver.channel_lost`."""
        self.lost = True
        self._writable.set()
        self._answered.set()
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_exception(self._reason(reason))
        self._pending.clear()
        for task in self._answering:
            task.cancel()
        self._ended.set()
        self._on_lost(self, self._reason(reason))

    # -- messages

    def _dispatch(self, data: bytes | bytearray) -> None:
        message = decode_message(data)
        if "method" in message:
            if "id" in message:
                self._answer_soon(message["id"], message["method"], message.get("params"))
            else:
                self._on_event(message["method"], message.get("params"))
            return
        number = message["id"]
        if number == PARSE_ERROR_ID:
            self.protocol_broken(
                f"the server could not read a message from this client: {message['error']['message']}"
            )
            return
        self._count(number, 0)
        # An unknown id: the caller gave up waiting.
        pending = self._pending.pop(number, None)
        if pending is None or pending.reply.done():
            return
        if "error" in message:
            error = message["error"]
            more = error.get("data")
            pending.reply.set_exception(
                call_failed(
                    pending.method,
                    int(error["code"]),
                    str(error["message"]),
                    more if isinstance(more, dict) else None,
                )
            )
        else:
            pending.reply.set_result(message["result"])

    def _answer_soon(self, number: Json, method: str, params: Json) -> None:
        result = None if self.on_request is None else self.on_request(method, params)
        if result is None:
            error = {"code": MethodNotFound.code, "message": f"this client has no method {method[:200]!r}"}
            self._channel.send(_encode({"id": number, "error": error}))
            return
        task = asyncio.get_running_loop().create_task(self._answer(number, result))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, number: Json, result: Awaitable[Json]) -> None:
        try:
            answer = {"result": await result}
        except (ValueError, LookupError, TypeError, AttributeError):
            answer = {
                "error": {"code": InvalidParams.code, "message": "the parameters are not of the protocol"}
            }
        self._channel.send(_encode({"id": number, **answer}))

    def _count(self, number: int, size: int) -> None:
        """A request of so many bytes was sent; 0: its response has arrived."""
        most = self._max_unanswered
        if most is None:
            return
        self._unanswered_bytes += size - self._unanswered.pop(number, 0)
        if size:
            self._unanswered[number] = size
        if self._unanswered_bytes > most:
            self._answered.clear()
        else:
            self._answered.set()

    def _reason(self, reason: str | None) -> ExecServerError:
        # A new exception for each caller, since each raises it.
        if self._fault is not None:
            return ProtocolFault(self._fault)
        return ConnectionLost("the connection to the daemon was lost" + (f": {reason}" if reason else ""))


def decode_message(data: bytes | bytearray) -> Json:
    """The value of a JSON text; the `chunk` of an output event stays encoded in base64.

    A JSON parser reads each byte of a chunk, which takes five times as long as finding its end and decoding
    base64. The quote before `chunk` cannot end a string, since no name can follow a string without another
    quote. The number put in its place shows that the chunk is that of the event, and not of a nested object.
    """
    if data.startswith(OUTPUT):
        begin = data.find(CHUNK, 0, HEAD_BYTES) + len(CHUNK)
        end = data.find(b'"', begin)
        if begin >= len(CHUNK) and end >= 0 and data.find(b"\\", begin, end) < 0:
            message = _decode(data[: begin - 1] + b"0" + data[end + 1 :])
            params = message["params"]
            if params.get("chunk") == 0:
                params["chunk"] = memoryview(data)[begin:end]
                return message
    return _decode(data)

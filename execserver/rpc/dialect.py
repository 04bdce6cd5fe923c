"""Which of the two dialects a connection speaks, and what a dialect is.

A dialect turns bytes into admitted requests, and results into bytes. Everything between, the order
of requests and the handlers, is the connection's and the same for both.

The first message that can be understood decides: `"jsonrpc": "2.0"` in it means standard JSON-RPC
2.0, its absence the lean dialect of the stock client. Until then what cannot be understood is
answered as the transport presumes (`docs/protocol.md`, "Standard JSON-RPC").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from execprotocol.errors import ParseFailure, RpcError
from execserver.rpc import codec
from execserver.rpc.channel import Channel
from execserver.rpc.codec import ParseError
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.telemetry.measures import measures

VERSION = "2.0"


class Dialect(Protocol):
    """One way of writing messages."""

    name: str

    def receive(self, message: bytes | bytearray) -> None:
        """Decode a message and admit what it asks for; answer it when it cannot be understood."""

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are no message at all, after which the connection ends."""

    def result(self, target: Any, result: Mapping[str, Any] | Encoded) -> None:
        """Reply to the request that was admitted with `target`.

        Raises:
            InvalidRequest: the reply would be larger than the peer takes; nothing was sent.
        """

    def error(self, target: Any, error: RpcError) -> None:
        """Reply that a request failed."""

    async def stream(self, target: Any, result: StreamedResult) -> int:
        """Reply piece by piece; returns when all of it is queued, or the connection is gone.

        Returns:
            0, or the code of the error that was sent instead.
        """

    def event(self, parts: Sequence[bytes]) -> None:
        """Send a notification, given in the lean dialect."""

    def connection_lost(self) -> None:
        """The connection is over: let go of what waits."""


class DialectContext(Protocol):
    """The connection, as a dialect sees it."""

    max_reply_bytes: int | None
    extensions: bool
    """Whether the client asked for extension members."""

    def admit(
        self, target: Any, method: str, params: Any, size: int, trace: Mapping[str, Any] | None
    ) -> None:
        """Take a request in; the dialect is told of its result or error with the same `target`."""

    def initialized(self) -> bool:
        """The client is ready for everything; False when it was not welcomed yet."""

    async def send_stream(self, prefix: bytes, result: StreamedResult, suffix: bytes) -> None:
        """Send one message in pieces."""

    def drop(self, reason: str) -> None:
        """End the connection without an answer; its session survives."""


class UndecidedDialect:
    """A peer of which nothing was understood yet."""

    name = "undecided"

    def __init__(
        self, channel: Channel, lean: Dialect, choose: Callable[[bool, bytes | bytearray], None]
    ) -> None:
        """Args:
        channel: for answers to what is no message.
        lean: answers what cannot be understood where lean clients are expected.
        choose: called with whether the peer speaks standard JSON-RPC, and the message that said so.
        """
        self._channel = channel
        self._lean = lean
        self._choose = choose

    def receive(self, message: bytes | bytearray) -> None:
        """Choose by this message, if it can be understood."""
        try:
            value = codec.decode_any(message)
            standard = is_json_rpc(value)
            if not standard:
                codec.decode(message)
        except ParseError as error:
            self._refuse(message, str(error))
            return
        self._choose(standard, message)

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are no message."""
        measures.parse_error()
        self._channel.send((encode_json_rpc_error(None, ParseFailure(reason)),))

    def _refuse(self, message: bytes | bytearray, reason: str) -> None:
        if self._channel.presumes_json_rpc:
            self.refuse_framing(reason)
        else:
            self._lean.receive(message)

    def connection_lost(self) -> None:
        """Nothing is kept here."""

    def result(self, target: Any, result: Mapping[str, Any] | Encoded) -> None:
        """Never called: nothing is admitted before the dialect is known."""
        raise NotImplementedError

    def error(self, target: Any, error: RpcError) -> None:
        """Never called."""
        raise NotImplementedError

    async def stream(self, target: Any, result: StreamedResult) -> int:
        """Never called."""
        raise NotImplementedError

    def event(self, parts: Sequence[bytes]) -> None:
        """Never called: there is no session."""
        raise NotImplementedError


def is_json_rpc(value: dict[str, Any] | list[Any]) -> bool:
    """Whether a decoded message says that it is JSON-RPC 2.0; a batch says it by any of its members."""
    if isinstance(value, list):
        return any(isinstance(item, dict) and item.get("jsonrpc") == VERSION for item in value)
    return value.get("jsonrpc") == VERSION


def encode_json_rpc_error(request_id: int | float | str | None, error: RpcError) -> bytes:
    """An error reply of the standard dialect."""
    return codec.encode_json(
        {
            "jsonrpc": VERSION,
            "id": request_id,
            "error": {
                "code": error.code,
                "message": codec.printable(error.message),
                "data": codec.printable_members(error.data()),
            },
        }
    )

"""The interface of a dialect, and the choice between the two of them.

A dialect turns bytes into admitted requests, and results into bytes. Everything between, the order of
requests and the handlers, is the connection's and the same for both.

The first message that can be decoded chooses: with `"jsonrpc": "2.0"` the JSON-RPC 2.0 dialect, without it
the Codex dialect of the stock client. Undecodable messages before it are answered in the dialect that the
transport presumes (`docs/protocol.md`, "Standard JSON-RPC").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from execprotocol.errors import ParseFailure, RpcError
from execserver.rpc import codec
from execserver.rpc.channel import Channel
from execserver.rpc.codec import ParseError, Response
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.telemetry.measures import measures

VERSION = "2.0"


class Dialect(Protocol):
    """One format of messages."""

    name: str

    def receive(self, message: bytes | bytearray) -> None:
        """Decode a message and admit its requests; answer it if it cannot be decoded."""

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are not a message; the connection ends then."""

    def result(self, target: Any, result: Mapping[str, Any] | Encoded) -> None:
        """Reply to the request that was admitted with `target`.

        Raises:
            InvalidRequest: the reply is larger than the peer takes; nothing was sent.
        """

    def error(self, target: Any, error: RpcError) -> None:
        """Reply with an error."""

    async def stream(self, target: Any, result: StreamedResult) -> int:
        """Reply in pieces; return when all of it is queued, or the connection is gone.

        Returns:
            0, or the code of the error that was sent instead.
        """

    def event(self, parts: Sequence[bytes]) -> None:
        """Send a notification, or a request of the server, given in the Codex dialect."""

    def connection_lost(self) -> None:
        """The connection is over: drop the requests that wait."""


class DialectContext(Protocol):
    """The connection's side, called by a dialect."""

    max_reply_bytes: int | None
    extensions: bool
    """Whether the client asked for extension members."""

    def admit(
        self, target: Any, method: str, params: Any, size: int, trace: Mapping[str, Any] | None
    ) -> None:
        """Admit a request. The dialect gets its result or error with the same `target`."""

    def answered(self, response: Response) -> bool:
        """Take the answer to a request of the server; False if no request ever had its id."""

    def initialized(self) -> bool:
        """The client has sent `initialized`; False if there was no `initialize` before."""

    async def send_stream(self, prefix: bytes, result: StreamedResult, suffix: bytes) -> None:
        """Send one message in pieces."""

    def drop(self, reason: str) -> None:
        """End the connection without an answer; its session survives."""


class UndecidedDialect:
    """The dialect of a connection until the first message that can be decoded."""

    name = "undecided"

    def __init__(
        self, channel: Channel, codex: Dialect, choose: Callable[[bool, bytes | bytearray], None]
    ) -> None:
        """Args:
        channel: for answers to bytes that are not a message.
        codex: answers undecodable messages where the transport presumes this dialect.
        choose: called with whether the peer speaks JSON-RPC 2.0, and the message that shows it.
        """
        self._channel = channel
        self._codex = codex
        self._choose = choose

    def receive(self, message: bytes | bytearray) -> None:
        """Choose the dialect by this message, if it can be decoded."""
        try:
            value = codec.decode_any(message)
            json_rpc = is_json_rpc(value)
            if not json_rpc:
                codec.decode(message)
        except ParseError as error:
            self._refuse(message, str(error))
            return
        self._choose(json_rpc, message)

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are not a message."""
        measures.parse_error()
        self._channel.send((encode_json_rpc_error(None, ParseFailure(reason)),))

    def _refuse(self, message: bytes | bytearray, reason: str) -> None:
        if self._channel.presumes_json_rpc:
            self.refuse_framing(reason)
        else:
            self._codex.receive(message)

    def connection_lost(self) -> None:
        """Do nothing: no request is kept here."""

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
    """Whether a decoded message has the version member of JSON-RPC 2.0; of a batch, one request is enough."""
    if isinstance(value, list):
        return any(isinstance(item, dict) and item.get("jsonrpc") == VERSION for item in value)
    return value.get("jsonrpc") == VERSION


def encode_json_rpc_error(request_id: int | float | str | None, error: RpcError) -> bytes:
    """An error reply of the JSON-RPC 2.0 dialect."""
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

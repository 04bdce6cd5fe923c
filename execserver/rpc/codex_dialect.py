"""The Codex dialect (`lean` in logs and metrics): JSON-RPC without its version member, as the stock client
speaks it.

A protocol error that cannot be answered ends the connection (`docs/protocol.md`, "Envelope" and "Fatal
input").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from execprotocol.errors import PARSE_ERROR_ID, InvalidRequest, RpcError
from execserver.rpc import codec
from execserver.rpc.channel import Channel
from execserver.rpc.codec import ParseError, Request, Response
from execserver.rpc.dialect import DialectContext
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.telemetry.measures import measures

JOIN_BYTES = 4096
"""Smaller results are copied into one piece with the rest of the reply."""


class CodexDialect:
    """The Codex dialect of one connection: a request needs no task and no future here."""

    name = "lean"

    def __init__(self, channel: Channel, admission: DialectContext) -> None:
        self._channel = channel
        self._admission = admission
        self._admit = admission.admit
        self._send = self.event = channel.send

    def receive(self, message: bytes | bytearray) -> None:
        """Serve one message."""
        try:
            decoded = codec.decode(message)
        except ParseError as error:
            measures.parse_error()
            self._refuse_unparsable(message, error)
            return
        if decoded.__class__ is Request:
            self._admit(decoded.id, decoded.method, decoded.params, len(message), decoded.trace)
        elif isinstance(decoded, Response):
            if not self._admission.answered(decoded):
                self._admission.drop("response to no request of ours")
        elif decoded.method != "initialized":
            self._admission.drop("unexpected notification")
        elif not self._admission.initialized():
            self._admission.drop("initialized before initialize")

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are not a message."""
        self._channel.send((codec.encode_error(PARSE_ERROR_ID, InvalidRequest.code, reason),))

    def result(self, target: int | str, result: Mapping[str, Any] | Encoded) -> None:
        """Reply to a request."""
        parts: tuple[bytes, ...]
        after = None
        if result.__class__ is Encoded:
            encoded, size = result.json, result.size
            after = result.after
            if size < JOIN_BYTES and not result.rest:
                parts = (b'{"id":%b,"result":%b}' % (codec.encode_json(target), encoded),)
            else:
                parts = (b'{"id":%b,"result":' % codec.encode_json(target), encoded, *result.rest, b"}")
        else:
            parts = (codec.encode_result(target, result),)
            size = len(parts[0])
        limit = self._admission.max_reply_bytes
        if limit is not None and size > limit:
            raise reply_too_large(limit)
        self._send(parts)
        if after is not None:
            after()

    def error(self, target: int | str, error: RpcError) -> None:
        """Reply with an error."""
        data = error.data() if error.has_data and self._admission.extensions else None
        self._channel.send((codec.encode_error(target, error.code, error.message, data),))

    async def stream(self, target: int | str, result: StreamedResult) -> int:
        """Reply in pieces."""
        await self._admission.send_stream(b'{"id":%b,"result":' % codec.encode_json(target), result, b"}")
        return 0

    def connection_lost(self) -> None:
        """Do nothing: no request is kept here."""

    def _refuse_unparsable(self, data: bytes | bytearray, error: ParseError) -> None:
        if self._channel.utf8_is_fatal and not _is_utf8(data):
            self._admission.drop("message is not UTF-8")
            return
        self.refuse_framing(f"{self._channel.parse_error_prefix}{error}")


def reply_too_large(limit: int) -> InvalidRequest:
    """The error in place of a reply that the peer would not take."""
    return InvalidRequest(
        f"the reply would exceed {limit} bytes: use fs/open and fs/readBlock, or process/read with maxBytes",
        name="reply_too_large",
    )


def _is_utf8(data: bytes | bytearray) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

"""The requests of the server to the client of one connection.

Rules kept in this file:

1. Ids are integers from 1 on, in a space of their own. An answer to an id that was never used is an error of
   the client, which its dialect handles. One that comes twice, or too late, is ignored: the client cannot
   know that the server no longer waits.
2. Every request ends: with its answer, with `ConnectionResetError`, or by cancellation.

`docs/protocol.md`, "Requests of the server".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from execprotocol.errors import RpcError
from execserver.rpc import codec
from execserver.rpc.codec import ParseError, Response
from execserver.telemetry.logs import Logger

log = Logger()

MAX_ANSWER_BYTES = 64 << 10
"""A longer answer is taken in the order of messages only."""


class ServerRequests:
    """The requests that wait for an answer.

    Args:
        send: sends a request, written as in the Codex dialect.
    """

    def __init__(self, send: Callable[[Sequence[bytes]], None]) -> None:
        self.on_request: Callable[[], None] = _nothing
        """Called when a request waits for its answer, which has to be read."""
        self._send = send
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._closed = False

    def __bool__(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._waiting)

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a request, and wait for its result without limit.

        Raises:
            RpcError: the client answered with an error.
            ConnectionResetError: the connection is lost, or reads no more.
        """
        if self._closed:
            raise ConnectionResetError("the connection reads no answers")
        self._last_id += 1
        number = self._last_id
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send((codec.encode_request(number, method, params),))
            self.on_request()
            return await answer
        finally:
            self._waiting.pop(number, None)

    def answered(self, response: Response) -> bool:
        """Take an answer; False if no request ever had its id."""
        number = response.id
        if type(number) is not int or not 1 <= number <= self._last_id:
            return False
        answer = self._waiting.pop(number, None)
        if answer is None or answer.done():
            log.debug("an answer came late or twice", id=number)
        elif response.is_error:
            answer.set_exception(RpcError(_error_text(response.error)))
        else:
            answer.set_result(response.result)
        return True

    def take(self, message: bytes | bytearray) -> bool:
        """Take a message out of turn if it is an answer."""
        if len(message) > MAX_ANSWER_BYTES:
            return False
        try:
            decoded = codec.decode(message)
        except ParseError:
            return False
        return isinstance(decoded, Response) and self.answered(decoded)

    def close(self) -> None:
        """The connection is lost, or reads no more."""
        self._closed = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection was lost before the answer"))
        self._waiting.clear()


def _nothing() -> None:
    """Do nothing."""


def _error_text(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else None
    return text if isinstance(text, str) else "an error without a message"

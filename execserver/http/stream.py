"""A response whose body goes to the client in notifications. `docs/protocol.md`, "HTTP"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Protocol

import pybase64

from execprotocol.errors import InternalError
from execprotocol.limits import MAX_CHUNK_BYTES
from execserver.http.client import HttpClient
from execserver.http.deadline import Deadline
from execserver.http.errors import TransferError
from execserver.http.request import HttpRequest
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execserver.http.transport import Response

log = Logger()


class Receiver(Protocol):
    """Who gets the body."""

    async def wait_to_push(self) -> None:
        """Wait until one more frame may be sent."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""


class Stream:
    """One response, from the request to the last frame of its body.

    The server is read no faster than the receiver takes: a frame is made when there is room, and the
    next bytes are asked for when it was queued.

    Args:
        client: makes the request.
        request_id: by which the receiver knows the stream.
        receiver: gets the body.
        place: entered while the head of the response is awaited.
        ended: called when the name is free again.
    """

    def __init__(
        self,
        client: HttpClient,
        request_id: str,
        receiver: Receiver,
        place: Callable[[Deadline], AbstractAsyncContextManager[None]],
        ended: Callable[[], object],
    ) -> None:
        self._client = client
        self._id = request_id
        self._receiver = receiver
        self._place = place
        self._ended = ended
        self._seq = 0
        self._begun = asyncio.Event()
        self._head: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._request: HttpRequest | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, request: HttpRequest, deadline: Deadline, *, follow: bool) -> Response:
        """Send the request and wait for the head of the response. The body goes its own way.

        Raises:
            InternalError: there is no response. The stream has ended.
        """
        self._request = request
        self._task = asyncio.ensure_future(self._run(deadline, follow=follow))
        return await self._head

    def begin(self) -> None:
        """The receiver has the head: the body may follow."""
        self._begun.set()

    def close(self) -> None:
        """End it in silence; the connection to the server is closed."""
        self._head.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _run(self, deadline: Deadline, *, follow: bool) -> None:
        error: str | None = None
        try:
            await self._transfer(deadline, follow=follow)
        except TransferError as failure:
            error = str(failure)
        except Exception as failure:
            log.error("stream of a response failed", exc_info=failure)
            error = "internal error"
        finally:
            # Whoever has seen the last frame may use the name again.
            self._ended()
        if self._head.done():
            self._send(b"", done=True, error=error)
        else:
            self._head.set_exception(InternalError(f"http/request failed: {error}"))

    async def _transfer(self, deadline: Deadline, *, follow: bool) -> None:
        with self._client.exchange():
            async with self._place(deadline), deadline.limit():
                assert self._request is not None
                response = await self._client.open(self._request, follow=follow)
            self._request = None  # its body may be large, and the stream may last
            try:
                self._head.set_result(response)
                await self._begun.wait()
                async with deadline.limit():
                    await self._forward(response)
            finally:
                await response.close()

    async def _forward(self, response: Response) -> None:
        async with aclosing(response.chunks()) as chunks:
            async for data in chunks:
                for start in range(0, len(data), MAX_CHUNK_BYTES):
                    await self._receiver.wait_to_push()
                    self._send(data[start : start + MAX_CHUNK_BYTES])

    def _send(self, data: bytes, *, done: bool = False, error: str | None = None) -> None:
        self._seq += 1
        self._receiver.notify(
            "http/request/bodyDelta",
            {
                "requestId": self._id,
                "seq": self._seq,
                "deltaBase64": pybase64.b64encode_as_string(data),
                "done": done,
                "error": error,
            },
        )

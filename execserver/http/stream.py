"""The HTTP exchanges of one connection: whole responses, and streams whose body is sent in notifications.

Rules kept in this file:

1. At most `MAX_HTTP_RUNNING` requests of a connection are in progress; further ones queue for a slot. A
   stream frees its slot once it has the head of its response.
2. Everything ends with the connection. The connection itself cancels its requests; `Exchanges.close` ends the
   streams and frees the memory of bodies.

`docs/protocol.md`, "HTTP".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pybase64

from execprotocol.errors import InternalError, InvalidParams
from execprotocol.limits import MAX_CHUNK_BYTES, MAX_HTTP_RUNNING, MAX_HTTP_STREAMS, MAX_HTTP_WAITING
from execserver.http.client import HttpClient, WholeBody
from execserver.http.request import HttpRequest, RequestDeadline, TransferError
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execserver.http.transport import HttpResponse

log = Logger()


class Receiver(Protocol):
    """The connection that gets the body."""

    async def wait_to_push(self) -> None:
        """Wait until one more frame may be sent."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""


class BodyStream:
    """One response, from the request to the last frame of its body.

    The server is read no faster than the receiver takes the body: a frame is made when it may be sent, and
    the next bytes are read once it is queued.

    Args:
        client: makes the request.
        request_id: the receiver's name for the stream.
        receiver: gets the body.
        slot: entered while the head of the response is awaited.
        ended: called when the name is free again.
    """

    def __init__(
        self,
        client: HttpClient,
        request_id: str,
        receiver: Receiver,
        slot: Callable[[RequestDeadline], AbstractAsyncContextManager[None]],
        ended: Callable[[], object],
    ) -> None:
        self._client = client
        self._id = request_id
        self._receiver = receiver
        self._slot = slot
        self._ended = ended
        self._seq = 0
        self._begun = asyncio.Event()
        self._head: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._request: HttpRequest | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, request: HttpRequest, deadline: RequestDeadline, *, follow: bool) -> HttpResponse:
        """Send the request and wait for the head of the response. The body follows after `begin`.

        Raises:
            InternalError: there is no response. The stream has ended.
        """
        self._request = request
        self._task = asyncio.ensure_future(self._run(deadline, follow=follow))
        return await self._head

    def begin(self) -> None:
        """Send the body: the receiver has the head."""
        self._begun.set()

    def close(self) -> None:
        """End the stream without a last frame, and close the connection to the server."""
        self._head.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _run(self, deadline: RequestDeadline, *, follow: bool) -> None:
        error: str | None = None
        try:
            await self._transfer(deadline, follow=follow)
        except TransferError as failure:
            error = str(failure)
        except Exception as failure:
            log.error("stream of a response failed", exc_info=failure)
            error = "internal error"
        finally:
            # First: a receiver that has seen the last frame may use the name again.
            self._ended()
        if self._head.done():
            self._send(b"", done=True, error=error)
        else:
            self._head.set_exception(InternalError(f"http/request failed: {error}"))

    async def _transfer(self, deadline: RequestDeadline, *, follow: bool) -> None:
        with self._client.exchange():
            async with self._slot(deadline), deadline.limit():
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

    async def _forward(self, response: HttpResponse) -> None:
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


class Exchanges:
    """The requests of one connection."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(MAX_HTTP_RUNNING)
        self._waiting = 0
        self._streams: dict[str, BodyStream] = {}
        self._bodies: set[WholeBody] = set()

    async def fetch(
        self, request: HttpRequest, deadline: RequestDeadline, *, follow: bool
    ) -> tuple[HttpResponse, WholeBody]:
        """A response with its whole body, which the caller must `release`.

        Raises:
            InternalError: the request failed, or the body broke off or is too large.
        """
        body = WholeBody(self._client.held, self._bodies.discard)
        self._bodies.add(body)
        try:
            with _internal_errors("http/request failed"), self._client.exchange():
                async with self._slot(deadline):
                    async with deadline.limit():
                        response = await self._client.open(request, follow=follow)
                    try:
                        with _internal_errors("failed to read http/request response body"):
                            async with deadline.limit():
                                await body.read(response.chunks())
                    finally:
                        await response.close()
        except BaseException:
            body.release()
            raise
        return response, body

    def require_free(self, request_id: str) -> None:
        """Refuse the name of an open stream.

        Raises:
            InvalidParams: the name is taken.
        """
        if request_id in self._streams:
            raise InvalidParams(f"http/request streamResponse requestId `{request_id}` is already active")

    def stream(self, request_id: str, receiver: Receiver) -> BodyStream:
        """A stream that is still to be opened; it holds its name until it ends.

        Raises:
            InvalidParams: the name is taken.
            InternalError: the connection has too many streams.
        """
        self.require_free(request_id)
        if len(self._streams) >= MAX_HTTP_STREAMS:
            raise InternalError(
                f"http/request failed: the connection has {MAX_HTTP_STREAMS} streams under way"
            )
        stream = BodyStream(
            self._client, request_id, receiver, self._slot, lambda: self._streams.pop(request_id, None)
        )
        self._streams[request_id] = stream
        return stream

    def close(self) -> None:
        """End all streams and drop all bodies: the connection has ended."""
        for stream in list(self._streams.values()):
            stream.close()
        for body in list(self._bodies):
            body.release()

    @asynccontextmanager
    async def _slot(self, deadline: RequestDeadline) -> AsyncIterator[None]:
        if self._waiting >= MAX_HTTP_WAITING:
            raise TransferError(f"{self._waiting} requests of this connection wait already")
        self._waiting += 1
        try:
            async with deadline.limit():
                await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()


@contextmanager
def _internal_errors(prefix: str) -> Iterator[None]:
    try:
        yield
    except TransferError as error:
        raise InternalError(f"{prefix}: {error}") from None

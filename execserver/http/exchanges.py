"""What one connection has under way: whole responses, and streams of bodies.

Rules kept in this file:

1. A connection has `MAX_HTTP_RUNNING` requests at work at a time; further ones wait for their turn. A
   stream leaves its place when the head of its response is there.
2. Everything ends with the connection: its requests are cancelled by it, its streams and the memory of
   its bodies here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError, InvalidParams
from execprotocol.limits import MAX_HTTP_RUNNING, MAX_HTTP_STREAMS, MAX_HTTP_WAITING
from execserver.http.bodies import WholeBody
from execserver.http.client import HttpClient
from execserver.http.deadline import Deadline
from execserver.http.errors import TransferError
from execserver.http.request import HttpRequest
from execserver.http.stream import Receiver, Stream

if TYPE_CHECKING:
    from execserver.http.transport import Response


class Exchanges:
    """The HTTP side of one connection."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._places = asyncio.Semaphore(MAX_HTTP_RUNNING)
        self._waiting = 0
        self._streams: dict[str, Stream] = {}
        self._bodies: set[WholeBody] = set()

    async def fetch(
        self, request: HttpRequest, deadline: Deadline, *, follow: bool
    ) -> tuple[Response, WholeBody]:
        """A response with its whole body, which is the caller's to `release`.

        Raises:
            InternalError: the request failed, or the body broke or is too large.
        """
        body = WholeBody(self._client.held, self._bodies.discard)
        self._bodies.add(body)
        try:
            with _told("http/request failed"), self._client.exchange():
                async with self._place(deadline):
                    async with deadline.limit():
                        response = await self._client.open(request, follow=follow)
                    try:
                        with _told("failed to read http/request response body"):
                            async with deadline.limit():
                                await body.read(response.chunks())
                    finally:
                        await response.close()
        except BaseException:
            body.release()
            raise
        return response, body

    def require_free(self, request_id: str) -> None:
        """Refuse a name that a stream has.

        Raises:
            InvalidParams: it is taken.
        """
        if request_id in self._streams:
            raise InvalidParams(f"http/request streamResponse requestId `{request_id}` is already active")

    def stream(self, request_id: str, receiver: Receiver) -> Stream:
        """A stream to be opened, which has its name from now on until it ends.

        Raises:
            InvalidParams: the name is taken.
            InternalError: the connection has too many streams.
        """
        self.require_free(request_id)
        if len(self._streams) >= MAX_HTTP_STREAMS:
            raise InternalError(
                f"http/request failed: the connection has {MAX_HTTP_STREAMS} streams under way"
            )
        stream = Stream(
            self._client, request_id, receiver, self._place, lambda: self._streams.pop(request_id, None)
        )
        self._streams[request_id] = stream
        return stream

    def close(self) -> None:
        """The connection has ended."""
        for stream in list(self._streams.values()):
            stream.close()
        for body in list(self._bodies):
            body.release()

    @contextlib.asynccontextmanager
    async def _place(self, deadline: Deadline) -> AsyncIterator[None]:
        if self._waiting >= MAX_HTTP_WAITING:
            raise TransferError(f"{self._waiting} requests of this connection wait already")
        self._waiting += 1
        try:
            async with deadline.limit():
                await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except TransferError as error:
        raise InternalError(f"{what}: {error}") from None

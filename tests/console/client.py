"""The page's side of a console, without a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.wire import PATIENCE


def token_of(link: str) -> str:
    return link.partition("#token=")[2]


def address_of(link: str) -> str:
    """`HOST:PORT` of a link."""
    return link.removeprefix("http://").partition("/")[0]


class RefusedError(Exception):
    """The answer to a request was an error; the arguments are its kind and its message."""


class Page:
    """A connection as the page makes it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: dict[str, Any] = {}
        """The newest of each event."""
        self._last = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        """Take what comes, until the connection ends."""
        async for message in self.socket:
            self._received(json.loads(message))

    def _received(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self.events[message["event"]] = message["params"]
            return
        answer = self._answers.pop(message["id"])
        if answer.cancelled():
            return
        if "error" in message:
            answer.set_exception(RefusedError(message["error"]["kind"], message["error"]["message"]))
        else:
            answer.set_result(message["result"])

    async def request(self, method: str, /, **params: Any) -> Any:
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def process(self, process_id: str) -> dict[str, Any]:
        """The entry of a process, as soon as it is listed."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for each in self.events.get("processes", {}).get("processes", ()):
                    if each["processId"] == process_id:
                        return dict(each)
                await asyncio.sleep(0.02)

    async def until(self, event: str, holds: Any) -> Any:
        """The newest event of a name, as soon as it meets a condition."""
        async with asyncio.timeout(PATIENCE):
            while event not in self.events or not holds(self.events[event]):
                await asyncio.sleep(0.02)
        return self.events[event]


@asynccontextmanager
async def page_at(link: str, **secret: str) -> AsyncIterator[Page]:
    """A page that used a link, or has a key.

    Raises:
        ConnectionClosed: the console does not take the token or key.
    """
    address = address_of(link)
    async with connect(f"ws://{address}/api", origin=f"http://{address}", max_size=None) as socket:  # type: ignore[arg-type]
        page = Page(socket)
        reading = asyncio.create_task(page.read())
        try:
            page.events["opened"] = await _first(page, reading, secret or {"token": token_of(link)})
            yield page
        finally:
            reading.cancel()


async def _first(page: Page, reading: asyncio.Task[None], secret: dict[str, str]) -> Any:
    opening = asyncio.ensure_future(page.request("open", **secret))
    done, _ = await asyncio.wait({opening, reading}, return_when=asyncio.FIRST_COMPLETED)
    if opening not in done:
        opening.cancel()
        await page.socket.recv()  # raises the reason of the close
    return await opening

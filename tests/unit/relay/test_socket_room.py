"""When a socket says that its queue has room: who waits for that is woken, whatever others write."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web

from execserver.relay.service.sockets import HIGH_BYTES, LOW_BYTES, WebSocketPeer


class Transport:
    """Keeps what is written until a test takes it."""

    def __init__(self) -> None:
        self.queued = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.queued

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.queued += len(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.queued += sum(map(len, parts))


class Request:
    """What a peer needs of one."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.writer = self
        self.low = asyncio.Event()
        """The transport's queue fell to its low mark."""

    async def drain(self) -> None:
        await self.low.wait()

    async def prepare(self, _request: web.Request) -> None:
        """As the socket of the request: answer the upgrade."""


@pytest.mark.parametrize("written_meanwhile", [0, LOW_BYTES, HIGH_BYTES - LOW_BYTES])
async def test_room_is_told_once_and_only_below_the_mark(written_meanwhile: int) -> None:
    request, told = Request(), asyncio.Event()
    queued_when_told = []

    def has_room(peer: WebSocketPeer) -> None:
        queued_when_told.append(peer.queued)
        told.set()

    peer = WebSocketPeer(
        cast("web.WebSocketResponse[bool]", request), cast("web.Request", request), "peer", has_room
    )
    await peer.upgrade()
    assert peer._ping_timer is not None
    try:
        peer.send(bytes(HIGH_BYTES))
        await asyncio.sleep(0)
        request.transport.queued = LOW_BYTES - 1000
        request.low.set()
        if written_meanwhile:  # before the task that waits has had its turn
            peer.send(bytes(written_meanwhile))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not queued_when_told
            request.transport.queued = 0

        async with asyncio.timeout(5):
            await told.wait()

        assert len(queued_when_told) == 1
        assert queued_when_told[0] < LOW_BYTES
    finally:
        peer._ping_timer.cancel()

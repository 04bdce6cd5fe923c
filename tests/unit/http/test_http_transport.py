"""Connections to servers, and what becomes of them when nobody wants them any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

import pytest

from execserver.http.request import check_method, check_url, make_request
from execserver.http.transport import HttpTransport

PATIENCE = 10.0
TURNS = 60
"""Of the loop: more than a request needs to be sent to a server on this machine."""


def test_a_request_that_is_given_up_leaves_no_connection_at_whatever_moment() -> None:
    with asyncio.Runner() as runner:
        runner.run(_give_up_at_each_turn())


async def _give_up_at_each_turn() -> None:
    transport = await asyncio.to_thread(HttpTransport, {})
    async with _Server() as server:
        for turns in range(TURNS):
            request = make_request(check_method("GET"), check_url(server.url), iter(()), b"").with_host()
            task = asyncio.ensure_future(transport.send(request))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await server.idle.wait()
    assert server.requests, "no request came so far as to be sent"


class _Server:
    """Reads requests, and answers none."""

    def __init__(self) -> None:
        self.requests = self._open = 0
        self.idle = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._keep, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self.idle.clear()
        with suppress(ConnectionResetError):
            while await reader.read(1 << 16):
                self.requests += 1
        writer.close()
        self._open -= 1
        if not self._open:
            self.idle.set()

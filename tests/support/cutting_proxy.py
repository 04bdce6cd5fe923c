"""A proxy that cuts connections, wherever a message may be: after so many bytes in one direction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

Direction = Literal["to client", "to server"]
Cut = tuple[Direction, int]


class CuttingProxy:
    """Forwards connections to a daemon, or to a relay.

    Args:
        target: the daemon's URL.
        plan: asked at each connection for its cut; None for a connection that lasts.
    """

    def __init__(self, target: str, plan: Callable[[], Cut | None]) -> None:
        self.url = ""
        self.cuts = 0
        """Connections that were cut as planned."""
        self.passed: dict[Direction, int] = {"to client": 0, "to server": 0}
        """Bytes of all connections."""
        self._target = target
        self._plan = plan
        self._open: set[asyncio.Task[None]] = set()
        self._transports: list[asyncio.WriteTransport] = []

    def cut(self) -> int:
        """End what is open at once; how many connections that were."""
        transports = self._transports.copy()
        for transport in transports:
            transport.abort()
        return len(transports) // 2

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._connection(reader, writer)
        except OSError:
            writer.transport.abort()
        finally:
            self._open.discard(task)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await self._connect()
        transports = [writer.transport, server_writer.transport]
        self._transports += transports
        direction, room = self._plan() or ("to client", None)

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Direction) -> None:
            left = room if direction == way else None
            try:
                while data := await source.read(1 << 16):
                    self.passed[way] += len(data)
                    sink.write(data if left is None else data[:left])
                    await sink.drain()
                    if left is not None and (left := left - len(data)) <= 0:
                        self.cuts += 1
                        break
            except OSError:
                pass
            for transport in transports:
                transport.abort()
                if transport in self._transports:
                    self._transports.remove(transport)

        await asyncio.gather(
            forward(reader, server_writer, "to server"),
            forward(server_reader, writer, "to client"),
        )

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._target)
        if parts.scheme == "unix":
            return await asyncio.open_unix_connection(parts.path)
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def end(self) -> None:
        """End everything."""
        self.cut()
        await asyncio.gather(*self._open, return_exceptions=True)


@asynccontextmanager
async def cutting(
    target: str, folder: Path, plan: Callable[[], Cut | None] = lambda: None
) -> AsyncIterator[CuttingProxy]:
    """A proxy to the daemon, on the same transport."""
    proxy = CuttingProxy(target, plan)
    if target.startswith("unix://"):
        server = await asyncio.start_unix_server(proxy.serve, folder / "proxy")
        proxy.url = f"unix://{folder}/proxy"
    else:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        proxy.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()

"""A line with a latency: a proxy that delivers all bytes of both directions later, at any rate."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 1 << 16

PIECES_UNDER_WAY = 256
"""16 MiB: more than any program here sends within the latency."""


@dataclass(frozen=True)
class End:
    """One end of a line: a Unix socket, or a port of this machine (0 for any free one)."""

    path: Path | None = None
    port: int = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.path is not None:
            return await asyncio.open_unix_connection(self.path)
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.contextmanager
def slow_line(near: End, far: End, round_trip_seconds: float) -> Iterator[End]:
    """Serve at the near end what listens at the far end; yields the near end, with its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="slow line", daemon=True)
    thread.start()
    line = _Line(far, round_trip_seconds / 2)
    try:
        server = asyncio.run_coroutine_threadsafe(line.listen(near), loop).result(10)
        port = 0 if near.path is not None else server.sockets[0].getsockname()[1]
        yield End(near.path, port)
    finally:
        asyncio.run_coroutine_threadsafe(line.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class _Line:
    def __init__(self, far: End, delay: float) -> None:
        self._far = far
        self._delay = delay
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, near: End) -> asyncio.Server:
        if near.path is not None:
            self._server = await asyncio.start_unix_server(self._serve, near.path)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", near.port)
        return self._server

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        far_writer = writer
        try:
            await asyncio.sleep(2 * self._delay)  # the handshake of TCP
            far_reader, far_writer = await self._far.connect()
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            return  # one of the two programs is gone, or the line is
        finally:
            far_writer.close()
            writer.close()
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_UNDER_WAY)

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while data := await reader.read(PIECE_BYTES):
                await under_way.put((loop.time() + self._delay, data))
            await under_way.put((loop.time() + self._delay, b""))
            await delivering
        finally:
            delivering.cancel()

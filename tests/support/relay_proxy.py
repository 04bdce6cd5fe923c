"""A TCP proxy in front of a relay, for the peers that are to be cut off, or whose bytes are to be seen.

A relay hands out URLs by the `Host` of the request, so a peer that registers or connects through a proxy
dials through it, too: with a proxy for each peer all that a peer sends and gets passes here.

    async with Proxy(relay.url) as proxy:
        ...                          # a peer of proxy.url
        proxy.cut_sockets()          # its WebSockets, wherever a frame may be
        proxy.connections            # what it has sent and got, connection by connection (`record`)

With several targets it is a load balancer: round robin over those that accept a connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Literal, Self, cast
from urllib.parse import urlsplit, urlunsplit

Direction = Literal["to peer", "to relay"]

UPGRADED = b"HTTP/1.1 101 "
"""How the relay's answer begins where a WebSocket is opened; so much is kept when nothing is recorded."""


class _End(asyncio.Protocol):
    """One end of a connection: what comes here goes out at the other one."""

    def __init__(self, connection: Connection, direction: Direction) -> None:
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None
        self.said_all = False
        self._connection = connection
        self._direction = direction  # of what comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if not self._connection.open:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(self._connection.passes(self._direction, data))
            if not self._connection.open:
                self.other.transport.close()  # with what was allowed to pass
                self._abort()

    def eof_received(self) -> bool:
        if self.other is None or self.other.transport is None or self.other.said_all:
            self._connection.open = False
            if self.other is not None and self.other.transport is not None:
                self.other.transport.close()
            return False
        self.said_all = True
        self.other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection.open:
            self._connection.cut()
        self.transport = None
        self._connection.ended(self)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Connection:
    """One of a peer's connections."""

    def __init__(self, record: bool) -> None:
        self.sent = bytearray()
        """What the peer sent, its masks as they are."""
        self.got = bytearray()
        """What the relay sent; only the beginning when nothing is recorded."""
        self.open = True
        self.over = asyncio.Event()
        self._record = record
        self._ends: set[_End] = set()
        self._cut: tuple[Direction, int] | None = None

    @property
    def is_socket(self) -> bool:
        """Whether it has become a WebSocket, and is no request that was answered."""
        return self.got.startswith(UPGRADED)

    def cut(self) -> None:
        """End it at once, on both sides."""
        self.open = False
        for end in self._ends:
            if end.transport is not None:
                end.transport.abort()

    def cut_after(self, direction: Direction, size: int) -> None:
        """End it as soon as so many more bytes went there."""
        self._cut = (direction, size)

    def passes(self, direction: Direction, data: bytes) -> bytes:
        """Note what comes; how much of it may go on."""
        if direction == "to peer":
            self.got += data if self._record else data[: max(0, len(UPGRADED) - len(self.got))]
        elif self._record:
            self.sent += data
        if self._cut is not None and self._cut[0] == direction:
            data, left = data[: self._cut[1]], self._cut[1] - len(data)
            self._cut = (direction, left)
            self.open = left > 0
        return data

    def began(self, *ends: _End) -> None:
        """What it consists of."""
        self._ends.update(ends)

    def ended(self, end: _End) -> None:
        """One of its ends is over."""
        self._ends.discard(end)
        if not self._ends:
            self.over.set()


class Proxy:
    """Forwards every connection to a relay.

    Args:
        target: the relay's base URL.
        others: more relays, with the same path below their addresses.
        record: whether to keep what passes.
    """

    def __init__(self, target: str, *others: str, record: bool = False) -> None:
        self.connections: list[Connection] = []
        """All of them, in order."""
        self.url = ""
        """The relay's base URL by way of this."""
        self._targets = deque(urlsplit(each) for each in (target, *others))
        self._record = record
        self._dials: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._targets[0]._replace(netloc=f"127.0.0.1:{port}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await asyncio.gather(*self._dials)
        for connection in self.connections:
            connection.cut()
            await connection.over.wait()

    @property
    def sockets(self) -> list[Connection]:
        """The WebSockets that are open."""
        return [each for each in self.connections if each.open and each.is_socket]

    def cut_sockets(self) -> int:
        """End the WebSockets at once; how many."""
        sockets = self.sockets
        for each in sockets:
            each.cut()
        return len(sockets)

    def _accepted(self) -> _End:
        connection = Connection(self._record)
        self.connections.append(connection)
        near, far = _End(connection, "to relay"), _End(connection, "to peer")
        connection.began(near, far)
        task = asyncio.get_running_loop().create_task(self._dial(connection, near, far))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)
        return near

    async def _dial(self, connection: Connection, near: _End, far: _End) -> None:
        # The peer's transport is there by the next turn of the loop; nothing of it is read before we resume.
        await asyncio.sleep(0)
        if near.transport is not None:
            near.transport.pause_reading()
        for _ in range(len(self._targets)):
            target = self._targets[0]
            self._targets.rotate(-1)
            try:
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: far, target.hostname or "", target.port or 80)
                break
            except OSError:  # that relay is not there
                continue
        else:
            connection.ended(far)
            connection.cut()
            return
        near.other, far.other = far, near
        if near.transport is not None:
            near.transport.resume_reading()
        else:
            connection.cut()

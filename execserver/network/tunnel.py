"""Moves bytes between two sockets, both ways, until both ends have ended."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from types import TracebackType

_CHUNK = 256 * 1024
_LINGER_S = 5.0
"""For an end that goes on sending what the other end does not take any more."""

_POLL_S = 0.05
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class TrafficError(Exception):
    """The proxy has moved as many bytes as it may. The text is for the command."""


class Traffic:
    """The bytes of all connections of a proxy.

    Args:
        limit: bytes to and from all hosts; null for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.moved = 0
        # What one read of a tunnel returns is sent or copied before the next read, of whichever tunnel.
        self.buffer = bytearray(_CHUNK)

    def check(self) -> None:
        """Raise `TrafficError` if the limit is reached."""
        if self.limit is not None and self.moved >= self.limit:
            self.add(1)

    def add(self, count: int) -> None:
        """Count bytes that are about to be moved.

        Raises:
            TrafficError: they would go beyond the limit.
        """
        if self.limit is not None and self.moved + count > self.limit:
            self.moved = self.limit
            raise TrafficError(f"the network proxy of this command has moved its limit of {self.limit} bytes")
        self.moved += count


class IdleWatch:
    """A `with` block that raises `TimeoutError` after a time without activity.

    Args:
        seconds: the time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> IdleWatch:
        await self._timeout.__aenter__()
        self._check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def touch(self) -> None:
        """Say that there was activity."""
        self._last = self._loop.time()

    def _check(self) -> None:
        # One timer, moved when it fires: moving it for each chunk would cost more than the chunk.
        now, end = self._loop.time(), self._last + self._seconds
        if now >= end:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_at(end, self._check)


def reset_on_close(connection: socket.socket) -> None:
    """Have the other end see a reset when the socket is closed, and no regular end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


async def until_sent(end: socket.socket, watch: IdleWatch) -> None:
    """Wait until the other side of a socket has acknowledged all bytes: a reset would discard the rest."""
    unsent, unsent_before = array.array("i", [0]), -1
    with contextlib.suppress(OSError):
        while fcntl.ioctl(end, termios.TIOCOUTQ, unsent) == 0 and unsent[0]:
            if unsent[0] != unsent_before:
                watch.touch()
            unsent_before = unsent[0]
            await asyncio.sleep(_POLL_S)


class Tunnel:
    """Moves bytes between two non-blocking sockets, which stay open.

    Each direction ends by itself, by a shutdown of the other end's reading. A reset of one end becomes a
    reset of the other, behind all bytes that came before it.

    Args:
        first: a socket.
        second: another.
        traffic: counts the bytes.
        watch: told of each read and write.
    """

    def __init__(
        self, first: socket.socket, second: socket.socket, traffic: Traffic, watch: IdleWatch
    ) -> None:
        self.traffic = traffic
        self.watch = watch
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[socket.socket | None] = self._loop.create_future()
        self._flows = (_Flow(self, first, second), _Flow(self, second, first))

    async def run(self, to_second: bytes = b"") -> None:
        """Move bytes until both directions have ended.

        Args:
            to_second: bytes from the first socket that were read before.

        Raises:
            TrafficError: the limit of bytes is reached. Both sockets reset when they are closed.
        """
        ends = [flow.source for flow in self._flows]
        try:
            if to_second:
                self.traffic.add(len(to_second))
            self._flows[0].start(to_second)
            self._flows[1].start()
            reset = await self._over
            if reset is not None:
                await until_sent(reset, self.watch)
                reset_on_close(reset)
        except BaseException:
            for end in ends:
                reset_on_close(end)
            raise
        finally:
            for end in ends:
                self._loop.remove_reader(end)
                self._loop.remove_writer(end)

    def flow_is_over(self) -> None:
        """Called by a flow that has moved all."""
        if all(flow.is_over for flow in self._flows):
            self.end()
        elif all(flow.is_over or flow.discards for flow in self._flows):
            # Unread bytes would turn the close of this end into a reset, which may overtake the answer.
            self._loop.call_later(_LINGER_S, self.end)

    def end(self, *, reset: socket.socket | None = None, error: Exception | None = None) -> None:
        """End the tunnel.

        Args:
            reset: the end to reset, after all of its bytes.
            error: what `run` raises.
        """
        if self._over.done():
            return
        if error is not None:
            self._over.set_exception(error)
        else:
            self._over.set_result(reset)


class _Flow:
    """One direction of a tunnel."""

    def __init__(self, tunnel: Tunnel, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.is_over = False
        self.discards = False
        self._tunnel = tunnel
        self._sink = sink
        self._rest = memoryview(b"")
        self._view = memoryview(tunnel.traffic.buffer)
        self._loop = asyncio.get_running_loop()

    def start(self, data: bytes = b"") -> None:
        self._loop.add_reader(self.source, self._read)
        if data:
            self._send(memoryview(data))

    def _read(self) -> None:
        tunnel = self._tunnel
        try:
            count = self.source.recv_into(self._view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._loop.remove_reader(self.source)
            tunnel.end(reset=self._sink)
            return
        tunnel.watch.touch()
        if not count:
            self._loop.remove_reader(self.source)
            with contextlib.suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)
            self.is_over = True
            tunnel.flow_is_over()
        elif not self.discards:
            try:
                tunnel.traffic.add(count)
            except TrafficError as error:
                tunnel.end(error=error)
                return
            self._send(self._view[:count])

    def _send(self, data: memoryview) -> None:
        try:
            sent = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._discard()
            return
        if sent < len(data):
            self._rest = memoryview(bytes(data[sent:]))
            self._loop.remove_reader(self.source)
            self._loop.add_writer(self._sink, self._send_rest)

    def _send_rest(self) -> None:
        try:
            sent = self._sink.send(self._rest)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self.source, self._read)
            self._discard()
            return
        self._tunnel.watch.touch()
        self._rest = self._rest[sent:]
        if not self._rest:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self.source, self._read)

    def _discard(self) -> None:
        """The other end takes no more; what it has sent before is still to be moved."""
        self.discards = True
        self._tunnel.flow_is_over()

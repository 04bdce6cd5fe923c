"""Unix sockets, with one message per line.

No data is sent before the server's uid is checked: the client's own, or root.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import cast

from execclient.connection.channel import CONNECT_SECONDS, LineSplitter, MessageTooLong, Receiver
from execclient.errors import ConnectionFailed, DaemonNotRunning, UntrustedServer
from execclient.fork_safety import withhold

_CREDENTIALS = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid."""


class SocketChannel(asyncio.Protocol):
    """A connected Unix socket."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._splitter = LineSplitter(receiver.message_received)
        self._transport: asyncio.Transport
        self.ended = asyncio.Event()

    def send(self, message: bytes) -> None:
        """As `Channel.send`."""
        self._transport.write(message + b"\n")

    def close(self) -> None:
        """As `Channel.close`."""
        self._transport.close()

    def abort(self) -> None:
        """As `Channel.abort`."""
        self._splitter.stop()
        self._transport.abort()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        withhold(transport)
        self._receiver.channel_opened(self)

    def data_received(self, data: bytes) -> None:
        """Data arrived."""
        try:
            self._splitter.feed(data)
        except MessageTooLong as error:
            self._receiver.protocol_broken(f"the server sent {error}")

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """The send buffer has drained."""
        self._receiver.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, from either side."""
        self._splitter.stop()
        self.ended.set()
        self._receiver.channel_lost(str(exc) if exc else None)


async def open_unix(path: str, url: str, receiver: Receiver) -> None:
    """Connect, and check the uid of the server.

    Raises:
        DaemonNotRunning: no server is listening.
        UntrustedServer: the server runs neither as the client's uid nor as root; `receiver` was notified.
        ConnectionFailed: any other failure.
    """
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, channel = await asyncio.get_running_loop().create_unix_connection(
                lambda: SocketChannel(receiver), path
            )
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise DaemonNotRunning(
            f"no server is listening at {url} ({error.strerror}). "
            f"Start a daemon with: execserver serve --listen {url} "
            f"(or use one that ends with the client: {DaemonNotRunning.own_daemon})"
        ).about(path=path, errno=error.errno) from None  # the text has all of it
    except OSError as error:
        failure = ConnectionFailed(
            f"cannot connect to {url}: {error.strerror or str(error) or 'no response'}"
        )
        raise failure.about(path=path, errno=error.errno) from None
    try:
        _check_server(transport.get_extra_info("socket"), url)
    except ConnectionFailed:
        channel.abort()
        await channel.ended.wait()
        raise


def _check_server(connected: socket.socket, url: str) -> None:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if pid == 0 and uid == 0xFFFFFFFF:
        # The listener's queue is full: asyncio takes the kernel's EAGAIN for a connection.
        raise ConnectionFailed(f"cannot connect to {url}: too many clients are waiting there already")
    if uid not in (os.geteuid(), 0):
        raise UntrustedServer(
            f"the server at {url} runs as uid {uid}, which is neither the client's nor root"
        )

"""Listeners: accept connections on a TCP or Unix socket, also while the descriptor table is full."""

from __future__ import annotations

import asyncio
import errno
import importlib
import socket
from collections.abc import Callable, Collection
from typing import Literal

from execserver.local_peers import require_room, unix_peer
from execserver.telemetry.logs import Logger
from execserver.transports.accept import (
    ACCEPT_SECONDS,
    PING_SECONDS,
    AcceptedSocket,
    ListenerOptions,
    log_refusal,
)
from execserver.transports.authentication import Authenticator
from execserver.transports.base import BaseChannel, MakeHandler
from execserver.transports.http_upgrade import READY, HttpPages

ACCEPTS_PER_TURN = 64
"""How many connections one turn of the loop takes: a flood must not delay other connections."""

RETRY_ACCEPT_SECONDS = 0.5
"""How long to wait if there is no descriptor for another connection. The socket stays readable meanwhile, so
to retry at once would spin."""

HOLD_SECONDS = 0.02
"""How long connections wait in the backlog while every descriptor is needed for something else."""

PAGES_WHILE_STOPPING = 8
"""Connections at a time while only pages are served: ending processes may need every other descriptor."""

EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

SocketKind = Literal["tcp", "unix"]

log = Logger()


SEND_BUFFER_BYTES = 1 << 20


class SocketListener:
    """Takes the connections of one listening socket, which the caller owns."""

    def __init__(self, sock: socket.socket, options: ListenerOptions, may_accept: Callable[[], bool]) -> None:
        self._sock = sock
        self._may_accept = may_accept
        self._fd = sock.fileno()
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._accepted: set[AcceptedSocket] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self.channels: set[BaseChannel] = set()
        """The live connections."""
        sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more and drop connections without a channel (idempotent). Channels stay open, and so does
        the listening socket.
        """
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._fd)
        for accepted in tuple(self._accepted):
            accepted.drop()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._fd, self._accept)

    def _accept(self) -> None:
        stopping = not self._options.upgrades() and len(self._accepted) >= PAGES_WHILE_STOPPING
        if stopping or not self._may_accept():
            self._accept_again_in(HOLD_SECONDS)
            return
        for _ in range(ACCEPTS_PER_TURN):
            try:
                if self._options.unix:
                    require_room(self._fd)
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    log.debug("accept failed", error=str(error))  # the peer left before its turn
                    continue
                log.warning("accept failed", error=str(error), retry_seconds=RETRY_ACCEPT_SECONDS)
                self._accept_again_in(RETRY_ACCEPT_SECONDS)
                return
            self._take(sock, address)

    def _accept_again_in(self, seconds: float) -> None:
        self._loop.remove_reader(self._fd)
        self._retry = self._loop.call_later(seconds, self._listen)

    def _take(self, sock: socket.socket, address: object) -> None:
        sock.setblocking(False)
        try:
            peer = self._unix_peer(sock) if self._options.unix else tcp_peer(sock, address)
        except OSError as error:
            log.debug("accept failed", error=str(error))
            peer = None
        if peer is None:
            sock.close()
            return
        accepted = AcceptedSocket(
            sock, peer, self._options, self.channels.add, self._accepted.discard, self.channels.discard
        )
        self._accepted.add(accepted)

    @staticmethod
    def _unix_peer(sock: socket.socket) -> str | None:
        # As much as the pipes of stdio; the default is a fifth of that.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        pid, fault = unix_peer(sock)
        if fault is not None:
            log_refusal(fault, pid=pid)
            return None
        return f"unix:pid={pid}"


def tcp_peer(sock: socket.socket, address: object) -> str:
    """The peer as `127.0.0.1:41234` or `[::1]:41234`. Also turns off Nagle's algorithm."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert isinstance(address, tuple)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve_socket(
    sock: socket.socket,
    kind: SocketKind,
    make_handler: MakeHandler,
    authenticator: Authenticator,
    host_names: Collection[str],
    may_accept: Callable[[], bool] = lambda: True,
    accept_seconds: float = ACCEPT_SECONDS,
    ping_seconds: float = PING_SECONDS,
    pages: HttpPages = READY,
    upgrades: Callable[[], bool] = lambda: True,
) -> SocketListener:
    """Take connections on a bound, listening socket.

    Args:
        sock: the socket, which the caller owns.
        kind: `tcp` (HTTP and WebSocket) or `unix` (newline JSON too, for the daemon's user only).
        make_handler: makes the handler of each connection.
        authenticator: checks each upgrade.
        host_names: the names that `Host` may have besides literal addresses.
        may_accept: called before connections are taken; while it returns false they wait in the backlog.
        accept_seconds: how long a peer may take until its protocol is known.
        ping_seconds: the time between pings on WebSocket connections.
        pages: the answers to HTTP requests that are not upgrades.
        upgrades: whether new connections are taken; while it returns false, only pages are served.
    """
    if kind == "tcp":
        importlib.import_module("execserver.transports.websocket")  # now rather than at the first upgrade
    names = frozenset(name.lower().removesuffix(".") for name in host_names)
    options = ListenerOptions(
        make_handler, authenticator, names, kind == "unix", accept_seconds, ping_seconds, pages, upgrades
    )
    return SocketListener(sock, options, may_accept)

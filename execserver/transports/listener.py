"""Listeners: accept on a TCP or Unix socket, refuse strangers, survive a full descriptor table."""

from __future__ import annotations

import asyncio
import errno
import importlib
import socket
from collections.abc import Callable, Collection
from typing import Literal

from execserver.telemetry.logs import Logger
from execserver.transports.accept import GREETING_SECONDS, PING_SECONDS, Greeting, Terms, log_refusal
from execserver.transports.authentication import Authenticator
from execserver.transports.base import MakeHandler, StreamChannel
from execserver.transports.http_upgrade import READY, Pages
from execserver.transports.local_peers import require_room, unix_peer

ACCEPTS_PER_TURN = 64
"""How many connections one turn of the loop takes, so that a flood of them delays nobody."""

RETRY_ACCEPT_SECONDS = 0.5
"""How long to wait when there is no descriptor for another connection. The socket stays readable
meanwhile, so going on at once would spin."""

HOLD_SECONDS = 0.02
"""How long to leave connections waiting while every descriptor is needed for something else."""

PAGES_WHILE_STOPPING = 8
"""Connections at a time while only pages are served, and every other descriptor may be needed for
ending processes."""

EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

Kind = Literal["tcp", "unix"]

log = Logger()


SEND_BUFFER_BYTES = 1 << 20


class Listener:
    """Takes connections of one listening socket, which stays the caller's."""

    def __init__(self, sock: socket.socket, terms: Terms, may_accept: Callable[[], bool]) -> None:
        self._sock = sock
        self._may_accept = may_accept
        self._fd = sock.fileno()
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._greetings: set[Greeting] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self.channels: set[StreamChannel] = set()
        """The live connections."""
        sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept nothing more and drop who has not said yet what it is (idempotent). Channels live
        on, the socket is not closed.
        """
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._fd)
        for greeting in tuple(self._greetings):
            greeting.drop()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._fd, self._accept)

    def _accept(self) -> None:
        stopping = not self._terms.upgrades() and len(self._greetings) >= PAGES_WHILE_STOPPING
        if stopping or not self._may_accept():
            self._accept_again_in(HOLD_SECONDS)
            return
        for _ in range(ACCEPTS_PER_TURN):
            try:
                if self._terms.unix:
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
            self._greet(sock, address)

    def _accept_again_in(self, seconds: float) -> None:
        self._loop.remove_reader(self._fd)
        self._retry = self._loop.call_later(seconds, self._listen)

    def _greet(self, sock: socket.socket, address: object) -> None:
        sock.setblocking(False)
        try:
            peer = self._unix_peer(sock) if self._terms.unix else tcp_peer(sock, address)
        except OSError as error:
            log.debug("accept failed", error=str(error))
            peer = None
        if peer is None:
            sock.close()
            return
        greeting = Greeting(
            sock, peer, self._terms, self.channels.add, self._greetings.discard, self.channels.discard
        )
        self._greetings.add(greeting)

    @staticmethod
    def _unix_peer(sock: socket.socket) -> str | None:
        # As much as the pipes of stdio hold; the default is a fifth of that.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        pid, fault = unix_peer(sock)
        if fault is not None:
            log_refusal(fault, pid=pid)
            return None
        return f"unix:pid={pid}"


def tcp_peer(sock: socket.socket, address: object) -> str:
    """The peer as `127.0.0.1:41234` or `[::1]:41234`; also switches off Nagle's delays."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert isinstance(address, tuple)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve_socket(
    sock: socket.socket,
    kind: Kind,
    make_handler: MakeHandler,
    authenticator: Authenticator,
    host_names: Collection[str],
    may_accept: Callable[[], bool] = lambda: True,
    greeting_seconds: float = GREETING_SECONDS,
    ping_seconds: float = PING_SECONDS,
    pages: Pages = READY,
    upgrades: Callable[[], bool] = lambda: True,
) -> Listener:
    """Take connections on a bound, listening socket.

    Args:
        sock: the socket; it stays the caller's.
        kind: `tcp` (HTTP and WebSocket) or `unix` (newline JSON too, for the daemon's user only).
        make_handler: makes the handler of each connection.
        authenticator: asked at each upgrade.
        host_names: what `Host` may name besides literal addresses.
        may_accept: asked before connections are taken; while it says no they wait in the backlog.
        greeting_seconds: how long a peer may take to say what it wants.
        ping_seconds: the time between pings on WebSocket connections.
        pages: what is shown to HTTP requests that are no upgrade.
        upgrades: whether new connections are taken; while it says no, only pages are served.
    """
    if kind == "tcp":
        importlib.import_module("execserver.transports.websocket")  # now rather than at the first upgrade
    names = frozenset(name.lower().removesuffix(".") for name in host_names)
    terms = Terms(
        make_handler, authenticator, names, kind == "unix", greeting_seconds, ping_seconds, pages, upgrades
    )
    return Listener(sock, terms, may_accept)

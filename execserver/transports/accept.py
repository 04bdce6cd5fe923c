"""An accepted socket connection until its protocol is known from its first bytes.

On a Unix socket, a peer whose first byte is not that of an HTTP method sends JSON, in lines or with
`Content-Length` headers. TCP carries HTTP only. The connection gets a channel, or an answer after which it is
closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import msgspec

from execserver.local_peers import ENDED, OTHER_USER, tcp_fault
from execserver.sessions.access import PeerProof
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures
from execserver.transports.authentication import Authenticator
from execserver.transports.base import BaseChannel, MakeHandler
from execserver.transports.byte_stream import ByteStreamChannel, begins_headers
from execserver.transports.http_upgrade import (
    MAX_HEAD_BYTES,
    READY,
    BadRequestError,
    Decision,
    HttpPages,
    decide,
    is_public,
    parse_head,
    refuse,
)

ACCEPT_SECONDS = 5.0
"""How long a peer may take until its protocol is known: a few hundred bytes."""

REFUSAL_LINGER_SECONDS = 1.0
"""How long a refused peer may take to read its answer. The kernel would discard the answer if the socket were
closed at once with bytes unread."""

PING_SECONDS = 30.0
"""The time between pings on WebSocket connections, as in the reference."""

UPPERCASE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_peer_checks = ThreadPoolExecutor(1, thread_name_prefix="local peers")
"""Inspects the peers of TCP connections, one at a time: an inspection takes milliseconds at most, and several
at once would only take the interpreter from the loop."""

REFUSAL_TEXT = (
    "this listener asks for no credentials, and takes no client from a sandbox or a container: {fault}. "
    "Start the daemon with --ws-auth, and give the client its token"
)

_LABELS = {OTHER_USER: "other-user", ENDED: "ended"}

log = Logger()


def log_refusal(fault: str, **peer: object) -> None:
    """Count and log a local process that may not be a client."""
    measures.connection_refused(_LABELS.get(fault, "confined"))
    log.warning("connection refused", reason=fault, **peer)


class ListenerOptions(msgspec.Struct, frozen=True):
    """How a listener takes connections."""

    make_handler: MakeHandler
    authenticator: Authenticator
    host_names: Collection[str]
    unix: bool
    accept_seconds: float = ACCEPT_SECONDS
    ping_seconds: float = PING_SECONDS
    pages: HttpPages = msgspec.field(default_factory=lambda: READY)
    upgrades: Callable[[], bool] = lambda: True
    """Whether new connections are taken; called at each upgrade."""


class AcceptedSocket:
    """One accepted socket until it has a channel or is closed.

    Args:
        sock: non-blocking; owned by this object.
        peer: the peer's name for logs.
        options: the listener's.
        on_channel: called with the channel before it delivers anything.
        on_ended: called once, when this object no longer uses the socket.
        on_released: called when the channel's socket is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        options: ListenerOptions,
        on_channel: Callable[[BaseChannel], None],
        on_ended: Callable[[AcceptedSocket], None],
        on_released: Callable[[BaseChannel], None],
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._options = options
        self._on_channel = on_channel
        self._on_ended = on_ended
        self._on_released = on_released
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._timeout: asyncio.TimerHandle | None = None
        self._decision: asyncio.Future[Decision] | None = None
        self._fault: str | None = None
        self._unsent = memoryview(b"")
        if not options.unix:
            self._start_timeout(options.accept_seconds)
        self._loop.add_reader(self._fd, self._readable)

    def drop(self) -> None:
        """Close the socket."""
        self._detach()
        self._sock.close()

    def _start_timeout(self, seconds: float) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self._timeout = self._loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        log.debug("connection dropped before it said what it is", peer=self._peer)
        self.drop()

    def _detach(self) -> None:
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._timeout is not None:
            self._timeout.cancel()
        if self._decision is not None:
            self._decision.cancel()
        self._on_ended(self)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(MAX_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.drop()
            return
        self._received += data if self._received else data.lstrip()
        if not self._received:
            return  # a blank line from an idle peer does not start the timeout
        if self._timeout is None:
            self._start_timeout(self._options.accept_seconds)
        self._detect_protocol()

    def _detect_protocol(self) -> None:
        received = self._received
        speaks_http = received[0] in UPPERCASE
        if self._options.unix:
            headers = begins_headers(received)
            if headers or not speaks_http:
                self._become_byte_stream()
                return
            if headers is None:
                return  # `C`: CONNECT, or Content-Length
        end = received.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES + 4)
        if not speaks_http:
            self._answer(refuse(HTTPStatus.BAD_REQUEST))
        elif end >= 0:
            self._decide(bytes(received[:end]), bytes(received[end + 4 :]))
        elif len(received) > MAX_HEAD_BYTES:
            self._answer(refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def _decide(self, head: bytes, rest: bytes) -> None:
        options = self._options
        inspects = False
        decision: Decision | Coroutine[Any, Any, Decision]
        try:
            parsed = parse_head(head)
            decision = decide(
                parsed,
                options.authenticator,
                options.host_names,
                options.unix,
                options.pages,
                options.upgrades(),
            )
            inspects = not (
                options.unix or options.authenticator.required or is_public(parsed, options.pages)
            )
        except BadRequestError:
            decision = refuse(HTTPStatus.BAD_REQUEST)
        refuses = isinstance(decision, Decision) and decision.status >= HTTPStatus.BAD_REQUEST
        if inspects and not refuses:
            decision = self._if_unconfined(decision)
        if isinstance(decision, Decision):
            self._apply(decision, rest)
        else:
            self._apply_later(decision, rest)

    async def _if_unconfined(self, decision: Decision | Coroutine[Any, Any, Decision]) -> Decision:
        """The decision on a connection without credentials: a refusal if its peer is confined."""
        try:
            fault = await self._loop.run_in_executor(_peer_checks, tcp_fault, self._sock)
            status = HTTPStatus.FORBIDDEN
        except OSError as error:
            fault, status = f"the peer cannot be looked at ({error.strerror})", HTTPStatus.SERVICE_UNAVAILABLE
        if fault is None:
            return decision if isinstance(decision, Decision) else await decision
        if not isinstance(decision, Decision):
            decision.close()
        self._fault = fault
        return refuse(status, REFUSAL_TEXT.format(fault=fault))

    def _apply(self, decision: Decision, rest: bytes) -> None:
        if decision.upgraded:
            self._become_websocket(decision.response, rest)
        else:
            self._answer(decision)

    def _become_byte_stream(self) -> None:
        self._detach()
        channel = ByteStreamChannel(self._fd, self._fd, self._peer, lambda: self._close(channel))
        self._on_channel(channel)
        channel.start(self._options.make_handler)
        channel.serve_first(bytes(self._received))

    def _become_websocket(self, response: bytes, rest: bytes) -> None:
        from execserver.transports.websocket import WebSocketChannel  # 25 ms, at the first upgrade

        self._detach()
        options = self._options
        address = "unix" if options.unix else self._peer
        proof: PeerProof | None = "credentials" if options.authenticator.required else None
        channel = WebSocketChannel(
            self._fd,
            self._peer,
            lambda: self._close(channel),
            address,
            options.ping_seconds,
            "user" if options.unix else proof,
        )
        self._on_channel(channel)
        channel.answer_upgrade(response, options.make_handler, rest)

    def _close(self, channel: BaseChannel) -> None:
        self._sock.close()
        self._on_released(channel)

    def _apply_later(self, decision: Coroutine[Any, Any, Decision], rest: bytes) -> None:
        """Wait for the decision, within the timeout; bytes from the peer wait in the socket."""
        self._loop.remove_reader(self._fd)
        self._decision = asyncio.ensure_future(decision)
        self._decision.add_done_callback(lambda made: self._decided(made, rest))

    def _decided(self, made: asyncio.Future[Decision], rest: bytes) -> None:
        if made.cancelled():
            return
        error = made.exception()
        if error is not None:
            log.error("a request failed", peer=self._peer, exc_info=error)
        self._apply(refuse(HTTPStatus.INTERNAL_SERVER_ERROR) if error else made.result(), rest)

    def _answer(self, decision: Decision) -> None:
        """Send the answer, then read on until the peer closes or the timeout ends."""
        if self._fault is not None:
            log_refusal(self._fault, peer=self._peer, status=decision.status.value)
        elif decision.status >= HTTPStatus.BAD_REQUEST:
            measures.connection_refused(str(decision.status.value))
            log.info("connection refused", peer=self._peer, status=decision.status.value)
        self._unsent = memoryview(decision.response)
        self._start_timeout(self._options.accept_seconds)
        self._loop.add_reader(self._fd, self._discard)
        self._send()

    def _send(self) -> None:
        """Send as much as the socket takes: all of a refusal, but maybe not a whole page."""
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
            if self._unsent:
                self._loop.add_writer(self._fd, self._send)
                return
            self._sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._fd, self._send)
            return
        except OSError:
            self.drop()
            return
        self._loop.remove_writer(self._fd)
        self._start_timeout(REFUSAL_LINGER_SECONDS)

    def _discard(self) -> None:
        try:
            if self._sock.recv(MAX_HEAD_BYTES):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.drop()

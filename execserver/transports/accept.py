"""The first bytes of a socket connection: what does the peer speak?

On a Unix socket a peer that does not begin like an HTTP method sends JSON, in lines or behind
`Content-Length` headers. On TCP there is only HTTP. The connection is handed to a channel or
answered and dropped.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import msgspec

from execserver.sessions.access import PeerProof
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures
from execserver.transports.authentication import Authenticator
from execserver.transports.base import MakeHandler, StreamChannel
from execserver.transports.byte_stream import FramedChannel, begins_headers
from execserver.transports.http_upgrade import (
    MAX_HEAD_BYTES,
    READY,
    BadRequestError,
    Decision,
    Pages,
    decide,
    is_public,
    parse_head,
    refuse,
)
from execserver.transports.local_peers import ENDED, OTHER_USER, tcp_fault

GREETING_SECONDS = 5.0
"""How long a peer may take to say what it wants; it is only a few hundred bytes."""

FAREWELL_SECONDS = 1.0
"""How long a refused peer may take to read its answer. Closing at once, with its bytes unread,
would make the kernel throw the answer away."""

PING_SECONDS = 30.0
"""Between pings on WebSocket connections. As the reference."""

UPPERCASE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_looking = ThreadPoolExecutor(1, thread_name_prefix="local peers")
"""Looks at who is at the other end of TCP connections, one at a time: a look takes milliseconds at most, and
many at once would only take the interpreter from the loop."""

WAY_OUT = (
    "this listener asks for no credentials, and takes no client from a sandbox or a container: {fault}. "
    "Start the daemon with --ws-auth, and give the client its token"
)

_LABELS = {OTHER_USER: "other-user", ENDED: "ended"}

log = Logger()


def log_refusal(fault: str, **peer: object) -> None:
    """Count and log that a local process may not be a client."""
    measures.connection_refused(_LABELS.get(fault, "confined"))
    log.warning("connection refused", reason=fault, **peer)


class Terms(msgspec.Struct, frozen=True):
    """On what terms a listener takes connections."""

    make_handler: MakeHandler
    authenticator: Authenticator
    host_names: Collection[str]
    unix: bool
    greeting_seconds: float = GREETING_SECONDS
    ping_seconds: float = PING_SECONDS
    pages: Pages = msgspec.field(default_factory=lambda: READY)
    upgrades: Callable[[], bool] = lambda: True
    """Whether new connections are taken; asked at each upgrade."""


class Greeting:
    """One accepted socket until it is a channel or gone.

    Args:
        sock: non-blocking; owned from here on.
        peer: who is at the other end.
        terms: the listener's.
        became: told of the channel, before it delivers anything.
        ended: told, once, when the socket is no business of the greeting any more.
        released: told when the socket of the channel is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        terms: Terms,
        became: Callable[[StreamChannel], None],
        ended: Callable[[Greeting], None],
        released: Callable[[StreamChannel], None],
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._terms = terms
        self._became = became
        self._ended = ended
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._guard: asyncio.TimerHandle | None = None
        self._decision: asyncio.Future[Decision] | None = None
        self._fault: str | None = None
        self._unsent = memoryview(b"")
        if not terms.unix:
            self._start_guard(terms.greeting_seconds)
        self._loop.add_reader(self._fd, self._readable)

    def drop(self) -> None:
        """Close the socket."""
        self._let_go()
        self._sock.close()

    def _start_guard(self, seconds: float) -> None:
        if self._guard is not None:
            self._guard.cancel()
        self._guard = self._loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        log.debug("connection dropped before it said what it is", peer=self._peer)
        self.drop()

    def _let_go(self) -> None:
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._guard is not None:
            self._guard.cancel()
        if self._decision is not None:
            self._decision.cancel()
        self._ended(self)

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
            return  # a blank line from a peer that waits is no reason to hurry it
        if self._guard is None:
            self._start_guard(self._terms.greeting_seconds)
        self._recognise()

    def _recognise(self) -> None:
        received = self._received
        speaks_http = received[0] in UPPERCASE
        if self._terms.unix:
            headers = begins_headers(received)
            if headers or not speaks_http:
                self._become_framed()
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
        terms = self._terms
        looks = False
        decision: Decision | Coroutine[Any, Any, Decision]
        try:
            parsed = parse_head(head)
            decision = decide(
                parsed, terms.authenticator, terms.host_names, terms.unix, terms.pages, terms.upgrades()
            )
            looks = not (terms.unix or terms.authenticator.required or is_public(parsed, terms.pages))
        except BadRequestError:
            decision = refuse(HTTPStatus.BAD_REQUEST)
        refuses = isinstance(decision, Decision) and decision.status >= HTTPStatus.BAD_REQUEST
        if looks and not refuses:
            decision = self._if_unconfined(decision)
        if isinstance(decision, Decision):
            self._carry_out(decision, rest)
        else:
            self._carry_out_later(decision, rest)

    async def _if_unconfined(self, decision: Decision | Coroutine[Any, Any, Decision]) -> Decision:
        """A decision on a connection that needs no credentials: it holds for peers that may be clients."""
        try:
            fault = await self._loop.run_in_executor(_looking, tcp_fault, self._sock)
            status = HTTPStatus.FORBIDDEN
        except OSError as error:
            fault, status = f"the peer cannot be looked at ({error.strerror})", HTTPStatus.SERVICE_UNAVAILABLE
        if fault is None:
            return decision if isinstance(decision, Decision) else await decision
        if not isinstance(decision, Decision):
            decision.close()
        self._fault = fault
        return refuse(status, WAY_OUT.format(fault=fault))

    def _carry_out(self, decision: Decision, rest: bytes) -> None:
        if decision.upgraded:
            self._become_websocket(decision.response, rest)
        else:
            self._answer(decision)

    def _become_framed(self) -> None:
        self._let_go()
        channel = FramedChannel(self._fd, self._fd, self._peer, lambda: self._close(channel))
        self._became(channel)
        channel.start(self._terms.make_handler)
        channel.greet(bytes(self._received))

    def _become_websocket(self, response: bytes, rest: bytes) -> None:
        from execserver.transports.websocket import WebSocketChannel  # 25 ms, spared where nobody upgrades

        self._let_go()
        terms = self._terms
        address = "unix" if terms.unix else self._peer
        proof: PeerProof | None = "credentials" if terms.authenticator.required else None
        channel = WebSocketChannel(
            self._fd,
            self._peer,
            lambda: self._close(channel),
            address,
            terms.ping_seconds,
            "user" if terms.unix else proof,
        )
        self._became(channel)
        channel.greet(response, terms.make_handler, rest)

    def _close(self, channel: StreamChannel) -> None:
        self._sock.close()
        self._released(channel)

    def _carry_out_later(self, decision: Coroutine[Any, Any, Decision], rest: bytes) -> None:
        """It is not known yet; the guard goes on, and what the peer sends meanwhile waits."""
        self._loop.remove_reader(self._fd)
        self._decision = asyncio.ensure_future(decision)
        self._decision.add_done_callback(lambda made: self._decided(made, rest))

    def _decided(self, made: asyncio.Future[Decision], rest: bytes) -> None:
        if made.cancelled():
            return
        error = made.exception()
        if error is not None:
            log.error("a request failed", peer=self._peer, exc_info=error)
        self._carry_out(refuse(HTTPStatus.INTERNAL_SERVER_ERROR) if error else made.result(), rest)

    def _answer(self, decision: Decision) -> None:
        """Send the answer, then read on until the peer has closed or its time is up."""
        if self._fault is not None:
            log_refusal(self._fault, peer=self._peer, status=decision.status.value)
        elif decision.status >= HTTPStatus.BAD_REQUEST:
            measures.connection_refused(str(decision.status.value))
            log.info("connection refused", peer=self._peer, status=decision.status.value)
        self._unsent = memoryview(decision.response)
        self._start_guard(self._terms.greeting_seconds)
        self._loop.add_reader(self._fd, self._discard)
        self._send()

    def _send(self) -> None:
        """A fresh socket takes the few bytes of a refusal at once; a page may not fit."""
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
        self._start_guard(FAREWELL_SECONDS)

    def _discard(self) -> None:
        try:
            if self._sock.recv(MAX_HEAD_BYTES):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.drop()

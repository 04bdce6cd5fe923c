"""The rendezvous over HTTP: a ticket opens a WebSocket, which becomes a peer of the rendezvous.

A ticket is redeemed only for a WebSocket upgrade: a single-use one is not spent on a browser that requests
the URL. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from aiohttp import web

from execprotocol.relay.contract import REGISTRY_UNAVAILABLE, REJECTION_REASON_HEADER, check_environment_id
from execserver.relay.service.environment_records import SocketEnd
from execserver.relay.service.errors import HttpError, peer_of
from execserver.relay.service.queues import RelayPeer
from execserver.relay.service.registry import Harness, RelayRegistry, TicketRefused
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.sockets import PING_SECONDS, WebSocketPeer, new_socket
from execserver.relay.service.store import Registration, StoreUnavailable
from execserver.telemetry.logs import Logger

POLICY_VIOLATION = 1008
"""Close code of a socket that is no longer authorized."""

REVOKED = "token_revoked"
"""Close reason of a socket whose token was revoked or has expired."""

_Admitted = TypeVar("_Admitted")

log = Logger()


class RendezvousHttp:
    """Handles upgrades, and keeps their sockets.

    Args:
        registry: redeems tickets.
        rendezvous: forwards frames.
        is_draining: whether the relay is draining.
        ping_seconds: interval of pings.
    """

    def __init__(
        self,
        registry: RelayRegistry,
        rendezvous: Rendezvous,
        is_draining: Callable[[], bool],
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self._registry = registry
        self._rendezvous = rendezvous
        self._is_draining = is_draining
        self._ping_seconds = ping_seconds
        self._numbers = itertools.count(1)
        self._process = secrets.token_hex(4)  # of several relays on one bus
        self.executors: set[WebSocketPeer] = set()
        self.harnesses: dict[Harness, RelayPeer] = {}

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """The routes, below a prefix."""
        base = f"{prefix}/cloud/environment/{{environment}}"
        return [
            web.get(f"{base}/executor", self.executor, allow_head=False),
            web.get(f"{base}/harness", self.harness, allow_head=False),
        ]

    async def executor(self, request: web.Request) -> web.StreamResponse:
        """Serve an executor's socket until it ends."""
        environment_id, ticket = self._asked(request)
        socket = self._socket(request)
        registration = await _admitted(self._registry.redeem_executor(environment_id, ticket))
        peer = self._peer(socket, request)
        bound = log.bind(
            environment=environment_id, registration=registration.id, peer=peer_of(request), socket=peer.id
        )
        # First, so that a harness finds the socket as soon as the registry knows it.
        self._rendezvous.executor_joined(registration.id, peer)
        self.executors.add(peer)
        address = self._rendezvous.address(peer)
        end = partial(self._end_executor, registration, peer)
        try:
            # Before the upgrade: an executor that has its answer can be found at every relay.
            await _admitted(self._registry.socket_opened(registration, address, end))
            await peer.upgrade()
            bound.info("executor connected")
            reason = await peer.serve(
                lambda message: self._rendezvous.from_executor(peer, message), self._text_dropped
            )
        finally:
            self._rendezvous.executor_left(peer)
            await self._registry.socket_closed(environment_id, address)
            self.executors.discard(peer)
        bound.info("executor disconnected", reason=reason)
        return socket

    async def harness(self, request: web.Request) -> web.StreamResponse:
        """Serve a client's socket until it ends."""
        environment_id, ticket = self._asked(request)
        socket = self._socket(request)
        harness = await _admitted(self._registry.redeem_harness(environment_id, ticket))
        try:
            peer = self._peer(socket, request)
            await peer.upgrade()
            if not self._registry.admits(harness):  # its token ended while the upgrade was written
                peer.close(POLICY_VIOLATION, REVOKED)
                await peer.serve(_ignore, _nothing)
                return socket
            bound = log.bind(
                environment=environment_id,
                registration=harness.registration.id,
                peer=peer_of(request),
                socket=peer.id,
            )
            self.harnesses[harness] = peer
            self._rendezvous.harness_joined(harness.registration.id, harness.executor_address, peer)
            bound.info("client connected")
            try:
                reason = await peer.serve(
                    lambda message: self._rendezvous.from_harness(peer, message), self._text_dropped
                )
            finally:
                self._rendezvous.harness_left(peer)
        finally:
            self.harnesses.pop(harness, None)
            self._registry.harness_closed(harness)
        bound.info("client disconnected", reason=reason)
        return socket

    def end(self, harnesses: Iterable[Harness]) -> None:
        """Close the sockets of harnesses whose tokens have ended."""
        for harness in harnesses:
            peer = self.harnesses.get(harness)
            if peer is not None:
                self._rendezvous.retire(peer, POLICY_VIOLATION, REVOKED)

    def _end_executor(self, registration: Registration, peer: WebSocketPeer, why: SocketEnd) -> None:
        if why == "redialed":
            self._rendezvous.replace(peer)
        elif why == "replaced":
            self._rendezvous.retire(peer, POLICY_VIOLATION, "replaced")
        else:
            log.info(
                "token of an executor ended",
                environment=registration.environment_id,
                registration=registration.id,
                token=registration.token_id,
            )
            self._rendezvous.retire(peer, POLICY_VIOLATION, REVOKED)

    def _asked(self, request: web.Request) -> tuple[str, str]:
        environment_id = check_environment_id(request.match_info["environment"])
        if self._is_draining():
            raise HttpError(
                503, "the relay is about to end", headers={REJECTION_REASON_HEADER: "pod_draining"}
            )
        tickets = request.query.getall("ticket", [])
        if len(tickets) != 1:
            raise HttpError(400, "`ticket` is missing", headers={REJECTION_REASON_HEADER: "malformed_query"})
        return environment_id, tickets[0]

    @staticmethod
    def _socket(request: web.Request) -> web.WebSocketResponse[bool]:
        socket = new_socket()
        if not socket.can_prepare(request).ok:
            raise HttpError(426, "only WebSocket upgrades here", headers={"Upgrade": "websocket"})
        return socket

    def _peer(self, socket: web.WebSocketResponse[bool], request: web.Request) -> WebSocketPeer:
        number = f"{self._process}-{next(self._numbers)}"
        return WebSocketPeer(socket, request, number, self._rendezvous.drained, self._ping_seconds)

    def _text_dropped(self) -> None:
        self._rendezvous.counters.dropped["text"] += 1


async def _admitted(admission: Awaitable[_Admitted]) -> _Admitted:
    """What the registry says of a ticket or a socket, or the refusal of the upgrade."""
    try:
        return await admission
    except TicketRefused as error:
        raise HttpError(error.status, str(error), headers={REJECTION_REASON_HEADER: error.reason}) from None
    except StoreUnavailable as error:
        # A ticket proves nothing before it is found: the fault is for the log.
        log.warning("registry unavailable", error=str(error))
        raise HttpError(
            503,
            "the relay's registry is unavailable now; try again",
            headers={REJECTION_REASON_HEADER: REGISTRY_UNAVAILABLE},
        ) from None


def _ignore(_message: bytes) -> None:
    """Forward nothing: the socket is closing."""


def _nothing() -> None:
    """Count nothing: the socket is closing."""

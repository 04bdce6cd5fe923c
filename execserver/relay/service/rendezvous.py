"""Forward frames between executors and their harnesses. No I/O, no own clock.

Rules of this module and of `endpoints`:
- A frame is forwarded byte for byte to one peer, at once, or dropped. Frames are not kept for absent peers.
- A stream id belongs to the first harness that used it, until either side resets it or the harness leaves.
- The peer that causes trouble pays for it. A harness that floods its executor is paused. For a harness that
  reads slowly the executor is paused for a moment; then frames queue; then that harness is disconnected.

Several relays may share a bus, which finds peers at other relays. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from execserver.relay.service.bus import Bus
from execserver.relay.service.endpoints import TRY_AGAIN, ExecutorEndpoint, HarnessEndpoint, RelayContext
from execserver.relay.service.queues import (
    CallLater,
    Counters,
    Limits,
    Queues,
    RelayPeer,
)

REPLACED, RESTART = 1001, 1012
"""Close codes: replaced by a newer socket; the relay ends, and may be restarted."""


class Rendezvous:
    """All peers of one relay. A socket that joined has to leave (idempotent). Messages of a peer that was
    closed here are dropped.

    Args:
        bus: between endpoints.
        clock: seconds, monotonic.
        call_later: calls a function after some seconds, on the thread of all other calls.
        limits: of each peer.
    """

    def __init__(
        self, bus: Bus, clock: Callable[[], float], call_later: CallLater, limits: Limits | None = None
    ) -> None:
        self.counters = Counters()
        self.limits = limits if limits is not None else Limits()
        self._queues = Queues(self.limits, self.counters)
        self._context = RelayContext(bus, self.limits, self.counters, self._queues, clock, call_later)
        self._executors: dict[str, ExecutorEndpoint] = {}  # by address
        self._endpoints: dict[str, ExecutorEndpoint | HarnessEndpoint] = {}  # by peer
        self._draining: int | None = None  # the close code

    def address(self, peer: RelayPeer) -> str:
        """Where the bus delivers to a peer."""
        return self._context.bus.address(peer.id)

    def executor_joined(self, registration_id: str, peer: RelayPeer) -> None:
        """An executor's socket is open. Harnesses may join its address from now on."""
        if self._draining is not None:
            peer.close(self._draining, "draining")
            return
        endpoint = ExecutorEndpoint(self._context, registration_id, peer, partial(self._end, peer, ""))
        self._executors[endpoint.address] = self._endpoints[peer.id] = endpoint
        self.counters.executors += 1

    def executor_left(self, peer: RelayPeer) -> None:
        """An executor's socket ended: its harnesses are closed with "try again"."""
        self._remove(peer)

    def harness_joined(self, registration_id: str, executor_address: str, peer: RelayPeer) -> None:
        """A harness's socket is open. It is closed if the executor's has ended, or if that has too many
        harnesses.
        """
        if self._draining is not None:
            peer.close(self._draining, "draining")
            return
        endpoint = HarnessEndpoint(
            self._context, registration_id, executor_address, peer, partial(self._end, peer, "")
        )
        self._endpoints[peer.id] = endpoint
        self.counters.harnesses += 1
        if not endpoint.announce():
            endpoint.close("executor_gone", TRY_AGAIN)

    def harness_left(self, peer: RelayPeer) -> None:
        """A harness's socket ended: the executor gets a reset for each of its streams."""
        self._remove(peer)

    def from_executor(self, peer: RelayPeer, message: bytes) -> None:
        """Forward a message of an executor."""
        self._message_received(peer, message)

    def from_harness(self, peer: RelayPeer, message: bytes) -> None:
        """Forward a message of a harness."""
        self._message_received(peer, message)

    def drained(self, peer: RelayPeer) -> None:
        """A peer's queue became shorter. Call this at least when the queue was above `Limits.high` and falls
        below `Limits.low`.
        """
        if self._queues.drained(peer) and (endpoint := self._endpoints.get(peer.id)) is not None:
            endpoint.has_room()

    def replace(self, peer: RelayPeer) -> None:
        """End an executor's socket, because its registration has a newer one (idempotent). Its harnesses have
        to reconnect.
        """
        self._end(peer, "", "replaced", REPLACED)

    def retire(self, peer: RelayPeer, code: int, reason: str) -> None:
        """End a socket, and those of its harnesses if it is an executor's (idempotent)."""
        self._end(peer, reason, "retired", code)

    def drain(self, code: int = RESTART) -> None:
        """End all sockets, and each new one."""
        self._draining = code
        endpoints = tuple(self._endpoints.values())
        for endpoint in endpoints:
            # So that each is closed for the end of the relay, and not for that of another peer.
            endpoint.unsubscribe()
        for endpoint in endpoints:
            self._end(endpoint.peer, "", "draining", code)

    def streams_of(self, address: str) -> int:
        """The number of an executor's streams; 0 if its socket is at another relay."""
        endpoint = self._executors.get(address)
        return len(endpoint.streams) if endpoint is not None else 0

    def harnesses_of(self, address: str) -> int:
        """The number of an executor's harness sockets, at all relays; 0 if its socket is at another relay."""
        endpoint = self._executors.get(address)
        return len(endpoint.harnesses) if endpoint is not None else 0

    def _message_received(self, peer: RelayPeer, message: bytes) -> None:
        endpoint = self._endpoints.get(peer.id)
        if endpoint is not None:
            endpoint.message_received(message)
        else:
            self.counters.dropped["no_peer"] += 1

    def _end(self, peer: RelayPeer, reason: str, why: str, code: int) -> None:
        if peer.id in self._endpoints:
            self.counters.closed[why] += 1
            peer.close(code, reason or why)
            self._remove(peer)

    def _remove(self, peer: RelayPeer) -> None:
        self._queues.forget(peer)
        endpoint = self._endpoints.pop(peer.id, None)
        if endpoint is None:
            return
        if isinstance(endpoint, ExecutorEndpoint):
            self.counters.executors -= 1
            del self._executors[endpoint.address]
        else:
            self.counters.harnesses -= 1
        endpoint.ended()

"""Copies frames between executors and the harnesses that were introduced to them. No I/O, no own clock.

Rules kept here and in `ends`:
- A frame is forwarded as the very bytes that came, to one peer, at once, or dropped. Nothing waits for who is
  absent.
- A stream id belongs to the first harness that used it, until either side resets it or the harness is gone.
- Who causes trouble pays for it. A harness that floods its executor is paused itself. For a harness that is
  slow to take its frames the executor is paused for a moment, then they queue, then that harness is cut.

Several relays may share a bus: whose sockets are elsewhere is found there. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from execserver.relay.service.bus import Bus
from execserver.relay.service.endpoints import TRY_AGAIN, ExecutorEndpoint, HarnessEndpoint, RelayContext
from execserver.relay.service.queues import (
    SLOW_CONSUMER,
    CallLater,
    Counters,
    Limits,
    Queues,
    RelayPeer,
    Timer,
)

__all__ = ["SLOW_CONSUMER", "CallLater", "Counters", "Limits", "RelayPeer", "Rendezvous", "Timer"]

REPLACED, RESTART = 1001, 1012
"""Close codes: a newer socket came; this relay ends, another one may be there soon."""


class Rendezvous:
    """All peers of one relay. Sockets pair joining with leaving; leaving is idempotent, and what a peer sends
    after it was closed here goes nowhere.

    Args:
        bus: between the two ends of each way.
        clock: seconds that never go back.
        call_later: calls a function after some seconds, on the thread of all other calls.
        limits: what peers may take.
    """

    def __init__(
        self, bus: Bus, clock: Callable[[], float], call_later: CallLater, limits: Limits | None = None
    ) -> None:
        self.counters = Counters()
        self.limits = limits if limits is not None else Limits()
        self._queues = Queues(self.limits, self.counters)
        self._around = RelayContext(bus, self.limits, self.counters, self._queues, clock, call_later)
        self._executors: dict[str, ExecutorEndpoint] = {}  # by registration
        self._ends: dict[str, ExecutorEndpoint | HarnessEndpoint] = {}  # by peer
        self._draining: int | None = None  # the close code

    def executor_joined(self, registration_id: str, peer: RelayPeer) -> None:
        """An executor's socket is open. It replaces an earlier one, whose harnesses have to come again."""
        if self._draining is not None:
            peer.close(self._draining, "draining")
            return
        earlier = self._executors.get(registration_id)
        if earlier is not None:
            self._end(earlier.peer, "", "replaced", REPLACED)
        end = ExecutorEndpoint(self._around, registration_id, peer, partial(self._end, peer, ""))
        self._executors[registration_id] = self._ends[peer.id] = end
        self.counters.executors += 1

    def executor_left(self, peer: RelayPeer) -> None:
        """An executor's socket ended: its harnesses are told to try again."""
        self._remove(peer)

    def harness_joined(self, registration_id: str, peer: RelayPeer) -> None:
        """A harness's socket is open. Closed at once when the executor is not there, or has too many."""
        if self._draining is not None:
            peer.close(self._draining, "draining")
            return
        end = HarnessEndpoint(self._around, registration_id, peer, partial(self._end, peer, ""))
        self._ends[peer.id] = end
        self.counters.harnesses += 1
        if not end.announce():
            end.close("executor_gone", TRY_AGAIN)

    def harness_left(self, peer: RelayPeer) -> None:
        """A harness's socket ended: the executor gets a reset for each of its streams."""
        self._remove(peer)

    def from_executor(self, peer: RelayPeer, message: bytes) -> None:
        """Forward a message of an executor."""
        self._came(peer, message)

    def from_harness(self, peer: RelayPeer, message: bytes) -> None:
        """Forward a message of a harness."""
        self._came(peer, message)

    def drained(self, peer: RelayPeer) -> None:
        """A peer's queue became shorter. To be called at least when it falls below `Limits.low` after having
        been above `Limits.high`.
        """
        if self._queues.drained(peer) and (end := self._ends.get(peer.id)) is not None:
            end.has_room()

    def retire(self, registration_id: str, code: int, reason: str) -> None:
        """End an executor's socket, and so its harnesses'; nothing when there is none."""
        end = self._executors.get(registration_id)
        if end is not None:
            self._end(end.peer, reason, "retired", code)

    def dismiss(self, peer: RelayPeer, code: int, reason: str) -> None:
        """End a harness's socket (idempotent)."""
        self._end(peer, reason, "retired", code)

    def drain(self, code: int = RESTART) -> None:
        """End all sockets, and each that comes from now on."""
        self._draining = code
        ends = tuple(self._ends.values())
        for end in ends:
            # Each hears of the end of the relay, and not of the end of the others here.
            end.silence()
        for end in ends:
            self._end(end.peer, "", "draining", code)

    def streams_of(self, registration_id: str) -> int:
        """How many streams an executor has here."""
        end = self._executors.get(registration_id)
        return len(end.streams) if end is not None else 0

    def harnesses_of(self, registration_id: str) -> int:
        """How many harness sockets an executor has."""
        end = self._executors.get(registration_id)
        return len(end.harnesses) if end is not None else 0

    def _came(self, peer: RelayPeer, message: bytes) -> None:
        end = self._ends.get(peer.id)
        if end is not None:
            end.came(message)
        else:
            self.counters.dropped["no_peer"] += 1

    def _end(self, peer: RelayPeer, reason: str, why: str, code: int) -> None:
        if peer.id in self._ends:
            self.counters.closed[why] += 1
            peer.close(code, reason or why)
            self._remove(peer)

    def _remove(self, peer: RelayPeer) -> None:
        self._queues.forget(peer)
        end = self._ends.pop(peer.id, None)
        if end is None:
            return
        if isinstance(end, ExecutorEndpoint):
            self.counters.executors -= 1
            del self._executors[end.registration_id]
        else:
            self.counters.harnesses -= 1
        end.ended()

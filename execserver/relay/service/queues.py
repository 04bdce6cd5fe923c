"""Queues of the relay's sockets: the interface of a socket, its limits, full queues, and counters.

The queue of a peer is *full* from the moment when it is above `Limits.high` until it is below `Limits.low`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

SLOW_CONSUMER = "slow_consumer"
PEER_CLOSED = "relay_peer_closed"
"""The reason of resets that an executor gets when a harness has left."""
STREAM_ID_IN_USE = "relay_stream_id_in_use"
TOO_MANY_STREAMS = "relay_too_many_streams"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of peers. Sizes in bytes, times in seconds."""

    high: int = 1 << 20
    """A queue above this is full. Four of the largest frames."""
    low: int = 256 << 10
    """A full queue has room again below this."""
    most: int = 80 << 20
    """A peer with a longer queue is disconnected. The largest message, 64 MiB, fits with its frames."""
    total: int = 512 << 20
    """Limit of all full queues together. Above it, of the executor whose sockets hold most, the peer with the
    longest queue is disconnected."""
    hold_seconds: float = 0.020
    """How long an executor is not read from for one harness whose queue is full. A client that reads 40 MB/s
    or more catches up in this time, and other harnesses hardly notice."""
    alone_seconds: float = 5.0
    """The same while the executor has no other harness. Not longer: the executor's pongs wait, too."""
    penalty_seconds: float = 1.0
    """How long a harness whose queue stayed full gets no other hold."""
    streams: int = 128
    """Streams of one executor: a stock executor resets further ones."""
    harnesses: int = 256
    """Harness sockets of one executor: twice the streams, for clients that reconnect before their old socket
    has ended."""


class RelayPeer(Protocol):
    """One socket.

    Its `id` is unique among all peers of all relays that share a bus: letters, digits, `-` and `_`. A peer
    may send from within `send` and `resume`, and never joins or leaves from within any of these.
    """

    @property
    def id(self) -> str:
        """The name of the peer."""

    @property
    def queued(self) -> int:
        """Bytes that were sent here and that the system has not taken."""

    def send(self, frame: bytes) -> None:
        """Queue a message; a no-op after `close`."""

    def close(self, code: int, reason: str) -> None:
        """Begin to end the socket (the first call counts). A full queue is discarded."""

    def pause(self) -> None:
        """Read no more until `resume` (idempotent)."""

    def resume(self) -> None:
        """Read again (idempotent)."""


class Timer(Protocol):
    """The result of `call_later`."""

    def cancel(self) -> None:
        """Cancel the call."""


CallLater = Callable[[float, Callable[[], None]], Timer]


def _zero(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 0)


@dataclass(slots=True)
class Counters:
    """Numbers for the metrics. The first four are gauges, the others count up."""

    executors: int = 0
    harnesses: int = 0
    streams: int = 0
    full_bytes: int = 0
    """Bytes in full queues, when they were last checked."""
    frames_up: int = 0
    """Forwarded from harnesses to executors; `down` is the other direction."""
    frames_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    resets: dict[str, int] = field(
        default_factory=lambda: _zero("executor", "harness", PEER_CLOSED, STREAM_ID_IN_USE, TOO_MANY_STREAMS)
    )
    """Resets by the side that sent them, or by the relay's reason."""
    dropped: dict[str, int] = field(
        default_factory=lambda: _zero("text", "undecodable", "unknown_stream", "no_peer")
    )
    """Dropped messages. The sockets count "text"."""
    closed: dict[str, int] = field(
        default_factory=lambda: _zero(
            "replaced", "executor_gone", "too_many_harnesses", SLOW_CONSUMER, "retired", "draining"
        )
    )
    """Sockets that the rendezvous ended, by reason."""
    holds: int = 0
    """How often an executor was not read from for a harness whose queue was full."""
    failed_holds: int = 0
    """How often the queue was still full at the end of the hold."""


@dataclass(slots=True)
class _FullQueue:
    """A full queue, with its length when it was last checked."""

    queued: int
    peer: RelayPeer
    cut: Callable[[], None]
    group: str


class Queues:
    """Tracks full queues, and disconnects peers above the limits.

    Only full queues are checked: the others are small, and there is no event when their bytes leave.
    """

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._full: dict[str, _FullQueue] = {}

    def send(self, peer: RelayPeer, frame: bytes, cut: Callable[[], None], group: str) -> bool:
        """Send a frame.

        Args:
            peer: the receiver.
            frame: the frame.
            cut: disconnects this peer, now or at a later `send` to any peer, if its queue is too long.
            group: the peers whose queues count together: an executor's socket, and those of its harnesses.

        Returns:
            Whether more can follow: False if the queue is full.
        """
        peer.send(frame)
        queued = peer.queued
        known = self._full.get(peer.id)
        if known is None and queued <= self._limits.high:
            return True
        self._counters.full_bytes += queued - (known.queued if known is not None else 0)
        self._full[peer.id] = _FullQueue(queued, peer, cut, group)
        if queued > self._limits.most:
            cut()
        elif self._counters.full_bytes > self._limits.total:
            self._cut_largest()
        return False

    def drained(self, peer: RelayPeer) -> bool:
        """Whether a queue that was full has room again."""
        if peer.id not in self._full or peer.queued >= self._limits.low:
            return False
        self.forget(peer)
        return True

    def forget(self, peer: RelayPeer) -> None:
        """Stop tracking a peer that has left, or whose queue is no longer full (idempotent)."""
        known = self._full.pop(peer.id, None)
        if known is not None:
            self._counters.full_bytes -= known.queued

    def _cut_largest(self) -> None:
        # Counted bytes may have left by now.
        held: Counter[str] = Counter()
        for each in self._full.values():
            each.queued = each.peer.queued
            held[each.group] += each.queued
        self._counters.full_bytes = held.total()
        if self._counters.full_bytes > self._limits.total:
            # Not the longest queue of all: many medium ones of one tenant must not disconnect another tenant.
            group = max(held, key=lambda name: held[name])
            of_group = (each for each in self._full.values() if each.group == group)
            max(of_group, key=lambda each: each.queued).cut()

"""The sockets of a relay as the rendezvous sees them: what they can do, what they may take of us, and counts.

The queue of a peer is *full* from the moment it is above `Limits.high` until it is below `Limits.low`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

SLOW_CONSUMER = "slow_consumer"
PEER_CLOSED = "relay_peer_closed"
"""The reason of the resets that an executor gets when a harness is gone."""
STREAM_ID_IN_USE = "relay_stream_id_in_use"
TOO_MANY_STREAMS = "relay_too_many_streams"


@dataclass(frozen=True, slots=True)
class Limits:
    """What peers may take of us. Sizes in bytes, times in seconds."""

    high: int = 1 << 20
    """A queue above it is full. Four of the largest frames."""
    low: int = 256 << 10
    """A full queue has room again below it."""
    most: int = 80 << 20
    """A queue above it costs its peer the socket. The largest message, 64 MiB, fits with its frames."""
    total: int = 512 << 20
    """All full queues together; above it the largest one goes of the executor whose sockets hold most."""
    hold_seconds: float = 0.020
    """How long an executor is not read from for the sake of one full harness: a client that takes 40 MB/s or
    more gets rid of the excess in this time, and to the others it is a hiccup."""
    alone_seconds: float = 5.0
    """The same while the executor has no other harness that could miss it; not longer, because its pongs
    wait, too."""
    penalty_seconds: float = 1.0
    """How long a harness whose queue stayed full all that time is not waited for again."""
    streams: int = 128
    """Of one executor: a stock executor resets what comes beyond."""
    harnesses: int = 256
    """Sockets to one executor: twice the streams, for those that come back before their old socket died."""


class RelayPeer(Protocol):
    """One socket.

    Its `id` is unique among all peers of all relays that share a bus: letters, digits, `-` and `_`. A peer
    may send from within `send` and `resume`, and never joins or leaves from within any of these.
    """

    @property
    def id(self) -> str:
        """Who it is."""

    @property
    def queued(self) -> int:
        """Bytes that were sent and have not left."""

    def send(self, frame: bytes) -> None:
        """Queue a message; after `close`, do nothing."""

    def close(self, code: int, reason: str) -> None:
        """Begin to end the socket (the first call counts), and give up a queue that is full."""

    def pause(self) -> None:
        """Read no more until `resume` (idempotent)."""

    def resume(self) -> None:
        """Read again (idempotent)."""


class Timer(Protocol):
    """What `call_later` gives."""

    def cancel(self) -> None:
        """Do not call."""


CallLater = Callable[[float, Callable[[], None]], Timer]


def _zero(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 0)


@dataclass(slots=True)
class Counters:
    """What the metrics show. The first four go up and down, the others only up."""

    executors: int = 0
    harnesses: int = 0
    streams: int = 0
    full_bytes: int = 0
    """In the queues that are full, when they were last looked at."""
    frames_up: int = 0
    """Forwarded from harnesses to executors; `down` is the other way."""
    frames_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    resets: dict[str, int] = field(
        default_factory=lambda: _zero("executor", "harness", PEER_CLOSED, STREAM_ID_IN_USE, TOO_MANY_STREAMS)
    )
    """Which side reset streams, or why we did."""
    dropped: dict[str, int] = field(
        default_factory=lambda: _zero("text", "undecodable", "unknown_stream", "no_peer")
    )
    """Messages that went nowhere. "text" is for the sockets to count."""
    closed: dict[str, int] = field(
        default_factory=lambda: _zero(
            "replaced", "executor_gone", "too_many_harnesses", SLOW_CONSUMER, "retired", "draining"
        )
    )
    """Sockets that the rendezvous ended, and why."""
    holds: int = 0
    """How often an executor was not read from for a full harness."""
    failed_holds: int = 0
    """How often that did not help."""


@dataclass(slots=True)
class _FullQueue:
    """A queue that is full: its length when it was last looked at."""

    queued: int
    peer: RelayPeer
    cut: Callable[[], None]
    group: str


class Queues:
    """Which queues are full, and what to do when they grow on.

    Only full ones are looked at: what the others hold is small, and nobody tells when it leaves.
    """

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._full: dict[str, _FullQueue] = {}

    def send(self, peer: RelayPeer, frame: bytes, cut: Callable[[], None], group: str) -> bool:
        """Send a frame.

        Args:
            peer: to whom.
            frame: what.
            cut: ends that peer, now or at a later `send` to anybody: it holds too much.
            group: those who pay for each other: an executor's socket, and those of its harnesses.

        Returns:
            Whether more can follow: False when the queue is full.
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
        """The peer is gone, or its queue is no longer full (idempotent)."""
        known = self._full.pop(peer.id, None)
        if known is not None:
            self._counters.full_bytes -= known.queued

    def _cut_largest(self) -> None:
        # Some of what was counted may have left by now.
        held: Counter[str] = Counter()
        for each in self._full.values():
            each.queued = each.peer.queued
            held[each.group] += each.queued
        self._counters.full_bytes = held.total()
        if self._counters.full_bytes > self._limits.total:
            # Not the largest of all: many middling queues of one tenant would cost another one its socket.
            group = max(held, key=lambda name: held[name])
            of_group = (each for each in self._full.values() if each.group == group)
            max(of_group, key=lambda each: each.queued).cut()

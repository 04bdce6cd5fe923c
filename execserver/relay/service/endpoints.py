"""The endpoints of a relay: one for each executor's socket, one for each harness's socket.

- Endpoints know each other by the bus only. The executor's endpoint decides which harness owns a stream, and
  whether the executor is read from.
- `close` calls `ended` before it returns, so an endpoint may have ended after any call that may send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from execprotocol.relay import frames
from execprotocol.relay.frames import FrameError
from execserver.relay.service.bus import Bus, BusMessage, MessageKind
from execserver.relay.service.queues import (
    PEER_CLOSED,
    SLOW_CONSUMER,
    STREAM_ID_IN_USE,
    TOO_MANY_STREAMS,
    CallLater,
    Counters,
    Limits,
    Queues,
    RelayPeer,
    Timer,
)

SLOW, TRY_AGAIN = 1008, 1013
"""Close codes: the peer reads too slowly; the executor is offline, or has too many harnesses."""

ENDED_STREAMS = 256
"""Ended stream ids that are remembered of an executor, to drop late frames: twice as many as can be open."""

UNHELD_SHARE = 4
"""After a failed hold there is none for so many times its length: harnesses that read nothing, however many,
cost the others at most a fifth of the time."""

Close = Callable[[str, int], None]
"""Ends the endpoint's socket: the reason as in `Counters.closed`, and the close code."""


@dataclass(frozen=True, slots=True)
class RelayContext:
    """The objects that all endpoints of a relay share."""

    bus: Bus
    limits: Limits
    counters: Counters
    queues: Queues
    clock: Callable[[], float]
    call_later: CallLater


class HarnessEndpoint:
    """The relay's endpoint for a harness's socket."""

    def __init__(
        self,
        context: RelayContext,
        registration_id: str,
        executor_address: str,
        peer: RelayPeer,
        close: Close,
    ) -> None:
        self.peer = peer
        self.close = close
        self._context = context
        self._close_slow = partial(close, SLOW_CONSUMER, SLOW)
        self._group = registration_id
        self._address = context.bus.address(peer.id)
        self._executor = executor_address
        context.bus.subscribe(self._address, self._receive)

    def announce(self) -> bool:
        """Notify the executor's endpoint. False: there is none."""
        return self._notify("joined")

    def message_received(self, message: bytes) -> None:
        """Forward a message of the harness."""
        dropped = self._context.counters.dropped
        try:
            frame = frames.decode(message)
        except FrameError:
            dropped["undecodable"] += 1
            return
        sent = BusMessage("frame", self._address, frame.stream_id, frame.kind, message)
        if not self._context.bus.publish(self._executor, sent):
            dropped["no_peer"] += 1

    def has_room(self) -> None:
        """The harness's queue is no longer full."""
        self._notify("room")

    def unsubscribe(self) -> None:
        """Receive nothing more from the executor."""
        self._context.bus.unsubscribe(self._address)

    def ended(self) -> None:
        """The harness's socket has ended."""
        self.unsubscribe()
        self._notify("gone")

    def _notify(self, kind: MessageKind) -> bool:
        return self._context.bus.publish(self._executor, BusMessage(kind, self._address))

    def _receive(self, message: BusMessage) -> None:
        match message.kind:
            case "frame":
                if not self._context.queues.send(self.peer, message.frame, self._close_slow, self._group):
                    self._notify("full")
            case "full" | "congested":
                self.peer.pause()
            case "room":
                self.peer.resume()
            case "crowded":
                self.close("too_many_harnesses", TRY_AGAIN)
            case "gone":
                self.close("executor_gone", TRY_AGAIN)
            case _:
                pass


@dataclass(slots=True, eq=False)
class _HarnessState:
    """The state of one harness at the executor's endpoint."""

    address: str
    streams: set[str] = field(default_factory=set)
    hold: Timer | None = None
    """Ends the hold: the time for which the executor is not read from, so that this harness can catch up."""
    hold_is_long: bool = False
    """Whether the hold is long because the executor has no other harness."""
    no_hold_before: float = 0.0


class ExecutorEndpoint:
    """The relay's endpoint for an executor's socket."""

    def __init__(self, context: RelayContext, registration_id: str, peer: RelayPeer, close: Close) -> None:
        self.peer = peer
        self.close = close
        self.registration_id = registration_id
        self.streams: dict[str, _HarnessState] = {}
        self.harnesses: dict[str, _HarnessState] = {}  # by address
        self._context = context
        self._close_slow = partial(close, SLOW_CONSUMER, SLOW)
        self.address = context.bus.address(peer.id)
        self._ended_streams: dict[str, None] = {}  # the oldest first
        self._held: set[_HarnessState] = set()  # with a hold now
        self._no_hold_before = 0.0
        self._paused: set[_HarnessState] = set()  # not read from while the executor's queue is full
        context.bus.subscribe(self.address, self._receive)

    def message_received(self, message: bytes) -> None:
        """Forward a message of the executor."""
        counters = self._context.counters
        try:
            frame = frames.decode(message)
        except FrameError:
            counters.dropped["undecodable"] += 1
            return
        owner = self.streams.get(frame.stream_id)
        if owner is None:
            counters.dropped["unknown_stream"] += 1
            return
        if frame.kind == "reset":
            counters.resets["executor"] += 1
            self._forget(frame.stream_id, owner)
        counters.frames_down += 1
        counters.bytes_down += len(message)
        self._publish(owner, frame.stream_id, frame.kind, message)

    def has_room(self) -> None:
        """The executor's queue is no longer full."""
        paused, self._paused = self._paused, set()
        for harness in paused:
            self._notify(harness, "room")

    def unsubscribe(self) -> None:
        """Receive nothing more from the harnesses."""
        self._context.bus.unsubscribe(self.address)

    def ended(self) -> None:
        """The executor's socket has ended: end its harnesses."""
        self.unsubscribe()
        harnesses, self.harnesses = self.harnesses, {}
        self._context.counters.streams -= len(self.streams)
        self.streams.clear()
        self._paused.clear()
        for harness in harnesses.values():
            self._release(harness)
            self._notify(harness, "gone")

    def _receive(self, message: BusMessage) -> None:
        harness = self.harnesses.get(message.sender)
        if message.kind == "joined":
            self._joined(message.sender)
        elif harness is None:
            if message.kind == "frame":
                self._context.counters.dropped["no_peer"] += 1
        elif message.kind == "frame":
            self._from_harness(harness, message)
        elif message.kind == "gone":
            self._left(harness)
        elif message.kind == "full":
            self._hold(harness)
        elif message.kind == "congested":
            self._wait_for_room(harness)
        elif message.kind == "room":
            self._release(harness)

    # -- harnesses

    def _joined(self, address: str) -> None:
        harness = _HarnessState(address)
        if len(self.harnesses) >= self._context.limits.harnesses:
            self._notify(harness, "crowded")
            return
        self.harnesses[address] = harness
        for held in self._held:
            if held.hold_is_long:
                self._stop_hold(held)
                self._start_hold(held)

    def _left(self, harness: _HarnessState) -> None:
        del self.harnesses[harness.address]
        self._paused.discard(harness)
        self._release(harness)
        for stream_id in tuple(harness.streams):
            if stream_id in self.streams:  # false if an earlier reset overflowed the executor's queue
                self._forget(stream_id, harness)
                self._context.counters.resets[PEER_CLOSED] += 1
                self._send(frames.reset(stream_id, PEER_CLOSED))

    # -- streams

    def _from_harness(self, harness: _HarnessState, message: BusMessage) -> None:
        counters = self._context.counters
        stream_id = message.stream_id
        owner = self.streams.get(stream_id)
        if owner is None:
            if not self._open(harness, message):
                return
        elif owner is not harness:
            self._refuse(harness, message, STREAM_ID_IN_USE)
            return
        if message.frame_kind == "reset":
            counters.resets["harness"] += 1
            self._forget(stream_id, harness)
        counters.frames_up += 1
        counters.bytes_up += len(message.frame)
        if not self._send(message.frame):
            self._paused.add(harness)
            self._notify(harness, "full")

    def _open(self, harness: _HarnessState, message: BusMessage) -> bool:
        stream_id, kind = message.stream_id, message.frame_kind
        late = stream_id in self._ended_streams and kind != "resume"
        if late or kind in ("reset", "ack", "heartbeat"):
            self._context.counters.dropped["unknown_stream"] += 1
            return False
        if len(self.streams) >= self._context.limits.streams:
            self._remember_ended(stream_id)  # its handshake may follow
            self._refuse(harness, message, TOO_MANY_STREAMS)
            return False
        self._ended_streams.pop(stream_id, None)
        self.streams[stream_id] = harness
        harness.streams.add(stream_id)
        self._context.counters.streams += 1
        return True

    def _refuse(self, harness: _HarnessState, message: BusMessage, reason: str) -> None:
        if message.frame_kind == "reset":  # resets are not answered, or two peers would never stop
            self._context.counters.dropped["unknown_stream"] += 1
            return
        self._context.counters.resets[reason] += 1
        self._publish(harness, message.stream_id, "reset", frames.reset(message.stream_id, reason))

    def _forget(self, stream_id: str, owner: _HarnessState) -> None:
        if self.streams.pop(stream_id, None) is not None:
            owner.streams.discard(stream_id)
            self._context.counters.streams -= 1
            self._remember_ended(stream_id)

    def _remember_ended(self, stream_id: str) -> None:
        self._ended_streams[stream_id] = None
        if len(self._ended_streams) > ENDED_STREAMS:
            del self._ended_streams[next(iter(self._ended_streams))]

    # -- holds: pauses of the executor for a slow harness

    def _hold(self, harness: _HarnessState) -> None:
        """Stop reading from the executor for a moment, unless the last hold has failed."""
        if harness.hold is not None:
            return
        if self._context.clock() < max(harness.no_hold_before, self._no_hold_before):
            return
        self._context.counters.holds += 1
        if not self._held:
            self.peer.pause()
        self._held.add(harness)
        self._start_hold(harness)

    def _wait_for_room(self, harness: _HarnessState) -> None:
        """Stop reading from the executor until the way to a relay has room again, or that relay is dead.

        The bus would end all sockets between the two relays, also of other executors, if its queue grew.
        """
        if not self._held:
            self.peer.pause()
        self._held.add(harness)

    def _start_hold(self, harness: _HarnessState) -> None:
        limits = self._context.limits
        harness.hold_is_long = len(self.harnesses) == 1
        seconds = limits.alone_seconds if harness.hold_is_long else limits.hold_seconds
        harness.hold = self._context.call_later(seconds, partial(self._hold_failed, harness))

    def _hold_failed(self, harness: _HarnessState) -> None:
        limits, now = self._context.limits, self._context.clock()
        self._context.counters.failed_holds += 1
        harness.no_hold_before = now + limits.penalty_seconds
        # Otherwise many harnesses that read nothing could hold the executor one after the other.
        self._no_hold_before = now + limits.hold_seconds * UNHELD_SHARE
        self._release(harness)

    def _release(self, harness: _HarnessState) -> None:
        self._stop_hold(harness)
        if harness in self._held:
            self._held.discard(harness)
            if not self._held:
                self.peer.resume()

    def _stop_hold(self, harness: _HarnessState) -> None:
        if harness.hold is not None:
            harness.hold.cancel()
            harness.hold = None

    # -- sending

    def _send(self, frame: bytes) -> bool:
        return self._context.queues.send(self.peer, frame, self._close_slow, self.registration_id)

    def _publish(self, harness: _HarnessState, stream_id: str, kind: str, frame: bytes) -> None:
        message = BusMessage("frame", self.address, stream_id, kind, frame)
        if not self._context.bus.publish(harness.address, message):
            self._context.counters.dropped["no_peer"] += 1

    def _notify(self, harness: _HarnessState, kind: MessageKind) -> None:
        self._context.bus.publish(harness.address, BusMessage(kind, self.address))

"""The two ends of the way through a relay: an executor's socket, and a harness's that was introduced to it.

Rules kept here:
- The ends know each other by the bus only. Which harness owns a stream, and whether the executor is read
  from, is decided at the executor's end, where all harnesses meet.
- `close` leads to `ended` before it returns, so after everything that may send, an end may be over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from execprotocol.relay import frames
from execprotocol.relay.frames import FrameError
from execserver.relay.service.bus import Bus, BusMessage, MessageKind, executor_subject, harness_subject
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
"""Close codes: the peer does not take its frames; the executor is gone, or has too many harnesses."""

ENDED_STREAMS = 256
"""Ended stream ids that are remembered an executor, to drop what was on its way: twice what can be open."""

UNHELD_SHARE = 4
"""For how many times a hold's length there is none after one that did not help: harnesses that take nothing,
however many, cost the others a fifth of the time at most."""

Close = Callable[[str, int], None]
"""Ends the own socket: the reason as the counters name it, and the close code."""


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What all ends of a relay share."""

    bus: Bus
    limits: Limits
    counters: Counters
    queues: Queues
    clock: Callable[[], float]
    call_later: CallLater


class HarnessEndpoint:
    """The relay's side of a harness's socket."""

    def __init__(self, around: RelayContext, registration_id: str, peer: RelayPeer, close: Close) -> None:
        self.peer = peer
        self.close = close
        self._around = around
        self._cut = partial(close, SLOW_CONSUMER, SLOW)
        self._group = registration_id
        self._subject = harness_subject(registration_id, peer.id)
        self._executor = executor_subject(registration_id)
        around.bus.subscribe(self._subject, self._receive)

    def announce(self) -> bool:
        """Tell the executor's end that we are here. False: there is none."""
        return self._tell("joined")

    def came(self, message: bytes) -> None:
        """The harness sent a message."""
        dropped = self._around.counters.dropped
        try:
            frame = frames.decode(message)
        except FrameError:
            dropped["undecodable"] += 1
            return
        sent = BusMessage("frame", self._subject, frame.stream_id, frame.kind, message)
        if not self._around.bus.publish(self._executor, sent):
            dropped["no_peer"] += 1

    def has_room(self) -> None:
        """The harness's queue is no longer full."""
        self._tell("room")

    def silence(self) -> None:
        """Hear nothing more of the executor."""
        self._around.bus.unsubscribe(self._subject)

    def ended(self) -> None:
        """The harness is gone."""
        self.silence()
        self._tell("gone")

    def _tell(self, kind: MessageKind) -> bool:
        return self._around.bus.publish(self._executor, BusMessage(kind, self._subject))

    def _receive(self, message: BusMessage) -> None:
        match message.kind:
            case "frame":
                if not self._around.queues.send(self.peer, message.frame, self._cut, self._group):
                    self._tell("full")
            case "full":
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
    """What the executor's end knows of one harness."""

    subject: str
    streams: set[str] = field(default_factory=set)
    hold: Timer | None = None
    """The end of the time for which the executor is not read from for its sake."""
    hold_is_long: bool = False
    """Whether that assumes that it has the executor for itself."""
    no_hold_before: float = 0.0


class ExecutorEndpoint:
    """The relay's side of an executor's socket."""

    def __init__(self, around: RelayContext, registration_id: str, peer: RelayPeer, close: Close) -> None:
        self.peer = peer
        self.close = close
        self.registration_id = registration_id
        self.streams: dict[str, _HarnessState] = {}
        self.harnesses: dict[str, _HarnessState] = {}  # by subject
        self._around = around
        self._cut = partial(close, SLOW_CONSUMER, SLOW)
        self._subject = executor_subject(registration_id)
        self._ended_streams: dict[str, None] = {}  # the oldest first
        self._held: set[_HarnessState] = set()  # those that it is not read from for
        self._no_hold_before = 0.0
        self._paused: set[_HarnessState] = set()  # those that are not read from for it
        around.bus.subscribe(self._subject, self._receive)

    def came(self, message: bytes) -> None:
        """The executor sent a message."""
        counters = self._around.counters
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
            self._tell(harness, "room")

    def silence(self) -> None:
        """Hear nothing more of the harnesses."""
        self._around.bus.unsubscribe(self._subject)

    def ended(self) -> None:
        """The executor is gone, and so are its harnesses."""
        self.silence()
        harnesses, self.harnesses = self.harnesses, {}
        self._around.counters.streams -= len(self.streams)
        self.streams.clear()
        self._paused.clear()
        for harness in harnesses.values():
            self._release(harness)
            self._tell(harness, "gone")

    def _receive(self, message: BusMessage) -> None:
        harness = self.harnesses.get(message.sender)
        if message.kind == "joined":
            self._joined(message.sender)
        elif harness is None:
            if message.kind == "frame":
                self._around.counters.dropped["no_peer"] += 1
        elif message.kind == "frame":
            self._from_harness(harness, message)
        elif message.kind == "gone":
            self._left(harness)
        elif message.kind == "full":
            self._hold(harness)
        elif message.kind == "room":
            self._release(harness)

    # -- harnesses

    def _joined(self, subject: str) -> None:
        harness = _HarnessState(subject)
        if len(self.harnesses) >= self._around.limits.harnesses:
            self._tell(harness, "crowded")
            return
        self.harnesses[subject] = harness
        for held in self._held:
            if held.hold_is_long:
                self._stop_hold(held)
                self._start_hold(held)

    def _left(self, harness: _HarnessState) -> None:
        del self.harnesses[harness.subject]
        self._paused.discard(harness)
        self._release(harness)
        for stream_id in tuple(harness.streams):
            if stream_id in self.streams:  # unless a reset before was one too many for the executor's queue
                self._forget(stream_id, harness)
                self._around.counters.resets[PEER_CLOSED] += 1
                self._send(frames.reset(stream_id, PEER_CLOSED))

    # -- streams

    def _from_harness(self, harness: _HarnessState, message: BusMessage) -> None:
        counters = self._around.counters
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
            self._tell(harness, "full")

    def _open(self, harness: _HarnessState, message: BusMessage) -> bool:
        stream_id, kind = message.stream_id, message.frame_kind
        late = stream_id in self._ended_streams and kind != "resume"
        if late or kind in ("reset", "ack", "heartbeat"):
            self._around.counters.dropped["unknown_stream"] += 1
            return False
        if len(self.streams) >= self._around.limits.streams:
            self._remember_ended(stream_id)  # its handshake is on the way
            self._refuse(harness, message, TOO_MANY_STREAMS)
            return False
        self._ended_streams.pop(stream_id, None)
        self.streams[stream_id] = harness
        harness.streams.add(stream_id)
        self._around.counters.streams += 1
        return True

    def _refuse(self, harness: _HarnessState, message: BusMessage, reason: str) -> None:
        if message.frame_kind == "reset":  # an answer could be answered in turn
            self._around.counters.dropped["unknown_stream"] += 1
            return
        self._around.counters.resets[reason] += 1
        self._publish(harness, message.stream_id, "reset", frames.reset(message.stream_id, reason))

    def _forget(self, stream_id: str, owner: _HarnessState) -> None:
        if self.streams.pop(stream_id, None) is not None:
            owner.streams.discard(stream_id)
            self._around.counters.streams -= 1
            self._remember_ended(stream_id)

    def _remember_ended(self, stream_id: str) -> None:
        self._ended_streams[stream_id] = None
        if len(self._ended_streams) > ENDED_STREAMS:
            del self._ended_streams[next(iter(self._ended_streams))]

    # -- pauses of the executor

    def _hold(self, harness: _HarnessState) -> None:
        """Do not read from the executor for a moment, if the harness has the right to that."""
        if harness.hold is not None:
            return
        if self._around.clock() < max(harness.no_hold_before, self._no_hold_before):
            return
        self._around.counters.holds += 1
        if not self._held:
            self.peer.pause()
        self._held.add(harness)
        self._start_hold(harness)

    def _start_hold(self, harness: _HarnessState) -> None:
        limits = self._around.limits
        harness.hold_is_long = len(self.harnesses) == 1
        seconds = limits.alone_seconds if harness.hold_is_long else limits.hold_seconds
        harness.hold = self._around.call_later(seconds, partial(self._hold_failed, harness))

    def _hold_failed(self, harness: _HarnessState) -> None:
        limits, now = self._around.limits, self._around.clock()
        self._around.counters.failed_holds += 1
        harness.no_hold_before = now + limits.penalty_seconds
        # Many that take nothing, one after the other, would else keep the executor from all the others.
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
        return self._around.queues.send(self.peer, frame, self._cut, self.registration_id)

    def _publish(self, harness: _HarnessState, stream_id: str, kind: str, frame: bytes) -> None:
        message = BusMessage("frame", self._subject, stream_id, kind, frame)
        if not self._around.bus.publish(harness.subject, message):
            self._around.counters.dropped["no_peer"] += 1

    def _tell(self, harness: _HarnessState, kind: MessageKind) -> None:
        self._around.bus.publish(harness.subject, BusMessage(kind, self._subject))

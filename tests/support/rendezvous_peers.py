"""Sockets and time for tests of the rendezvous: nothing moves unless a test says so."""

from __future__ import annotations

from collections.abc import Callable

from execserver.relay.service.bus import Bus, MemoryBus
from execserver.relay.service.queues import Limits
from execserver.relay.service.rendezvous import Rendezvous


class FakeTimer:
    """A call that waits for its moment."""

    def __init__(self, moment: float, callback: Callable[[], None]) -> None:
        self.moment = moment
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True


class FakeTime:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []

    def clock(self) -> float:
        """The time now."""
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        """Call when the clock has moved so far."""
        timer = FakeTimer(self.now + seconds, callback)
        self.timers.append(timer)
        return timer

    def pass_by(self, seconds: float) -> None:
        """Move the clock, and call what is due on the way."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if not timer.cancelled and timer.moment <= end]:
            timer = min(due, key=lambda each: each.moment)
            self.timers.remove(timer)
            self.now = max(self.now, timer.moment)
            timer.callback()
        self.now = end

    @property
    def waiting(self) -> int:
        """How many calls are still to come."""
        return sum(not timer.cancelled for timer in self.timers)


class FakePeer:
    """A socket that takes what it is sent at once, or (`stuck`) only when told to."""

    def __init__(self, peer_id: str, rendezvous: Rendezvous, *, stuck: bool = False) -> None:
        self.id = peer_id
        self.stuck = stuck
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self._paused = False
        self.queued = 0
        self._rendezvous = rendezvous

    def send(self, frame: bytes) -> None:
        """Take a frame."""
        if self.closed is None:
            self.sent.append(frame)
            if self.stuck:
                self.queued += len(frame)

    def close(self, code: int, reason: str) -> None:
        """Remember the first close."""
        if self.closed is None:
            self.closed = (code, reason)
            self.queued = 0

    def pause(self) -> None:
        """Read no more."""
        self._paused = True

    def resume(self) -> None:
        """Read again."""
        self._paused = False

    def is_paused(self) -> bool:
        """Whether it is not read from."""
        return self._paused

    def take(self, size: int | None = None) -> None:
        """Take so many bytes (None: all) off the queue."""
        self.queued -= self.queued if size is None else size
        self._rendezvous.drained(self)


class Relay:
    """A rendezvous with fake time and peers."""

    def __init__(self, limits: Limits | None = None, bus: Bus | None = None) -> None:
        self.time = FakeTime()
        self.rendezvous = Rendezvous(bus or MemoryBus(), self.time.clock, self.time.call_later, limits)
        self.counters = self.rendezvous.counters
        self.addresses: dict[str, str] = {}
        """Of the newest executor's socket of each registration: what the registry knows."""

    def executor(self, registration_id: str = "r1", name: str = "e1", *, stuck: bool = False) -> FakePeer:
        """An executor's socket that just joined."""
        peer = FakePeer(name, self.rendezvous, stuck=stuck)
        self.addresses[registration_id] = self.rendezvous.address(peer)
        self.rendezvous.executor_joined(registration_id, peer)
        return peer

    def harness(self, name: str, registration_id: str = "r1", *, stuck: bool = False) -> FakePeer:
        """A harness's socket that just joined."""
        peer = FakePeer(name, self.rendezvous, stuck=stuck)
        self.rendezvous.harness_joined(registration_id, self.addresses.get(registration_id, "none"), peer)
        return peer

    def streams_of(self, registration_id: str) -> int:
        """The number of an executor's streams."""
        return self.rendezvous.streams_of(self.addresses[registration_id])

    def up(self, harness: FakePeer, *messages: bytes) -> None:
        """A harness sends."""
        for message in messages:
            self.rendezvous.from_harness(harness, message)

    def down(self, executor: FakePeer, *messages: bytes) -> None:
        """An executor sends."""
        for message in messages:
            self.rendezvous.from_executor(executor, message)

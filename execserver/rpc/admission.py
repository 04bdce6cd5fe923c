"""Which of a connection's messages are admitted, and when.

    messages_received ──▶ backlog ──▶ receive (the dialect) ──▶ request

Rules kept in this file:

1. Messages are admitted in the order of their arrival. Without a reason to wait, a message skips the backlog.
2. Memory is bounded for a peer that does not read: above `MAX_UNSENT_BYTES` of unsent replies, or
   `MAX_PENDING_BYTES` of unfinished requests, no message is admitted and reading stops.
3. A peer that sends a thousand messages at once gets `TURN_SECONDS` at a time; then other connections have a
   turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import perf_counter

from execserver.rpc.channel import Channel
from execserver.rpc.dialect import Dialect
from execserver.rpc.flow_control import MAX_UNSENT_BYTES
from execserver.rpc.scheduler import Scheduler

MAX_PENDING_BYTES = 64 << 20
"""Bytes of admitted, unfinished requests above which a connection's messages wait. One message of the largest
size must fit."""

MAX_BATCHED_CALLS = 1000
"""Requests in unanswered batches above which a connection's messages wait: each reply waits in memory for the
last of its batch."""

MAX_UNFINISHED = 1024
"""Requests of a connection in the order of requests; each new one is compared with them."""

LAST_ANSWERS_SECONDS = 1.0
"""How long requests may take that were read before the end of their session was answered."""

TURN_SECONDS = 0.005
"""How long one connection's messages are worked on before other connections have a turn. A read may bring ten
thousand."""


class MessageAdmission:
    """The messages of one connection until a dialect gets them.

    Args:
        channel: the transport's side.
        schedule: the unfinished requests.
        dialect: the first dialect of the connection.
        one_at_a_time: whether a request waits for the one before it (`--concurrent-requests 1`).
    """

    def __init__(
        self, channel: Channel, schedule: Scheduler, dialect: Dialect, *, one_at_a_time: bool
    ) -> None:
        self.reads = 0
        """How often messages have arrived."""
        self.closed = False
        """Whether the connection is over."""
        self._channel = channel
        self._schedule = schedule
        self._strict = one_at_a_time
        self._dialect = dialect
        self._receive = dialect.receive
        self._backlog: deque[bytes | bytearray] = deque()
        """Messages that are not admitted yet."""
        self._turn_until = 0.0
        """When the turn ends that began with the first message of this read; 0 before it."""
        self._resting = False
        """Whether the rest of what was read waits for the next turn."""
        self._settling = False
        self._paused = False
        """Whether the channel does not read."""
        self._stopped = False
        self._draining = False
        self._finishing = False
        """Whether the connection ends once what was read is answered."""
        self._held = False
        """Whether the dialect is still being loaded."""
        self._batched_calls = 0
        """Requests in batches that are not answered yet."""
        self._blocked = False
        """Whether one of these reasons blocks all messages."""
        self._framing_fault: str | None = None
        """Why there will be no more messages."""

    # -- called by the channel (rpc/channel.py: MessageHandler)

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        """Admit messages, in the order of arrival."""
        self.reads += 1
        position, count = 0, len(messages)
        if not self._turn_until:
            self._turn_until = perf_counter() + TURN_SECONDS
        while position < count and not (self.closed or self._channel.ended):
            if self._resting or perf_counter() > self._turn_until:
                self._rest()
                self._backlog.extend(messages[position:])
                return
            message = messages[position]
            position += 1
            if self._backlog or self._must_wait():
                self._backlog.append(message)
            else:
                self._receive(message)

    def batch_ended(self) -> None:
        """All messages of one read have been delivered."""
        self._turn_until = 0.0
        if not self._paused and (self._backlog or self._must_wait()):
            self._paused = True
            self._channel.pause_reading()

    def framing_failed(self, reason: str) -> None:
        """End the connection once the messages before the framing error are answered: the transport cannot
        separate further messages.
        """
        self._framing_fault = reason
        self.settle()

    # -- dialect

    def use(self, dialect: Dialect) -> None:
        """Give all further messages to this dialect."""
        self._dialect = dialect
        self._receive = dialect.receive

    def hold(self, message: bytes | bytearray) -> None:
        """Admit no message until `release`, and then this one first: its dialect is being loaded."""
        self._held = True
        self._update_blocked()
        self._backlog.appendleft(message)

    def release(self) -> None:
        """Admit messages again: the dialect is loaded."""
        self._held = False
        self._update_blocked()
        self.settle()

    def batch_begun(self, calls: int) -> None:
        """Count the requests of a batch until `batch_answered`."""
        self._batched_calls += calls
        self._update_blocked()

    def batch_answered(self, calls: int) -> None:
        """The replies of a batch are queued, or it has none."""
        self._batched_calls -= calls
        self._update_blocked()
        self.settle()

    # -- the end

    def stop_reading(self) -> None:
        """Admit no further message; admitted requests are answered."""
        self._stopped = True
        self._update_blocked()
        self._paused = True
        self._channel.pause_reading()

    def drain(self) -> None:
        """Read no further message; messages that were read are still answered."""
        self._draining = self._paused = True
        self._channel.pause_reading()

    def finish(self) -> None:
        """Drain, and end the connection once all answers are sent, at most `LAST_ANSWERS_SECONDS` later."""
        self.drain()
        self._finishing = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self.settle)  # later: the reply that this comes with is to be sent, too
        loop.call_later(LAST_ANSWERS_SECONDS, self._channel.finish)

    def discard_backlog(self) -> None:
        """Drop the messages that are not admitted yet."""
        self._backlog.clear()

    def close(self) -> None:
        """The connection is over."""
        self.closed = True
        self._backlog.clear()

    @property
    def has_unanswered(self) -> bool:
        """Whether a message that was read has no answer yet."""
        return bool(self._backlog or self._schedule.unfinished or self._batched_calls or self._held)

    # -- waiting

    def settle(self) -> None:
        """Do everything that a finished request has made possible, in turns. One loop, however long the
        chain: a request that is answered at once finishes inside it.
        """
        if self._settling or self.closed:
            return
        self._settling = True
        until = 0.0
        try:
            while not (self.closed or self._resting):
                if not self._schedule.step():
                    if not self._backlog or self._must_wait():
                        break
                    self._receive(self._backlog.popleft())
                now = perf_counter()
                until = until or now + TURN_SECONDS
                if now > until:
                    self._rest()
        finally:
            self._settling = False
        if self._backlog or self.closed or self._resting:
            return
        if self._framing_fault is not None:
            self._dialect.refuse_framing(self._framing_fault)
            self._channel.finish()
        elif self._finishing:
            if not self.has_unanswered:
                self._channel.finish()
        elif self._paused and not self._draining and not self._must_wait():
            self._paused = False
            self._channel.resume_reading()

    def _must_wait(self) -> bool:
        return (
            self._blocked
            or self._resting
            or (self._strict and bool(self._schedule.unfinished))
            or self._schedule.held_bytes > MAX_PENDING_BYTES
            or self._channel.unsent > MAX_UNSENT_BYTES
            or self._schedule.order.unfinished > MAX_UNFINISHED
        )

    def _update_blocked(self) -> None:
        most = 0 if self._strict else MAX_BATCHED_CALLS
        self._blocked = self._stopped or self._held or self._batched_calls > most

    def _rest(self) -> None:
        """Admit no further message in this turn of the loop."""
        if not self._resting:
            self._resting = True
            asyncio.get_running_loop().call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._resting = False
        self.settle()

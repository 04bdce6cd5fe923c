"""Which of a connection's messages are admitted, and when.

    messages_received ──▶ backlog ──▶ receive (the dialect) ──▶ request

Rules kept in this file:

1. Messages are admitted in the order of their arrival. Without a reason to wait, a message skips the backlog.
2. Memory is bounded for a peer that does not read: above `MAX_UNSENT_BYTES` of unsent replies, or
   `MAX_PENDING_BYTES` of unfinished requests, no message is admitted and reading stops.
3. While a request of the server waits for its answer, the connection is read in any case, within bounds, and
   the answer skips the backlog.
4. A peer that sends a thousand messages at once gets `TURN_SECONDS` at a time; then other connections have a
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
from execserver.rpc.server_requests import ServerRequests

MAX_PENDING_BYTES = 64 << 20
"""Bytes of admitted, unfinished requests above which a connection's messages wait. One message of the largest
size must fit."""

MAX_BATCHED_CALLS = 1000
"""Requests in unanswered batches above which a connection's messages wait: each reply waits in memory for the
last of its batch."""

MAX_BACKLOG = 1024
"""Messages that wait above which none is read, also when the server waits for an answer."""

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
        asked: the server's own requests.
        one_at_a_time: whether a request waits for the one before it (`--concurrent-requests 1`).
    """

    def __init__(
        self,
        channel: Channel,
        schedule: Scheduler,
        dialect: Dialect,
        asked: ServerRequests,
        *,
        one_at_a_time: bool,
    ) -> None:
        self.reads = 0
        """How often messages have arrived."""
        self.closed = False
        """Whether the connection is over."""
        self._channel = channel
        self._schedule = schedule
        self._asked = asked
        asked.on_request = self._request_sent
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
                for message in messages[position:]:
                    self._queue(message)
                return
            message = messages[position]
            position += 1
            if self._backlog or self._must_wait():
                self._queue(message)
            else:
                self._receive(message)

    def batch_ended(self) -> None:
        """All messages of one read have been delivered."""
        self._turn_until = 0.0
        if not self._paused and (self._backlog or self._must_wait()) and not self._awaits_answer():
            self._paused = True
            self._channel.pause_reading()

    def _request_sent(self) -> None:
        """A request of the server waits for its answer: read on, whatever else waits."""
        if self._paused and self._awaits_answer():
            self._paused = False
            self._channel.resume_reading()

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
            self._request_sent()
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

    def _queue(self, message: bytes | bytearray) -> None:
        """Let a message wait, unless it answers a request of the server: a request before it may wait for a
        process, and the process for this answer.
        """
        if not (self._asked and self._asked.take(message)):
            self._backlog.append(message)

    def _awaits_answer(self) -> bool:
        """Whether messages are read although those before them wait."""
        return (
            bool(self._asked)
            and not (self.closed or self._stopped or self._draining or self._framing_fault)
            and len(self._backlog) < MAX_BACKLOG
            and sum(map(len, self._backlog)) < MAX_PENDING_BYTES
        )

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

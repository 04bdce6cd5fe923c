"""One connection: messages in, replies and events out, between a channel and the handlers.

The path of a request:

    messages_received → decode → method → params → handshake state → order → handler → reply

Rules kept in this file:

1. Messages are admitted in the order of their arrival; what is wrong with one is said at once.
2. A request that can be answered without waiting is answered inside `messages_received`: no task,
   no future, no bookkeeping. Only what has to wait gets a ticket in the `RequestOrder`.
3. Nothing grows without bound for a peer that does not read: above `MAX_UNSENT_BYTES` of unsent
   replies, or `MAX_PENDING_BYTES` of unfinished requests, nothing more is admitted.
4. A waiting `process/read` holds nothing up: it has no ticket.
5. Who sends a thousand messages at once gets `TURN_SECONDS` at a time: then others have their turn.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any, TypeVar, cast

from execprotocol.errors import (
    InternalError,
    InvalidRequest,
    MethodNotFound,
    RpcError,
    file_error,
    start_cancelled,
)
from execprotocol.methods import METHODS, Method
from execserver.busy_poll import LongPollWait
from execserver.loading import LOADER
from execserver.rpc import codec
from execserver.rpc.channel import Channel
from execserver.rpc.codex_dialect import CodexDialect
from execserver.rpc.dialect import Dialect, Undecided, encode_standard_error
from execserver.rpc.flow_control import MAX_UNSENT_BYTES, Room
from execserver.rpc.handlers import Closable, Handlers, StreamedResult
from execserver.rpc.json_rpc import JsonRpcDialect, load_dispatch
from execserver.rpc.params import decode_params
from execserver.rpc.scheduler import AT_ONCE, Pending, Scheduler
from execserver.sessions.event_stream import OutputFeed
from execserver.sessions.session import Attachment, Session
from execserver.telemetry import tracing
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import UNKNOWN_METHOD, measures
from execserver.telemetry.tracing import RequestTrace

log = Logger()

MAX_PENDING_BYTES = 64 << 20
"""Bytes of admitted, unfinished requests above which a connection's messages wait. One message of
the largest size must fit."""

MAX_QUOTED_CHARACTERS = 200
"""What is said of a method that does not exist: its name may be megabytes long."""

MAX_BATCHED_CALLS = 1000
"""Requests in unanswered batches above which a connection's messages wait: each reply waits for the
last of its batch, in memory."""

MAX_UNFINISHED = 1024
"""Requests of a connection in the order of requests; each new one is compared with them."""

LAST_ANSWERS_SECONDS = 1.0
"""How long requests may take that were read before their session's end was answered."""

TURN_SECONDS = 0.005
"""How long the messages of one connection are worked on before the others have their turn. A read may bring
ten thousand."""

T = TypeVar("T", bound=Closable)

_connection_numbers = itertools.count(1)


class Connection:
    """Runs the protocol on a channel.

    Args:
        channel: the transport's side.
        handlers: method name → handler.
        concurrency: `--concurrent-requests`; None for no limit, 1 for strictly one at a time.
        on_lost: called once with this connection when it is over.
    """

    def __init__(
        self,
        channel: Channel,
        handlers: Handlers,
        concurrency: int | None,
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.number = next(_connection_numbers)
        self.extensions = False
        self.max_reply_bytes = channel.max_reply_bytes
        self.peer = channel.peer
        self.peer_proof = channel.peer_proof
        self._channel = channel
        self._handlers = handlers
        self._strict = concurrency == 1
        self._on_lost = on_lost
        self._log = log.bind(connection=self.number, peer=channel.peer)
        self._session: Session | None = None
        self._attachment: Attachment | None = None
        self._ready = False
        self._lost = False
        self._owned: dict[type[Any], Closable] = {}
        self._room = Room(channel)
        self._schedule = Scheduler(None if self._strict else concurrency, self, self._room)
        self._backlog: deque[bytes | bytearray] = deque()
        """Messages that are not admitted yet."""
        self._reads = 0
        """How often messages came."""
        self._turn_until = 0.0
        """When the turn ends that began with the first message of this read; 0 before it."""
        self._resting = False
        """Whether the rest of what was read waits for the next turn."""
        self._long_poll: LongPollWait | None = None
        self._streaming = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        """What loads the standard dialect."""
        self._settling = False
        self._paused = False
        self._stopped = False
        self._draining = False
        self._finishing = False
        """Whether the connection ends when what was read is answered."""
        self._choosing = False
        """Whether the standard dialect is being loaded."""
        self._batched_calls = 0
        """Requests in arrays of the standard dialect that are not answered yet."""
        self._blocked = False
        """Whether nothing is admitted for one of these reasons."""
        self._framing_fault: str | None = None
        """Why there will be no more messages."""
        self._traced = tracing.recording()
        """Whether every request has a trace."""
        self._lean = CodexDialect(channel, self)
        self._dialect: Dialect = Undecided(channel, self._lean, self._choose_dialect)
        self._receive = self._dialect.receive
        self._log.debug("connection opened")

    # -- what handlers see (rpc/handlers.py: Caller)

    @property
    def session(self) -> Session:
        """The session that the connection is attached to."""
        assert self._session is not None, "handlers run after the handshake"
        return self._session

    @property
    def attachment(self) -> Attachment:
        """The connection's feeds."""
        assert self._attachment is not None, "handlers run after the handshake"
        return self._attachment

    def attach(self, session: Session, *, resumed: bool, extensions: bool) -> None:
        """`initialize` succeeded."""
        self._session = session
        self._schedule.session_id = session.id
        self.extensions = extensions
        self._attachment = session.attach(self, resumed=resumed, extensions=extensions)
        self._log = self._log.bind(session=session.id)

    def finish(self) -> None:
        """Read nothing more, answer what was read, and end."""
        self.drain()
        self._finishing = True
        loop = asyncio.get_running_loop()
        # The reply that this comes with is one of those to be sent.
        loop.call_soon(self._settle)
        loop.call_later(LAST_ANSWERS_SECONDS, self._channel.finish)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._dialect.event((codec.encode_notification(method, params),))

    def own(self, kind: type[T], make: Callable[[], T]) -> T:
        """The connection's one object of this kind."""
        if kind not in self._owned:
            self._owned[kind] = make()
            if self._lost:
                self._owned[kind].close()
        return cast("T", self._owned[kind])

    async def wait_for_room(self) -> None:
        """Wait until the peer has taken enough for another large reply, first come first served."""
        await self._room.wait_to_reply()

    async def wait_to_push(self) -> None:
        """Wait until one more piece of something long may be sent."""
        await self._room.wait_to_push()

    def expect_next_poll(self) -> None:
        """A long poll is about to be answered."""
        if self._long_poll is None:
            self._long_poll = LongPollWait(self._channel.read_now, lambda: self._reads)
        self._long_poll.answered()

    def probe(self, timeout: float) -> None:
        """Drop the connection unless its peer answers in `timeout` seconds."""
        self._channel.probe(timeout)

    # -- what feeds see (sessions/event_stream.py: Sink)

    def has_room(self) -> bool:
        """Whether another event may be queued."""
        return self._room.for_event()

    def progress(self) -> int:
        """Bytes that the peer has taken so far."""
        return self._channel.progress

    def send_event(self, parts: Sequence[bytes]) -> None:
        """Queue a notification."""
        self._dialect.event(parts)

    def fell_behind(self, feed: OutputFeed) -> None:
        """The feed goes on when the channel has drained."""
        if self._attachment is not None:
            self._attachment.fell_behind(feed)

    # -- what the channel calls (rpc/channel.py: MessageHandler)

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        """Messages, in the order of arrival."""
        self._reads += 1
        position, count = 0, len(messages)
        if not self._turn_until:
            self._turn_until = perf_counter() + TURN_SECONDS
        while position < count and not (self._lost or self._channel.ended):
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

    def framing_failed(self, reason: str) -> None:
        """The transport cannot tell messages apart any more: say so behind the answers to those that
        it could, and end.
        """
        self._framing_fault = reason
        self._settle()

    def batch_ended(self) -> None:
        """What one read brought has been delivered."""
        self._turn_until = 0.0
        if not self._paused and (self._backlog or self._must_wait()):
            self._paused = True
            self._channel.pause_reading()

    def drained(self) -> None:
        """The peer has taken most of what was queued: one piece of something long, then events."""
        self._room.let_one_push()
        if self._attachment is not None:
            self._attachment.drained()
        self._room.let_one_reply()
        self._settle()

    def connection_lost(self) -> None:
        """The connection is over; its session waits for another one."""
        if self._lost:
            return
        self._lost = True
        self._backlog.clear()
        if self._loading is not None:
            self._loading.cancel()
        self._schedule.close()
        for owned in self._owned.values():
            owned.close()
        self._dialect.connection_lost()
        self._log.debug("connection lost")
        self._on_lost(self)

    def stop_reading(self) -> None:
        """Admit nothing more; what was admitted is answered."""
        self._stopped = True
        self._update_blocked()
        self._paused = True
        self._channel.pause_reading()

    def drain(self) -> None:
        """Read nothing more and send no more events; what was read is still answered."""
        self._draining = self._paused = True
        self._channel.pause_reading()
        if self._attachment is not None:
            self._attachment.close()

    @property
    def has_answered(self) -> bool:
        """Whether every message that was read has its answer, and the peer has taken it."""
        return not (self._has_unanswered() or self._channel.unsent)

    def _has_unanswered(self) -> bool:
        return bool(self._backlog or self._schedule.unfinished or self._batched_calls or self._choosing)

    def abort(self) -> None:
        """Drop the connection."""
        self._channel.abort()

    @property
    def attached_session(self) -> Session | None:
        """The session, if the handshake got that far."""
        return self._session

    def has_unsaid(self) -> bool:
        """Whether the peer has yet to get something: bytes that are queued, or the end of a process."""
        if self._channel.unsent:
            return True
        if self._attachment is not None and self._attachment.observes_any_end:
            return True
        return self._session is not None and any(not process.closed for process in self._session.processes)

    # -- what dialects call (rpc/dialect.py: Admission, rpc/standard.py: BatchAdmission)

    def admit(
        self, target: Any, method: str, params: Any, size: int, trace: Mapping[str, Any] | None
    ) -> None:
        """Take a request in. Its result or error goes to the dialect, at once or later."""
        if trace is None and not self._traced:
            self._admit_request(target, method, params, size, None)
            return
        name = method if method in METHODS else UNKNOWN_METHOD
        traced = tracing.begin(name, trace, self._dialect.name, self._channel.kind)
        with tracing.active(traced):
            self._admit_request(target, method, params, size, traced)

    def initialized(self) -> bool:
        """The client is ready for everything; False when it was not welcomed yet."""
        self._ready = self._session is not None
        return self._ready

    def drop(self, reason: str) -> None:
        """A fatal protocol error: no reply, the session survives."""
        self._log.info("connection dropped", reason=reason)
        self._backlog.clear()
        self._channel.abort()

    def batch_begun(self, calls: int) -> None:
        """A batch of so many requests is being worked on."""
        self._batched_calls += calls
        self._update_blocked()

    def batch_answered(self, calls: int) -> None:
        """Its replies are queued, or there are none."""
        self._batched_calls -= calls
        self._update_blocked()
        self._settle()

    def _update_blocked(self) -> None:
        most = 0 if self._strict else MAX_BATCHED_CALLS
        self._blocked = self._stopped or self._choosing or self._batched_calls > most

    def _choose_dialect(self, standard: bool, message: bytes | bytearray) -> None:
        """The first message that was understood has said what the peer speaks."""
        measures.dialect_chosen("standard" if standard else "lean")
        if not standard:
            self._dialect = self._lean
            self._receive = self._lean.receive
            self._receive(message)
            return
        self._choosing = True
        self._update_blocked()
        self._backlog.appendleft(message)
        self._loading = asyncio.get_running_loop().create_task(self._begin_standard())

    async def _begin_standard(self) -> None:
        """Nobody else waits while the first connection of this kind loads what it needs."""
        try:
            dispatch = await asyncio.to_thread(LOADER.load, load_dispatch)
        except Exception as error:  # a full table of descriptors, a broken installation
            self._log.error("the standard dialect cannot be loaded", exc_info=error)
            self._channel.send((encode_standard_error(None, InternalError("internal error")),))
            self._channel.finish()
            return
        self._dialect = JsonRpcDialect(self._channel, self, dispatch, one_at_a_time=self._strict)
        self._receive = self._dialect.receive
        self._choosing = False
        self._update_blocked()
        self._settle()

    # -- admission

    def _must_wait(self) -> bool:
        return (
            self._blocked
            or self._resting
            or (self._strict and bool(self._schedule.unfinished))
            or self._schedule.held_bytes > MAX_PENDING_BYTES
            or self._channel.unsent > MAX_UNSENT_BYTES
            or self._schedule.order.unfinished > MAX_UNFINISHED
        )

    def _rest(self) -> None:
        """Admit nothing more in this turn of the loop."""
        if not self._resting:
            self._resting = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._settle()

    def _settle(self) -> None:
        """Do everything that something just finished has made possible, in turns. One loop, however long
        the chain: a request that is answered at once finishes inside it.
        """
        if self._settling or self._lost:
            return
        self._settling = True
        until = 0.0
        try:
            while not (self._lost or self._resting):
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
        if self._backlog or self._lost or self._resting:
            return
        if self._framing_fault is not None:
            self._dialect.refuse_framing(self._framing_fault)
            self._channel.finish()
        elif self._finishing:
            if not self._has_unanswered():
                self._channel.finish()
        elif self._paused and not self._draining and not self._must_wait():
            self._paused = False
            self._channel.resume_reading()

    def _admit_request(
        self, target: Any, name: str, arguments: Any, size: int, trace: RequestTrace | None
    ) -> None:
        """Answer a request at once, or let it wait. In one piece: every call costs here."""
        began = perf_counter()
        try:
            method = METHODS.get(name)
            if method is None:
                raise MethodNotFound(f"there is no method `{name[:MAX_QUOTED_CHARACTERS]}`")
            params = decode_params(method, arguments)
            if not self._ready or method.family is None:
                self._check_handshake(method)
            if name == "process/terminate" and self._cancels_start(params):
                result: Any = {"running": True}
            elif method.family is not None and self._schedule.must_wait(name, params):
                self._schedule.enqueue(Pending(target, method, params, size, began, trace))
                return
            else:
                result = self._handlers[name](self, params)
            if result.__class__ not in AT_ONCE:
                self._schedule.start(Pending(target, method, params, size, began, trace), result)
                return
            self._dialect.result(target, result)
            code = 0
        except Exception as error:
            code = self._fail(target, name, error)
        measures.request_done(name, perf_counter() - began, code)
        if trace is not None:
            trace.end(code)

    def _check_handshake(self, method: Method) -> None:
        if method.open_to_all:
            return
        if method.family is None:
            if self._session is not None:
                raise InvalidRequest("initialize may only be sent once per connection")
        elif self._session is None:
            raise InvalidRequest(f"client must call initialize before using {method.family} methods")
        else:
            raise InvalidRequest(f"client must send initialized before using {method.family} methods")

    def _cancels_start(self, params: Any) -> bool:
        """Whether a terminate meant nothing but a start that is still waiting: it ends that one at once."""
        if params.session_id is not None and (self._session is None or params.session_id != self._session.id):
            return False
        pending = self._schedule.cancel_start(params.process_id)
        if pending is None:
            return False
        self.failed(pending, start_cancelled(params.process_id))
        self._schedule.finish(pending)
        # The name may be that of a process that runs already: then that one is meant too.
        return self._session is None or self._session.processes.find(params.process_id) is None

    # -- what the schedule calls (rpc/scheduler.py: Work)

    def invoke(self, pending: Pending) -> Any:
        """Call the handler of a request whose turn has come."""
        return self._handlers[pending.method.name](self, pending.params)

    def succeeded(self, pending: Pending, result: Any) -> None:
        """A request that waited has its result."""
        try:
            self._dialect.result(pending.target, result)
        except Exception as error:
            self.failed(pending, error)
        else:
            self._answered(pending, 0)

    async def streamed(self, pending: Pending, result: StreamedResult) -> None:
        """A request that waited has a large result."""
        self._answered(pending, await self._dialect.stream(pending.target, result))

    def failed(self, pending: Pending, error: Exception) -> None:
        """A request that waited has failed."""
        self._answered(pending, self._fail(pending.target, pending.method.name, error))

    def progressed(self) -> None:
        """Something is possible now."""
        self._settle()

    # -- replies

    def _answered(self, pending: Pending, code: int) -> None:
        measures.request_done(pending.method.name, perf_counter() - pending.began, code)
        if pending.trace is not None:
            pending.trace.end(code)

    def _fail(self, target: Any, method: str, error: Exception) -> int:
        """Answer with an error; its code."""
        if isinstance(error, OSError):
            error = file_error(error)
        elif not isinstance(error, RpcError):
            self._log.error("request failed", method=method, exc_info=error)
            error = InternalError("internal error")
        self._dialect.error(target, error)
        return error.code

    async def send_stream(self, prefix: bytes, result: StreamedResult, suffix: bytes) -> None:
        """Send a large message piece by piece. When its source fails, the connection goes: half a
        message cannot be taken back.
        """
        tail = result.tail + suffix
        async with self._streaming, aclosing(result.pieces):
            stream = self._channel.open_stream(len(prefix) + len(result.head) + result.size + len(tail))
            try:
                await stream.write(prefix + result.head)
                async for piece in result.pieces:
                    await stream.write(piece)
                await stream.close(tail)
            except ConnectionResetError:
                return
            except Exception as error:
                self._log.warning("a reply could not be completed", reason=type(error).__name__)
                self.abort()

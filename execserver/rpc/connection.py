"""One connection: messages in, replies and events out, between a channel and the handlers.

The path of a request:

    admission (`admission.py`) → dialect → method → params → handshake state → order → handler → reply

Rules kept in this file:

1. An error in a message is answered as soon as the message is admitted, whatever else waits.
2. A request that can be answered without waiting is answered before the channel's call returns: no task, no
   future, no bookkeeping. Only a request that has to wait gets a ticket in the `RequestOrder`.
3. A waiting `process/read` delays no other request: it has no ticket.
"""

from __future__ import annotations

import asyncio
import itertools
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
    search_ended,
    start_cancelled,
)
from execprotocol.methods import METHODS, Method
from execserver.busy_poll import LongPollWait
from execserver.loading import LOADER
from execserver.rpc import codec
from execserver.rpc.admission import MessageAdmission
from execserver.rpc.channel import Channel
from execserver.rpc.codex_dialect import CodexDialect
from execserver.rpc.dialect import Dialect, UndecidedDialect, encode_json_rpc_error
from execserver.rpc.flow_control import FlowControl
from execserver.rpc.handlers import Closable, Handlers, StreamedResult
from execserver.rpc.json_rpc import JsonRpcDialect, load_dispatch
from execserver.rpc.params import decode_params
from execserver.rpc.scheduler import AT_ONCE, PendingRequest, Scheduler
from execserver.rpc.server_requests import ServerRequests
from execserver.sessions.event_stream import EventStream
from execserver.sessions.session import Attachment, Session
from execserver.telemetry import tracing
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import UNKNOWN_METHOD, measures
from execserver.telemetry.tracing import RequestTrace

log = Logger()

MAX_QUOTED_CHARACTERS = 200
"""How much of the name of an unknown method is quoted: it may be megabytes long."""

_TAKE_BACK = frozenset({"process/terminate", "fs/endSearch"})
"""Requests that end what earlier ones make, without waiting for them."""

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
        self.key_fingerprint = channel.key_fingerprint
        self._channel = channel
        self._handlers = handlers
        self._strict = concurrency == 1
        self._on_lost = on_lost
        self._log = log.bind(connection=self.number, peer=channel.peer)
        self._session: Session | None = None
        self._attachment: Attachment | None = None
        self._ready = False
        self._owned: dict[type[Any], Closable] = {}
        self._flow_control = FlowControl(channel)
        self._schedule = Scheduler(None if self._strict else concurrency, self, self._flow_control)
        self._long_poll: LongPollWait | None = None
        self._streaming = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        """Loads the JSON-RPC 2.0 dialect."""
        self._traced = tracing.recording()
        """Whether every request has a trace."""
        self._codex = CodexDialect(channel, self)
        self._dialect: Dialect = UndecidedDialect(channel, self._codex, self._choose_dialect)
        self._requests = ServerRequests(self.send_event)
        self._admission = admission = MessageAdmission(
            channel, self._schedule, self._dialect, self._requests, one_at_a_time=self._strict
        )
        # The parts answer these themselves: a method here would be one more call for each message or event.
        self.messages_received = admission.messages_received
        self.batch_ended = admission.batch_ended
        self.framing_failed = admission.framing_failed
        self.stop_reading = admission.stop_reading
        self.batch_begun = admission.batch_begun
        self.batch_answered = admission.batch_answered
        self.progressed = admission.settle
        self.may_queue_event = self._flow_control.may_queue_event
        self.wait_to_reply = self._flow_control.wait_to_reply
        self.wait_to_push = self._flow_control.wait_to_push
        self.request = self._requests.request
        self.answered = self._requests.answered
        self._log.debug("connection opened")

    # -- called by handlers (rpc/handlers.py: Caller)

    @property
    def session(self) -> Session:
        """The session that the connection is attached to."""
        assert self._session is not None, "handlers run after the handshake"
        return self._session

    @property
    def attachment(self) -> Attachment:
        """The connection's event streams."""
        assert self._attachment is not None, "handlers run after the handshake"
        return self._attachment

    def attach(self, session: Session, *, resumed: bool, extensions: bool) -> None:
        """Attach the connection to a session: `initialize` succeeded."""
        self._session = session
        self._schedule.session_id = session.id
        self.extensions = extensions
        self._attachment = session.attach(self, resumed=resumed, extensions=extensions)
        self._log = self._log.bind(session=session.id)

    def finish(self) -> None:
        """Read no more, answer the messages that were read, and end."""
        self._admission.finish()
        self._close_attachment()

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._dialect.event((codec.encode_notification(method, params),))

    def own(self, kind: type[T], make: Callable[[], T]) -> T:
        """The connection's one object of this kind, made at the first use."""
        if kind not in self._owned:
            self._owned[kind] = make()
            if self._admission.closed:
                self._owned[kind].close()
        return cast("T", self._owned[kind])

    def expect_next_poll(self) -> None:
        """Wait a moment for the next long poll: one is about to be answered."""
        if self._long_poll is None:
            self._long_poll = LongPollWait(self._channel.read_now, lambda: self._admission.reads)
        self._long_poll.answered()

    def probe(self, timeout: float) -> None:
        """Drop the connection unless its peer answers in `timeout` seconds."""
        self._channel.probe(timeout)

    # -- called by event streams (sessions/event_stream.py: Sink)

    def progress(self) -> int:
        """Bytes that the peer has taken so far."""
        return self._channel.progress

    def send_event(self, parts: Sequence[bytes]) -> None:
        """Queue a notification."""
        self._dialect.event(parts)

    def fell_behind(self, stream: EventStream) -> None:
        """Continue this stream when the channel has drained."""
        if self._attachment is not None:
            self._attachment.fell_behind(stream)

    # -- called by the channel (rpc/channel.py: MessageHandler)

    def drained(self) -> None:
        """The peer has taken most of what was queued: send one piece of a stream, then events."""
        self._flow_control.wake_push()
        if self._attachment is not None:
            self._attachment.drained()
        self._flow_control.wake_reply()
        self._admission.settle()

    def connection_lost(self) -> None:
        """The connection is over; its session is detached."""
        if self._admission.closed:
            return
        self._admission.close()
        if self._loading is not None:
            self._loading.cancel()
        self._schedule.close()
        self._requests.close()
        for owned in self._owned.values():
            owned.close()
        self._dialect.connection_lost()
        self._log.debug("connection lost")
        self._on_lost(self)

    def drain(self) -> None:
        """Read no further message and send no further event; messages that were read are still answered."""
        self._admission.drain()
        self._close_attachment()

    def _close_attachment(self) -> None:
        self._requests.close()
        if self._attachment is not None:
            self._attachment.close()

    @property
    def has_answered(self) -> bool:
        """Whether every message that was read has its answer, and the peer has taken it."""
        return not (self._admission.has_unanswered or self._channel.unsent)

    def abort(self) -> None:
        """Drop the connection."""
        self._channel.abort()

    @property
    def attached_session(self) -> Session | None:
        """The session, if the handshake got that far."""
        return self._session

    def has_pending_data(self) -> bool:
        """Whether queued bytes or the end of a process are still to be sent."""
        if self._channel.unsent:
            return True
        if self._attachment is not None and self._attachment.observes_any_end:
            return True
        return self._session is not None and any(not process.closed for process in self._session.processes)

    # -- called by dialects (rpc/dialect.py: DialectContext, rpc/json_rpc.py: BatchContext)

    def admit(
        self, target: Any, method: str, params: Any, size: int, trace: Mapping[str, Any] | None
    ) -> None:
        """Admit a request. Its result or error goes to the dialect, at once or later."""
        if trace is None and not self._traced:
            self._admit_request(target, method, params, size, None)
            return
        name = method if method in METHODS else UNKNOWN_METHOD
        traced = tracing.begin(name, trace, self._dialect.name, self._channel.kind)
        with tracing.active(traced):
            self._admit_request(target, method, params, size, traced)

    def initialized(self) -> bool:
        """The client has sent `initialized`; False if there was no `initialize` before."""
        if self._session is not None:
            self._ready = True
            self._session.set_client(self)
        return self._ready

    def drop(self, reason: str) -> None:
        """Drop the connection for a fatal protocol error, without a reply; its session survives."""
        self._log.info("connection dropped", reason=reason)
        self._admission.discard_backlog()
        self._channel.abort()

    # -- the choice of the dialect

    def _choose_dialect(self, is_json_rpc: bool, message: bytes | bytearray) -> None:
        """The first message that could be decoded has shown the peer's dialect."""
        measures.dialect_chosen("standard" if is_json_rpc else "lean")
        if not is_json_rpc:
            self._use_dialect(self._codex)
            self._codex.receive(message)
            return
        self._admission.hold(message)
        self._loading = asyncio.get_running_loop().create_task(self._load_json_rpc())

    def _use_dialect(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._admission.use(dialect)

    async def _load_json_rpc(self) -> None:
        """Load the JSON-RPC 2.0 dialect in a thread, so that no other connection waits."""
        try:
            dispatch = await asyncio.to_thread(LOADER.load, load_dispatch)
        except Exception as error:  # a full table of descriptors, a broken installation
            self._log.error("the standard dialect cannot be loaded", exc_info=error)
            self._channel.send((encode_json_rpc_error(None, InternalError("internal error")),))
            self._channel.finish()
            return
        self._use_dialect(JsonRpcDialect(self._channel, self, dispatch, one_at_a_time=self._strict))
        self._admission.release()

    # -- admission

    def _admit_request(
        self, target: Any, name: str, arguments: Any, size: int, trace: RequestTrace | None
    ) -> None:
        """Answer a request at once, or let it wait. Not split, because each call counts here."""
        began = perf_counter()
        try:
            method = METHODS.get(name)
            if method is None:
                raise MethodNotFound(f"there is no method `{name[:MAX_QUOTED_CHARACTERS]}`")
            params = decode_params(method, arguments)
            if not self._ready or method.family is None:
                self._check_handshake(method)
            if name in _TAKE_BACK and self._takes_back(name, params):
                result: Any = {"running": True}
            elif method.family is not None and self._schedule.must_wait(name, params):
                self._schedule.enqueue(PendingRequest(target, method, params, size, began, trace))
                return
            else:
                result = self._handlers[name](self, params)
            if result.__class__ not in AT_ONCE:
                self._schedule.start(PendingRequest(target, method, params, size, began, trace), result)
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

    def _takes_back(self, name: str, params: Any) -> bool:
        """Cancel what a request of `_TAKE_BACK` ends, if it has not begun; whether that is all it meant."""
        if name == "fs/endSearch":
            searches = ("fs/search", "fs/glob")
            self._schedule.take_back(searches, "search_id", params.search_id, search_ended())
            return False
        if params.session_id not in (None, self.session.id):
            return False
        starts, name = ("process/start", "port/open"), params.process_id
        taken = self._schedule.take_back(starts, "process_id", name, start_cancelled(name))
        # A process of this name may run already, or start just now; then it is meant, too.
        return taken and not self.session.processes.is_taken(name)

    # -- called by the schedule (rpc/scheduler.py: Work)

    def invoke(self, pending: PendingRequest) -> Any:
        """Call the handler of a request that may run now."""
        return self._handlers[pending.method.name](self, pending.params)

    def succeeded(self, pending: PendingRequest, result: Any) -> None:
        """Answer a request that waited with its result."""
        try:
            self._dialect.result(pending.target, result)
        except Exception as error:
            self.failed(pending, error)
        else:
            self._answered(pending, 0)

    async def streamed(self, pending: PendingRequest, result: StreamedResult) -> None:
        """Answer a request that waited with a large result."""
        self._answered(pending, await self._dialect.stream(pending.target, result))

    def failed(self, pending: PendingRequest, error: Exception) -> None:
        """Answer a request that waited with an error."""
        self._answered(pending, self._fail(pending.target, pending.method.name, error))

    # -- replies

    def _answered(self, pending: PendingRequest, code: int) -> None:
        measures.request_done(pending.method.name, perf_counter() - pending.began, code)
        if pending.trace is not None:
            pending.trace.end(code)

    def _fail(self, target: Any, method: str, error: Exception) -> int:
        """Answer with an error; return its code."""
        if isinstance(error, OSError):
            error = file_error(error)
        elif not isinstance(error, RpcError):
            self._log.error("request failed", method=method, exc_info=error)
            error = InternalError("internal error")
        self._dialect.error(target, error)
        return error.code

    async def send_stream(self, prefix: bytes, result: StreamedResult, suffix: bytes) -> None:
        """Send a large message in pieces. If its source fails, drop the connection: half of a message cannot
        be taken back.
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

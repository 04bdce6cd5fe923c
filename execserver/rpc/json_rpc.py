"""Standard JSON-RPC 2.0, for generic clients and editors: batches, notifications, `data` in errors.

The envelope's rules are checked here, the dispatching is jsonrpcserver's (`dispatcher.py`), and the
order of requests and the handlers are those of the lean dialect:

    receive → jsonrpcserver → Call.perform → admit … result or error → jsonrpcserver → reply

Rules kept in this file:

1. jsonrpcserver's coroutine is driven by hand: all it ever waits for is its `Call`. So a request is
   admitted, and if possible answered, before `receive` returns, as in the lean dialect.
2. The replies of a batch leave together, in the order of its requests, when the last is done.
3. A notification is never answered, whatever comes of it.

`docs/protocol.md`, "Standard JSON-RPC".
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from execprotocol.errors import InvalidRequest, MethodNotFound, ParseFailure, RpcError
from execprotocol.methods import METHODS
from execserver.rpc import codec
from execserver.rpc.channel import Channel
from execserver.rpc.codec import ParseError
from execserver.rpc.codex_dialect import reply_too_large
from execserver.rpc.dialect import VERSION, DialectContext, encode_json_rpc_error
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from jsonrpcserver import Result

MAX_BATCH = 100
"""Requests in one batch."""

MAX_BATCH_REPLY_BYTES = 16 << 20
"""What the replies in a connection's unanswered batches may have together: they wait in memory."""

SMALL_REPLY_BYTES = 16 << 10
"""Up to this size a reply is never refused. Replies of requests that change something are smaller,
and what was carried out must not be reported as refused."""

Response = dict[str, Any]
"""A response object whose `result`, if it has one, is still `Encoded` or `StreamedResult`."""

Outcome = Encoded | StreamedResult | RpcError

log = Logger()

T = TypeVar("T")


class BatchContext(DialectContext, Protocol):
    """The connection, as this dialect sees it."""

    def batch_begun(self, calls: int) -> None:
        """A batch of so many requests is being worked on; where requests follow each other, nothing
        passes it.
        """

    def batch_answered(self, calls: int) -> None:
        """Its replies are queued, or there are none."""


class Call:
    """One request or notification on its way: jsonrpcserver hands it to the method as its context.

    Args:
        message: the request, its envelope checked.
        size: bytes of it.
        finished: called with the response once the call has an outcome; None for a notification.
        batch: what it came in, if it did.
    """

    def __init__(
        self,
        message: Mapping[str, Any],
        size: int,
        finished: Callable[[Call, Response | None], None],
        batch: Batch | None = None,
    ) -> None:
        self.message = message
        self.size = size
        self.batch = batch
        self._finished = finished
        self._outcome: Outcome | None = None
        self._steps: Coroutine[Call, None, Response | None] | None = None
        self._waiting = False

    @property
    def is_notification(self) -> bool:
        """Whether nobody wants an answer."""
        return "id" not in self.message

    def run(self, dispatch: Dispatch, dialect: JsonRpcDialect) -> None:
        """Begin; the call finishes here if its outcome is there at once."""
        self._dialect = dialect
        self._steps = dispatch(self.message, self)
        self._step()

    async def perform(self, method: str, params: Any) -> Encoded | StreamedResult:
        """Have the method done, in its turn.

        Raises:
            RpcError: it failed.
        """
        self._dialect.admit(self, method, params)
        return await self

    def settle(self, outcome: Outcome) -> None:
        """There is a result, or an error."""
        self._outcome = outcome
        if self._waiting:
            self._waiting = False
            self._step()

    def __await__(self) -> Generator[Call, None, Encoded | StreamedResult]:
        if self._outcome is None:
            self._waiting = True
            yield self
        assert self._outcome is not None, "only `settle` goes on"
        if isinstance(self._outcome, RpcError):
            raise self._outcome
        return self._outcome

    def _step(self) -> None:
        assert self._steps is not None
        try:
            self._steps.send(None)
        except StopIteration as end:
            self._steps = None
            self._finished(self, end.value)

    def abandon(self) -> None:
        """Nobody waits for the outcome any more; one that comes is dropped."""
        self._waiting = False
        if self._steps is not None:
            self._steps.close()
            self._steps = None


Dispatch = Callable[[Mapping[str, Any], Call], Coroutine[Call, None, Response | None]]
"""From a request to its response; what it yields is the call, when that has to wait."""


class Batch:
    """The requests of one array, and their replies so far."""

    def __init__(self, replies: list[Response | InvalidRequest | None]) -> None:
        self.replies = replies
        """One for each element, in order; None where there is none, or none yet."""
        self.waiting: deque[tuple[int, Call]] = deque()
        self.places: dict[Call, int] = {}
        self.calls = 0
        self.unfinished = 0
        self.reply_bytes = 0


class JsonRpcDialect:
    """JSON-RPC 2.0 as its specification has it.

    Args:
        channel: the transport's side.
        admission: the connection.
        dispatch: jsonrpcserver, over the connection's methods.
        one_at_a_time: the requests of a batch follow each other (`--concurrent-requests 1`).
    """

    name = "standard"

    def __init__(
        self, channel: Channel, admission: BatchContext, dispatch: Dispatch, *, one_at_a_time: bool
    ) -> None:
        self._channel = channel
        self._admission = admission
        self._dispatch = dispatch
        self._one_at_a_time = one_at_a_time
        self._calls: set[Call] = set()
        """Those without an outcome yet."""
        self._batch_bytes = 0
        """Bytes of replies that wait in batches."""

    # -- messages in

    def receive(self, message: bytes | bytearray) -> None:
        """One message: a request, a notification, or an array of them."""
        try:
            value = codec.decode_any(message)
        except ParseError as error:
            self.refuse_framing(str(error))
            return
        if isinstance(value, list):
            self._receive_batch(value, len(message))
            return
        if _is_response(value):
            log.debug("response to no request of ours")
            return
        fault = envelope_fault(value)
        if fault is not None:
            self._channel.send((encode_json_rpc_error(None, fault),))
            return
        self._run(Call(value, len(message), self._reply))

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are no JSON."""
        measures.parse_error()
        self._channel.send((encode_json_rpc_error(None, ParseFailure(reason)),))

    def connection_lost(self) -> None:
        """Nobody is there to be answered any more."""
        for call in self._calls:
            call.abandon()
        self._calls.clear()

    def _run(self, call: Call) -> None:
        self._calls.add(call)
        call.run(self._dispatch, self)

    def admit(self, call: Call, method: str, params: Any) -> None:
        """A call has come as far as its method.

        Raises:
            RpcError: it is `initialized` and out of place.
        """
        if method != "initialized":
            self._admission.admit(call, method, params, call.size, call.message.get("trace"))
        elif not call.is_notification:
            raise MethodNotFound("`initialized` is a notification: send it without an id")
        elif self._admission.initialized():
            call.settle(Encoded(b"{}"))
        else:
            raise InvalidRequest("client must call initialize before sending initialized")

    # -- batches

    def _receive_batch(self, items: list[Any], size: int) -> None:
        if not items or len(items) > MAX_BATCH:
            refusal = InvalidRequest(f"a batch holds 1 to {MAX_BATCH} requests, this one has {len(items)}")
            self._channel.send((encode_json_rpc_error(None, refusal),))
            return
        items = [item for item in items if not (isinstance(item, dict) and _is_response(item))]
        batch = Batch([envelope_fault(item) for item in items])
        for place, item in enumerate(items):
            if batch.replies[place] is None:
                call = Call(item, size // len(items), self._reply_in_batch, batch)
                batch.waiting.append((place, call))
        batch.calls = len(batch.waiting)
        batch.unfinished = batch.calls + 1  # itself, until all of it is begun
        self._admission.batch_begun(batch.calls)
        self._go_on(batch)
        self._finish_one(batch)

    def _go_on(self, batch: Batch) -> None:
        """Begin what may begin."""
        while batch.waiting and not (self._one_at_a_time and batch.places):
            place, call = batch.waiting.popleft()
            batch.places[call] = place
            self._run(call)

    def _reply_in_batch(self, call: Call, response: Response | None) -> None:
        self._calls.discard(call)
        batch = call.batch
        assert batch is not None
        batch.replies[batch.places.pop(call)] = response
        if self._one_at_a_time:
            self._go_on(batch)
        self._finish_one(batch)

    def _finish_one(self, batch: Batch) -> None:
        batch.unfinished -= 1
        if batch.unfinished:
            return
        pieces: list[bytes] = []
        for reply in batch.replies:
            if isinstance(reply, InvalidRequest):
                pieces += (b",", encode_json_rpc_error(None, reply))
            elif reply is not None:
                pieces += (b",", *_encode_response(reply))
        self._batch_bytes -= batch.reply_bytes
        if pieces:
            self._channel.send((b"[", *pieces[1:], b"]"))
        for reply in batch.replies:
            _run_after(reply)
        self._admission.batch_answered(batch.calls)

    # -- replies out

    def result(self, target: Call, result: Mapping[str, Any] | Encoded) -> None:
        """The connection has a result."""
        encoded = result if isinstance(result, Encoded) else Encoded(codec.encode_json(result))
        size = encoded.size
        limit = self._admission.max_reply_bytes
        if limit is not None and size > limit:
            raise reply_too_large(limit)
        if target.is_notification:
            if encoded.begun and encoded.after is not None:
                encoded.after()
        elif target.batch is not None:
            refusable = size > SMALL_REPLY_BYTES and not encoded.begun
            if refusable and self._batch_bytes + size > MAX_BATCH_REPLY_BYTES:
                raise _too_large_for_batch()
            self._batch_bytes += size
            target.batch.reply_bytes += size
        target.settle(encoded)

    def error(self, target: Call, error: RpcError) -> None:
        """The connection has an error."""
        # Its traceback would keep what it was raised over, a refused reply perhaps, until all of a
        # batch is answered.
        target.settle(error.with_traceback(None))

    async def stream(self, target: Call, result: StreamedResult) -> int:
        """The connection has a large result."""
        if target.batch is not None or target.is_notification:
            await result.pieces.aclose()
            refusal = _too_large_for_batch()
            self.error(target, refusal)
            return refusal.code
        # For jsonrpcserver this is the outcome; what it makes of it is known, and sent here.
        self._calls.discard(target)
        target.abandon()
        prefix = b'{"jsonrpc":"2.0","id":%b,"result":' % codec.encode_json(target.message["id"])
        await self._admission.send_stream(prefix, result, b"}")
        return 0

    def event(self, parts: Sequence[bytes]) -> None:
        """A notification: the lean one with the version member in front."""
        self._channel.send((b'{"jsonrpc":"2.0",' + parts[0][1:], *parts[1:]))

    def _reply(self, call: Call, response: Response | None) -> None:
        self._calls.discard(call)
        if response is not None:
            self._channel.send(_encode_response(response))
        _run_after(response)


def envelope_fault(message: Any) -> InvalidRequest | None:
    """What is wrong with the envelope of a request, if anything is."""
    if not isinstance(message, dict):
        return InvalidRequest("a request is an object")
    if message.get("jsonrpc") != VERSION:
        return InvalidRequest(f'`jsonrpc` must be "{VERSION}"', field="jsonrpc")
    if not isinstance(message.get("method"), str):
        return InvalidRequest("`method` must be a string", field="method")
    identifier = message.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, int | float | str | None):
        return InvalidRequest("`id` must be a string, a number or null", field="id")
    if isinstance(identifier, int) and not codec.MIN_ID <= identifier <= codec.MAX_ID:
        return InvalidRequest("`id` must fit into a signed 64-bit integer", field="id")
    # Not in the specification, but sent by clients that have none: null.
    if not isinstance(message.get("params"), dict | list | None):
        return InvalidRequest("`params` must be an object or an array", field="params")
    try:
        codec.check_trace(message.get("trace"))
    except ParseError as error:
        return InvalidRequest(str(error), field="trace")
    return None


def _is_response(message: Mapping[str, Any]) -> bool:
    return "method" not in message and "id" in message and ("result" in message or "error" in message)


def _encode_response(response: Response) -> tuple[bytes, ...]:
    """A response object as bytes, its result not copied when it is large."""
    if "error" in response:
        return (codec.encode_json(response),)
    result = response["result"]
    return (
        b'{"jsonrpc":"2.0","id":%b,"result":' % codec.encode_json(response["id"]),
        result.json,
        *result.rest,
        b"}",
    )


def _run_after(reply: Response | InvalidRequest | None) -> None:
    """What the replies were not to be overtaken by."""
    if isinstance(reply, dict) and "result" in reply and reply["result"].after is not None:
        reply["result"].after()


def _too_large_for_batch() -> InvalidRequest:
    return InvalidRequest(
        f"replies may have {MAX_BATCH_REPLY_BYTES} bytes together in batches: send this request alone",
        name="reply_too_large",
    )


# -- jsonrpcserver


class _EveryName(dict[str, T]):
    """A method for every name: of an unknown one the connection says so itself, in its own words."""

    def __init__(self, make: Callable[[str], T], known: Iterable[str]) -> None:
        super().__init__({name: make(name) for name in known})
        self._make = make

    def __missing__(self, name: str) -> T:
        return self._make(name)


@cache
def load_dispatch() -> Dispatch:
    """Load jsonrpcserver, with a JSON Schema library of its own: 50 ms, and 4 MiB.

    Returns:
        The response object for a request whose envelope is right; None for a notification.

    Raises:
        ImportError, OSError: it cannot be loaded.
    """
    with warnings.catch_warnings():
        # It reads its schema in a way that Python 3.11 deprecates.
        warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
        from jsonrpcserver import Error, Success
        from jsonrpcserver.async_dispatcher import dispatch_request
        from jsonrpcserver.dispatcher import create_request, not_notification, to_response
        from jsonrpcserver.response import to_serializable

    def method(name: str) -> Callable[..., Any]:
        async def call(context: Call, /, *args: Any, **kwargs: Any) -> Result:
            try:
                return Success(await context.perform(name, list(args) if args else kwargs))
            except RpcError as error:
                data = codec.printable_members(error.data())
                return Error(error.code, codec.printable(error.message), data)

        return call

    methods = _EveryName(method, METHODS)

    async def dispatch(message: Mapping[str, Any], call: Call) -> Response | None:
        request = create_request(
            {name: value for name, value in message.items() if value is not None or name == "id"}
        )
        outcome = await dispatch_request(methods, call, request)
        return cast("Response", to_serializable(to_response(*outcome))) if not_notification(outcome) else None

    return dispatch

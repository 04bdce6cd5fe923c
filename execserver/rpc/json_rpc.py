"""The JSON-RPC 2.0 dialect (`standard` in logs and metrics), for generic clients and editors: batches,
notifications, `data` in errors.

The rules of the envelope are checked here, jsonrpcserver dispatches, and the order of requests and the
handlers are those of the Codex dialect:

    receive → jsonrpcserver → Call.perform → admit … result or error → jsonrpcserver → reply

jsonrpcserver finds the method, binds arguments, tells requests from notifications and builds responses. Its
parser and its schema are not used, because both checks are done before, within the limits of the wire. Nor
are its batches, in which one bad element fails all and each element costs a task.

Rules kept in this file:

1. jsonrpcserver's coroutine is driven by hand: it only ever awaits its `Call`. So a request is admitted, and
   if possible answered, before `receive` returns, as in the Codex dialect.
2. The replies of a batch leave together, in the order of its requests, once the last is done.
3. A notification is never answered, even if it fails.

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
"""The most requests in one batch."""

MAX_BATCH_REPLY_BYTES = 16 << 20
"""The most bytes of all replies in a connection's unanswered batches: they wait in memory."""

SMALL_REPLY_BYTES = 16 << 10
"""Smaller replies are never refused. Replies of requests with an effect are smaller, and a request that was
carried out must not be reported as refused."""

ResponseObject = dict[str, Any]
"""A response object whose `result`, if it has one, is still `Encoded` or `StreamedResult`."""

CallOutcome = Encoded | StreamedResult | RpcError

log = Logger()

T = TypeVar("T")


class BatchContext(DialectContext, Protocol):
    """The connection's side, called by this dialect."""

    def batch_begun(self, calls: int) -> None:
        """Count the requests of a batch until `batch_answered`. With one request at a time, later messages
        wait for the batch.
        """

    def batch_answered(self, calls: int) -> None:
        """The replies of a batch are queued, or it has none."""


class Call:
    """One request or notification; jsonrpcserver passes it to the method as its context.

    Args:
        message: the request, its envelope checked.
        size: bytes of the request.
        finished: called with the response once the call has an outcome; None for a notification.
        batch: the batch of the request, if it came in one.
    """

    def __init__(
        self,
        message: Mapping[str, Any],
        size: int,
        finished: Callable[[Call, ResponseObject | None], None],
        batch: Batch | None = None,
    ) -> None:
        self.message = message
        self.size = size
        self.batch = batch
        self._finished = finished
        self._outcome: CallOutcome | None = None
        self._steps: Coroutine[Call, None, ResponseObject | None] | None = None
        self._waiting = False

    @property
    def is_notification(self) -> bool:
        """Whether the call has no answer."""
        return "id" not in self.message

    def run(self, dispatch: Dispatch, dialect: JsonRpcDialect) -> None:
        """Begin the call; it finishes here if its outcome is there at once."""
        self._dialect = dialect
        self._steps = dispatch(self.message, self)
        self._step()

    async def perform(self, method: str, params: Any) -> Encoded | StreamedResult:
        """Run the method in its turn.

        Raises:
            RpcError: the method failed.
        """
        self._dialect.admit(self, method, params)
        return await self

    def settle(self, outcome: CallOutcome) -> None:
        """Set the result or the error."""
        self._outcome = outcome
        if self._waiting:
            self._waiting = False
            self._step()

    def __await__(self) -> Generator[Call, None, Encoded | StreamedResult]:
        if self._outcome is None:
            self._waiting = True
            yield self
        assert self._outcome is not None, "only `settle` continues"
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
        """Drop the outcome."""
        self._waiting = False
        if self._steps is not None:
            self._steps.close()
            self._steps = None


Dispatch = Callable[[Mapping[str, Any], Call], Coroutine[Call, None, ResponseObject | None]]
"""From a request to its response; yields the call if that has to wait."""


class Batch:
    """The requests of one array, and their replies so far.

    `replies` has one for each element, in order; None if there is none, or none yet.
    """

    def __init__(self, replies: list[ResponseObject | InvalidRequest | None]) -> None:
        self.replies = replies
        self.waiting: deque[tuple[int, Call]] = deque()
        self.places: dict[Call, int] = {}
        self.calls = 0
        self.unfinished = 0
        self.reply_bytes = 0


class JsonRpcDialect:
    """The JSON-RPC 2.0 dialect of one connection.

    Args:
        channel: the transport's side.
        admission: the connection.
        dispatch: jsonrpcserver with the connection's methods.
        one_at_a_time: whether a request waits for the one before it (`--concurrent-requests 1`).
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
        """The calls without an outcome."""
        self._batch_bytes = 0
        """The bytes of replies that wait in batches."""

    # -- messages in

    def receive(self, message: bytes | bytearray) -> None:
        """Serve one message: a request, a notification, or an array of them."""
        try:
            value = codec.decode_any(message)
        except ParseError as error:
            self.refuse_framing(str(error))
            return
        if isinstance(value, list):
            self._receive_batch(value, len(message))
            return
        if codec.is_response(value):
            self._receive_response(value)
            return
        fault = envelope_fault(value)
        if fault is not None:
            self._channel.send((encode_json_rpc_error(None, fault),))
            return
        self._run(Call(value, len(message), self._reply))

    def _receive_response(self, message: Mapping[str, Any]) -> None:
        if not self._admission.answered(codec.response(message)):
            log.debug("response to no request of ours")

    def refuse_framing(self, reason: str) -> None:
        """Answer bytes that are not JSON."""
        measures.parse_error()
        self._channel.send((encode_json_rpc_error(None, ParseFailure(reason)),))

    def connection_lost(self) -> None:
        """Abandon all calls: the connection is over."""
        for call in self._calls:
            call.abandon()
        self._calls.clear()

    def _run(self, call: Call) -> None:
        self._calls.add(call)
        call.run(self._dispatch, self)

    def admit(self, call: Call, method: str, params: Any) -> None:
        """Admit a call whose method is known.

        Raises:
            RpcError: the method is `initialized`, and not allowed here.
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
        calls = []
        for item in items:
            if isinstance(item, dict) and codec.is_response(item):
                self._receive_response(item)
            else:
                calls.append(item)
        items = calls
        batch = Batch([envelope_fault(item) for item in items])
        for place, item in enumerate(items):
            if batch.replies[place] is None:
                call = Call(item, size // len(items), self._reply_in_batch, batch)
                batch.waiting.append((place, call))
        batch.calls = len(batch.waiting)
        batch.unfinished = batch.calls + 1  # one for the batch itself, until all calls have begun
        self._admission.batch_begun(batch.calls)
        self._continue(batch)
        self._finish_one(batch)

    def _continue(self, batch: Batch) -> None:
        """Begin the calls that may begin."""
        while batch.waiting and not (self._one_at_a_time and batch.places):
            place, call = batch.waiting.popleft()
            batch.places[call] = place
            self._run(call)

    def _reply_in_batch(self, call: Call, response: ResponseObject | None) -> None:
        self._calls.discard(call)
        batch = call.batch
        assert batch is not None
        batch.replies[batch.places.pop(call)] = response
        if self._one_at_a_time:
            self._continue(batch)
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
        """Reply with a result."""
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
        """Reply with an error."""
        # Its traceback would keep objects alive, perhaps a refused reply, until the whole batch is answered.
        target.settle(error.with_traceback(None))

    async def stream(self, target: Call, result: StreamedResult) -> int:
        """Reply in pieces."""
        if target.batch is not None or target.is_notification:
            await result.pieces.aclose()
            refusal = _too_large_for_batch()
            self.error(target, refusal)
            return refusal.code
        # jsonrpcserver's part ends here: its response would be known, and is sent in pieces.
        self._calls.discard(target)
        target.abandon()
        prefix = b'{"jsonrpc":"2.0","id":%b,"result":' % codec.encode_json(target.message["id"])
        await self._admission.send_stream(prefix, result, b"}")
        return 0

    def event(self, parts: Sequence[bytes]) -> None:
        """Send a message of the server: that of the Codex dialect with the version member in front."""
        self._channel.send((b'{"jsonrpc":"2.0",' + parts[0][1:], *parts[1:]))

    def _reply(self, call: Call, response: ResponseObject | None) -> None:
        self._calls.discard(call)
        if response is not None:
            self._channel.send(_encode_response(response))
        _run_after(response)


def envelope_fault(message: Any) -> InvalidRequest | None:
    """The error in the envelope of a request, or None."""
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
    # Null is not in the specification, but clients without parameters send it.
    if not isinstance(message.get("params"), dict | list | None):
        return InvalidRequest("`params` must be an object or an array", field="params")
    try:
        codec.check_trace(message.get("trace"))
    except ParseError as error:
        return InvalidRequest(str(error), field="trace")
    return None


def _encode_response(response: ResponseObject) -> tuple[bytes, ...]:
    """A response object as bytes; a large result is not copied."""
    if "error" in response:
        return (codec.encode_json(response),)
    result = response["result"]
    return (
        b'{"jsonrpc":"2.0","id":%b,"result":' % codec.encode_json(response["id"]),
        result.json,
        *result.rest,
        b"}",
    )


def _run_after(reply: ResponseObject | InvalidRequest | None) -> None:
    """Call `after` of a reply that has been queued."""
    if isinstance(reply, dict) and "result" in reply and reply["result"].after is not None:
        reply["result"].after()


def _too_large_for_batch() -> InvalidRequest:
    return InvalidRequest(
        f"replies may have {MAX_BATCH_REPLY_BYTES} bytes together in batches: send this request alone",
        name="reply_too_large",
    )


# -- jsonrpcserver


class _EveryName(dict[str, T]):
    """A method for every name: the connection itself refuses an unknown method."""

    def __init__(self, make: Callable[[str], T], known: Iterable[str]) -> None:
        super().__init__({name: make(name) for name in known})
        self._make = make

    def __missing__(self, name: str) -> T:
        return self._make(name)


@cache
def load_dispatch() -> Dispatch:
    """Load jsonrpcserver and its JSON Schema library: 50 ms and 4 MiB.

    Returns:
        A function that makes the response object for a request with a correct envelope; None for a
        notification.

    Raises:
        ImportError, OSError: the library cannot be loaded.
    """
    with warnings.catch_warnings():
        # It reads its schema with a function that Python 3.11 deprecates.
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

    async def dispatch(message: Mapping[str, Any], call: Call) -> ResponseObject | None:
        request = create_request(
            {name: value for name, value in message.items() if value is not None or name == "id"}
        )
        outcome = await dispatch_request(methods, call, request)
        return (
            cast("ResponseObject", to_serializable(to_response(*outcome)))
            if not_notification(outcome)
            else None
        )

    return dispatch

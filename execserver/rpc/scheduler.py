"""The schedule of a connection's requests: when each of them runs.

    enqueue ──slot──▶ order ──▶ handler ──▶ answered        a request that waits for others
                                  start ──▶ answered        a request that runs already

Rules kept in this file:

1. With a limit on concurrent requests, a request takes its slot first, in the order of arrival, and then its
   place in the order of requests (`ordering.py`). Control methods never wait for a slot.
2. A waiting `process/read` or `fs/watchRead` delays no other request: it leaves the order as soon as it runs.
3. At most `MAX_RUNNING` file-system requests run at a time, without those two, and none begins while the peer
   has many bytes to take.
4. No recursion: a finished request makes others possible, and `step` runs them one at a time, in the
   connection's loop.

`docs/protocol.md`, "Request scheduling".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from execprotocol.errors import RpcError
from execprotocol.methods import Method
from execserver.rpc.flow_control import FlowControl
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.rpc.ordering import AccessTable, RequestOrder, ResourceAccess, Ticket
from execserver.telemetry import tracing
from execserver.telemetry.tracing import RequestTrace

if TYPE_CHECKING:
    from execprotocol.model import Params


REQUEST_OVERHEAD_BYTES = 512
"""The memory of an unfinished request beside its text."""

MAX_RUNNING = 32
"""Requests of one connection in threads at a time: a thousand requests on a dead mount must not take all
threads from other connections."""

LONG_POLLS = frozenset({"process/read", "fs/watchRead"})
"""Methods that may wait for something to happen."""

AT_ONCE = (dict, Encoded)
"""The types of a result that a handler has at once; other values are awaited."""


class PendingRequest(msgspec.Struct, eq=False):
    """A request that cannot be answered at once."""

    target: Any
    """The target of the answer, for the dialect: an id, or a call."""
    method: Method
    params: Params
    size: int
    began: float
    """When it arrived, on the clock of `perf_counter`."""
    trace: RequestTrace | None
    ticket: Ticket | None = None
    holds_slot: bool = False
    started: bool = False
    """Whether its handler was called, or will never be."""
    at_work: bool = False
    """Whether what the handler returned has begun to run, in a task."""


class Work(Protocol):
    """The connection's side, called by the schedule."""

    def invoke(self, pending: PendingRequest) -> Any:
        """Call the handler."""

    def succeeded(self, pending: PendingRequest, result: Any) -> None:
        """Answer with a result, or with an error if the result cannot be sent."""

    async def streamed(self, pending: PendingRequest, result: StreamedResult) -> None:
        """Answer with a large result; return when all of it is queued, or the connection is gone."""

    def failed(self, pending: PendingRequest, error: Exception) -> None:
        """Answer with an error."""

    def progressed(self) -> None:
        """Call `step` until it returns False: a request may run now."""


class Scheduler:
    """The unfinished requests of one connection.

    Args:
        slots: `--concurrent-requests` above 1; None for no limit.
        work: the connection.
        flow_control: bounds what is sent to the peer.
    """

    def __init__(self, slots: int | None, work: Work, flow_control: FlowControl) -> None:
        self.order = RequestOrder()
        self.held_bytes = 0
        """The memory of the unfinished requests."""
        self.unfinished: set[PendingRequest] = set()
        self._free_slots = slots
        self._work = work
        self._flow_control = flow_control
        self._accesses = AccessTable()
        self._by_ticket: dict[Ticket, PendingRequest] = {}
        self._waiting_for_slot: deque[PendingRequest] = deque()
        self._runnable: deque[PendingRequest] = deque()
        """Requests that waited and may be able to run now."""
        self._waiting_to_run: deque[tuple[PendingRequest, Awaitable[Any]]] = deque()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def session_id(self) -> str | None:
        """The connection's session, once it has one; requests may name it or leave it out."""
        return self._accesses.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._accesses.session_id = session_id

    def must_wait(self, name: str, params: Params) -> bool:
        """Whether a request that has just arrived has to wait."""
        if self._free_slots is not None:
            return True
        return not self.order.empty and self.order.must_wait(self._accesses.of(name, params))

    def enqueue(self, pending: PendingRequest) -> None:
        """Queue a request; it may run at once."""
        self._hold(pending)
        self._enter_order(pending)
        if self._free_slots is None:
            return
        if pending.method.counted:
            if not self._free_slots or self._waiting_for_slot:
                self._waiting_for_slot.append(pending)
                return
            self._free_slots -= 1
            pending.holds_slot = True
        self._runnable.append(pending)
        self._work.progressed()

    def start(self, pending: PendingRequest, work: Any) -> None:
        """Await the result of a request that did not have to wait for others."""
        pending.started = True
        self._hold(pending)
        if pending.method.name in LONG_POLLS:
            # It waits for output. To begin the wait takes as long as to answer another message of the same
            # read.
            asyncio.get_running_loop().call_soon(self._run_later, pending, work)
            return
        self._enter_order(pending)
        self._run(pending, work)

    def take_back(self, methods: Collection[str], member: str, name: str, error: RpcError) -> bool:
        """Answer requests with an error that have not begun to work: they wait, or came in this turn of the
        loop.

        Args:
            methods: of the requests.
            member: the parameter that names what they make.
            name: its value.
            error: the answer.

        Returns:
            Whether there were any.
        """
        taken = [
            pending
            for pending in self.unfinished
            if pending.method.name in methods
            and not pending.at_work
            and getattr(pending.params, member) == name
        ]
        for pending in taken:
            pending.started = True
            if pending in self._waiting_for_slot:
                self._waiting_for_slot.remove(pending)
            self._work.failed(pending, error)
        for pending in taken:  # others may begin
            self.finish(pending)
        return bool(taken)

    def step(self) -> bool:
        """Run one request that has become possible; False if there is none."""
        if self._runnable:
            self._begin(self._runnable.popleft())
        elif self._waiting_to_run and self._may_run():
            self._spawn(*self._waiting_to_run.popleft(), counted=True)
        else:
            return False
        return True

    def finish(self, pending: PendingRequest) -> None:
        """Remove an answered request, and release the requests that waited for it."""
        self.unfinished.discard(pending)
        self.held_bytes -= pending.size + REQUEST_OVERHEAD_BYTES
        if self._closed:
            return
        if pending.holds_slot:
            self._pass_slot_on()
        self._leave_order(pending)
        self._work.progressed()

    def close(self) -> None:
        """The connection is gone: begin no further request, and cancel the running ones."""
        self._closed = True
        self._runnable.clear()
        for task in self._tasks:
            task.cancel()
        for _, work in self._waiting_to_run:
            _discard(work)
        self._waiting_to_run.clear()

    # -- running

    def _hold(self, pending: PendingRequest) -> None:
        self.unfinished.add(pending)
        self.held_bytes += pending.size + REQUEST_OVERHEAD_BYTES

    def _begin(self, pending: PendingRequest) -> None:
        """Run a request that waited, if it waits for no other."""
        needs_slot = self._free_slots is not None and pending.method.counted and not pending.holds_slot
        if pending.started or needs_slot or (pending.ticket is not None and not pending.ticket.ready):
            return
        pending.started = True
        try:
            with tracing.active(pending.trace):
                result = self._work.invoke(pending)
        except Exception as error:
            self._work.failed(pending, error)
            self.finish(pending)
            return
        if pending.method.name in LONG_POLLS:
            self._leave_order(pending)
        if result.__class__ not in AT_ONCE:
            self._run(pending, result)
            return
        self._work.succeeded(pending, result)
        self.finish(pending)

    def _may_run(self) -> bool:
        return self._running < MAX_RUNNING and self._flow_control.may_queue_reply()

    def _run(self, pending: PendingRequest, work: Any) -> None:
        if isinstance(work, StreamedResult):
            work = _already(work)
        if pending.method.family != "filesystem" or pending.method.name in LONG_POLLS:
            self._spawn(pending, work, counted=False)
        elif self._may_run():
            self._spawn(pending, work, counted=True)
        else:
            self._waiting_to_run.append((pending, work))

    def _run_later(self, pending: PendingRequest, work: Any) -> None:
        if self._closed:
            _discard(work)
            self.finish(pending)
        else:
            self._run(pending, work)

    def _spawn(self, pending: PendingRequest, work: Awaitable[Any], *, counted: bool) -> None:
        self._running += counted
        with tracing.active(pending.trace):  # the task keeps the context
            task = asyncio.get_running_loop().create_task(self._complete(pending, work, counted=counted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never awaits its work.
        task.add_done_callback(lambda _: _discard(work))

    async def _complete(self, pending: PendingRequest, work: Awaitable[Any], *, counted: bool) -> None:
        if pending not in self.unfinished:
            return  # taken back before this first step
        pending.at_work = True
        try:
            result = await work
            if isinstance(result, StreamedResult):
                await self._work.streamed(pending, result)
            else:
                self._work.succeeded(pending, result)
        except Exception as error:
            self._work.failed(pending, error)
        finally:
            self._running -= counted
            self.finish(pending)

    # -- waiting

    def _pass_slot_on(self) -> None:
        assert self._free_slots is not None
        if self._waiting_for_slot:
            following = self._waiting_for_slot.popleft()
            following.holds_slot = True
            self._runnable.append(following)
        else:
            self._free_slots += 1

    def _enter_order(self, pending: PendingRequest) -> None:
        accesses: tuple[ResourceAccess, ...] = self._accesses.of(pending.method.name, pending.params)
        pending.ticket = self.order.add(accesses)
        self._by_ticket[pending.ticket] = pending

    def _leave_order(self, pending: PendingRequest) -> None:
        if pending.ticket is None:
            return
        ticket, pending.ticket = pending.ticket, None
        del self._by_ticket[ticket]
        for ready in self.order.finish(ticket):
            # A request that was taken back no longer has a ticket.
            if ready in self._by_ticket:
                self._runnable.append(self._by_ticket[ready])


async def _already(result: StreamedResult) -> StreamedResult:
    return result


def _discard(work: Any) -> None:
    close = getattr(work, "close", None)
    if close is not None:
        close()

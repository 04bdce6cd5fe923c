"""Which of a connection's requests runs when.

    enqueue ──slot──▶ order ──▶ handler ──▶ answered        what has to wait for others
                                  start ──▶ answered        what runs already

Rules kept in this file:

1. With a limit on concurrent requests a request takes its slot first, in the order of arrival, and
   then its place in the order of requests (`ordering.py`). Control methods never wait for a slot.
2. A waiting `process/read` holds nothing up: it leaves the order as soon as it runs.
3. At most `MAX_RUNNING` requests of the file system are at work at a time, and none begins while the
   peer has much to take.
4. Nothing here calls itself: what something just finished has made possible is done by `step`, one
   thing at a time, in the connection's loop.

`docs/protocol.md`, "Request scheduling".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from execprotocol.methods import Method
from execserver.rpc.flow_control import FlowControl
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.rpc.ordering import Access, AccessTable, RequestOrder, Ticket
from execserver.telemetry import tracing
from execserver.telemetry.tracing import RequestTrace

if TYPE_CHECKING:
    from execprotocol.model import Params


REQUEST_OVERHEAD_BYTES = 512
"""What an unfinished request costs beside its text."""

MAX_RUNNING = 32
"""Requests of one connection at work in threads at a time: a thousand requests on a dead mount
must not take every thread from the other connections."""

AT_ONCE = (dict, Encoded)
"""What a handler gives when it has the result; anything else is to be awaited."""


class Pending(msgspec.Struct, eq=False):
    """A request that could not be answered at once."""

    target: Any
    """Whom the dialect answers: an id, or a call."""
    method: Method
    params: Params
    size: int
    began: float
    """When it came, on the clock of `perf_counter`."""
    trace: RequestTrace | None
    ticket: Ticket | None = None
    holds_slot: bool = False
    started: bool = False


class Work(Protocol):
    """The connection, as its schedule sees it."""

    def invoke(self, pending: Pending) -> Any:
        """Call the handler."""

    def succeeded(self, pending: Pending, result: Any) -> None:
        """Answer with a result, or with an error when the result cannot be sent."""

    async def streamed(self, pending: Pending, result: StreamedResult) -> None:
        """Answer with a large result; returns when all of it is queued, or the connection is gone."""

    def failed(self, pending: Pending, error: Exception) -> None:
        """Answer with an error."""

    def progressed(self) -> None:
        """Something is possible now: `step` until there is nothing more."""


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
        """What the unfinished requests cost in memory."""
        self.unfinished: set[Pending] = set()
        self._free_slots = slots
        self._work = work
        self._flow_control = flow_control
        self._accesses = AccessTable()
        self._by_ticket: dict[Ticket, Pending] = {}
        self._waiting_for_slot: deque[Pending] = deque()
        self._runnable: deque[Pending] = deque()
        """Requests that waited and may have nothing in their way any more."""
        self._waiting_to_run: deque[tuple[Pending, Awaitable[Any]]] = deque()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def session_id(self) -> str | None:
        """The connection's session, once it has one; requests may name it or not."""
        return self._accesses.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._accesses.session_id = session_id

    def must_wait(self, name: str, params: Params) -> bool:
        """Whether a request that has just come may not run at once."""
        if self._free_slots is not None:
            return True
        return not self.order.empty and self.order.must_wait(self._accesses.of(name, params))

    def enqueue(self, pending: Pending) -> None:
        """Let a request wait for its turn, which may be now."""
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

    def start(self, pending: Pending, work: Any) -> None:
        """Wait for the result of a request that did not have to wait for others."""
        pending.started = True
        self._hold(pending)
        if pending.method.name == "process/read":
            # It waits for news, and to begin that takes as long as to answer what may have come with it.
            asyncio.get_running_loop().call_soon(self._run_later, pending, work)
            return
        self._enter_order(pending)
        self._run(pending, work)

    def cancel_start(self, process_id: str) -> Pending | None:
        """Take a `process/start` that still waits out of the queue. The caller answers it, and then
        says `finish`.
        """
        for pending in self.unfinished:
            if pending.method.name != "process/start" or pending.started:
                continue
            params: Any = pending.params
            if params.process_id == process_id:
                pending.started = True
                if pending in self._waiting_for_slot:
                    self._waiting_for_slot.remove(pending)
                return pending
        return None

    def step(self) -> bool:
        """Do one thing that has become possible; False when there is none."""
        if self._runnable:
            self._begin(self._runnable.popleft())
        elif self._waiting_to_run and self._may_run():
            self._spawn(*self._waiting_to_run.popleft(), counted=True)
        else:
            return False
        return True

    def finish(self, pending: Pending) -> None:
        """A request is answered: let go of it, and of what waited for it."""
        self.unfinished.discard(pending)
        self.held_bytes -= pending.size + REQUEST_OVERHEAD_BYTES
        if self._closed:
            return
        if pending.holds_slot:
            self._pass_slot_on()
        self._leave_order(pending)
        self._work.progressed()

    def close(self) -> None:
        """The connection is gone: nothing begins any more, and what runs is cancelled."""
        self._closed = True
        self._runnable.clear()
        for task in self._tasks:
            task.cancel()
        for _, work in self._waiting_to_run:
            _discard(work)
        self._waiting_to_run.clear()

    # -- running

    def _hold(self, pending: Pending) -> None:
        self.unfinished.add(pending)
        self.held_bytes += pending.size + REQUEST_OVERHEAD_BYTES

    def _begin(self, pending: Pending) -> None:
        """Run a request that waited, if nothing is in its way any more."""
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
        if pending.method.name == "process/read":
            self._leave_order(pending)
        if result.__class__ not in AT_ONCE:
            self._run(pending, result)
            return
        self._work.succeeded(pending, result)
        self.finish(pending)

    def _may_run(self) -> bool:
        return self._running < MAX_RUNNING and self._flow_control.may_queue_reply()

    def _run(self, pending: Pending, work: Any) -> None:
        if isinstance(work, StreamedResult):
            work = _already(work)
        if pending.method.family != "filesystem":
            self._spawn(pending, work, counted=False)
        elif self._may_run():
            self._spawn(pending, work, counted=True)
        else:
            self._waiting_to_run.append((pending, work))

    def _run_later(self, pending: Pending, work: Any) -> None:
        if self._closed:
            _discard(work)
            self.finish(pending)
        else:
            self._run(pending, work)

    def _spawn(self, pending: Pending, work: Awaitable[Any], *, counted: bool) -> None:
        self._running += counted
        with tracing.active(pending.trace):  # the task keeps the context
            task = asyncio.get_running_loop().create_task(self._complete(pending, work, counted=counted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never gets to its work.
        task.add_done_callback(lambda _: _discard(work))

    async def _complete(self, pending: Pending, work: Awaitable[Any], *, counted: bool) -> None:
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

    def _enter_order(self, pending: Pending) -> None:
        accesses: tuple[Access, ...] = self._accesses.of(pending.method.name, pending.params)
        pending.ticket = self.order.add(accesses)
        self._by_ticket[pending.ticket] = pending

    def _leave_order(self, pending: Pending) -> None:
        if pending.ticket is None:
            return
        ticket, pending.ticket = pending.ticket, None
        del self._by_ticket[ticket]
        for ready in self.order.finish(ticket):
            # The ticket of a cancelled start is no longer known.
            if ready in self._by_ticket:
                self._runnable.append(self._by_ticket[ready])


async def _already(result: StreamedResult) -> StreamedResult:
    return result


def _discard(work: Any) -> None:
    close = getattr(work, "close", None)
    if close is not None:
        close()

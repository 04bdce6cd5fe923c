"""The pool of fs workers: at most four, shared by all connections.

Rules kept in this file:

1. A policy has at most one worker. Its requests take turns by connection: a connection with thousands of
   requests does not delay one with a single request.
2. A fifth policy gets the slot of the worker that was idle for longest. If none is idle, the first worker
   that has worked for `TURN_SECONDS` loses its slot after its request, and its policy waits behind the
   others.
3. The view of a worker is that of the start of its sandbox. The worker is replaced when a file that the view
   covers, or that the policy names, has been replaced, or when the policy has patterns and the worker is
   `PATTERN_SECONDS` old and older than the request. A running request is not interrupted.
4. If a worker dies, only its request fails. If a worker cannot be started, all requests of its policy fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import msgspec

from execprotocol.errors import InternalError, InvalidRequest, RpcError, os_error_text
from execserver.filesystem.blocking import BlockingCalls
from execserver.fsworker.client import (
    SILENT_SECONDS,
    Adopt,
    Answer,
    WorkerClient,
    WorkerLost,
)
from execserver.fsworker.policy_queue import FileRequest, PolicyQueue, ViewDependencies, view_dependencies
from execserver.sandbox.policy import Policy

MAX_WORKERS = 4
"""Each is an interpreter of 10 MB. Agents use one or two policies at a time."""

IDLE_SECONDS = 60.0
"""Longer than the time that a model takes between two edits."""

SHORT_LIVED_SECONDS = 0.5
"""Idle time of a worker whose sandbox needs additional folders in the workspace. Each burst of edits costs a
start of some twenty milliseconds, and the folders are gone between bursts."""

TURN_SECONDS = 0.25
"""A multiple of the cost of a start, so that five busy policies do more than start workers."""

PATTERN_SECONDS = 2.0

_MAX_STUCK = 16
"""Workers that were killed but have not ended: each hangs on a mount whose server is dead."""

_MAX_UNSUCCESSFUL_STARTS = 8
"""Each takes some twenty milliseconds. A workspace that changes so often will go on changing."""

_SETTLE_SECONDS = 0.02
"""Added for each unsuccessful start but the first, until the mount points of an ended worker are gone."""

T = TypeVar("T")

if TYPE_CHECKING:
    from execserver.fsworker.process import WorkerProcess

    Launch = Callable[[Policy], Awaitable[WorkerProcess]]
    """Starts a worker in the policy's sandbox. Raises an `RpcError` for the client, or an `OSError`."""


class PoolTimes(msgspec.Struct, frozen=True):
    """The times of the pool, in seconds."""

    silent: float = SILENT_SECONDS
    idle: float = IDLE_SECONDS
    short_lived: float = SHORT_LIVED_SECONDS
    turn: float = TURN_SECONDS
    pattern: float = PATTERN_SECONDS


class WorkerPool:
    """All workers of the daemon. Methods are called on the loop's thread.

    Args:
        launch: starts a worker.
        can_hang: whether a lookup may block (`MountTable.can_hang`); paths are then checked in a thread.
        start_failed: called with the reason when a worker ended before it was ready. The sandbox may no
            longer work, and should be probed.
        times: for tests.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        can_hang: Callable[[], bool] = lambda: False,
        start_failed: Callable[[str], None] = lambda reason: None,
        times: PoolTimes | None = None,
    ) -> None:
        self._launch = launch
        self._can_hang = can_hang
        self._start_failed = start_failed
        self._times = times or PoolTimes()
        self._queues: dict[Policy, PolicyQueue] = {}
        self._without_slot: deque[PolicyQueue] = deque()
        self._clients: set[WorkerClient] = set()
        self._all_exited = asyncio.Event()
        self._calls = BlockingCalls()
        self._closed = False

    @property
    def workers(self) -> int:
        """How many workers run or start."""
        return sum(queue.has_slot for queue in self._queues.values())

    def ask(
        self,
        policy: Policy,
        owner: object,
        payload: bytes,
        adopt: Adopt | None = None,
        *,
        newest: bool = False,
    ) -> asyncio.Future[Answer]:
        """Queue a request for the policy's worker. Cancelling the future cancels the request.

        Args:
            policy: one that limits files.
            owner: the connection.
            payload: the marshalled request.
            adopt: for a request that opens a file: takes ownership of the descriptor.
            newest: if the policy has patterns, do not use a worker that started before this call.

        The future raises an `RpcError`, or a `RuntimeError` for a fault of the worker.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if self._closed:
            answer.set_exception(InternalError("the service is stopping"))
            return answer
        queue = self._queues.get(policy)
        if queue is None:
            queue = self._queues[policy] = PolicyQueue(policy)
        queue.add(owner, FileRequest(payload, adopt, answer, newest, loop.time()))
        self._advance(queue)
        return answer

    async def close(self, seconds: float = 2.0) -> None:
        """End all workers, and wait up to `seconds` for them. Queued requests fail."""
        self._closed = True
        self._calls.close()
        self._without_slot.clear()
        for queue in list(self._queues.values()):
            queue.fail_all(InternalError("the service is stopping"))
            if queue.preparing is not None:
                queue.preparing.cancel()
            self._end_worker(queue)
        for client in list(self._clients):
            client.end()
        self._all_exited.clear()
        if self._clients:
            try:
                await asyncio.wait_for(self._all_exited.wait(), seconds)
            except TimeoutError:
                # They hang in the kernel until their mount is gone.
                return

    # -- one policy

    def _advance(self, queue: PolicyQueue) -> None:
        """Take the next action for a policy, unless one is running."""
        if queue.preparing is not None or (queue.worker is not None and queue.worker.busy) or self._closed:
            return
        request = queue.next_request()
        if request is None:
            self._begin_idling(queue)
        elif queue.worker is None:
            self._find_slot(queue)
        elif self._is_outdated(queue, request):
            self._replace(queue)
        elif self._can_hang():
            queue.preparing = asyncio.get_running_loop().create_task(self._check_in_thread(queue))
        elif queue.dependencies is None or not queue.dependencies.holds():
            self._replace_stale(queue)
        else:
            self._send(queue)

    def _send(self, queue: PolicyQueue) -> None:
        assert queue.worker is not None
        queue.unsuccessful_starts = 0
        request = queue.pop_request()
        queue.worker.ask(request.payload, request.answer, request.adopt)

    def _request_done(self, queue: PolicyQueue) -> None:
        """A worker has answered a request."""
        if queue.preparing is not None:
            return
        now = asyncio.get_running_loop().time()
        queue.used_at = now
        if self._without_slot and (
            queue.next_request() is None or now - queue.turn_began >= self._times.turn
        ):
            self._end_worker(queue)
            self._wait_for_slot(queue)
            self._assign_slots()
        else:
            self._advance(queue)

    def _worker_lost(self, queue: PolicyQueue, client: WorkerClient) -> None:
        """A worker can no longer be used. Its request has failed already."""
        if queue.worker is not client:
            return
        queue.worker = None
        queue.drop_dependencies()
        queue.has_slot = False
        if queue.preparing is None:
            self._wait_for_slot(queue)
        self._assign_slots()

    def _begin_idling(self, queue: PolicyQueue) -> None:
        """No request waits: end the worker after its idle time."""
        if queue.worker is None:
            if not queue.has_slot:
                self._queues.pop(queue.policy, None)
        elif queue.timer is None:
            loop = asyncio.get_running_loop()
            left = self._idle_until(queue) - loop.time()
            queue.timer = loop.call_later(max(0.0, left), self._idle_timeout, queue)

    def _idle_timeout(self, queue: PolicyQueue) -> None:
        queue.timer = None
        if not queue.idle or queue.next_request() is not None:
            return
        if asyncio.get_running_loop().time() >= self._idle_until(queue):
            self._end_worker(queue)
        self._begin_idling(queue)

    def _idle_until(self, queue: PolicyQueue) -> float:
        # With patterns, the worker is soon outdated.
        idle = min(self._times.idle, self._times.pattern) if queue.policy.globs else self._times.idle
        if queue.worker is not None and queue.worker.short_lived:
            idle = min(idle, self._times.short_lived)
        return queue.used_at + idle

    def _end_worker(self, queue: PolicyQueue) -> None:
        """End a worker and free its slot."""
        client, queue.worker = queue.worker, None
        queue.drop_dependencies()
        queue.has_slot = False
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        if client is not None:
            client.end()

    # -- slots

    def _find_slot(self, queue: PolicyQueue) -> None:
        """Start a worker for a policy without one, now or when a slot is free."""
        if self.workers >= MAX_WORKERS:
            idle = [other for other in self._queues.values() if other.idle and other.next_request() is None]
            if idle:
                longest = min(idle, key=lambda other: other.used_at)
                self._end_worker(longest)
                self._begin_idling(longest)
        self._wait_for_slot(queue)
        self._assign_slots()

    def _wait_for_slot(self, queue: PolicyQueue) -> None:
        if queue.next_request() is None:
            self._begin_idling(queue)
        elif queue not in self._without_slot:
            self._without_slot.append(queue)

    def _assign_slots(self) -> None:
        """Start workers for waiting policies, while slots are free."""
        while self._without_slot and self.workers < MAX_WORKERS and not self._closed:
            queue = self._without_slot.popleft()
            if queue.next_request() is None:
                self._begin_idling(queue)
            else:
                self._begin_start(queue)

    # -- starting workers, and checking their views

    def _begin_start(self, queue: PolicyQueue) -> None:
        queue.has_slot = True
        queue.preparing = asyncio.get_running_loop().create_task(self._start(queue))

    def _replace(self, queue: PolicyQueue) -> None:
        self._end_worker(queue)
        self._begin_start(queue)

    def _replace_stale(self, queue: PolicyQueue) -> None:
        queue.unsuccessful_starts += 1
        if queue.unsuccessful_starts < _MAX_UNSUCCESSFUL_STARTS:
            self._replace(queue)
        else:
            self._fail(queue, _keeps_changing())

    def _fail(self, queue: PolicyQueue, error: Exception) -> None:
        """Fail all requests of a policy that can get no worker."""
        queue.unsuccessful_starts = 0
        self._end_worker(queue)
        queue.fail_all(error)
        self._begin_idling(queue)
        self._assign_slots()

    async def _start(self, queue: PolicyQueue) -> None:
        error: Exception | None = None
        try:
            await self._start_worker(queue)
        except WorkerLost as lost:
            self._start_failed(lost.message)
            error = _sandbox_unavailable(lost.message)
        except OSError as refused:
            error = _sandbox_unavailable(os_error_text(refused))
        except Exception as failure:
            error = failure
        queue.preparing = None
        if error is not None:
            self._fail(queue, error)
        else:
            queue.turn_began = queue.used_at = asyncio.get_running_loop().time()
            if queue.next_request() is not None:
                self._advance(queue)
            else:
                self._request_done(queue)

    async def _start_worker(self, queue: PolicyQueue) -> None:
        while not await self._try_to_start(queue):
            queue.unsuccessful_starts += 1
            if queue.unsuccessful_starts >= _MAX_UNSUCCESSFUL_STARTS:
                raise _keeps_changing()

    async def _try_to_start(self, queue: PolicyQueue) -> bool:
        """Start a worker; False if a file changed meanwhile, so that its view may be wrong."""
        if queue.unsuccessful_starts > 1:
            await asyncio.sleep(_SETTLE_SECONDS * (queue.unsuccessful_starts - 1))
        if sum(not client.alive for client in self._clients) >= _MAX_STUCK:
            raise InternalError(f"{_MAX_STUCK} fs workers are stuck in the kernel: is a mount's server dead?")
        # Time and dependencies of before the launch: a later change may be in the view or not.
        queue.started_at = asyncio.get_running_loop().time()
        with closing(await self._in_thread(view_dependencies, queue.policy)) as before:
            client = WorkerClient(
                await self._launch(queue.policy),
                lambda: self._request_done(queue),
                lambda client: self._worker_lost(queue, client),
                self._worker_exited,
                self._times.silent,
            )
            self._clients.add(client)
            # The mount points exist now, and nothing is mounted yet. A file that is the same when the worker
            # is used was covered, and nothing has uncovered it.
            try:
                dependencies = await self._check_disk(before.renewed)
            except BaseException:
                client.end()
                raise
        if dependencies is None:
            client.end()
            return False
        try:
            await client.ready
        except BaseException as error:
            with closing(dependencies):
                # The worker may have failed because a file to be covered was gone.
                if isinstance(error, WorkerLost) and not await self._check_disk(dependencies.holds):
                    return False
            raise
        queue.worker, queue.dependencies = client, dependencies
        return True

    async def _check_in_thread(self, queue: PolicyQueue) -> None:
        """Check the view of a worker, and continue."""
        dependencies = queue.dependencies
        try:
            # None if the worker was lost meanwhile.
            same = dependencies is not None and await self._in_thread(dependencies.holds)
        except RpcError as error:
            queue.preparing = None
            if queue.next_request() is not None:
                answer = queue.pop_request().answer
                answer.set_exception(error)
            self._advance(queue)
            return
        queue.preparing = None
        if queue.worker is None or queue.next_request() is None:
            self._advance(queue)
        elif same:
            self._send(queue)
        else:
            self._replace_stale(queue)

    async def _check_disk(self, function: Callable[[], T]) -> T:
        """Call a function that looks up the paths of a policy; in a thread if that may hang."""
        return await self._in_thread(function) if self._can_hang() else function()

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Call a function that looks up the paths of a policy, in a thread."""
        call = self._calls.run(function, *args)
        try:
            return await asyncio.wait_for(asyncio.shield(call), self._times.silent)
        except TimeoutError:
            call.add_done_callback(_close_late_result)
            raise InternalError(
                f"a folder of the sandbox's policy could not be looked at for {self._times.silent:g} s"
            ) from None
        except asyncio.CancelledError:
            call.add_done_callback(_close_late_result)
            raise

    def _is_outdated(self, queue: PolicyQueue, request: FileRequest) -> bool:
        if not queue.policy.globs or queue.started_at >= request.made_at:
            return False
        return request.newest or asyncio.get_running_loop().time() - queue.started_at > self._times.pattern

    def _worker_exited(self, client: WorkerClient) -> None:
        self._clients.discard(client)
        if not self._clients:
            self._all_exited.set()


def _sandbox_unavailable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"failed to prepare process sandbox: {reason}", name="sandbox_unavailable")


def _keeps_changing() -> InvalidRequest:
    return _sandbox_unavailable("what the policy names, or a protected name in it, changes all the time")


def _close_late_result(call: asyncio.Future[T]) -> None:
    """Close the result of a call that has timed out or was cancelled."""
    if (
        not call.cancelled()
        and call.exception() is None
        and isinstance(dependencies := call.result(), ViewDependencies)
    ):
        dependencies.close()

"""At most four fs workers for all connections: who has one, who waits, and when one ends.

Rules kept in this file:

1. A policy has at most one worker. Requests of a policy take turns by connection, so that one with
   thousands waits no less than one with a single request.
2. A fifth policy gets the place of the worker that was idle for longest. If none is idle, the first to
   have done `TURN_SECONDS` of work gives up its place after its request, and waits behind the others.
3. A worker answers for what was there when its sandbox was made. It is replaced when something that its
   view covers or that the policy names is another thing now, a protected name among them, or when the policy
   has patterns and the worker is `PATTERN_SECONDS` old. A request that is under way is not disturbed.
4. A worker that dies takes its request with it and no other. One that cannot be started fails all that
   wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TypeVar

import msgspec

from execprotocol.errors import InternalError, InvalidRequest, RpcError, os_error_text
from execserver.filesystem.blocking import BlockingCalls
from execserver.fsworker.client import (
    SILENT_SECONDS,
    Adopt,
    Answer,
    WorkerLink,
    WorkerLost,
    WorkerProcess,
)
from execserver.fsworker.policy_queue import Basis, Crew, Request, look
from execserver.sandbox.policy import Policy

MAX_WORKERS = 4
"""Each is an interpreter of 10 MB; agents use one or two policies at a time."""

IDLE_SECONDS = 60.0
"""Longer than a model thinks between two edits."""

BRIEF_SECONDS = 0.5
"""Of a worker whose sandbox needs folders in the workspace that were not there: a start, of some twenty
milliseconds, for each burst of edits, and a clean listing between them."""

TURN_SECONDS = 0.25
"""Some times what a start costs, so that five busy policies are not just starting workers."""

PATTERN_SECONDS = 2.0

_MAX_STUCK = 16
"""Workers that were killed and are not gone: each is stuck on a mount whose server is dead."""

_MOST_VAIN_STARTS = 8
"""Each takes some twenty milliseconds: whoever changes a workspace that fast goes on doing so."""

_SETTLE_SECONDS = 0.02
"""More for each vain start but the first: until the mount points of a worker that was ended are gone."""

T = TypeVar("T")

Launch = Callable[[Policy], Awaitable[WorkerProcess]]
"""Start a worker in the policy's sandbox.

Raises an `RpcError` that goes to the client as it stands, or an `OSError`.
"""


class PoolTimes(msgspec.Struct, frozen=True):
    """The pool's numbers, in seconds."""

    silent: float = SILENT_SECONDS
    idle: float = IDLE_SECONDS
    brief: float = BRIEF_SECONDS
    turn: float = TURN_SECONDS
    pattern: float = PATTERN_SECONDS


class WorkerPool:
    """All workers of the daemon. Methods are called on the loop's thread.

    Args:
        launch: starts a worker.
        can_hang: whether looking at a path may block (`MountTable.can_hang`); it is done in a thread then.
        start_failed: called with the reason when a worker ended before it was ready: the sandbox may
            not work any more, and should be tried.
        times: other than the usual ones, for tests.
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
        self._crews: dict[Policy, Crew] = {}
        self._placeless: deque[Crew] = deque()
        self._links: set[WorkerLink] = set()
        self._all_gone = asyncio.Event()
        self._calls = BlockingCalls()
        self._closed = False

    @property
    def workers(self) -> int:
        """How many workers run or are being started."""
        return sum(crew.has_place for crew in self._crews.values())

    def ask(
        self,
        policy: Policy,
        owner: object,
        payload: bytes,
        adopt: Adopt | None = None,
        *,
        newest: bool = False,
    ) -> asyncio.Future[Answer]:
        """Have a request answered by the policy's worker, when it is its turn.

        Cancelling the future withdraws the request.

        Args:
            policy: one that limits files.
            owner: the connection.
            payload: the marshalled request.
            adopt: for a request that opens a file: takes over the descriptor.
            newest: if the policy has patterns, only a worker that was started after this call will do.

        The future raises an `RpcError`, or a `RuntimeError` for a fault of the worker's own.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if self._closed:
            answer.set_exception(InternalError("the service is stopping"))
            return answer
        crew = self._crews.get(policy)
        if crew is None:
            crew = self._crews[policy] = Crew(policy)
        crew.add(owner, Request(payload, adopt, answer, newest, loop.time()))
        self._advance(crew)
        return answer

    async def close(self, seconds: float = 2.0) -> None:
        """End all workers; what waits fails. At most `seconds` are given to their ends."""
        self._closed = True
        self._calls.close()
        self._placeless.clear()
        for crew in list(self._crews.values()):
            crew.fail_all(InternalError("the service is stopping"))
            if crew.preparing is not None:
                crew.preparing.cancel()
            self._end_worker(crew)
        for link in list(self._links):
            link.end()
        self._all_gone.clear()
        if self._links:
            try:
                await asyncio.wait_for(self._all_gone.wait(), seconds)
            except TimeoutError:
                # Stuck in the kernel. They die with their mount, and nobody waits for that.
                return

    # -- one crew

    def _advance(self, crew: Crew) -> None:
        """Do the next thing for a policy, if it is not doing something."""
        if crew.preparing is not None or (crew.worker is not None and crew.worker.busy) or self._closed:
            return
        request = crew.first()
        if request is None:
            self._rest(crew)
        elif crew.worker is None:
            self._find_place(crew)
        elif self._is_too_old(crew, request):
            self._replace(crew)
        elif self._can_hang():
            crew.preparing = asyncio.get_running_loop().create_task(self._check_in_thread(crew))
        elif crew.basis is None or not crew.basis.holds():
            self._replace_stale(crew)
        else:
            self._send(crew)

    def _send(self, crew: Crew) -> None:
        assert crew.worker is not None
        crew.vain_starts = 0
        request = crew.take()
        crew.worker.ask(request.payload, request.answer, request.adopt)

    def _worked(self, crew: Crew) -> None:
        """A worker has dealt with a request."""
        if crew.preparing is not None:
            return
        now = asyncio.get_running_loop().time()
        crew.used_at = now
        if self._placeless and (crew.first() is None or now - crew.turn_began >= self._times.turn):
            self._end_worker(crew)
            self._queue_for_place(crew)
            self._give_places()
        else:
            self._advance(crew)

    def _worker_lost(self, crew: Crew, link: WorkerLink) -> None:
        """A worker is dead, or will be: its request has its answer already."""
        if crew.worker is not link:
            return
        crew.worker = None
        crew.drop_basis()
        crew.has_place = False
        if crew.preparing is None:
            self._queue_for_place(crew)
        self._give_places()

    def _rest(self, crew: Crew) -> None:
        """Nothing waits: its worker ends when that stays so."""
        if crew.worker is None:
            if not crew.has_place:
                self._crews.pop(crew.policy, None)
        elif crew.timer is None:
            loop = asyncio.get_running_loop()
            left = self._idle_until(crew) - loop.time()
            crew.timer = loop.call_later(max(0.0, left), self._idle_long_enough, crew)

    def _idle_long_enough(self, crew: Crew) -> None:
        crew.timer = None
        if not crew.idle or crew.first() is not None:
            return
        if asyncio.get_running_loop().time() >= self._idle_until(crew):
            self._end_worker(crew)
        self._rest(crew)

    def _idle_until(self, crew: Crew) -> float:
        # One that knows patterns is soon too old to be used again.
        idle = min(self._times.idle, self._times.pattern) if crew.policy.globs else self._times.idle
        if crew.worker is not None and crew.worker.brief:
            idle = min(idle, self._times.brief)
        return crew.used_at + idle

    def _end_worker(self, crew: Crew) -> None:
        """End a worker and free its place."""
        link, crew.worker = crew.worker, None
        crew.drop_basis()
        crew.has_place = False
        if crew.timer is not None:
            crew.timer.cancel()
            crew.timer = None
        if link is not None:
            link.end()

    # -- places

    def _find_place(self, crew: Crew) -> None:
        """Start a worker for a policy that has none, now or when there is a place for it."""
        if self.workers >= MAX_WORKERS:
            idle = [other for other in self._crews.values() if other.idle and other.first() is None]
            if idle:
                longest = min(idle, key=lambda other: other.used_at)
                self._end_worker(longest)
                self._rest(longest)
        self._queue_for_place(crew)
        self._give_places()

    def _queue_for_place(self, crew: Crew) -> None:
        if crew.first() is None:
            self._rest(crew)
        elif crew not in self._placeless:
            self._placeless.append(crew)

    def _give_places(self) -> None:
        """Start workers for those that wait, while there are places."""
        while self._placeless and self.workers < MAX_WORKERS and not self._closed:
            crew = self._placeless.popleft()
            if crew.first() is None:
                self._rest(crew)
            else:
                self._begin_start(crew)

    # -- starting, and looking whether a worker may still be used

    def _begin_start(self, crew: Crew) -> None:
        crew.has_place = True
        crew.preparing = asyncio.get_running_loop().create_task(self._start(crew))

    def _replace(self, crew: Crew) -> None:
        self._end_worker(crew)
        self._begin_start(crew)

    def _replace_stale(self, crew: Crew) -> None:
        crew.vain_starts += 1
        if crew.vain_starts < _MOST_VAIN_STARTS:
            self._replace(crew)
        else:
            self._give_up(crew, _changing())

    def _give_up(self, crew: Crew, error: Exception) -> None:
        """No worker can be had: fail all that wait for one."""
        crew.vain_starts = 0
        self._end_worker(crew)
        crew.fail_all(error)
        self._rest(crew)
        self._give_places()

    async def _start(self, crew: Crew) -> None:
        error: Exception | None = None
        try:
            await self._start_worker(crew)
        except WorkerLost as lost:
            self._start_failed(lost.message)
            error = _unprepared(lost.message)
        except OSError as refused:
            error = _unprepared(os_error_text(refused))
        except Exception as failure:
            error = failure
        crew.preparing = None
        if error is not None:
            self._give_up(crew, error)
        else:
            crew.turn_began = crew.used_at = asyncio.get_running_loop().time()
            if crew.first() is not None:
                self._advance(crew)
            else:
                self._worked(crew)

    async def _start_worker(self, crew: Crew) -> None:
        while not await self._try_to_start(crew):
            crew.vain_starts += 1
            if crew.vain_starts >= _MOST_VAIN_STARTS:
                raise _changing()

    async def _try_to_start(self, crew: Crew) -> bool:
        """Start a worker; False: something changed meanwhile that its view may have or not have."""
        if crew.vain_starts > 1:
            await asyncio.sleep(_SETTLE_SECONDS * (crew.vain_starts - 1))
        if sum(not link.alive for link in self._links) >= _MAX_STUCK:
            raise InternalError(f"{_MAX_STUCK} fs workers are stuck in the kernel: is a mount's server dead?")
        # Both from before the launch: what changes while the sandbox is made may be in it or not.
        crew.started_at = asyncio.get_running_loop().time()
        with closing(await self._in_thread(look, crew.policy)) as before:
            link = WorkerLink(
                await self._launch(crew.policy),
                lambda: self._worked(crew),
                lambda link: self._worker_lost(crew, link),
                self._worker_gone,
                self._times.silent,
            )
            self._links.add(link)
            # The mount points are there, and nothing is mounted yet. What is still the same when the worker
            # is asked was mounted over, and nothing has uncovered it.
            try:
                basis = await self._ask_disk(before.renewed)
            except BaseException:
                link.end()
                raise
        if basis is None:
            link.end()
            return False
        try:
            await link.ready
        except BaseException as error:
            with closing(basis):
                # What was to be mounted over may have been gone.
                if isinstance(error, WorkerLost) and not await self._ask_disk(basis.holds):
                    return False
            raise
        crew.worker, crew.basis = link, basis
        return True

    async def _check_in_thread(self, crew: Crew) -> None:
        """Look whether a worker may still be used, and go on."""
        basis = crew.basis
        try:
            # None: the worker was lost just now.
            same = basis is not None and await self._in_thread(basis.holds)
        except RpcError as error:
            crew.preparing = None
            if crew.first() is not None:
                answer = crew.take().answer
                answer.set_exception(error)
            self._advance(crew)
            return
        crew.preparing = None
        if crew.worker is None or crew.first() is None:
            self._advance(crew)
        elif same:
            self._send(crew)
        else:
            self._replace_stale(crew)

    async def _ask_disk(self, function: Callable[[], T]) -> T:
        """Call a function that looks at a policy's folders, here or, where that may hang, in a thread."""
        return await self._in_thread(function) if self._can_hang() else function()

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Call a function that looks at a policy's folders, in a thread."""
        call = self._calls.run(function, *args)
        try:
            return await asyncio.wait_for(asyncio.shield(call), self._times.silent)
        except TimeoutError:
            call.add_done_callback(_close_unwanted)
            raise InternalError(
                f"a folder of the sandbox's policy could not be looked at for {self._times.silent:g} s"
            ) from None
        except asyncio.CancelledError:
            call.add_done_callback(_close_unwanted)
            raise

    def _is_too_old(self, crew: Crew, request: Request) -> bool:
        if not crew.policy.globs:
            return False
        age = asyncio.get_running_loop().time() - crew.started_at
        return age > self._times.pattern or (request.newest and crew.started_at < request.made_at)

    def _worker_gone(self, link: WorkerLink) -> None:
        self._links.discard(link)
        if not self._links:
            self._all_gone.set()


def _unprepared(reason: str) -> InvalidRequest:
    return InvalidRequest(f"failed to prepare process sandbox: {reason}", name="sandbox_unavailable")


def _changing() -> InvalidRequest:
    return _unprepared("what the policy names, or a protected name in it, changes all the time")


def _close_unwanted(call: asyncio.Future[T]) -> None:
    """A call has ended for which nobody waits any more."""
    if not call.cancelled() and call.exception() is None and isinstance(basis := call.result(), Basis):
        basis.close()

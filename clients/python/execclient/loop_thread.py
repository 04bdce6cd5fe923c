"""An event loop in a thread of its own, which other threads hand calls to and wait for them.

Rules kept in this file:

1. A wait that is interrupted (Ctrl-C) cancels its call, and goes on until the call has ended; a
   second interruption ends the wait at once.
2. After `close` nothing is accepted. What was accepted before ends: with its result, or with
   `ExecutorClosed`.
3. The loop, its tasks and the thread end together; leaving the context is what they do last.

It knows neither sessions nor processes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from execclient.errors import ExecutorClosed

_LOOK_UP_SECONDS = 0.2
"""How late an interruption may be noticed that came at the wrong moment."""

T = TypeVar("T")
R = TypeVar("R")

Disposal = Callable[[R], Awaitable[object]]
"""What to do with a result that nobody will get any more."""


class Call(Generic[R]):
    """A call that was handed over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, R]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[R]
        self._outcome: Future[R] = Future()

    def begin(self) -> None:
        """Start it. On the loop."""
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self._outcome.set_exception(ExecutorClosed("the call was cancelled, as its executor was closed"))
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())

    def cancel(self) -> None:
        """Have it cancelled; it ends soon. From any thread."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(lambda: self._task.cancel())

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._outcome.done()

    def when_done(self, tell: Callable[[], object]) -> None:
        """Have somebody told of its end, on the loop's thread; at once if it has ended."""
        self._outcome.add_done_callback(lambda _: tell())

    def result(self) -> R:
        """Wait for its end, and give its result or raise its error."""
        try:
            _wait(self._outcome)
            return self._outcome.result()
        except BaseException:
            self.give_up()
            raise

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end for so many seconds or for ever; whether it has ended.

        An interruption leaves it be, unlike one of `result`.
        """
        return _wait(self._outcome, timeout)

    def give_up(self) -> None:
        """Cancel it, and wait for its end. Does nothing if it has ended."""
        if not self.done:
            self.cancel()
            _wait(self._outcome)

    def undelivered(self) -> R | None:
        """The result, if it ended with one."""
        if self.done and self._outcome.exception() is None:
            return self._outcome.result()
        return None


class LoopThread(Generic[T]):
    """The thread, for as long as a context is entered there.

    Args:
        context: makes the context; called on the loop.
    """

    def __init__(self, context: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="execclient", daemon=True)
        self._lock = threading.Lock()
        """Held while a call is handed over, so that none comes after the end."""
        self._open = False
        self._abandoned = False
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._entered: Future[T] = Future()
        self._left: Future[None] = Future()

    def enter(self) -> T:
        """Start the thread, enter the context there, and give what it gave; raises what it raised."""
        try:
            self._thread.start()
            _wait(self._entered)
            return self._entered.result()
        except BaseException:
            self._abandon()
            raise

    def call(self, coroutine: Coroutine[Any, Any, R], dispose: Disposal[R] | None = None) -> R:
        """Have a coroutine run, and wait for its result.

        Args:
            coroutine: what to run.
            dispose: undoes a result that came while the wait was being interrupted.

        Raises:
            ExecutorClosed: `close` was called before, or meanwhile.
            RuntimeError: this is the loop's own thread, where waiting would last for ever.
        """
        call = self.submit(coroutine)
        try:
            return call.result()
        except BaseException:
            result = None if dispose is None else call.undelivered()
            if dispose is not None and result is not None:
                with suppress(ExecutorClosed):
                    self.submit(_awaited(dispose(result))).result()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> Call[R]:
        """Have a coroutine run; raises as `call` does, but for what the coroutine raises."""
        call = Call(self._loop, coroutine)
        try:
            if threading.current_thread() is self._thread:
                raise RuntimeError(
                    "a blocking call in the thread of its own event loop would wait for ever: "
                    "make it in another thread"
                )
            self._hand_over(call.begin)
        except BaseException:
            coroutine.close()
            raise
        return call

    def soon(self, action: Callable[[], object]) -> None:
        """Have something done on the loop, and do not wait for it. Raises `ExecutorClosed`."""
        self._hand_over(action)

    def _hand_over(self, action: Callable[[], object]) -> None:
        with self._lock:
            if not self._open:
                raise ExecutorClosed("the executor is closed")
            self._loop.call_soon_threadsafe(action)

    @property
    def closed(self) -> bool:
        """Whether nothing is accepted any more."""
        return not self._open

    def request_close(self) -> None:
        """Accept nothing more, have the context left, and do not wait for that."""
        with self._lock:
            if self._open:
                self._open = False
                self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """Accept nothing more, leave the context, and end the thread.

        A second call waits for the same end. Raises what leaving raised, to the first caller only.
        """
        first = not self.closed
        self.request_close()
        if threading.current_thread() is self._thread:
            return  # a finalizer: it cannot wait for the thread that it runs in
        try:
            _wait(self._left)
        except BaseException:
            self._abandon()
            raise
        self._thread.join()
        if first:
            self._left.result()

    # -- the thread

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # it is raised to whoever waits
            failure = error
        finally:
            with self._lock:
                self._open = False
        if not self._entered.done():
            self._entered.set_exception(failure or ExecutorClosed("the executor was closed"))
        if failure is None:
            self._left.set_result(None)
        else:
            self._left.set_exception(failure)

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        if self._abandoned:
            return
        async with self._context() as opened:
            with self._lock:
                self._open = True
            self._entered.set_result(opened)
            await self._stop.wait()

    def _abandon(self) -> None:
        """End the thread as soon as it can: who waited for it was interrupted, or it has failed."""
        if self._thread.ident is None:  # it never started
            self._loop.close()
            return
        with self._lock:
            self._open = False
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._cancel_main)
        self._thread.join()

    def _cancel_main(self) -> None:
        self._abandoned = True
        if self._main is not None:
            self._main.cancel()


async def _awaited(awaitable: Awaitable[R]) -> R:
    return await awaitable


def _wait(future: Future[Any], timeout: float | None = None) -> bool:
    """Wait for the end of a future for so many seconds or for ever; whether it has ended.

    It looks up now and then: a signal that comes in the instant before the interpreter falls asleep on a
    lock does not wake it, and a Ctrl-C would be noticed at the end of the call only.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LOOK_UP_SECONDS if deadline is None else min(_LOOK_UP_SECONDS, deadline - time.monotonic())
        if wait((future,), max(left, 0)).done:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False

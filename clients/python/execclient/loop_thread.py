"""An event loop in its own thread. Other threads submit calls to it and wait for their results.

Rules kept in this file:

1. An interrupted wait (Ctrl-C) cancels its call, and continues until the call has ended; a second
   interruption ends the wait at once.
2. After `close` no call is accepted. Calls accepted before end: with their result, or with `ExecutorClosed`.
3. The loop, its tasks and the thread end together; their last action is to leave the context.
4. An interruption may come between any two steps of the calling thread. So a coroutine is made on the loop,
   which is never interrupted and runs the coroutine at once, and the caller holds the call before submitting
   it.
5. The child of a fork has the objects without the thread. In the child all of them are closed, and closing
   them does nothing: the connections belong to the parent.
6. Calling threads keep no task. When one is destroyed, Python runs a function of asyncio's weak set of tasks,
   and an interruption that comes within it is printed and lost. Tasks that the traceback of an error holds
   are destroyed with the garbage, by the thread that collects it.

This module knows neither sessions nor processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from execclient.errors import ExecutorClosed

_RECHECK_SECONDS = 0.2
"""The longest delay until an interruption at an unlucky moment is noticed."""

T = TypeVar("T")
R = TypeVar("R")

MakeCoroutine = Callable[[], Coroutine[Any, Any, R]]
"""Makes the coroutine to run; called on the loop."""

Disposal = Callable[[R], Awaitable[object]]
"""Undoes a result that no caller will receive."""


class CallResult(Generic[R]):
    """A result or an error that other threads wait for.

    A `concurrent.futures.Future` violates rule 4: an interruption within its `wait` may leave its lock held,
    on which the loop would then block.
    """

    def __init__(self) -> None:
        self.done = False
        self._result: R
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        """Released at the end. Each waiter releases it for the next one; after an interruption the others
        find `done` at their next check."""
        self._lock.acquire()

    def succeed(self, result: R) -> None:
        """Set the result."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """Set the error."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self.done = True
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for so many seconds or for ever; whether it has ended.

        It wakes now and then: a signal that arrives just before the interpreter blocks on a lock does not
        interrupt the wait, and Ctrl-C would only be noticed at the end of the call.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = _RECHECK_SECONDS if deadline is None else deadline - time.monotonic()
            if self._lock.acquire(timeout=min(max(left, 0), _RECHECK_SECONDS)):
                self._lock.release()
            elif left <= 0:
                break
        return self.done

    def result(self) -> R:
        """Wait for the end; return the result or raise the error."""
        self.wait()
        try:
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            del self  # else the error would hold this frame, and the frame the error

    @property
    def succeeded(self) -> bool:
        """Whether there is a result."""
        return self.done and self._error is None


class LoopCall(Generic[R]):
    """A call that another thread submits to the loop.

    Args:
        thread: runs the call.
        make: makes the coroutine.
        notify: called on the loop's thread at the end of the call.

    Raises a RuntimeError in the loop's own thread, which cannot wait for itself.
    """

    def __init__(
        self, thread: LoopThread[Any], make: MakeCoroutine[R], notify: Callable[[], object] | None = None
    ) -> None:
        thread.check_elsewhere()
        self._thread = thread
        self._make = make
        self._notify = notify
        self._begun = False
        self._submitted = False
        self._task: asyncio.Task[R] | None = None
        self._outcome: CallResult[R] = CallResult()

    def start(self) -> None:
        """Submit the call, unless that is done. Raises `ExecutorClosed`.

        After an interruption this may be called again, or `give_up`.
        """
        if not self._submitted:
            self._thread.soon(self._begin)
            self._submitted = True

    def _begin(self) -> None:
        if self._begun:
            return  # submitted twice because of an interruption, or given up before
        self._begun = True
        try:
            coroutine = self._make()
        except Exception as error:  # arguments that a method does not take
            self._fail(error)
            return
        self._task = asyncio.get_running_loop().create_task(coroutine)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[R]) -> None:
        self._task = None  # rule 6
        if task.cancelled():
            self._fail(ExecutorClosed("the call was cancelled, as its executor was closed"))
        elif (error := task.exception()) is not None:
            self._fail(error)
        else:
            self._outcome.succeed(task.result())
            if self._notify is not None:
                self._notify()

    def _fail(self, error: BaseException) -> None:
        self._outcome.fail(error)
        if self._notify is not None:
            self._notify()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._begun:
            self._begun = True
            self._fail(ExecutorClosed("the call was given up before it began"))

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return self._outcome.done

    def result(self) -> R:
        """Wait for the end; return the result or raise the error. An interruption does not cancel it."""
        return self._outcome.result()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end for so many seconds or for ever; whether the call has ended."""
        return self._outcome.wait(timeout)

    def cancel(self) -> None:
        """Begin to cancel the call, without waiting for that. Does nothing if it has ended."""
        if not self.done:
            with suppress(ExecutorClosed):
                self._thread.wake(self._cancel)

    def give_up(self) -> None:
        """Cancel the call, and wait for its end. Does nothing if it has ended."""
        self.cancel()
        # A loop that is about to close may not begin the call; begun calls end with the loop.
        while not self._thread.left.done and not self._outcome.wait(_RECHECK_SECONDS):
            pass

    def undelivered(self) -> R | None:
        """The result, if there is one."""
        return self._outcome.result() if self._outcome.succeeded else None


class LoopThread(Generic[T]):
    """A thread with an event loop in which a context manager is entered.

    Args:
        context: makes the context manager; called on the loop.
    """

    def __init__(self, context: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None
        # In the creator's context, as a task would run: its active span is named at the connect.
        run_in_context = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run_in_context, args=(self._run,), name="execclient", daemon=True
        )
        self._lock = threading.Lock()
        """Held while a call is submitted, so that none is submitted after the end."""
        self._open = False
        self._abandoned = False
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._entered: CallResult[T] = CallResult()
        self.left: CallResult[None] = CallResult()
        """Done after the context is left and the loop is closed."""
        self._why_closed = "the executor is closed"
        _threads.add(self)

    def enter(self) -> T:
        """Start the thread and enter the context there; returns its result or raises its error."""
        try:
            self._thread.start()
            return self._entered.result()
        except BaseException:
            self._abandon()
            raise

    def call(self, make: MakeCoroutine[R], dispose: Disposal[R] | None = None) -> R:
        """Run a coroutine on the loop, and wait for its result.

        Args:
            make: makes the coroutine.
            dispose: undoes a result that arrived while the wait was interrupted.

        Raises:
            ExecutorClosed: `close` was called before, or meanwhile.
            RuntimeError: this is the loop's own thread, which would wait for itself.
        """
        call = LoopCall(self, make)
        try:
            call.start()
            return call.result()
        except BaseException:
            call.give_up()
            result = None if dispose is None else call.undelivered()
            if dispose is not None and result is not None:
                undo = functools.partial(_awaited, dispose, result)
                with suppress(ExecutorClosed):
                    self.call(undo)
            raise
        finally:
            del call  # as in `CallResult.result`

    async def call_async(self, make: MakeCoroutine[R]) -> R:
        """As `call`, from a coroutine of any other event loop, which runs on meanwhile.

        Cancelling this cancels the call, and waits for its end; a second cancellation ends the wait at once.

        Args:
            make: makes the coroutine.

        Raises:
            ExecutorClosed, RuntimeError: as `call`.
        """
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(ended.set)

        call = LoopCall(self, make, notify)
        call.start()
        try:
            await ended.wait()
        except asyncio.CancelledError:
            call.cancel()
            while not (call.done or self.left.done):  # as in `LoopCall.give_up`
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _RECHECK_SECONDS)
            raise
        try:
            return call.result()
        finally:
            del call  # as in `CallResult.result`

    def check_elsewhere(self) -> None:
        """Raise a RuntimeError in the loop's own thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call in the thread of its own event loop would wait for ever: "
                "make it in another thread"
            )

    def soon(self, action: Callable[[], object]) -> None:
        """Run an action on the loop, without waiting for it. Raises `ExecutorClosed`."""
        with self._lock:
            if not self._open:
                raise ExecutorClosed(self._why_closed)
            self.wake(action)

    def wake(self, action: Callable[[], object]) -> None:
        """As `soon`, but also after `close`, until the loop has ended."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(action)
                return
        except RuntimeError:
            pass
        raise ExecutorClosed(self._why_closed)

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return not self._open

    def request_close(self) -> None:
        """Refuse further calls and begin to leave the context, without waiting for that."""
        with self._lock:
            if self._open:
                with suppress(ExecutorClosed):
                    self.wake(self._stop.set)
                self._open = False

    def close(self) -> None:
        """Refuse further calls, leave the context, and end the thread.

        A second call waits for the same end. Only the first call raises an error of leaving the context.
        """
        if self._abandoned or self._thread.ident is None:  # the context was not entered, or is left already
            self._abandon()
            return
        first = not self.closed
        try:
            self.request_close()
            if threading.current_thread() is self._thread:
                return  # a finalizer: the thread cannot wait for itself
            self.left.wait()
        except BaseException:
            self._abandon()
            raise
        self._thread.join()
        if first:
            self.left.result()

    def forked(self) -> None:
        """Close in the child of a fork, which has no thread (rule 5)."""
        self._lock = threading.Lock()  # the old one may be held by a thread of the parent
        self._open = False
        self._loop = None
        self._why_closed = (
            "the executor was opened before a fork, in the parent process: open another one in the child"
        )
        self._abandoned = True
        self.left = CallResult()
        self.left.succeed(None)

    # -- the thread

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # raised in the waiting threads
            failure = error
        finally:
            self._main = None  # rule 6
            with self._lock:
                self._open = False
        if not self._entered.done:
            self._entered.fail(failure or ExecutorClosed("the executor was closed"))
        if failure is None:
            self.left.succeed(None)
        else:
            self.left.fail(failure)

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        return self._loop

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        if self._abandoned:
            return
        async with self._context() as opened:
            with self._lock:
                self._open = True
            self._entered.succeed(opened)
            await self._stop.wait()

    def _abandon(self) -> None:
        """End the thread as soon as possible: its waiter was interrupted, or it has failed."""
        self._abandoned = True
        with self._lock:
            self._open = False
        if self._thread.ident is None:
            return  # not started; a later start ends at once
        with suppress(ExecutorClosed):
            self.wake(self._cancel_main)
        self._thread.join()

    def _cancel_main(self) -> None:
        if self._main is not None:
            self._main.cancel()


_threads: weakref.WeakSet[LoopThread[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for thread in list(_threads):
        thread.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)


async def _awaited(disposal: Disposal[R], result: R) -> None:
    await disposal(result)

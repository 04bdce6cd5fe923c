"""An event loop in a thread of its own, which other threads hand calls to and wait for them.

Rules kept in this file:

1. A wait that is interrupted (Ctrl-C) cancels its call, and goes on until the call has ended; a
   second interruption ends the wait at once.
2. After `close` nothing is accepted. What was accepted before ends: with its result, or with
   `ExecutorClosed`.
3. The loop, its tasks and the thread end together; leaving the context is what they do last.
4. An interruption may come between any two steps of the thread that calls. So a coroutine is made on the
   loop, where none comes and where it is run at once, and whoever hands a call over holds it before.
5. The child of a fork has the objects and not the thread. There all of them are closed, and closing them
   does nothing: what is at the other end is the parent's.

It knows neither sessions nor processes.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from execclient.errors import ExecutorClosed

_LOOK_UP_SECONDS = 0.2
"""How late an interruption may be noticed that came at the wrong moment."""

T = TypeVar("T")
R = TypeVar("R")

Making = Callable[[], Coroutine[Any, Any, R]]
"""Makes what to run; called on the loop."""

Disposal = Callable[[R], Awaitable[object]]
"""What to do with a result that nobody will get any more."""


class Outcome(Generic[R]):
    """How something ended, which other threads wait for.

    A `concurrent.futures.Future` would do, but for rule 4: an interruption within its `wait` may leave its
    lock held, and the loop would wait for that lock when it has the result.
    """

    def __init__(self) -> None:
        self.done = False
        self._result: R
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        """Opened at the end. Who comes through opens it for the next one; were that interrupted, the
        others would find `done` when they look up."""
        self._gate.acquire()

    def succeed(self, result: R) -> None:
        """It has ended with a result."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """It has ended with an error."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self.done = True
        self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for so many seconds or for ever; whether it has ended.

        It looks up now and then: a signal that comes in the instant before the interpreter falls asleep on
        a lock does not wake it, and a Ctrl-C would be noticed at the end of the call only.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = _LOOK_UP_SECONDS if deadline is None else deadline - time.monotonic()
            if self._gate.acquire(timeout=min(max(left, 0), _LOOK_UP_SECONDS)):
                self._gate.release()
            elif left <= 0:
                break
        return self.done

    def result(self) -> R:
        """Wait for it; give its result or raise its error."""
        self.wait()
        try:
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            del self  # else the error would hold this frame, and the frame the error

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with a result."""
        return self.done and self._error is None


class Call(Generic[R]):
    """A call to hand over.

    Args:
        thread: where it runs.
        make: makes what to run.
        tell: called on the loop's thread when it has ended.

    Raises a RuntimeError in the loop's own thread, where nothing can wait for it.
    """

    def __init__(
        self, thread: LoopThread[Any], make: Making[R], tell: Callable[[], object] | None = None
    ) -> None:
        thread.check_elsewhere()
        self._thread = thread
        self._make = make
        self._tell = tell
        self._begun = False
        self._handed_over = False
        self._task: asyncio.Task[R] | None = None
        self._outcome: Outcome[R] = Outcome()

    def start(self) -> None:
        """Hand it over, unless it has been. Raises `ExecutorClosed`.

        If this is interrupted, it may be called again, or `give_up` be.
        """
        if not self._handed_over:
            self._thread.soon(self._begin)
            self._handed_over = True

    def _begin(self) -> None:
        if self._begun:
            return  # handed over twice, as the first time was interrupted, or given up before
        self._begun = True
        try:
            coroutine = self._make()
        except Exception as error:  # arguments that a method does not take
            self._fail(error)
            return
        self._task = asyncio.get_running_loop().create_task(coroutine)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self._fail(ExecutorClosed("the call was cancelled, as its executor was closed"))
        elif (error := task.exception()) is not None:
            self._fail(error)
        else:
            self._outcome.succeed(task.result())
            if self._tell is not None:
                self._tell()

    def _fail(self, error: BaseException) -> None:
        self._outcome.fail(error)
        if self._tell is not None:
            self._tell()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._begun:
            self._begun = True
            self._fail(ExecutorClosed("the call was given up before it began"))

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._outcome.done

    def result(self) -> R:
        """Wait for its end, and give its result or raise its error. An interruption leaves it be."""
        return self._outcome.result()

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end for so many seconds or for ever; whether it has ended."""
        return self._outcome.wait(timeout)

    def give_up(self) -> None:
        """Cancel it, and wait for its end. Does nothing if it has ended."""
        if self.done:
            return
        with suppress(ExecutorClosed):
            self._thread.wake(self._cancel)
        # A loop that is about to close may not come to it any more; what it had begun has ended then.
        while not self._thread.left.done and not self._outcome.wait(_LOOK_UP_SECONDS):
            pass

    def undelivered(self) -> R | None:
        """The result, if it ended with one."""
        return self._outcome.result() if self._outcome.succeeded else None


class LoopThread(Generic[T]):
    """The thread, for as long as a context is entered there.

    Args:
        context: makes the context; called on the loop.
    """

    def __init__(self, context: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="execclient", daemon=True)
        self._lock = threading.Lock()
        """Held while something is handed over, so that nothing comes after the end."""
        self._open = False
        self._abandoned = False
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._entered: Outcome[T] = Outcome()
        self.left: Outcome[None] = Outcome()
        """Done when the context is left and the loop is closed."""
        self._why_closed = "the executor is closed"
        _threads.add(self)

    def enter(self) -> T:
        """Start the thread, enter the context there, and give what it gave; raises what it raised."""
        try:
            self._thread.start()
            return self._entered.result()
        except BaseException:
            self._abandon()
            raise

    def call(self, make: Making[R], dispose: Disposal[R] | None = None) -> R:
        """Have a coroutine made and run on the loop, and wait for its result.

        Args:
            make: makes the coroutine.
            dispose: undoes a result that came while the wait was being interrupted.

        Raises:
            ExecutorClosed: `close` was called before, or meanwhile.
            RuntimeError: this is the loop's own thread, where waiting would last for ever.
        """
        call = Call(self, make)
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
            del call  # as in `Outcome.result`

    def check_elsewhere(self) -> None:
        """Refuse to wait in the loop's own thread, with a RuntimeError."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call in the thread of its own event loop would wait for ever: "
                "make it in another thread"
            )

    def soon(self, action: Callable[[], object]) -> None:
        """Have something done on the loop, and do not wait for it. Raises `ExecutorClosed`."""
        with self._lock:
            if not self._open:
                raise ExecutorClosed(self._why_closed)
            self.wake(action)

    def wake(self, action: Callable[[], object]) -> None:
        """As `soon`, and after `close`, too, until the loop has ended."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(action)
                return
        except RuntimeError:
            pass
        raise ExecutorClosed(self._why_closed)

    @property
    def closed(self) -> bool:
        """Whether nothing is accepted any more."""
        return not self._open

    def request_close(self) -> None:
        """Accept nothing more, have the context left, and do not wait for that."""
        with self._lock:
            if self._open:
                with suppress(ExecutorClosed):
                    self.wake(self._stop.set)
                self._open = False

    def close(self) -> None:
        """Accept nothing more, leave the context, and end the thread.

        A second call waits for the same end. Raises what leaving raised, to the first caller only.
        """
        if self._abandoned or self._thread.ident is None:  # nothing was entered, or is left to leave
            self._abandon()
            return
        first = not self.closed
        try:
            self.request_close()
            if threading.current_thread() is self._thread:
                return  # a finalizer: it cannot wait for the thread that it runs in
            self.left.wait()
        except BaseException:
            self._abandon()
            raise
        self._thread.join()
        if first:
            self.left.result()

    def forked(self) -> None:
        """This is the child of a fork, where the thread is not (rule 5)."""
        self._lock = threading.Lock()  # it may be held by a thread that is not here either
        self._open = False
        self._loop = None
        self._why_closed = (
            "the executor was opened before a fork, in the parent process: open another one in the child"
        )
        self._abandoned = True
        self.left = Outcome()
        self.left.succeed(None)

    # -- the thread

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # it is raised to whoever waits
            failure = error
        finally:
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
        """End the thread as soon as it can: who waited for it was interrupted, or it has failed."""
        self._abandoned = True
        with self._lock:
            self._open = False
        if self._thread.ident is None:
            return  # it has not started; should it still do so, it finds this at its beginning
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

"""Threads for what may block: reading, writing, lookups on mounts that can hang.

Rules kept in this file:

1. The loop's thread never waits here; a call is a future.
2. One connection has at most `CALLS_PER_CONNECTION` calls in threads, the others wait their
   turn: a thousand requests on a dead mount leave threads to the other connections.
3. A call that is stuck in the kernel cannot be ended. It keeps its thread and its place among
   its connection's calls, and nobody waits for it once the connection is gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from execprotocol.errors import file_error

MAX_THREADS = 128
"""Threads of the whole server. They cost memory only when they are needed: idle ones are used first."""

CALLS_PER_CONNECTION = 16
"""More would not make a disk faster, and eight connections on a dead mount take all threads as it is."""

T = TypeVar("T")


_threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="filesystem")


class BlockingCalls:
    """The calls of one connection."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        """Set when the connection has ended; long work looks at it and gives up (`raise_if_cancelled`)."""
        self._running = 0
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call `function(*args)` in a thread, when it is this call's turn.

        An `OSError` comes out as the error that the wire has for it (`file_error`).
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.stop.is_set():
            future.cancel()
            return future
        self._waiting.append((future, partial(function, *args)))
        self._start_waiting()
        return future

    def close(self) -> None:
        """The connection has ended: what waits is never called, what runs is told to stop."""
        self.stop.set()
        for future, _ in self._waiting:
            future.cancel()
        self._waiting.clear()

    def _start_waiting(self) -> None:
        while self._waiting and self._running < CALLS_PER_CONNECTION:
            future, call = self._waiting.popleft()
            if not future.cancelled():
                self._running += 1
                _threads.submit(self._work, future, call)

    def _work(self, future: asyncio.Future[T], call: Callable[[], T]) -> None:
        """In the thread: do the call and take its outcome to the loop."""
        deliver: Callable[[asyncio.Future[T]], None]
        try:
            result = call()
            deliver = partial(_set_result, result=result)
        except OSError as error:
            deliver = partial(_set_exception, error=file_error(error))
        except Exception as error:
            deliver = partial(_set_exception, error=error)
        try:
            future.get_loop().call_soon_threadsafe(self._finish, future, deliver)
        except RuntimeError:
            # The loop is closed: the server is ending, and nobody waits for this.
            return

    def _finish(self, future: asyncio.Future[T], deliver: Callable[[asyncio.Future[T]], None]) -> None:
        self._running -= 1
        if not future.done():
            deliver(future)
        self._start_waiting()


def run_in_background(function: Callable[[], None]) -> None:
    """Call `function` in a thread; nobody learns of its end. It must not raise."""
    _threads.submit(function)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    future.set_exception(error)

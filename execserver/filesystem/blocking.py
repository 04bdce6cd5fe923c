"""Threads for calls that may block: reading, writing, lookups on mounts that can hang.

Rules kept in this file:

1. The loop's thread never waits here; a call is a future.
2. A connection has at most `CALLS_PER_CONNECTION` calls in threads; further calls are queued. A thousand
   requests on a dead mount leave threads for the other connections.
3. A call that hangs in the kernel cannot be ended. It occupies its thread, and counts as a call of its
   connection. When the connection ends, the call is abandoned.
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
"""Threads of the whole server. They are started on demand, and idle ones are reused first."""

CALLS_PER_CONNECTION = 16
"""More would not make a disk faster, and eight connections on a dead mount already take all threads."""

T = TypeVar("T")


_threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="filesystem")


class BlockingCalls:
    """The calls of one connection."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        """Set when the connection has ended. Long calls check it (`raise_if_cancelled`)."""
        self._running = 0
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call `function(*args)` in a thread, now or after the calls before it.

        An `OSError` becomes the `RpcError` for it (`file_error`).
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.stop.is_set():
            future.cancel()
            return future
        self._waiting.append((future, partial(function, *args)))
        self._start_waiting()
        return future

    def close(self) -> None:
        """The connection has ended: cancel queued calls, and set the stop flag for running ones."""
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
        """In the thread: make the call and pass its outcome to the loop."""
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
            # The loop is closed: the server is stopping.
            return

    def _finish(self, future: asyncio.Future[T], deliver: Callable[[asyncio.Future[T]], None]) -> None:
        self._running -= 1
        if not future.done():
            deliver(future)
        self._start_waiting()


def run_in_background(function: Callable[[], None]) -> None:
    """Call `function` in a thread without waiting for it. It must not raise."""
    _threads.submit(function)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    future.set_exception(error)

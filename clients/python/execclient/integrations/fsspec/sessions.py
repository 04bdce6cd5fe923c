"""The sessions of a file system with its daemon, and calls that outlast them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from execclient import Executor, FileSystem, OutcomeUnknown, SessionLost
from execclient.file_session import repeated

CALLS = 64
"""Under way on one connection. Each has at most one handle, and a connection has at most 128."""

T = TypeVar("T")


class Session(NamedTuple):
    """An open session."""

    executor: Executor
    files: FileSystem
    """In the sandbox of the file system."""
    free: asyncio.Semaphore


class Sessions:
    """A session for each event loop, opened by its first call.

    fsspec has one loop for all blocking calls; with `asynchronous=True` each of the program's loops counts.

    Args:
        connect: opens the executor.
        confine: returns its files, in the sandbox.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Executor]], confine: Callable[[Executor], FileSystem]
    ) -> None:
        self._connect = connect
        self._confine = confine
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[Session]] = {}

    async def call(self, call: Callable[[FileSystem], Awaitable[T]]) -> T:
        """Make a call that may be made twice, again if the connection or the session is lost."""

        async def attempt() -> T:
            session = await self._current()
            try:
                async with session.free:
                    return await call(session.files)
            except SessionLost:
                await self._forget(session)
                raise

        return await repeated(attempt, after=(OutcomeUnknown, SessionLost))

    async def change(
        self, call: Callable[[FileSystem], Awaitable[object]], done: type[Exception] | None
    ) -> None:
        """As `call`, for a call that fails with `done` if it is made twice.

        After an attempt whose outcome is unknown, that error means that the attempt worked; None if no error
        means that, because the call must fail at its first attempt, too.
        """
        attempts = 0

        async def attempt(files: FileSystem) -> None:
            nonlocal attempts
            attempts += 1
            try:
                await call(files)
            except Exception as error:
                if attempts == 1 or done is None or not isinstance(error, done):
                    raise

        await self.call(attempt)

    async def close(self) -> None:
        """End the session of the running loop. A later call opens another one."""
        task = self._tasks.pop(asyncio.get_running_loop(), None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().executor.close()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def _current(self) -> Session:
        """The session of the running loop. If opening it failed, the next call tries again."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            for other in list(self._tasks):  # other loops are in other threads
                if other.is_closed():
                    self._tasks.pop(other, None)
            task = self._tasks[loop] = loop.create_task(self._open())
        return await asyncio.shield(task)

    async def _open(self) -> Session:
        executor = await self._connect()
        try:
            return Session(executor, self._confine(executor), asyncio.Semaphore(CALLS))
        except BaseException:
            await executor.close()
            raise

    async def _forget(self, session: Session) -> None:
        """Have the next call open a session, unless another call has done that."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is not None and task.done() and task.result() is session:
            del self._tasks[loop]
        await session.executor.close()

"""The calls that are under way, so that closing a toolset can end them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from execclient.errors import ExecutorClosed


class OpenCalls:
    """Knows them, and lets none begin after `end`."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._closed = False
        self._left = asyncio.Event()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """A call within the block.

        Raises:
            ExecutorClosed: there was an `end` before.
            TimeoutError: there was one meanwhile; what was awaited in the block was cancelled.
        """
        if self._closed:
            raise ExecutorClosed("the toolset was closed: make another one, or close it later")
        scope = asyncio.timeout(None)
        self._scopes.add(scope)
        try:
            async with scope:
                yield
        finally:
            self._scopes.discard(scope)
            self._left.set()

    async def end(self) -> None:
        """Let no more begin, end those that are under way, and wait for that. May be called again."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        while self._scopes:
            self._left.clear()
            await self._left.wait()

"""Concurrency of calls: any number of calls that change nothing at the same time, or one other call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from execclient.errors import ExecutorClosed


class CallGate:
    """Admits calls in order of arrival, so that a call that changes something does not starve."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """Held by a call while it waits to enter, and by a call that must run alone until it ends."""
        self._readers = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def entered(self, *, mutating: bool) -> AsyncIterator[None]:
        """Run a call within the block."""
        async with self._turn:
            if mutating:
                await self._empty.wait()
                yield
                return
            self._readers += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._empty.set()


class OpenCalls:
    """The calls in progress, so that closing a toolset can end them. No call begins after `end`."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._closed = False
        self._left = asyncio.Event()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Run a call within the block.

        Raises:
            ExecutorClosed: `end` was called before.
            TimeoutError: `end` was called meanwhile; the block was cancelled.
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
        """Admit no more calls, end those in progress, and wait for their end. May be called again."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        while self._scopes:
            self._left.clear()
            await self._left.wait()

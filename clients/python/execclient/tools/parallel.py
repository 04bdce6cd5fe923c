"""Which calls run side by side: any number of those that change nothing, or one of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CallGate:
    """Lets calls in, in the order in which they came: a call that changes something does not starve."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """Held by a call while it waits to get in, and by one that must be alone for as long as it runs."""
        self._readers = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def entered(self, *, mutating: bool) -> AsyncIterator[None]:
        """A call within the block."""
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

"""A request's time, from its admission to the last byte of its body."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from execserver.http.errors import TransferError

_LONGEST_SECONDS = 10 * 365 * 24 * 3600.0
"""A timeout is a number of milliseconds of 64 bits; a timer of the loop is not."""


class Deadline:
    """When a request has to be over.

    Args:
        timeout_ms: from now; None for never.
    """

    def __init__(self, timeout_ms: int | None) -> None:
        self._timeout_ms = timeout_ms
        self._end: float | None = None
        if timeout_ms is not None:
            self._end = asyncio.get_running_loop().time() + min(timeout_ms / 1000, _LONGEST_SECONDS)

    @contextlib.asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Do something before the deadline. Not to be nested.

        Raises:
            TransferError: it came first.
        """
        if self._timeout_ms == 0:
            raise self._passed()
        try:
            async with asyncio.timeout_at(self._end):
                yield
        except TimeoutError:
            raise self._passed() from None

    def _passed(self) -> TransferError:
        return TransferError(f"timed out after {self._timeout_ms} ms")

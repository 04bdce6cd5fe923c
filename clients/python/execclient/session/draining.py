"""The handler for the drain of an executor: `executor/draining` (`docs/protocol.md`, H60)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from execclient.connection.connection import Json
from execclient.results import DrainNotice

OnDraining = Callable[[DrainNotice], object]

log = logging.getLogger(__name__)


class DrainNotices:
    """Calls the handler of a session for each notice, one at a time.

    A slow handler gets the newest notice next, and none of those between: each has all that is known.

    Args:
        handler: of `connect`; None: notices are ignored.
    """

    def __init__(self, handler: OnDraining | None) -> None:
        self._handler = handler
        self._newest: DrainNotice | None = None
        self._calling: asyncio.Task[None] | None = None

    def received(self, method: str, params: Json) -> None:
        """Process an event of the connection; others than `executor/draining` are ignored."""
        if method != "executor/draining" or self._handler is None:
            return
        self._newest = DrainNotice.decode(params)
        if self._calling is None:
            self._calling = asyncio.create_task(self._call(self._handler))

    def close(self) -> None:
        """Cancel the handler: the session has ended for this client."""
        self._newest = None
        if self._calling is not None and self._calling is not asyncio.current_task():
            self._calling.cancel()

    async def _call(self, handler: OnDraining) -> None:
        try:
            while (notice := self._newest) is not None:
                self._newest = None
                try:
                    returned = handler(notice)
                    if inspect.isawaitable(returned):
                        await returned
                except Exception:
                    log.exception("the handler of drains failed")
        finally:
            self._calling = None

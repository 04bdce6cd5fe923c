"""Time limits of a process, for a server that does not keep them itself.

`docs/protocol.md`, P17 and P18: a daemon that does keeps them also while nobody is connected.
"""

from __future__ import annotations

import asyncio

from execclient.errors import ExecServerError
from execclient.session.inbox import Inbox
from execclient.session.session import Session


class Deadlines:
    """Kills a process, with its descendants, when it has run or been silent for too long.

    Args:
        session: the session that it runs in.
        inbox: its events, from before the start.
        run: seconds that it may run, counted from now.
        idle: seconds without output and without input.
    """

    def __init__(self, session: Session, inbox: Inbox, run: float | None, idle: float | None) -> None:
        clock = asyncio.get_running_loop().time
        self._session = session
        self._inbox = inbox
        self._clock = inbox.clock = clock
        inbox.active_at = clock()
        self._end = None if run is None else clock() + run
        self._idle = idle
        self._task = asyncio.create_task(self._enforce())

    def touch(self) -> None:
        """Something happened that shows that it is not idle."""
        self._inbox.active_at = self._clock()

    def cancel(self) -> None:
        """Forget about it."""
        self._task.cancel()

    async def _enforce(self) -> None:
        try:
            while not await self._inbox.exits_within(self._due()[0] - self._clock()):
                due, cause = self._due()
                if due <= self._clock():
                    self._inbox.forced_cause = cause
                    await self._session.kill(self._inbox)
                    return
        except ExecServerError:
            pass  # no end will be known, and nobody is there any more to be told

    def _due(self) -> tuple[float, str]:
        dues = [] if self._end is None else [(self._end, "timeout")]
        if self._idle is not None:
            dues.append((self._inbox.active_at + self._idle, "idleTimeout"))
        return min(dues)

"""Time limits that the client enforces, where the server does not. `docs/protocol.md`, P17, P18 and P24."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

from execclient.errors import ExecServerError
from execclient.process_control import send_signal
from execclient.session.inbox import Inbox
from execclient.session.session import Session


class Deadlines:
    """Ends a process and its descendants when it has run or been silent for too long.

    A daemon that enforces the limits itself does so also without a connection.

    Args:
        session: the session of the process.
        inbox: its events, from before the start.
        run: seconds that it may run, from `begin`.
        idle: seconds without output and without input.
        grace: seconds between SIGTERM to its group and SIGKILL to all descendants; 0 for SIGKILL at once.
    """

    def __init__(
        self, session: Session, inbox: Inbox, run: float | None, idle: float | None, grace: float = 0.0
    ) -> None:
        self._session = session
        self._inbox = inbox
        self._clock = inbox.clock = asyncio.get_running_loop().time
        self._run = run
        self._end = math.inf
        self._idle = idle
        self._grace = grace
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The process has started."""
        self.touch()
        if self._run is not None:
            self._end = self._clock() + self._run
        self._task = asyncio.create_task(self._enforce())

    def touch(self) -> None:
        """The process is not idle."""
        self._inbox.active_at = self._clock()

    def cancel(self) -> None:
        """Enforce the limits no longer. A process that got SIGTERM is killed after its grace all the same."""
        if self._task is not None and not self._inbox.warned:
            self._task.cancel()

    async def _enforce(self) -> None:
        try:
            while not await self._inbox.exits_within(self._due()[0] - self._clock()):
                due, cause = self._due()
                if due <= self._clock():
                    self._inbox.forced_cause = cause
                    if self._grace:
                        await self._warn()
                    await self._session.kill(self._inbox)
                    return
        except ExecServerError:
            pass  # the end will not be known, and there is no caller to report this to

    async def _warn(self) -> None:
        """Send SIGTERM, and wait. Descendants have their grace, too: it does not end with the process."""
        self._inbox.warned = True
        for name in ("SIGTERM", "SIGCONT"):  # a stopped process cannot act on a signal
            with suppress(ExecServerError):  # it is killed in any case
                await send_signal(self._session, self._inbox, name, "group")
        await asyncio.sleep(self._grace)

    def _due(self) -> tuple[float, str]:
        dues = [(self._end, "timeout")]
        if self._idle is not None:
            dues.append((self._inbox.active_at + self._idle, "idleTimeout"))
        return min(dues)

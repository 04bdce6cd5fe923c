"""What a console shows of a daemon: its processes, and their output across lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from execclient import ExecServerError, Executor, ExecutorClosed, SessionLost
from execclient.commands.daemon import DaemonOptions, Listed, Processes, listing
from execclient.commands.failures import CommandExit
from execclient.connection.connection import Json

POLL_SECONDS = 1.0
"""Between two lists of the processes, while a page is open."""

SILENT_SECONDS = 1.0
"""A list that takes longer is shown as a lost connection: it takes milliseconds."""

RETRY_SECONDS = 0.5
"""Between two attempts to reach a daemon that has ended."""

MAX_NOTICES = 20


class DaemonView:
    """The processes of a daemon, listed again and again, and calls that outlast lost connections.

    A lost connection is replaced by the session itself. If the session is lost too, because the daemon was
    stopped, a new one is opened as soon as there is a daemon.

    Args:
        daemon: the daemon.
        changed: called when the snapshot may have changed.
    """

    def __init__(self, daemon: DaemonOptions, changed: Callable[[], None]) -> None:
        self._daemon = daemon
        self._changed = changed
        self._state = "connecting"
        self._message = ""
        self._notices: dict[str, None] = {}
        self._processes: list[Listed] = []
        self._own: Executor | None = None
        """The session that reaches all processes, if there is one."""
        self._by_session: dict[str, Executor] = {}
        """Else the sessions that reach their own ones."""
        self._open = asyncio.Condition()
        self._running = asyncio.Lock()

    def snapshot(self) -> Json:
        """The state of the connection and the processes, for the page."""
        return {
            "state": self._state,
            "message": self._message,
            "notices": list(self._notices),
            "processes": self._processes,
        }

    async def run(self) -> None:
        """Keep the list up to date, until cancelled. A further run begins when the one before has ended."""
        async with self._running:
            try:
                while True:
                    await self._connected()
                    await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._own, self._by_session, self._state = None, {}, "connecting"

    async def _connected(self) -> None:
        """List the processes until the session is lost."""
        try:
            async with AsyncExitStack() as stack:
                await self._follow(Processes(self._daemon, stack, report=self._notice))
        except (ExecServerError, CommandExit, OSError) as error:
            self._set_state("reconnecting", str(error))

    async def _follow(self, processes: Processes) -> None:
        while True:
            listed = asyncio.ensure_future(self._list(processes))
            try:
                done, _ = await asyncio.wait({listed}, timeout=SILENT_SECONDS)
                if not done:
                    self._set_state("reconnecting", "the daemon does not answer")
                await listed
            finally:
                listed.cancel()
            await asyncio.sleep(POLL_SECONDS)

    async def _list(self, processes: Processes) -> None:
        self._notices.clear()
        try:
            sessions = await processes.sessions()
        except CommandExit as hidden:  # the daemon answers, and shows no processes
            self._processes = []
            self._set_state("connected", str(hidden))
            return
        every = processes.shows_all
        lists = await asyncio.gather(*(listing(each, every=every, argv=True) for each in sessions))
        self._processes = sorted(
            (each for one in lists for each in one), key=lambda each: each["startedAtMs"]
        )
        async with self._open:
            self._own = sessions[0] if every else None
            self._by_session = {each.session_id: each for each in sessions}
            self._open.notify_all()
        self._set_state("connected", "")

    def _notice(self, text: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices[text] = None

    def _set_state(self, state: str, message: str) -> None:
        self._state, self._message = state, message
        self._changed()

    # -- calls

    def find(self, session_id: str, process_id: str) -> Listed | None:
        """The entry of a process in the newest list."""
        for each in self._processes:
            if (each["sessionId"], each["processId"]) == (session_id, process_id):
                return each
        return None

    async def executor(self, session_id: str) -> Executor:
        """The session that reaches the processes of this one; waits until it is connected."""

        def reaching() -> Executor | None:
            found = self._own or self._by_session.get(session_id)
            return None if found is None or found.closed else found

        async with self._open:
            await self._open.wait_for(reaching)
        found = reaching()
        assert found is not None
        return found

    async def call(
        self, session_id: str, method: str, params: Mapping[str, Json], *, limit: float | None = None
    ) -> Json:
        """Send a request that may be sent twice; if its session is lost, send it again by the next one.

        Raises:
            CallFailed, CallTimeout: as `Executor.call`.
        """
        while True:
            executor = await self.executor(session_id)
            try:
                return await executor.call(method, params, limit=limit)
            except (SessionLost, ExecutorClosed):
                continue  # `run` opens another one

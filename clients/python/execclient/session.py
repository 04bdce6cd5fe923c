"""One session with a daemon, over as many connections as it takes.

    open ──> connected ──connection lost──> recovering ──not resumed──> lost
                 ^                              │
                 └────────── resumed ───────────┘            any ── close ──> closed

Calls made while it recovers wait. Of the calls that were under way, those in `SENT_AGAIN` are sent
again, because twice is as good as once; the others raise `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from execclient.connection import Connection, Json
from execclient.errors import (
    CallTimeout,
    ConnectionLost,
    ExecServerError,
    ExecutorClosed,
    OutcomeUnknown,
    ProtocolFault,
    SessionLost,
)
from execclient.inbox import Inbox
from execclient.recovery import Link, catch_up, resume

SENT_AGAIN = frozenset(
    {
        "process/read",
        "process/write",  # the daemon remembers the write id
        "process/terminate",
        "fs/readFile",
        "fs/getMetadata",
        "fs/readDirectory",
    }
)

KILL_SECONDS = 5.0
"""How long the answer to a terminate is waited for by somebody who wants to be gone."""


class Session:
    """Calls, the inboxes of the session's processes, and the recovery of a lost connection.

    Args:
        url: where the daemon listens.
        call_timeout: seconds for the answer to a call, recovery included.
        recovery_timeout: seconds in which a lost connection must be back.
    """

    def __init__(self, url: str, call_timeout: float, recovery_timeout: float) -> None:
        self.id = ""
        self.call_timeout = call_timeout
        self.recoveries = 0
        """How often a lost connection was replaced."""
        self._recovery_timeout = recovery_timeout
        self._link = Link(url, self._event, self._connection_lost)
        self._connection: Connection | None = None
        self._settled = asyncio.Event()
        """Not recovering: connected, lost or closed."""
        self._failure: ExecServerError | None = None
        self._closed = False
        self._inboxes: dict[str, Inbox] = {}
        self._recovery: asyncio.Task[None] | None = None
        self._terminations: set[asyncio.Task[None]] = set()

    async def open(self) -> Json:
        """Connect, and open a new session; the result of `initialize`."""
        connection, result = await self._link.attach(None)
        self.id = result["sessionId"]
        self._connection = connection
        self._settled.set()
        if connection.lost:
            self._connection_lost(connection, ConnectionLost("the connection was lost at once"))
        return result

    async def close(self) -> None:
        """Kill what still runs, and end the connection; a second call does nothing."""
        if self._closed:
            return
        try:
            if self._failure is None:
                for process_id in list(self._inboxes):
                    self.terminate_soon(process_id)
                if self._terminations:
                    await asyncio.wait(self._terminations, timeout=KILL_SECONDS)
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._closed = True
        self._settled.set()
        connection, self._connection = self._connection, None
        for inbox in self._inboxes.values():
            inbox.fail(ExecutorClosed("the executor was closed"))
        await _cancel({*self._terminations, *({self._recovery} if self._recovery else ())})
        if connection is not None:
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    await connection.close()
            except TimeoutError:
                await connection.abort()

    # -- calls

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Any request of the wire, and its result.

        Args:
            method: its name.
            params: its parameters.
            limit: seconds, recovery of a lost connection included; by default `call_timeout`.

        Raises:
            CallFailed: the server answered with an error.
            CallTimeout: no answer in time.
            OutcomeUnknown: the connection was lost, and this request is not sent twice.
            SessionLost, ExecutorClosed: there is no session any more.
        """
        seconds = self.call_timeout if limit is None else limit
        try:
            async with asyncio.timeout(seconds):
                while True:
                    connection = await self.connected()
                    try:
                        return await connection.request(method, params)
                    except ConnectionLost as error:
                        if error.sent and method not in SENT_AGAIN:
                            raise OutcomeUnknown(
                                f"{method}: {error}; whether it was done is unknown"
                            ) from error
        except TimeoutError:
            raise CallTimeout(method, seconds) from None

    async def connected(self) -> Connection:
        """The connection, once there is one.

        Raises:
            SessionLost, ExecutorClosed: there will be none.
        """
        while self._connection is None:
            await self._settled.wait()
            if self._closed:
                raise ExecutorClosed("the executor is closed")
            if self._failure is not None:
                raise SessionLost(str(self._failure)) from self._failure
        return self._connection

    def drop_connection(self) -> None:
        """Cut the connection as a fault would."""
        connection = self._connection
        if connection is not None:
            connection.cut()
            self._connection_lost(connection, ConnectionLost("the connection was dropped on request"))

    # -- processes

    def add(self, inbox: Inbox) -> None:
        """Bring it the events of its process from now on, until that is closed."""
        self._inboxes[inbox.id] = inbox

    def forget(self, inbox: Inbox) -> None:
        """Bring it no more events."""
        self._inboxes.pop(inbox.id, None)

    async def kill(self, inbox: Inbox) -> None:
        """Kill a process and its descendants. Goes on in the background when it is cancelled."""
        await asyncio.wait({self.terminate_soon(inbox.id)}, timeout=KILL_SECONDS)

    def terminate_soon(self, process_id: str) -> asyncio.Task[None]:
        """Kill a process, if it exists, as soon as there is a connection."""

        async def terminate() -> None:
            with suppress(ExecServerError):
                await self.call("process/terminate", {"processId": process_id, "scope": "tree"})

        task = asyncio.create_task(terminate())
        self._terminations.add(task)
        task.add_done_callback(self._terminations.discard)
        return task

    # -- what connections tell

    def _event(self, method: str, params: Json) -> None:
        inbox = self._inboxes.get(params["processId"]) if method.startswith("process/") else None
        if inbox is not None:
            inbox.push(method, params)
            if inbox.closed:
                self.forget(inbox)

    def _connection_lost(self, connection: Connection, reason: ExecServerError) -> None:
        if connection is not self._connection:
            return  # closed by us, or one of a recovery, which sees it by itself
        self._connection = None
        for inbox in self._inboxes.values():
            inbox.hold()
        if isinstance(reason, ProtocolFault):
            self._give_up(reason)
        else:
            self._settled.clear()
            self._recovery = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        try:
            connection = await self._resumed()
        except ExecServerError as error:
            self._give_up(error)
            return
        for inbox in list(self._inboxes.values()):
            if inbox.closed:
                self.forget(inbox)
        self._connection = connection
        self._settled.set()

    async def _resumed(self) -> Connection:
        while True:
            connection = await resume(self._link, self.id, self._recovery_timeout)
            self.recoveries += 1  # before anything comes of it
            try:
                async with asyncio.timeout(self._recovery_timeout):
                    await asyncio.gather(*(catch_up(connection, inbox) for inbox in self._inboxes.values()))
            except ConnectionLost:
                continue  # cut again
            except TimeoutError:
                await connection.abort()
                raise SessionLost("the daemon does not answer after the session was resumed") from None
            except BaseException:
                await connection.abort()
                raise
            if not connection.lost:
                return connection

    def _give_up(self, error: ExecServerError) -> None:
        self._failure = error
        for inbox in self._inboxes.values():
            inbox.fail(SessionLost(str(error)))
        self._settled.set()


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

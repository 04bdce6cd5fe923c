"""Connect to a session, and replace a lost connection.

    connect ── initialize {resumeSessionId} ──> attached ── process/read for each process ──> as before
       ^                  │ -32010, or lost again
       └── a pause ───────┘

This follows the stock client, with its limits (`docs/protocol.md`, "Resuming"), except in one case: on this
machine the kernel reports reliably that no server is listening, so the session is given up sooner.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection, Json, OnRequest
from execclient.connection.target import OnEvent, OnLost, Target
from execclient.errors import (
    AccessDenied,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    DaemonNotRunning,
    ExecServerError,
    ExecutorDraining,
    Refused,
    SessionAttached,
    SessionLost,
    WrongExecutor,
)
from execclient.session.inbox import InboxTable
from execclient.session.replay import replay

RECOVERY_SECONDS = 45.0
"""As the stock client: a server needs up to 35 s to notice a lost connection."""

NOT_LISTENING_SECONDS = 2.0
"""A daemon's socket stays bound while its server is replaced; if no server listens for this long the daemon
has ended, and its sessions with it. Behind a socket that ssh forwards it may only be out of reach: a time
that the caller chose is the limit there, too."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.005, 0.1
"""Between two attempts. A server on the same machine notices a lost connection within milliseconds; the
longest pause is that of the stock client."""

STEADY_SECONDS = 1.0
"""After a connection that lasted this long there is no pause; after a shorter one without events there is."""

ATTACHED_SECONDS = 8.0
"""How long the first connection waits for a session that another connection has. A server needs 5 s to notice
that the other client is gone."""

DRAINING_SECONDS = 2.0
"""How long another executor of a pool is tried for. An executor reports a drain to its relay within 0.5 s."""

HANDSHAKES = 10
"""Attempts to open a session while connections are lost before the answer. A session whose id never arrived
has no processes, and ends after its time to live."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Connects to the daemon on behalf of a session."""

    target: Target
    client_name: str
    on_event: OnEvent
    on_request: OnRequest
    on_lost: OnLost

    async def connect(self, session_id: str | None) -> tuple[Connection, Json]:
        """A connection after its handshake, and the result of `initialize`.

        Args:
            session_id: the session to resume; None for a new one.

        Raises:
            ConnectionFailed, ConnectionLost, CallFailed, CallTimeout: the attempt failed.
        """
        connection = await self.target.open(self.on_event, self.on_lost, resuming=session_id is not None)
        connection.on_request = self.on_request
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                result = await connection.request(
                    "initialize",
                    {
                        "clientName": self.client_name,
                        "resumeSessionId": session_id,
                        "extensions": {"execserver": 1},
                    },
                )
            connection.notify("initialized")
        except TimeoutError:
            await connection.abort()
            raise CallTimeout("initialize", CONNECT_SECONDS) from None
        except BaseException:
            await connection.abort()
            raise
        return connection, result


class Pace:
    """The pauses between connections that are lost before they have brought any events.

    Args:
        longest: the longest pause, in seconds.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._pause = 0.0
        self._since: float | None = None
        self._progress = 0

    def connected(self, now: float, progress: int) -> None:
        """A connection was made.

        Args:
            now: seconds, by a monotonic clock.
            progress: a number that grows with each event.
        """
        self._since, self._progress = now, progress

    def lost(self, now: float, progress: int) -> float:
        """The connection was lost: seconds to wait before the next attempt."""
        lasted = self._since is None or now - self._since >= STEADY_SECONDS
        if lasted or progress != self._progress:
            self._pause = 0.0
        else:
            self._pause = min(2 * self._pause or FIRST_PAUSE_SECONDS, self._longest)
        return self._pause


CLOSED_AT_ONCE = (
    "; a daemon accepts no clients from a sandbox or a container unless it runs there itself, and its log "
    "then says so: connect by a WebSocket with --ws-auth"
)


async def join(connector: Connector, session_id: str | None) -> tuple[Connection, Json]:
    """The first connection of a client: to a new session, or to the session of another client.

    Raises:
        ConnectionFailed: the connection failed.
        SessionLost: there is no such session.
        SessionAttached: another client is connected to it.
        ExecutorDraining: the executor opens no new sessions.
    """
    clock = asyncio.get_running_loop().time
    begin = clock()
    left = HANDSHAKES
    while True:
        try:
            return await connector.connect(session_id)
        except SessionAttached:
            if clock() - begin >= ATTACHED_SECONDS:
                raise
        except ExecutorDraining:
            # The relay has not heard of it yet, and chooses another executor of the pool soon.
            if not connector.target.chooses or clock() - begin >= DRAINING_SECONDS:
                raise
        except Refused as error:
            if session_id is None:
                raise
            raise SessionLost(f"the session {session_id} cannot be resumed: {error.message}") from error
        except ConnectionLost as error:
            left -= 1
            if not left or not connector.target.recoverable:
                # Over a Unix socket a daemon cannot give a reason: the dialect is not known yet.
                hint = CLOSED_AT_ONCE if connector.target.url.startswith("unix:") else ""
                raise ConnectionFailed(f"cannot connect to {connector.target.url}: {error}{hint}") from error
        await asyncio.sleep(LONGEST_PAUSE_SECONDS)


async def resume(
    connector: Connector, session_id: str, limit: float, *, not_listening_limit: float = NOT_LISTENING_SECONDS
) -> Connection:
    """A new connection to the session.

    Args:
        connector: connects to the daemon.
        session_id: the session.
        limit: seconds until the session is given up.
        not_listening_limit: the same while no server listens on this machine.

    Raises:
        SessionLost: the session cannot be resumed; the message has the reason.
    """
    clock = asyncio.get_running_loop().time
    begin = clock()
    last_listening = begin
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            connection, _ = await connector.connect(session_id)
        except DaemonNotRunning as error:
            reason: ExecServerError = error
            if not_listening_limit < limit and clock() - last_listening >= not_listening_limit:
                raise SessionLost(f"the daemon has ended: {error}") from error
        except AccessDenied as error:
            reason = error
            last_listening = clock()
            if not connector.target.renewable:
                raise SessionLost(f"the session could not be resumed: {error}") from error
        except WrongExecutor as error:
            raise SessionLost(f"the session could not be resumed: {error}") from error
        except (SessionAttached, ConnectionFailed, ConnectionLost, CallTimeout) as error:
            reason = error
            last_listening = clock()
        except ExecServerError as error:
            raise SessionLost(f"the session could not be resumed: {error}") from error
        else:
            return connection
        if clock() - begin >= limit:
            raise SessionLost(f"the session could not be resumed within {limit:g} s: {reason}") from reason
        await asyncio.sleep(pause)
        pause = min(2 * pause, connector.target.longest_pause)


class Recovery:
    """Replaces lost connections of a session.

    Args:
        connector: connects to the daemon.
        inboxes: of the session.
        limit: seconds in which a lost connection must be replaced. None for `RECOVERY_SECONDS`, and
            `NOT_LISTENING_SECONDS` while no server listens.
    """

    def __init__(self, connector: Connector, inboxes: InboxTable, limit: float | None) -> None:
        self.count = 0
        """How often a lost connection was replaced."""
        self._connector = connector
        self._inboxes = inboxes
        self._limit = RECOVERY_SECONDS if limit is None else limit
        self._not_listening_limit = NOT_LISTENING_SECONDS if limit is None else limit
        self._pace = Pace(connector.target.longest_pause)

    async def run(self, session_id: str) -> Connection:
        """A new connection, with missed events delivered.

        Raises:
            SessionLost: the session cannot be resumed.
        """
        clock, progress = asyncio.get_running_loop().time, self._inboxes.progress
        begin, reached = clock(), progress()
        while True:
            await asyncio.sleep(self._pace.lost(clock(), progress()))
            connection = await resume(
                self._connector,
                session_id,
                self._limit,
                not_listening_limit=self._not_listening_limit,
            )
            self.count += 1  # before any event is delivered
            self._pace.connected(clock(), progress())
            try:
                async with asyncio.timeout(self._limit):
                    await replay(connection, self._inboxes)
            except ConnectionLost:
                pass  # lost again
            except TimeoutError:
                await connection.abort()
                raise SessionLost("the daemon does not answer after the session was resumed") from None
            except BaseException:
                await connection.abort()
                raise
            if not connection.lost:
                return connection
            if progress() != reached:
                begin, reached = clock(), progress()
            elif clock() - begin >= self._limit:
                raise SessionLost(
                    f"each connection of {self._limit:g} s was lost before it brought any events"
                )

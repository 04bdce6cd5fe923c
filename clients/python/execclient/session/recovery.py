"""Attaching a connection to a session, and getting a lost one back.

    connect ── initialize {resumeSessionId} ──> attached ── process/read for each process ──> as before
       ^                  │ -32010, or cut again
       └── a pause ───────┘

What the stock client does, with its limits (`docs/protocol.md`, "Resuming"), but for one: on this
machine "nobody listens" is the kernel's word and not the network's, so it is believed sooner.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from execclient.connection.address import OnEvent, OnLost, Target
from execclient.connection.channel import CONNECT_SECONDS
from execclient.connection.connection import Connection, Json
from execclient.errors import (
    AccessDenied,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    DaemonNotRunning,
    ExecServerError,
    Refused,
    SessionAttached,
    SessionLost,
    WrongExecutor,
)

RECOVERY_SECONDS = 45.0
"""As the stock client: a server that has not noticed the cut needs up to 35 s to do so."""

NOBODY_LISTENS_SECONDS = 2.0
"""A daemon's socket stays bound while its server is replaced; with nobody at it for this long
the daemon has ended, and its sessions with it."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.005, 0.1
"""Between two tries. A server on the same machine sees the cut within milliseconds; after that
the stock client's pace."""

STEADY_SECONDS = 1.0
"""A connection that lasted so long was one; after a shorter one that brought nothing there is a pause."""

ATTACHED_SECONDS = 8.0
"""How long a session that another connection has is asked for at the start. A server needs 5 s to
find out that nobody is at the other end of that one."""


@dataclass(frozen=True, slots=True)
class Link:
    """How to reach the daemon, as whom, and who is told what comes."""

    target: Target
    client_name: str
    on_event: OnEvent
    on_lost: OnLost

    async def attach(self, session_id: str | None) -> tuple[Connection, Json]:
        """A connection with its handshake done, and the result of `initialize`.

        Args:
            session_id: the session to resume; None for a new one.

        Raises:
            ConnectionFailed, ConnectionLost, CallFailed, CallTimeout: no.
        """
        connection = await self.target.open(self.on_event, self.on_lost)
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
    """The pauses between connections that are made and cut again before they have brought anything.

    Args:
        longest: seconds of the longest one.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._pause = 0.0
        self._since: float | None = None
        self._reached = 0

    def connected(self, now: float, reached: int) -> None:
        """There is a connection.

        Args:
            now: seconds, by a steady clock.
            reached: a number that grows with whatever a connection brings.
        """
        self._since, self._reached = now, reached

    def lost(self, now: float, reached: int) -> float:
        """It was lost: seconds to wait before the next one."""
        lasted = self._since is None or now - self._since >= STEADY_SECONDS
        if lasted or reached != self._reached:
            self._pause = 0.0
        else:
            self._pause = min(2 * self._pause or FIRST_PAUSE_SECONDS, self._longest)
        return self._pause


CLOSED_AT_ONCE = (
    "; a daemon takes no clients from a sandbox or a container it is not in itself, which its log then says: "
    "reach it over a WebSocket with --ws-auth"
)


async def join(link: Link, session_id: str | None) -> tuple[Connection, Json]:
    """The first connection of a client: to a new session, or to one that another client left.

    Raises:
        ConnectionFailed: no connection came about.
        SessionLost: there is no such session.
        SessionAttached: another client has it, and is alive.
    """
    clock = asyncio.get_running_loop().time
    begin = clock()
    while True:
        try:
            return await link.attach(session_id)
        except SessionAttached:
            if clock() - begin >= ATTACHED_SECONDS:
                raise
        except Refused as error:
            if session_id is None:
                raise
            raise SessionLost(f"the session {session_id} cannot be resumed: {error.message}") from error
        except ConnectionLost as error:
            # Over a Unix socket a daemon cannot say why: it does not know yet what we speak.
            hint = CLOSED_AT_ONCE if link.target.url.startswith("unix:") else ""
            raise ConnectionFailed(f"cannot connect to {link.target.url}: {error}{hint}") from error
        await asyncio.sleep(LONGEST_PAUSE_SECONDS)


async def resume(link: Link, session_id: str, limit: float) -> Connection:
    """A new connection to the session, within `limit` seconds.

    Raises:
        SessionLost: there is none to be had; the message says why.
    """
    clock = asyncio.get_running_loop().time
    begin = clock()
    somebody_listened = begin
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            connection, _ = await link.attach(session_id)
        except DaemonNotRunning as error:
            reason: ExecServerError = error
            if clock() - somebody_listened >= NOBODY_LISTENS_SECONDS:
                raise SessionLost(f"the daemon has ended: {error}") from error
        except AccessDenied as error:
            reason = error
            somebody_listened = clock()
            if not link.target.renewable:
                raise SessionLost(f"the session could not be resumed: {error}") from error
        except WrongExecutor as error:
            raise SessionLost(f"the session could not be resumed: {error}") from error
        except (SessionAttached, ConnectionFailed, ConnectionLost, CallTimeout) as error:
            reason = error
            somebody_listened = clock()
        except ExecServerError as error:
            raise SessionLost(f"the session could not be resumed: {error}") from error
        else:
            return connection
        if clock() - begin >= limit:
            raise SessionLost(f"the session could not be resumed within {limit:g} s: {reason}") from reason
        await asyncio.sleep(pause)
        pause = min(2 * pause, link.target.longest_pause)

"""Attaching a connection to a session, and getting a lost one back.

    connect ── initialize {resumeSessionId} ──> attached ── process/read for each process ──> as before
       ^                  │ -32010, or cut again
       └── a pause ───────┘

What the stock client does, with its limits (`docs/protocol.md`, "Resuming"), but for one: on a
Unix socket "nobody listens" is the kernel's word and not the network's, so it is believed sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from execclient.connection import CONNECT_SECONDS, Connection, Json
from execclient.errors import (
    CallFailed,
    CallTimeout,
    ConnectionFailed,
    ConnectionLost,
    DaemonNotRunning,
    ExecServerError,
    NoSuchProcess,
    SessionAttached,
    SessionLost,
)
from execclient.inbox import Inbox
from execserver.protocol.limits import MAX_CHUNK_BYTES, MAX_PAGE_BYTES

RECOVERY_SECONDS = 45.0
"""As the stock client: a server that has not noticed the cut needs up to 35 s to do so."""

NOBODY_LISTENS_SECONDS = 2.0
"""A daemon's socket stays bound while its server is replaced; with nobody at it for this long
the daemon has ended, and its sessions with it."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.005, 0.1
"""Between two tries. A server on the same machine sees the cut within milliseconds; after that
the stock client's pace."""

CLIENT_NAME = "execclient"


@dataclass(frozen=True, slots=True)
class Link:
    """How to reach the daemon, and who is told what comes."""

    url: str
    on_event: Callable[[str, Json], None]
    on_lost: Callable[[Connection, ExecServerError], None]

    async def attach(self, session_id: str | None) -> tuple[Connection, Json]:
        """A connection with its handshake done, and the result of `initialize`.

        Args:
            session_id: the session to resume; None for a new one.

        Raises:
            ConnectionFailed, ConnectionLost, CallFailed, CallTimeout: no.
        """
        connection = await Connection.open(self.url, self.on_event, self.on_lost)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                result = await connection.request(
                    "initialize",
                    {
                        "clientName": CLIENT_NAME,
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
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def catch_up(connection: Connection, inbox: Inbox) -> None:
    """Fill an inbox with what came since its last event, and let it go on.

    Raises:
        ConnectionLost: cut again; the inbox stays held, and what it got stays.
    """
    try:
        while inbox.started and not inbox.closed:
            page = inbox.fill(
                await connection.request(
                    "process/read",
                    {"processId": inbox.id, "afterSeq": inbox.last_seq, "maxBytes": None, "waitMs": 0},
                )
            )
            # A page ends before the chunk that would make it too large.
            if sum(len(chunk.data) for chunk in page.chunks) + MAX_CHUNK_BYTES <= MAX_PAGE_BYTES:
                break
    except CallFailed as error:
        inbox.fail(NoSuchProcess(f"process {inbox.id} did not outlast the lost connection: {error}"))
    inbox.release()

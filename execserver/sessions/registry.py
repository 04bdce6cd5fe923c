"""The registry of all sessions: opening, resuming, detaching, expiry."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from execprotocol.errors import Draining, InvalidRequest, SessionAttached
from execserver.fault_points import reach
from execserver.memory import give_back
from execserver.processes.executor import Executor
from execserver.processes.process import ManagedProcess
from execserver.processes.store import ProcessStore
from execserver.processes.takeover import Takeover
from execserver.sessions.session import Session
from execserver.spool.forgotten import ForgettingReason
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

log = Logger()

PROBE_SECONDS = 5.0
"""How long the connection of a session may be silent once another connection asks for the session. The stock
client gives up after 45 s; a half-open connection must be detected before."""


TIDY_UP_SECONDS = 1.0
"""The time after the end of a session until memory is returned to the system."""


class AttachedConnection(Protocol):
    """The connection that a session is attached to."""

    extensions: bool
    """Whether the connection asked for extension members."""

    def notify(self, method: str, params: Mapping[str, int | None]) -> None:
        """Send a notification."""

    def probe(self, timeout: float) -> None:
        """Drop the connection unless its peer answers in `timeout` seconds."""


class SessionDrain(NamedTuple):
    """A drain: no new sessions are opened."""

    ends_at: float | None
    """When the service ends at the latest, by the loop's clock; None: it does not end."""
    report: Callable[[int], None]
    """Is called with the number of sessions, including those whose processes are being killed."""


class SessionRegistry:
    """The sessions by id.

    Args:
        executor: runs the processes of all sessions.
        ttl: how long a detached session is kept, in seconds, unless its client asked for another time.
        max_ttl: the longest time that a client may ask for; it may always ask for `ttl`.
    """

    def __init__(self, executor: Executor, ttl: float, max_ttl: float) -> None:
        self._executor = executor
        self._ttl = ttl
        self._max_ttl = max(ttl, max_ttl)
        self._sessions: dict[str, Session] = {}
        self._holders: dict[str, AttachedConnection] = {}
        self._tidy_up: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._drain: SessionDrain | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    @property
    def draining(self) -> bool:
        """Whether no new sessions are opened."""
        return self._drain is not None

    def drain(self, ends_in_ms: int | None, report: Callable[[int], None]) -> None:
        """Open no new sessions, and tell the clients of the sessions. Called again, it replaces the end.

        Args:
            ends_in_ms: when the service ends at the latest, in milliseconds; None: it does not end.
            report: is called now and after each end of a session, with the number of sessions.
        """
        loop = asyncio.get_running_loop()
        self._drain = SessionDrain(None if ends_in_ms is None else loop.time() + ends_in_ms / 1000, report)
        log.info("draining", sessions=len(self), ends_in_ms=ends_in_ms)
        for holder in self._holders.values():
            self._notify_of_drain(holder)
        self._report_to_drain()

    def cancel_drain(self) -> None:
        """Open new sessions again (idempotent)."""
        if self._drain is not None:
            self._drain = None
            log.info("drain cancelled", sessions=len(self))

    def open(self, holder: AttachedConnection) -> Session:
        """Open a session for a connection.

        Raises:
            Draining: no new sessions are opened.
        """
        if self._drain is not None:
            raise Draining(
                "the executor drains, and opens no new sessions: connect to another one, or try again later"
            )
        session_id = str(uuid.uuid4())
        self._executor.recovery.session_opened(session_id)
        session = Session(session_id, ProcessStore(self._executor, session_id), self._executor.recovery)
        self._sessions[session.id] = session
        self._holders[session.id] = holder
        measures.sessions_opened += 1
        log.debug("session opened", session=session.id)
        return session

    def resume(self, session_id: str, holder: AttachedConnection) -> Session:
        """Resume a detached session for a connection.

        Raises:
            InvalidRequest: the session is unknown or has ended.
            SessionAttached: another connection has the session; that one is probed.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise InvalidRequest(
                f"unknown session id {session_id}", name="unknown_session", field="resumeSessionId"
            )
        incumbent = self._holders.get(session_id)
        if incumbent is not None:
            incumbent.probe(PROBE_SECONDS)
            raise SessionAttached(f"session {session_id} is already attached to another connection")
        self._holders[session_id] = holder
        if self._drain is not None:  # after the answer
            asyncio.get_running_loop().call_soon(self._notify_of_drain, holder)
        measures.sessions_resumed += 1
        log.info("session resumed", session=session.id, processes=len(session.processes))
        return session

    def get(self, session_id: str) -> Session:
        """A session, attached or detached.

        Raises:
            InvalidRequest: the session is unknown or has ended.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise InvalidRequest(
                f"unknown session id {session_id} (`sessionId`)", name="unknown_session", field="sessionId"
            )
        return session

    def ttl_ms(self, session: Session) -> int:
        """How long a session is kept without a connection, in milliseconds."""
        return round((self._ttl if session.ttl is None else session.ttl) * 1000)

    def set_ttl(self, session: Session, ttl_ms: int | None) -> None:
        """Keep a session for another time, from the next end of its connection on.

        Args:
            session: an attached one.
            ttl_ms: in milliseconds; None for the setting of the daemon.

        Raises:
            InvalidRequest: it is above the limit.
            OSError: no memory for the record; the earlier time is in force.
        """
        seconds = None if ttl_ms is None else ttl_ms / 1000
        if seconds is not None and seconds > self._max_ttl:
            raise InvalidRequest(
                f"`ttlMs` is {ttl_ms}, and this daemon keeps a session for at most {self._max_ttl:g} s "
                f"({self._max_ttl * 1000:.0f} ms) without a connection: ask for less, or start the daemon "
                "with a higher --max-session-ttl",
                name="ttl_above_limit",
                field="ttlMs",
            )
        self._executor.recovery.session_ttl(session.id, seconds)
        session.ttl = seconds
        log.info("session time to live set", session=session.id, seconds=seconds)

    def detach(self, session: Session) -> None:
        """Detach a session whose connection is gone, and start its expiry."""
        self._holders.pop(session.id, None)
        session.set_client(None)
        if session.attachment is not None:
            session.attachment.close()
            session.attachment = None
        if session.id in self._sessions:
            self._set_expiry(session)
            log.info("session detached", session=session.id, processes=len(session.processes))

    def end(self, session: Session) -> Awaitable[None]:
        """End an attached session for its client; a second call waits for the same end.

        Its id is unknown at once, and no process can start in it. The awaitable is done once all its
        processes are gone; cancelling it has no effect.
        """
        ending = session.ending
        if ending is None:
            log.debug("session ends as its client asks", session=session.id)
            ending = self._begin_end(session, "sessionEnded")
        return asyncio.shield(ending)

    def inherit(self, takeover: Takeover) -> None:
        """Go on with the sessions of a dead server: detached, each with the whole of its time."""
        stores: dict[str, ProcessStore] = {}
        for session_id in takeover.state.sessions:
            stores[session_id] = ProcessStore(self._executor, session_id)

        def on_closed(session_id: str) -> Callable[[ManagedProcess], None]:
            store = stores.get(session_id)
            return store.on_closed if store is not None else _ignore

        inherited = takeover.inherit(on_closed)
        closed: list[ManagedProcess] = []
        for session_id, state in takeover.state.sessions.items():
            session = Session(session_id, stores[session_id], self._executor.recovery, state.network)
            session.ttl = state.ttl
            processes = inherited.pop(session_id, [])
            session.processes.inherit(processes, state.numbers)
            for process in processes:
                if process.proxy is not None:
                    process.proxy.serve(session.network)
            for process in processes:
                if process.closed:
                    closed.append(process)
            if state.ending:
                self._kill_soon(session)
            else:
                self._sessions[session_id] = session
                self._set_expiry(session)

        def over_since(process: ManagedProcess) -> float | None:
            return takeover.state.processes[process.number].over_since

        for process in sorted(closed, key=lambda process: over_since(process) or math.inf):
            stores[process.started.session].on_closed(process, over_since(process))
        for orphans in inherited.values():
            for process in orphans:
                self._executor.forget(process)
        log.info("sessions inherited", sessions=len(self), processes=self._executor.live)

    def _set_expiry(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        seconds = self.ttl_ms(session) / 1000
        session.expiry = loop.call_later(seconds, self._begin_end, session, "sessionExpired")

    def _tidy_up_soon(self) -> None:
        """Return memory to the system, once for all sessions that end within a second."""

        def tidy_up() -> None:
            self._tidy_up = None
            give_back()

        if self._tidy_up is None:
            self._tidy_up = asyncio.get_running_loop().call_later(TIDY_UP_SECONDS, tidy_up)

    def _begin_end(self, session: Session, reason: ForgettingReason) -> asyncio.Task[None]:
        measures.sessions_ended += 1
        self._sessions.pop(session.id, None)
        at_ms, ttl_ms = time.time_ns() // 1_000_000, self.ttl_ms(session)
        self._executor.recovery.session_ending(session.id, at_ms, reason, ttl_ms)
        session.processes.remember_all(reason, at_ms, ttl_ms)
        reach("session-ending")
        return self._kill_soon(session, by_client=reason == "sessionEnded")

    def _kill_soon(self, session: Session, *, by_client: bool = False) -> asyncio.Task[None]:
        session.processes.refuse_starts()  # now, not when the task begins
        task = session.ending = asyncio.get_running_loop().create_task(self._kill(session, by_client))
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._report_to_drain()

    def _report_to_drain(self) -> None:
        if self._drain is not None:
            self._drain.report(len(self._sessions) + len(self._ending))

    def _notify_of_drain(self, holder: AttachedConnection) -> None:
        if self._drain is None or not holder.extensions:
            return
        left = None
        if self._drain.ends_at is not None:
            left = max(0, round((self._drain.ends_at - asyncio.get_running_loop().time()) * 1000))
        holder.notify("executor/draining", {"endsInMs": left})

    async def _kill(self, session: Session, by_client: bool) -> None:
        processes = len(session.processes)
        survivors = await session.processes.end()
        self._executor.recovery.session_ended(session.id)
        # For the operator only if a client may have lost something, or something is left.
        note = log.info if survivors or (processes and not by_client) else log.debug
        note("session ended", session=session.id, processes=processes, survivors=survivors)
        # Shows a leak without a debugger.
        self._tidy_up_soon()
        log.debug("daemon", sessions=len(self), tasks=len(asyncio.all_tasks()), live=self._executor.live)


def _ignore(_: object) -> None:
    """Do nothing."""

"""One session with a daemon, over as many connections as it takes.

    open ──> connected ──connection lost──> recovering ──not resumed──> lost
                 ^                              │
                 └────────── resumed ───────────┘            any ── close ──> closed

Calls made while it recovers wait. Of the calls that were under way, those in `SENT_AGAIN` are sent
again, because twice is as good as once; the others raise `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from execclient.cancellation import cancel
from execclient.connection.address import Target
from execclient.connection.connection import Connection, Json
from execclient.errors import (
    CallFailed,
    CallTimeout,
    ConnectionLost,
    ExecServerError,
    ExecutorClosed,
    OutcomeUnknown,
    ProtocolFault,
    SessionLost,
    Unsupported,
)
from execclient.session.inbox import Inbox, Key
from execclient.session.recovery import Link, Pace, join, resume
from execclient.session.replay import go_on, read_rest, reference, subscribe
from execprotocol.path_uri import parse_path_uri

SENT_AGAIN = frozenset(
    {
        "process/list",
        "process/read",
        "process/write",  # the daemon remembers the write id
        "process/closeStdin",
        "process/resize",
        "process/terminate",
        "process/unsubscribe",
        "session/end",  # after the first the session cannot be resumed
        "fs/canonicalize",
        "fs/digest",
        "fs/getMetadata",
        "fs/readDirectory",
        "fs/readFile",
        "fs/walk",
    }
)

NOT_OF_THE_PROTOCOL = (ValueError, LookupError, TypeError, AttributeError)
"""What taking apart a value raises that is not what it should be."""

_PATHS = ("path", "sourcePath")
"""The parameters that say what an error is about."""

KILL_SECONDS = 5.0
"""How long the answer to a terminate is waited for by somebody who wants to be gone."""


class Session:
    """Calls, the inboxes of the session's processes, and the recovery of a lost connection.

    Args:
        target: where the daemon is.
        call_timeout: seconds for the answer to a call, recovery included.
        recovery_timeout: seconds in which a lost connection must be back.
        client_name: how the daemon is to call us.
        session_id: a session to resume, instead of a new one.
        keep: leave the session to the daemon at the end.
    """

    def __init__(
        self,
        target: Target,
        call_timeout: float,
        recovery_timeout: float,
        *,
        client_name: str,
        session_id: str | None = None,
        keep: bool = False,
    ) -> None:
        self.id = session_id or ""
        self.call_timeout = call_timeout
        self.recoveries = 0
        """How often a lost connection was replaced."""
        self._recovery_timeout = recovery_timeout
        self._link = Link(target, client_name, self._event, self._connection_lost)
        self._pace = Pace(target.longest_pause)
        self._connection: Connection | None = None
        self._settled = asyncio.Event()
        """Not recovering: connected, lost or closed."""
        self._failure: ExecServerError | None = None
        self._closed = False
        self.keep = keep
        """Whether closing leaves the session to the daemon, and lets processes go on."""
        self.let_go: set[str] = set()
        """Our own processes that are to outlive the session's client."""
        self._inboxes: dict[Key, list[Inbox]] = {}
        self.capabilities: frozenset[str] = frozenset()
        """The extensions that the daemon serves (`docs/protocol.md`, D3)."""
        self.temporary_folder = ""
        """The daemon's folder for temporary files; empty when it does not tell."""
        self.ttl: float | None = None
        """Seconds for which the daemon keeps it without a connection (`docs/protocol.md`, X12)."""
        self._recovery: asyncio.Task[None] | None = None
        self._last_calls: set[asyncio.Task[None]] = set()
        """Those that end something; closing waits for them."""
        self._readings: set[asyncio.Task[None]] = set()
        """Those that get what events left out."""

    async def open(self) -> Json:
        """Connect, and open a new session, or resume the one that was named; the result of `initialize`."""
        connection, result = await join(self._link, self.id or None)
        try:
            self.id = result["sessionId"]
            environment = result.get("environmentInfo") or {}
            capabilities = environment.get("capabilities") or {}
            folder = environment.get("tempDir")
            self.temporary_folder = parse_path_uri(folder) if folder else ""
            self.capabilities = frozenset(capabilities.get("execserver") or ())
            ttl = result.get("sessionTtlMs")
            self.ttl = None if ttl is None else ttl / 1000
        except NOT_OF_THE_PROTOCOL as error:
            await connection.abort()
            raise _fault("the handshake", error) from error
        self._connection = connection
        self._settled.set()
        if connection.lost:
            self._connection_lost(connection, ConnectionLost("the connection was lost at once"))
        return result

    async def close(self, *, keep: bool | None = None) -> None:
        """End the session and the connection; a second call does nothing.

        A connection that is being recovered is waited for, `KILL_SECONDS` at most: without one the daemon
        ends the session itself, as with `keep`.

        Args:
            keep: leave the session to the daemon, which ends it `--session-ttl` seconds later; otherwise all
                that was started in it is killed. By default what `keep` of the session says.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                if not (self.keep if keep is None else keep):
                    self._end_soon()
                if self._last_calls:
                    await asyncio.wait(self._last_calls, timeout=KILL_SECONDS)
        finally:
            await self._disconnect()

    def _end_soon(self) -> None:
        """Begin to kill what was started here, but for what was let go of."""
        if "session/end" not in self.capabilities:
            for session_id, process_id in list(self._inboxes):
                if session_id is None:
                    self.terminate_soon(process_id)
        elif self.let_go:
            self._soon(partial(self.kill_trees, lambda process_id: process_id not in self.let_go))
        else:
            self._soon(self._end_session)

    async def _end_session(self) -> None:
        await self.call("session/end", {})
        self._closed = True  # the daemon closes the connection now, and there is nothing to recover

    async def _disconnect(self) -> None:
        self._closed = True
        self._settled.set()
        connection, self._connection = self._connection, None
        for inbox in self._all_inboxes():
            inbox.fail(ExecutorClosed("the executor was closed"))
        await cancel({*self._last_calls, *self._readings, *({self._recovery} if self._recovery else ())})
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
        except ExecServerError as error:
            _named(error, params)
            raise
        except TimeoutError:
            raise _named(CallTimeout(method, seconds), params) from None

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

    def require(self, *extensions: str) -> None:
        """Make sure that the daemon serves these.

        Raises:
            Unsupported: it does not serve one of them.
        """
        for extension in extensions:
            if extension not in self.capabilities:
                raise Unsupported(extension)

    def knows(self, process_id: str) -> bool:
        """Whether one of our own has this id."""
        return (None, process_id) in self._inboxes

    def add(self, inbox: Inbox) -> None:
        """Bring it the events of its process from now on, until that is closed."""
        inbox.states_losses = bool(self.capabilities)
        self._inboxes.setdefault(inbox.key, []).append(inbox)

    def forget(self, inbox: Inbox) -> None:
        """Bring it no more events."""
        inboxes = self._inboxes.get(inbox.key)
        if inboxes is not None and inbox in inboxes:
            inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[inbox.key]

    async def attach(self, inbox: Inbox) -> Mapping[str, Json]:
        """Bring it the events of a process that is there already, those after its `last_seq`.

        Returns:
            What the daemon says of another session's process; nothing of one of our own.

        Raises:
            CallFailed: there is no such process, or it is not for us.
            CallTimeout, SessionLost, ExecutorClosed: as for calls.
        """
        inbox.attaching = inbox.started = True
        inbox.hold()
        self.add(inbox)
        try:
            async with asyncio.timeout(self.call_timeout):
                state = await self._attach(inbox)
        except BaseException as error:
            self._soon(partial(self.detach, inbox))
            if isinstance(error, TimeoutError):
                raise CallTimeout("process/read", self.call_timeout) from None
            raise
        if inbox.closed:
            self.forget(inbox)
        return state

    async def _attach(self, inbox: Inbox) -> Mapping[str, Json]:
        state: Mapping[str, Json] = {}
        while True:
            connection = await self.connected()
            try:
                others = [other for other in self._inboxes[inbox.key] if not other.attaching]
                if inbox.session_id is not None:
                    interactive = inbox.interactive or any(other.interactive for other in others)
                    state = await subscribe(connection, others or [inbox], interactive=interactive)
                if inbox.session_id is None or others:
                    await read_rest(connection, inbox)
            except ConnectionLost:
                continue
            if connection is self._connection:
                inbox.attaching = False
                return state
            inbox.hold()  # it was let go on when the connection was lost already

    async def detach(self, inbox: Inbox) -> None:
        """Bring it no more events, and let the daemon send none in vain."""
        self.forget(inbox)
        if inbox.session_id is not None and not inbox.closed and inbox.key not in self._inboxes:
            with suppress(CallFailed):  # the session is gone, and the subscription with it
                await self.call("process/unsubscribe", reference(inbox.key))

    def _all_inboxes(self) -> list[Inbox]:
        return [inbox for inboxes in self._inboxes.values() for inbox in inboxes]

    async def kill(self, inbox: Inbox) -> None:
        """Kill a process and its descendants. Goes on in the background when it is cancelled."""
        await asyncio.wait({self.terminate_soon(inbox.id)}, timeout=KILL_SECONDS)

    async def kill_trees(self, is_meant: Callable[[str], bool]) -> None:
        """Kill what is left of processes of this session, also of those that have exited. Those of which the
        daemon keeps nothing any more are left alone.

        Args:
            is_meant: whether the process of this id is one of them.
        """
        own = {process_id for session_id, process_id in self._inboxes if session_id is None}
        if "process/list" in self.capabilities:
            with suppress(ExecServerError):
                listed = await self.call("process/list", {}, limit=KILL_SECONDS)
                own.update(entry["processId"] for entry in listed["processes"])
        killing = {self.terminate_soon(process_id) for process_id in own if is_meant(process_id)}
        if killing:
            await asyncio.wait(killing, timeout=KILL_SECONDS)

    def terminate_soon(self, process_id: str, scope: str = "tree") -> asyncio.Task[None]:
        """Kill one of our processes, if it exists, as soon as there is a connection."""
        # Another server than execserver ignores the scope, and kills the group.
        params = {"processId": process_id, "scope": scope}
        return self._soon(partial(self.call, "process/terminate", params))

    def _soon(
        self,
        call: Callable[[], Coroutine[Any, Any, object]],
        among: set[asyncio.Task[None]] | None = None,
    ) -> asyncio.Task[None]:
        """Make a call in the background; whether it succeeds is nobody's concern."""
        tasks = self._last_calls if among is None else among

        async def made() -> None:
            with suppress(ExecServerError):
                await call()

        task = asyncio.create_task(made())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # -- what connections tell

    def _event(self, method: str, params: Json) -> None:
        if not method.startswith("process/"):
            return
        inboxes = self._inboxes.get((params.get("sessionId"), params["processId"]))
        if inboxes is not None:
            for inbox in inboxes:
                if inbox.push(method, params):
                    self._soon(partial(self._read_missing, inbox), self._readings)
            if method == "process/closed":
                for inbox in inboxes.copy():
                    if inbox.closed:
                        self.forget(inbox)

    async def _read_missing(self, inbox: Inbox) -> None:
        """Get what should have come before an event. It may only be late."""
        try:
            async with asyncio.timeout(self.call_timeout):
                while inbox.held:
                    connection = await self.connected()
                    with suppress(ConnectionLost):  # unless the recovery reads it, too
                        await read_rest(connection, inbox)
        except CallFailed:
            inbox.release()  # and says that something is missing
        except TimeoutError:
            if self._connection is not None:  # else the recovery reads it
                inbox.release()
        except NOT_OF_THE_PROTOCOL as error:
            inbox.fail(_fault("the answer to a process/read", error))
        if inbox.closed:
            self.forget(inbox)

    def _connection_lost(self, connection: Connection, reason: ExecServerError) -> None:
        if connection is not self._connection:
            return  # closed by us, or one of a recovery, which sees it by itself
        self._connection = None
        if self._closed:
            return
        for inbox in self._all_inboxes():
            inbox.hold()
        if isinstance(reason, ProtocolFault) or not self._link.target.recoverable:
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
        except NOT_OF_THE_PROTOCOL as error:
            self._give_up(_fault("an answer after the session was resumed", error))
            return
        for inbox in self._all_inboxes():
            if inbox.closed:
                self.forget(inbox)
        self._connection = connection
        self._settled.set()

    async def _resumed(self) -> Connection:
        clock = asyncio.get_running_loop().time
        begin, reached = clock(), self._reached()
        while True:
            await asyncio.sleep(self._pace.lost(clock(), self._reached()))
            connection = await resume(self._link, self.id, self._recovery_timeout)
            self.recoveries += 1  # before anything comes of it
            self._pace.connected(clock(), self._reached())
            try:
                async with asyncio.timeout(self._recovery_timeout):
                    await go_on(connection, self._all_inboxes())
            except ConnectionLost:
                pass  # cut again
            except TimeoutError:
                await connection.abort()
                raise SessionLost("the daemon does not answer after the session was resumed") from None
            except BaseException:
                await connection.abort()
                raise
            if not connection.lost:
                return connection
            if self._reached() != reached:
                begin, reached = clock(), self._reached()
            elif clock() - begin >= self._recovery_timeout:
                raise SessionLost(
                    f"each connection of {self._recovery_timeout:g} s was lost before it brought anything"
                )

    def _reached(self) -> int:
        """Grows with whatever a connection brings."""
        return sum(inbox.last_seq for inbox in self._all_inboxes())

    def _give_up(self, error: ExecServerError) -> None:
        self._failure = error
        for inbox in self._all_inboxes():
            inbox.fail(SessionLost(str(error)))
        self._settled.set()


def _fault(what: str, error: Exception) -> ProtocolFault:
    return ProtocolFault(f"{what} is not of the protocol: {type(error).__name__} {error}")


def _named(error: ExecServerError, params: Mapping[str, Json]) -> ExecServerError:
    """The error of a call, with what the call was about."""
    argv, cwd = params.get("argv"), params.get("cwd")
    path = next((params[name] for name in _PATHS if isinstance(params.get(name), str)), None)
    try:
        return error.about(
            program=argv[0] if isinstance(argv, list) and argv else None,
            path=None if path is None else parse_path_uri(path),
            cwd=parse_path_uri(cwd) if isinstance(cwd, str) else None,
        )
    except ValueError:  # a path of another kind of machine
        return error

"""A session with a daemon, over any number of connections.

    open ──> connected ──connection lost──> recovering ──not resumed──> lost
                 ^                              │
                 └────────── resumed ───────────┘            any ── close ──> closed

Calls made during a recovery wait. Of the calls under way, those in `IDEMPOTENT` are sent again; the others
raise `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from execclient.connection.connection import Connection, Json
from execclient.connection.target import Target
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
from execclient.session.inbox import Inbox, InboxTable
from execclient.session.network import NetworkAnswers
from execclient.session.recovery import Connector, Recovery, join
from execclient.session.replay import read_missing, reference, subscribe
from execprotocol.path_uri import parse_path_uri

T = TypeVar("T")

IDEMPOTENT = frozenset(
    {
        "process/list",
        "process/listForgotten",
        "port/list",
        "process/read",
        "process/write",  # the daemon remembers the write id
        "process/closeStdin",
        "process/resize",
        "process/terminate",
        "process/unsubscribe",
        "session/setTtl",
        "session/end",  # after the first the session cannot be resumed
        "fs/canonicalize",
        "fs/digest",
        "fs/endSearch",
        "fs/getFiles",
        "fs/getMetadata",
        "fs/glob",  # a page can be requested again
        "fs/putFiles",  # each file gets the same content as a whole
        "fs/readDirectory",
        "fs/readFile",
        "fs/search",  # as `fs/glob`
        "fs/setMetadata",
        "fs/unwatch",
        "fs/walk",
        "fs/watchRead",
    }
)

INVALID_VALUE_ERRORS = (ValueError, LookupError, TypeError, AttributeError)
"""The errors of code that takes apart an invalid value from the server."""

_PATHS = ("path", "sourcePath")
"""The parameters that name the path of an error."""

KILL_SECONDS = 5.0
"""How long the end of a client waits for the response to a terminate."""

_Call = Callable[[], Coroutine[Any, Any, object]]
_Tasks = set[asyncio.Task[None]]


class Session:
    """Calls, the inboxes of the session's processes, and the recovery of a lost connection.

    Args:
        target: the daemon.
        call_timeout: seconds for the response to a call, recovery included.
        recovery_timeout: seconds in which a lost connection must be replaced; None for the default.
        client_name: the client's name in the daemon's log.
        session_id: a session to resume, instead of a new one.
        keep: leave the session to the daemon at the end.
        network: answers questions about hosts.
    """

    def __init__(
        self,
        target: Target,
        *,
        call_timeout: float,
        recovery_timeout: float | None,
        client_name: str,
        session_id: str | None = None,
        keep: bool = False,
        network: NetworkAnswers,
    ) -> None:
        self.network = network
        self.id = session_id or ""
        self.call_timeout = call_timeout
        self.keep = keep
        """Whether closing leaves the session to the daemon, and lets processes run on."""
        self.detached: set[str] = set()
        """The client's own processes that are to outlive the session's client."""
        self.inboxes = InboxTable(self._read_missing_soon, network.report, network.release)
        self.capabilities: frozenset[str] = frozenset()
        """The extensions that the daemon serves (`docs/protocol.md`, D3)."""
        self.temporary_folder = ""
        """The daemon's folder for temporary files; empty if the daemon does not report it."""
        self.ttl: float | None = None
        """Seconds for which the daemon keeps the session without a connection (`docs/protocol.md`, X12)."""
        deliver, lost = self.inboxes.deliver, self._connection_lost
        self._connector = Connector(target, client_name, deliver, network.answer, lost)
        self._recovery = Recovery(self._connector, self.inboxes, recovery_timeout)
        self._connection: Connection | None = None
        self._settled = asyncio.Event()
        """Set unless recovering: connected, lost or closed."""
        self._failure: ExecServerError | None = None
        self._ending = self._closed = False  # by `close`, which asks the daemon to end it
        self._recovering: asyncio.Task[None] | None = None
        self._last_calls: _Tasks = set()
        """Background calls that end something; closing waits for them."""
        self._readings: _Tasks = set()
        """Background calls that read missing events."""

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""
        return self._recovery.count

    async def open(self) -> Json:
        """Connect, and open a new session or resume the given one; the result of `initialize`."""
        connection, result = await join(self._connector, self.id or None)
        try:
            self.id = result["sessionId"]
            environment = result.get("environmentInfo") or {}
            capabilities = environment.get("capabilities") or {}
            folder = environment.get("tempDir")
            self.temporary_folder = parse_path_uri(folder) if folder else ""
            self.capabilities = frozenset(capabilities.get("execserver") or ())
            ttl = result.get("sessionTtlMs")
            self.ttl = None if ttl is None else ttl / 1000
        except INVALID_VALUE_ERRORS as error:
            await connection.abort()
            raise _fault("the handshake", error) from error
        self._connection = connection
        self._settled.set()
        if connection.lost:
            self._connection_lost(connection, ConnectionLost("the connection was lost at once"))
        return result

    async def close(self, *, keep: bool | None = None) -> None:
        """End the session and the connection. A second call does nothing.

        Waits `KILL_SECONDS` at most for a recovery: without it the daemon ends the session by itself.

        Args:
            keep: leave the session to the daemon, which ends it after its time to live; otherwise all
                processes that were started in it are killed. By default the session's `keep`.
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
        """Begin to kill all processes started in the session, except for detached ones."""
        if "session/end" not in self.capabilities:
            for process_id in self.inboxes.own_ids():
                self.terminate_soon(process_id)
        elif self.detached:
            self.soon(partial(self.kill_trees, lambda process_id: process_id not in self.detached))
        else:
            self.soon(self._end_session)

    async def _end_session(self) -> None:
        self._ending = True
        await self.call("session/end", {})
        self._closed = True  # the daemon closes the connection now, which needs no recovery

    async def _disconnect(self) -> None:
        self._closed = True
        self._settled.set()
        connection, self._connection = self._connection, None
        self.network.close()
        self.inboxes.fail(ExecutorClosed("the executor was closed"))
        recovering = () if self._recovering is None else (self._recovering,)
        await cancel({*self._last_calls, *self._readings, *recovering})
        if connection is not None:
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    await connection.close()
            except TimeoutError:
                await connection.abort()

    # -- calls

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Send any request of the wire, and return its result.

        Args:
            method: its name.
            params: its parameters.
            limit: seconds, recovery of a lost connection included; `call_timeout` by default.

        Raises:
            CallFailed: the server responded with an error.
            CallTimeout: no response in time.
            OutcomeUnknown: the connection was lost, and the request must not be sent twice.
            SessionLost, ExecutorClosed: the session has ended.
        """
        seconds = self.call_timeout if limit is None else limit
        try:
            async with asyncio.timeout(seconds):
                while True:
                    connection = await self.connected()
                    try:
                        return await connection.request(method, params)
                    except ConnectionLost as error:
                        if error.sent and method not in IDEMPOTENT:
                            unknown = f"{method}: {error}; whether it was done is unknown"
                            raise OutcomeUnknown(unknown) from error
        except ExecServerError as error:
            _with_subject(error, params)
            raise
        except TimeoutError:
            raise _with_subject(CallTimeout(method, seconds), params) from None

    async def connected(self) -> Connection:
        """The connection; waits for a recovery.

        Raises:
            SessionLost, ExecutorClosed: the session has ended.
        """
        while self._connection is None:
            await self._settled.wait()
            if self._closed:
                raise ExecutorClosed("the executor is closed")
            if self._failure is not None:
                raise SessionLost(str(self._failure)) from self._failure
        return self._connection

    def require(self, *extensions: str) -> None:
        """Check that the daemon serves these extensions.

        Raises:
            Unsupported: the daemon does not serve one of them.
        """
        for extension in extensions:
            if extension not in self.capabilities:
                raise Unsupported(extension)

    def drop_connection(self) -> None:
        """Cut the connection as a fault would."""
        connection = self._connection
        if connection is not None:
            connection.cut()
            self._connection_lost(connection, ConnectionLost("the connection was dropped on request"))

    # -- processes

    def add(self, inbox: Inbox) -> None:
        """Deliver the events of its process to an inbox, until the process is closed."""
        inbox.reports_losses = bool(self.capabilities)
        self.inboxes.add(inbox)

    async def attach(self, inbox: Inbox) -> Mapping[str, Json]:
        """Deliver the events of an existing process to an inbox, those after its `last_seq`.

        Returns:
            The state of another session's process; empty for one of the client's own.

        Raises:
            CallFailed: there is no such process, or access is denied.
            CallTimeout, SessionLost, ExecutorClosed: as for calls.
        """
        inbox.attaching = inbox.started = True
        inbox.hold()
        self.add(inbox)
        try:
            async with asyncio.timeout(self.call_timeout):
                state = await self._attach(inbox)
        except BaseException as error:
            self.soon(partial(self.detach, inbox))
            if isinstance(error, TimeoutError):
                raise CallTimeout("process/read", self.call_timeout) from None
            raise
        if inbox.closed:
            self.inboxes.forget(inbox)
        return state

    async def _attach(self, inbox: Inbox) -> Mapping[str, Json]:
        state: Mapping[str, Json] = {}
        while True:
            connection = await self.connected()
            try:
                others = [other for other in self.inboxes[inbox.key] if not other.attaching]
                if inbox.session_id is not None:
                    interactive = inbox.interactive or any(other.interactive for other in others)
                    state = await subscribe(connection, others or [inbox], interactive=interactive)
                if inbox.session_id is None or others:
                    await read_missing(connection, inbox)
            except ConnectionLost:
                continue
            if connection is self._connection:
                inbox.attaching = False
                return state
            inbox.hold()  # it was released after the connection was lost

    async def detach(self, inbox: Inbox) -> None:
        """Deliver no more events to an inbox, and end a subscription that is no longer needed."""
        self.inboxes.forget(inbox)
        if inbox.session_id is not None and not inbox.closed and inbox.key not in self.inboxes:
            with suppress(CallFailed):  # the session is gone, and the subscription with it
                await self.call("process/unsubscribe", reference(inbox.key))

    @property
    def is_closed(self) -> bool:
        """Whether the session was closed here, or is lost."""
        return self._closed or self._failure is not None

    async def kill(self, inbox: Inbox, scope: str = "tree") -> None:
        """Kill a process, by default with its descendants. Continues in the background if cancelled."""
        killing = self.terminate_soon(inbox.id, scope, session_id=inbox.session_id)
        await asyncio.wait({killing}, timeout=KILL_SECONDS)

    async def kill_trees(self, selects: Callable[[str], bool], named: Iterable[str] = ()) -> None:
        """As `Executor.kill_trees`, for the ids that `selects` takes, and the `named` ones, listed or not."""
        own = set(self.inboxes.own_ids())
        if "process/list" in self.capabilities:
            with suppress(ExecServerError):
                listed = await self.call("process/list", {}, limit=KILL_SECONDS)
                own.update(entry["processId"] for entry in listed["processes"])
        killing = {self.terminate_soon(process_id) for process_id in {*named, *filter(selects, own)}}
        if killing:
            await asyncio.wait(killing, timeout=KILL_SECONDS)

    def terminate_soon(
        self, process_id: str, scope: str = "tree", *, session_id: str | None = None
    ) -> asyncio.Task[None]:
        """Kill a process, of this session by default, if it exists, as soon as there is a connection."""
        params = {**reference((session_id, process_id)), "scope": scope}
        if scope == "leader":
            return self.soon(partial(self.call, "process/signal", {**params, "signal": "SIGKILL"}))
        # Other servers than execserver ignore the scope, and kill the group.
        return self.soon(partial(self.call, "process/terminate", params))

    def soon(self, call: _Call, among: _Tasks | None = None) -> asyncio.Task[None]:
        """Make a call in the background, and ignore its errors."""
        tasks = self._last_calls if among is None else among

        async def made() -> None:
            with suppress(ExecServerError):
                await call()

        task = asyncio.create_task(made())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # -- events and the loss of a connection

    def _read_missing_soon(self, inbox: Inbox) -> None:
        self.soon(partial(self._read_missing, inbox), self._readings)

    async def _read_missing(self, inbox: Inbox) -> None:
        """Read the events that are missing before a delivered one. They may only be late."""
        try:
            async with asyncio.timeout(self.call_timeout):
                while inbox.held:
                    connection = await self.connected()
                    with suppress(ConnectionLost):  # unless the recovery reads them, too
                        await read_missing(connection, inbox)
        except CallFailed:
            inbox.release()  # which reports the gap
        except TimeoutError:
            if self._connection is not None:  # else the recovery reads them
                inbox.release()
        except INVALID_VALUE_ERRORS as error:
            inbox.fail(_fault("the answer to a process/read", error))
        if inbox.closed:
            self.inboxes.forget(inbox)

    def _connection_lost(self, connection: Connection, reason: ExecServerError) -> None:
        if connection is not self._connection:
            return  # closed by the client, or a connection of the recovery, which notices by itself
        self._connection = None
        if self._closed:
            return
        self.inboxes.hold()
        if isinstance(reason, ProtocolFault) or not self._connector.target.recoverable:
            self._give_up(reason)
        else:
            self._settled.clear()
            self._recovering = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        try:
            connection = await self._recovery.run(self.id)
        except ExecServerError as error:
            self._give_up(error)
            return
        except INVALID_VALUE_ERRORS as error:
            self._give_up(_fault("an answer after the session was resumed", error))
            return
        self.inboxes.forget_closed()
        self._connection = connection
        self._settled.set()

    def _give_up(self, error: ExecServerError) -> None:
        self._failure = error
        self._closed |= self._ending  # it ended as requested, before the response to that arrived
        self.inboxes.fail(
            ExecutorClosed("the executor was closed") if self._closed else SessionLost(str(error))
        )
        self._settled.set()


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, wait until they have ended, and ignore their errors."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_end(function: Callable[..., T], *arguments: Any, stop: Callable[[], None] | None = None) -> T:
    """Call a function in a thread. If this is cancelled, call `stop`, and wait until the function has ended:
    what it uses is closed next.
    """
    # No task: the end of a loop cancels all of those, and the thread would go on.
    call = partial(copy_context().run, function, *arguments)
    working = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        working.exception()  # it is seen: the cancellation counts
        raise


def _fault(message: str, error: Exception) -> ProtocolFault:
    return ProtocolFault(f"{message} is not of the protocol: {type(error).__name__} {error}")


def _with_subject(error: ExecServerError, params: Mapping[str, Json]) -> ExecServerError:
    """The error of a call, with the program, path and directory of the call."""
    argv, cwd = params.get("argv"), params.get("cwd")
    path = next((params[name] for name in _PATHS if isinstance(params.get(name), str)), None)
    destination = params.get("destinationPath")
    try:
        return error.about(
            program=argv[0] if isinstance(argv, list) and argv else None,
            path=None if path is None else parse_path_uri(path),
            destination=parse_path_uri(destination) if isinstance(destination, str) else None,
            cwd=parse_path_uri(cwd) if isinstance(cwd, str) else None,
        )
    except ValueError:  # a path of another kind of machine
        return error

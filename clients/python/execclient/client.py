"""`connect` and `Executor`: commands and files at a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

from execclient.connection import Json, default_url
from execclient.errors import CallFailed, ExecutorClosed, SessionLost
from execclient.filesystem import AnyPath, FileSystem
from execclient.inbox import Inbox
from execclient.process import Process
from execclient.recovery import RECOVERY_SECONDS
from execclient.run import LINGER_SECONDS, TIMED_OUT, RunResult, collect
from execclient.session import Session
from execserver.protocol.path_uri import parse_path_uri

CALL_SECONDS = 60.0
"""Longer than a recovery may take, so that a call can outlast one."""

BUFFER_BYTES = 64 << 20
"""Output of a process that may wait in the client to be taken."""

Inherit = Literal["all", "core", "none"]


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    call_timeout: float = CALL_SECONDS,
    recovery_timeout: float = RECOVERY_SECONDS,
) -> AsyncIterator[Executor]:
    """Open a session with a daemon; leaving the block ends it, and the processes still running.

        async with connect() as executor:
            print((await executor.run(["uname", "-a"])).text)

    Args:
        url: `unix:///PATH`; by default `EXECSERVER_URL`, else the daemon's own default.
        call_timeout: seconds for the answer to a call, recovery included.
        recovery_timeout: seconds in which a lost connection must be back.

    Raises:
        UnsupportedUrl: another kind of URL.
        DaemonNotRunning, UntrustedServer, ConnectionFailed: no connection came about.
    """
    url = url or default_url()
    session = Session(url, call_timeout, recovery_timeout)
    initialized = await session.open()
    try:
        yield Executor(session, url, initialized.get("environmentInfo") or {})
    finally:
        await session.close()


class Executor:
    """A daemon that runs commands and touches files for us. Get one from `connect`."""

    def __init__(self, session: Session, url: str, info: Mapping[str, Json]) -> None:
        self.url = url
        self.info = info
        """What the daemon says of itself and its machine (`docs/protocol.md`, D1)."""
        self.cwd = parse_path_uri(info.get("cwd") or "file:///")
        """Where the daemon was started; relative paths begin here."""
        self.fs = FileSystem(session.call, self.cwd)
        self._session = session
        self._started = 0

    @property
    def session_id(self) -> str:
        """The session, as the daemon names it."""
        return self._session.id

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""
        return self._session.recoveries

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Inherit = "all",
        tty: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - it is the command that ends, with a result
    ) -> RunResult:
        """Run a command to its end, and give all of its output. Its standard input is empty.

        Returns 500 ms after the exit at the latest, also if a child in the background keeps the
        output open; such a child lives on until the session ends. Cancelling kills the command.

        Args:
            argv: program and arguments; no shell is involved.
            cwd: where; by default where the daemon was started.
            env: variables laid over what is inherited.
            inherit: the daemon's environment: all of it, its core (HOME, PATH, …), or nothing.
            tty: give it a terminal; its output is then all in `stdout`.
            timeout: seconds until it is killed with all its descendants, and the result says `timed_out`.

        Raises:
            SystemFailure: it could not be started.
            OutputGap: some of its output was dropped; the exception has the `result`.
        """
        clock = asyncio.get_running_loop().time
        begin = clock()
        inbox = self._new_inbox(None)
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await self._start(inbox, argv, cwd, env, inherit, tty=tty, stdin=False)
                await inbox.until_exited()
                await self._until_silent(inbox)
        except TimeoutError:
            timed_out = True
            if inbox.started:
                await self._session.kill(inbox)
                await self._until_silent(inbox)
        except asyncio.CancelledError:
            if inbox.started:
                await self._session.kill(inbox)
            raise
        finally:
            self._session.forget(inbox)
        exit_code = TIMED_OUT if timed_out or inbox.exit_code is None else inbox.exit_code
        return collect(inbox.take_all(), exit_code, clock() - begin, timed_out=timed_out)

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Inherit = "all",
        tty: bool = False,
        stdin: bool = False,
        buffer_bytes: int | None = BUFFER_BYTES,
    ) -> Process:
        """Start a process, and go on.

        Args:
            argv: as for `run`, like the next three.
            cwd: where.
            env: variables.
            inherit: the daemon's own.
            tty: give it a terminal of 24 × 80, which `Process.write` types into.
            stdin: let `Process.write` reach its standard input. The wire cannot close it.
            buffer_bytes: output that may wait here to be iterated over; beyond it the oldest is
                dropped, which the iteration reports as an `OutputGap`. None for no limit.

        Raises:
            SystemFailure: it could not be started.
            OutcomeUnknown: the connection was lost meanwhile; if it started, it is killed.
        """
        inbox = self._new_inbox(buffer_bytes)
        pid = await self._start(inbox, argv, cwd, env, inherit, tty=tty, stdin=stdin)
        return Process(self._session.call, inbox, pid, self._session.call_timeout)

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Any request of the wire (`docs/protocol.md`), and its result. Raises as `Session.call` does."""
        return await self._session.call(method, params, limit=limit)

    def drop_connection(self) -> None:
        """A diagnostic: cut the connection as a fault would. Recovery begins at once."""
        self._session.drop_connection()

    # -- inside

    def _new_inbox(self, limit: int | None) -> Inbox:
        self._started += 1
        return Inbox(f"execclient-{self._started}", limit)

    async def _start(
        self,
        inbox: Inbox,
        argv: Sequence[str],
        cwd: AnyPath | None,
        env: Mapping[str, str] | None,
        inherit: Inherit,
        *,
        tty: bool,
        stdin: bool,
    ) -> int | None:
        if isinstance(argv, str):
            raise TypeError(f"argv is a list of strings; for a shell command: ['sh', '-c', {argv!r}]")
        params = {
            "processId": inbox.id,
            "argv": list(argv),
            "cwd": self.fs.uri(self.cwd if cwd is None else cwd),
            "env": dict(env or {}),
            "envPolicy": {
                "inherit": inherit,
                "ignoreDefaultExcludes": True,
                "exclude": [],
                "set": {},
                "includeOnly": [],
            },
            "tty": tty,
            "pipeStdin": stdin,
        }
        # Before the start: a server may tell of a process before it answers.
        self._session.add(inbox)
        try:
            result = await self._session.call("process/start", params)
        except BaseException as error:
            self._session.forget(inbox)
            if not isinstance(error, CallFailed | SessionLost | ExecutorClosed):
                self._session.terminate_soon(inbox.id)  # it may run all the same
            raise
        inbox.started = True
        pid: int | None = result.get("pid")
        return pid

    async def _until_silent(self, inbox: Inbox) -> None:
        while not inbox.closed:
            connection = await self._session.connected()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await inbox.until_closed()
                return
            # One that was lost meanwhile may have had the rest on its way.
            if await self._session.connected() is connection:
                return

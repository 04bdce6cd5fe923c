"""`Executor`: commands and files at a daemon."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from execclient import arguments
from execclient.arguments import AnyPath
from execclient.connection.connection import Json
from execclient.deadlines import Deadlines
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.errors import (
    CallFailed,
    CommandFailed,
    CommandNotRun,
    ExecServerError,
    ExecutorClosed,
    NoSuchProcess,
    Refused,
    SessionLost,
    StdinUnavailable,
)
from execclient.filesystem import FileSystem
from execclient.identifiers import new_id
from execclient.os_errors import CommandTimedOut
from execclient.process import Process, ProcessInfo, until_silent
from execclient.run import TIME_LIMITS, TIMED_OUT, RunOutput, RunResult
from execclient.session.inbox import Inbox
from execclient.session.session import Session
from execprotocol.path_uri import parse_path_uri

BUFFER_BYTES = 64 << 20
"""Output of a process that may wait in the client to be taken."""

BACKSTOP_SECONDS = 5.0
"""How much later than the daemon `run` enforces a time limit: for a daemon that hangs, or is away."""

END_OF_FILE = b"\x04"
"""What is typed to end a terminal's input, at the start of a line; elsewhere it takes two."""

IfExists = Literal["fail", "attach"]


class _Start(NamedTuple):
    """What a process is started with; as the arguments of `Executor.start`."""

    argv: Sequence[AnyPath]
    cwd: AnyPath | None
    env: Mapping[str, AnyPath] | None
    inherit: Inherit | EnvironmentPolicy
    tty: bool
    size: tuple[int, int] | None
    stdin: bool
    timeout: float | None
    idle_timeout: float | None
    if_exists: IfExists
    sandbox: Mapping[str, Json] | None
    arg0: str | None = None


class Executor:
    """A daemon that runs commands and touches files for us. Get one from `connect`."""

    def __init__(self, session: Session, url: str, info: Mapping[str, Json]) -> None:
        self.url = url
        self.info = info
        """What the daemon says of itself and its machine (`docs/protocol.md`, D1)."""
        self.cwd = parse_path_uri(info.get("cwd") or "file:///")
        """Where the daemon was started; relative paths begin here."""
        self.fs = FileSystem(session, self.cwd)
        self._session = session
        self._cwd_uri = self.fs.uri(self.cwd)

    @property
    def capabilities(self) -> frozenset[str]:
        """The extensions that the daemon serves, as `fs/digest` or `process/start.size`."""
        return self._session.capabilities

    @property
    def session_id(self) -> str:
        """The session, as the daemon names it."""
        return self._session.id

    @property
    def session_ttl(self) -> float | None:
        """Seconds for which the daemon keeps the session without a connection, and its processes with
        it; None from a daemon that does not tell.
        """
        return self._session.ttl

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""
        return self._session.recoveries

    async def run(
        self,
        argv: Sequence[AnyPath],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, AnyPath] | None = None,
        inherit: Inherit | EnvironmentPolicy = "all",
        tty: bool = False,
        size: tuple[int, int] | None = None,
        input: bytes | str | None = None,  # noqa: A002 - as `subprocess.run` has it
        timeout: float | None = None,  # noqa: ASYNC109 - it is the command that ends, with a result
        idle_timeout: float | None = None,
        sandbox: Mapping[str, Json] | None = None,
        max_output_bytes: int | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run a command to its end, and give its output.

        Returns 500 ms after the exit at the latest, also if a child in the background keeps the
        output open; such a child lives on until the session ends. Cancelling kills the command
        with all its descendants.

        Args:
            argv: program and arguments, each text in UTF-8 or a path; no shell is involved.
            cwd: where; by default where the daemon was started.
            env: variables laid over what is inherited.
            inherit: the daemon's environment: all of it, its core (HOME, PATH, …), or nothing; or a choice.
            tty: give it a terminal; its output is then all in `stdout`.
            size: rows and columns of the terminal; by default 24 and 80.
            input: its standard input, text as UTF-8; by default empty. On a terminal it is typed,
                and end of file behind it.
            timeout: seconds until it is killed with all its descendants, and the result says `timed_out`.
            idle_timeout: the same for seconds in which it neither writes anything nor is given input.
            sandbox: what it may touch (`docs/protocol.md`, "Sandbox context"), as the wire has it.
            max_output_bytes: how much output is kept of each stream, and of both together: half of
                it from the beginning, half from the end. The result counts the bytes between them.
            check: raise `CommandFailed` unless it exits with 0, in time.

        Raises:
            SystemFailure: it could not be started.
            OutputGap: some of its output was dropped; the exception has the `result`.
            CommandFailed: with `check`; the exception has the `result`.
            CommandNotRun: its sandbox broke before it began.
            Unsupported: the server does not serve `size`, or cannot end an `input`.
            OutcomeUnknown, SessionLost, ExecutorClosed: what became of it is not known.
            TypeError, ValueError: an argument or a variable is no text, or no UTF-8; nothing was started.
        """
        clock = asyncio.get_running_loop().time
        begin = clock()
        output = RunOutput(arguments.count(max_output_bytes, "max_output_bytes", none="keeps everything"))
        inbox = Inbox(new_id(), None, sink=output.add)
        timeout = arguments.limit(timeout, "timeout")
        idle_timeout = arguments.limit(idle_timeout, "idle_timeout")
        start = _Start(
            argv, cwd, env, inherit, tty, size, input is not None, timeout, idle_timeout, "fail", sandbox
        )
        # Here and not on the way: a command that waits for the rest of a broken input waits for ever.
        data = None if input is None else arguments.data(input, "input")
        if data is not None and not tty:
            self._session.require("process/closeStdin")
        try:
            if timeout is None:
                await self._run(inbox, start, data)
            else:
                async with asyncio.timeout(timeout + BACKSTOP_SECONDS):
                    await self._run(inbox, start, data)
        except TimeoutError as error:
            if isinstance(error, ExecServerError):  # of a single call, and not of the command
                await self._abandon(inbox)
                raise
            inbox.forced_cause = "timeout"
            if inbox.started:
                await self._session.kill(inbox)
                await until_silent(self._session, inbox)
        except BaseException:
            await self._abandon(inbox)
            raise
        finally:
            self._session.forget(inbox)
        cause = inbox.forced_cause if inbox.exit_code is None else inbox.cause
        timed_out = cause in TIME_LIMITS
        exit_code = TIMED_OUT if timed_out or inbox.exit_code is None else inbox.exit_code
        result = output.result(
            exit_code, clock() - begin, cause=cause, timed_out=timed_out, denial=inbox.denial
        )
        if check and exit_code:
            kind = CommandTimedOut if timed_out else CommandFailed
            raise kind(os.fspath(argv[0]), result).about(cwd=self._cwd_of(start))
        return result

    async def start(
        self,
        argv: Sequence[AnyPath],
        *,
        id: str | None = None,  # noqa: A002 - what `Process.id` will be
        cwd: AnyPath | None = None,
        env: Mapping[str, AnyPath] | None = None,
        inherit: Inherit | EnvironmentPolicy = "all",
        tty: bool = False,
        size: tuple[int, int] | None = None,
        stdin: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - it is the process that ends
        idle_timeout: float | None = None,
        if_exists: IfExists = "fail",
        sandbox: Mapping[str, Json] | None = None,
        arg0: str | None = None,
        buffer_bytes: int | None = BUFFER_BYTES,
    ) -> Process:
        """Start a process, and go on.

        Args:
            argv: as for `run`, like all that is not explained here.
            id: its name in the session; by default eight letters and digits that nobody else has.
            cwd: where.
            env: variables.
            inherit: the daemon's own.
            tty: give it a terminal, which `Process.write` types into.
            size: of the terminal.
            stdin: let `Process.write` reach its standard input, until `Process.close_stdin`.
            timeout: seconds until it is killed; its `cause` is then `timeout`.
            idle_timeout: seconds of silence until it is killed; the `cause` is then `idleTimeout`.
            if_exists: with `attach`, when the session has a process of this `id` that was started
                in the same way, give that one, with its output from the first byte. The way to
                repeat a start whose outcome is unknown.
            sandbox: what it may touch.
            arg0: the name that the program sees as its own, in place of `argv[0]`.
            buffer_bytes: output that may wait here to be iterated over; beyond it the oldest is
                dropped, which the iteration reports as an `OutputGap`. None for no limit.

        Raises:
            SystemFailure: it could not be started.
            Refused: the `id` is taken; or with `attach`, by another command.
            Unsupported: the server does not serve `size` or `if_exists`.
            OutcomeUnknown: the connection was lost meanwhile. If it started, it is killed, unless
                `if_exists` is `attach`.
        """
        inbox = Inbox(new_id() if id is None else id, _buffer(buffer_bytes))
        timeout = arguments.limit(timeout, "timeout")
        idle_timeout = arguments.limit(idle_timeout, "idle_timeout")
        start = _Start(
            argv, cwd, env, inherit, tty, size, stdin, timeout, idle_timeout, if_exists, sandbox, arg0
        )
        return await self._start(inbox, start)

    async def attach(
        self,
        process_id: str,
        *,
        session_id: str | None = None,
        after_seq: int = 0,
        interactive: bool = False,
        buffer_bytes: int | None = BUFFER_BYTES,
    ) -> Process:
        """A process that is there already: of this session, or of another one.

        Any number of observers may be attached to a process, and all get the same output. A process
        of this session, also after `connect(session_id=…)`, is like one that was just started. One
        of another session belongs to its owner: leaving its block or closing the executor leaves it
        alone, and whoever is slow in reading misses some of its output, which is an `OutputGap`.

        Args:
            process_id: its name.
            session_id: its session; by default this one.
            after_seq: begin behind this number; 0 for all output that is kept.
            interactive: ask for the right to resize another session's terminal, from whoever has it.
            buffer_bytes: as for `start`.

        Raises:
            NoSuchProcess: there is none of that name.
            Refused: it may not be reached from here; the message says what would help.
            Unsupported: the server does not serve `process/subscribe`.
        """
        own = session_id is None or session_id == self.session_id
        if not own:
            self._session.require("process/subscribe")
        arguments.count(after_seq, "after_seq")
        buffer_bytes = _buffer(buffer_bytes)
        inbox = Inbox(process_id, buffer_bytes, session_id=None if own else session_id, after_seq=after_seq)
        inbox.interactive = interactive and not own
        try:
            state = await self._session.attach(inbox)
        except Refused as error:
            if "unknown process" in error.message:
                raise NoSuchProcess(error.message) from error
            raise
        pid, tty = state.get("pid"), state.get("tty")
        if own and "process/list" in self.capabilities:
            for info in await self.processes():
                if info.process_id == process_id:
                    pid, tty = info.pid, info.tty
        return Process(self._session, inbox, pid=pid, tty=tty, confined=own)

    async def processes(self, *, all_sessions: bool = False, argv: bool = False) -> list[ProcessInfo]:
        """The processes that the daemon knows, the oldest first; those too that ended a short time ago.

        Args:
            all_sessions: of every session, not only of this one.
            argv: tell their arguments and working directories. They may contain secrets.

        Raises:
            Refused: other sessions may not be looked at from here; the message says what would help.
            Unsupported: the server does not serve `process/list`.
        """
        self._session.require("process/list")
        result = await self._session.call("process/list", {"allSessions": all_sessions, "argv": argv})
        return [ProcessInfo.decode(item) for item in result["processes"]]

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Any request of the wire (`docs/protocol.md`), and its result. Raises as `Session.call` does."""
        return await self._session.call(method, params, limit=limit)

    def drop_connection(self) -> None:
        """A diagnostic: cut the connection as a fault would. Recovery begins at once."""
        self._session.drop_connection()

    async def close(self) -> None:
        """End the session, as leaving the block of `connect` does. May be called again.

        What is left of all that was started in it is killed, with descendants that went their own ways,
        unless `connect` was told to `keep` it. Takes some seconds at most: when the connection is lost, and
        stays so, the daemon ends the session itself, `--session-ttl` seconds later.
        """
        await self._session.close()

    async def detach(self) -> None:
        """End the connection, and let the processes go on. May be called again.

        They go on until the daemon ends the session, `--session-ttl` (80) seconds later, unless
        somebody resumes it: `connect(session_id=executor.session_id)`.
        """
        await self._session.close(keep=True)

    # -- inside

    async def _abandon(self, inbox: Inbox) -> None:
        """Kill what was started and is of no use any more."""
        if inbox.started and not inbox.closed:
            await self._session.kill(inbox)

    def _cwd_of(self, start: _Start) -> str:
        return self.cwd if start.cwd is None else os.path.join(self.cwd, start.cwd)

    async def _run(self, inbox: Inbox, start: _Start, data: bytes | None) -> None:
        process = await self._start(inbox, start)
        try:
            if data is None:
                exit_code = await inbox.until_exited()
            else:
                exit_code = await self._feed(process, inbox, data)
        finally:
            process._cancel_deadlines()  # noqa: SLF001 - nobody else has to
        if not inbox.closed:
            await until_silent(self._session, inbox)
        if start.sandbox is not None and exit_code:
            await process.wait()
            if process.failure:
                raise CommandNotRun(process.failure)

    async def _feed(self, process: Process, inbox: Inbox, data: bytes) -> int:
        feeding = asyncio.create_task(_type(process, data) if process.tty else _pipe(process, data))

        def fed(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and isinstance(error := task.exception(), ExecServerError):
                inbox.fail(error)

        feeding.add_done_callback(fed)
        try:
            return await inbox.until_exited()
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})

    async def _start(self, inbox: Inbox, start: _Start) -> Process:
        params = self._start_params(inbox.id, start)
        known = self._session.knows(inbox.id)
        attach = start.if_exists == "attach"
        if not attach:
            # Before the start: a server may tell of a process before it answers.
            self._session.add(inbox)
        try:
            result = await self._session.call("process/start", params)
        except BaseException as error:
            self._session.forget(inbox)
            # It may run all the same. But the id may also be that of an earlier one.
            if not (known or attach or isinstance(error, CallFailed | SessionLost | ExecutorClosed)):
                self._session.terminate_soon(inbox.id)
            raise
        inbox.started = True
        if attach:
            await self._session.attach(inbox)
        return Process(
            self._session,
            inbox,
            pid=result.get("pid"),
            program=params["argv"][0],
            cwd=self._cwd_of(start),
            tty=start.tty,
            confined=start.sandbox is not None,
            deadlines=self._deadlines(inbox, start),
        )

    def _start_params(self, process_id: str, start: _Start) -> dict[str, Json]:
        params: dict[str, Json] = {
            "processId": process_id,
            "argv": arguments.command_line(start.argv),
            "cwd": self._cwd_uri if start.cwd is None else self.fs.uri(arguments.path(start.cwd, "cwd")),
            "env": {} if start.env is None else arguments.variables(start.env),
            "envPolicy": _environment_policy(start.inherit).wire(),
            "tty": start.tty,
            "pipeStdin": start.stdin and not start.tty,
        }
        if start.sandbox is not None:
            params["sandbox"] = start.sandbox
        if start.arg0 is not None:
            params["arg0"] = arguments.text(start.arg0, "arg0")
        if start.size is not None:
            size = arguments.terminal_size(start.size)
            self._session.require("process/start.size")
            params["size"] = size
        if start.if_exists != "fail":
            self._session.require("process/start.ifExists")
            params["ifExists"] = start.if_exists
        for member, seconds in (("timeoutMs", start.timeout), ("idleTimeoutMs", start.idle_timeout)):
            if seconds is not None and f"process/start.{member}" in self.capabilities:
                params[member] = max(1, round(seconds * 1000))
        return params

    def _deadlines(self, inbox: Inbox, start: _Start) -> Deadlines | None:
        """The time limits that the server does not keep: another one would ignore them in silence."""
        run, idle = (
            None if f"process/start.{member}" in self.capabilities else seconds
            for member, seconds in (("timeoutMs", start.timeout), ("idleTimeoutMs", start.idle_timeout))
        )
        return None if run is None and idle is None else Deadlines(self._session, inbox, run, idle)


def _environment_policy(inherit: Inherit | EnvironmentPolicy) -> EnvironmentPolicy:
    return inherit if isinstance(inherit, EnvironmentPolicy) else EnvironmentPolicy(inherit)


def _buffer(limit: int | None) -> int | None:
    return arguments.count(limit, "buffer_bytes", none="sets no limit")


async def _pipe(process: Process, data: bytes) -> None:
    with suppress(StdinUnavailable, NoSuchProcess):  # a command need not read what it is given
        await process.write(data)
        await process.close_stdin()


async def _type(process: Process, data: bytes) -> None:
    at_line_start = not data or data.endswith(b"\n")
    with suppress(StdinUnavailable, NoSuchProcess):
        await process.write(data + (END_OF_FILE if at_line_start else 2 * END_OF_FILE))

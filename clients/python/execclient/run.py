"""Start processes, and run commands to their end."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from execclient import arguments
from execclient.arguments import AnyPath
from execclient.connection.connection import Json
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.errors import (
    CallFailed,
    CommandFailed,
    CommandNotRun,
    CommandTimedOut,
    ExecServerError,
    ExecutorClosed,
    NoSuchProcess,
    OutputGap,
    SessionLost,
    StdinUnavailable,
)
from execclient.filesystem import FileSystem
from execclient.process import Deadlines, Process, linger
from execclient.results import RunResult
from execclient.session.inbox import Inbox, Piece
from execclient.session.session import Session

TIMED_OUT = 124
"""The exit code of a command after a time limit, as in `timeout(1)`."""

TIME_LIMITS = frozenset({"timeout", "idleTimeout"})
"""The causes of such an end (`docs/protocol.md`, X8)."""

BACKSTOP_SECONDS = 5.0
"""`run` enforces a time limit this much later than the daemon, in case the daemon hangs or is unreachable."""

END_OF_FILE = b"\x04"
"""Ends a terminal's input at the start of a line; elsewhere two are needed."""

IfExists = Literal["fail", "attach"]


class StartOptions(NamedTuple):
    """The arguments of `Executor.start`."""

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


class Starter:
    """Starts processes in a session.

    Args:
        session: the session.
        files: resolves working directories.
        cwd: the working directory if none is given, absolute.
    """

    def __init__(self, session: Session, files: FileSystem, cwd: str) -> None:
        self.session = session
        self._files = files
        self._cwd = cwd
        self._cwd_uri = files.uri(cwd)

    async def start(self, inbox: Inbox, options: StartOptions, deadlines: Deadlines | None) -> Process:
        """Start a process whose events go to `inbox`. Raises as `Executor.start`."""
        session = self.session
        params = self._params(inbox.id, options)
        known = inbox.key in session.inboxes
        attach = options.if_exists == "attach"
        if not attach:
            # Before the start: a server may send events of a process before the response.
            session.add(inbox)
        try:
            result = await session.call("process/start", params)
        except BaseException as error:
            session.inboxes.forget(inbox)
            # The process may run all the same. But the id may also be that of an earlier process.
            if not (known or attach or isinstance(error, CallFailed | SessionLost | ExecutorClosed)):
                session.terminate_soon(inbox.id)
            raise
        inbox.started = True
        if attach:
            await session.attach(inbox)
        if deadlines is not None:
            deadlines.begin()
        return Process(
            session,
            inbox,
            pid=result.get("pid"),
            program=params["argv"][0],
            cwd=self.absolute_cwd(options),
            tty=options.tty,
            confined=options.sandbox is not None,
            deadlines=deadlines,
        )

    def absolute_cwd(self, options: StartOptions) -> str:
        """The working directory of the process."""
        return self._cwd if options.cwd is None else os.path.join(self._cwd, options.cwd)

    def deadlines(self, inbox: Inbox, options: StartOptions) -> Deadlines | None:
        """The time limits that the server does not enforce; it would ignore them silently."""
        served = self.session.capabilities
        run = None if "process/start.timeoutMs" in served else options.timeout
        idle = None if "process/start.idleTimeoutMs" in served else options.idle_timeout
        return None if run is None and idle is None else Deadlines(self.session, inbox, run, idle)

    def _params(self, process_id: str, options: StartOptions) -> dict[str, Json]:
        session, inherit = self.session, options.inherit
        policy = inherit if isinstance(inherit, EnvironmentPolicy) else EnvironmentPolicy(inherit)
        params: dict[str, Json] = {
            "processId": process_id,
            "argv": arguments.command_line(options.argv),
            "cwd": (
                self._cwd_uri if options.cwd is None else self._files.uri(arguments.path(options.cwd, "cwd"))
            ),
            "env": {} if options.env is None else arguments.variables(options.env),
            "envPolicy": policy.wire(),
            "tty": options.tty,
            "pipeStdin": options.stdin and not options.tty,
        }
        if options.sandbox is not None:
            params["sandbox"] = options.sandbox
        if options.arg0 is not None:
            params["arg0"] = arguments.text(options.arg0, "arg0")
        if options.size is not None:
            size = arguments.terminal_size(options.size)
            session.require("process/start.size")
            params["size"] = size
        if options.if_exists != "fail":
            session.require("process/start.ifExists")
            params["ifExists"] = options.if_exists
        for member, seconds in (("timeoutMs", options.timeout), ("idleTimeoutMs", options.idle_timeout)):
            if seconds is not None and f"process/start.{member}" in session.capabilities:
                params[member] = max(1, round(seconds * 1000))
        return params


class KeptEnds:
    """The first and the last bytes of a stream: half of a limit each, or all bytes without a limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._head_left = 0 if limit is None else limit - limit // 2
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._size = 0

    def add(self, data: bytes) -> None:
        """Append data."""
        self._size += len(data)
        if self._limit is None:
            self._head.append(data)
            return
        if self._head_left:
            self._head.append(data[: self._head_left])
            data, taken = data[self._head_left :], min(self._head_left, len(data))
            self._head_left -= taken
        tail = self._tail
        tail.append(data)
        self._tail_size += len(data)
        # Whole pieces only: cutting the first one each time would copy it again and again.
        while self._tail_size - len(tail[0]) >= self._limit // 2:
            self._tail_size -= len(tail.popleft())
            if not tail:
                break

    def copy(self) -> KeptEnds:
        """A copy that continues on its own."""
        twin = KeptEnds(self._limit)
        twin._head_left, twin._tail_size, twin._size = self._head_left, self._tail_size, self._size
        twin._head, twin._tail = self._head.copy(), self._tail.copy()
        return twin

    def ends(self) -> tuple[bytes, int]:
        """The kept bytes, and the number of bytes left out of the middle."""
        head = b"".join(self._head)
        if self._limit is None:
            return head, 0
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._limit // 2) :]
        return head + tail, self._size - len(head) - len(tail)


class RunOutput:
    """All output of a command, as it arrives; the sink of an inbox.

    Args:
        limit: bytes kept of each stream, and of both together; None keeps everything.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._streams: dict[str, KeptEnds] = {}
        self._both: KeptEnds | None = None
        """None while there is at most one stream."""
        self._gaps: list[OutputGap] = []

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        if isinstance(piece, OutputGap):
            self._gaps.append(piece)
            return
        stream, data = piece
        kept = self._streams.get(stream)
        if kept is None:
            if len(self._streams) == 1:
                (first,) = self._streams.values()
                self._both = first.copy()
            kept = self._streams[stream] = KeptEnds(self._limit)
        kept.add(data)
        if self._both is not None:
            self._both.add(data)

    def result(
        self,
        exit_code: int,
        duration: float,
        *,
        cause: str | None = None,
        timed_out: bool = False,
        denial: Mapping[str, Json] | None = None,
        ended_with_sandbox: Mapping[str, Json] | None = None,
    ) -> RunResult:
        """The result of the command.

        Raises:
            OutputGap: some output was lost; `result` has the rest.
        """
        ends = {stream: kept.ends() for stream, kept in self._streams.items()}
        stdout, stdout_truncated = ends.get("stdout") or ends.get("pty") or (b"", 0)
        stderr, stderr_truncated = ends.get("stderr") or (b"", 0)
        if self._both is not None:
            aggregated, aggregated_truncated = self._both.ends()
        else:
            aggregated, aggregated_truncated = stdout or stderr, stdout_truncated or stderr_truncated
        result = RunResult(
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            aggregated=aggregated,
            duration=duration,
            timed_out=timed_out,
            cause=cause,
            stdout_truncated=stdout_truncated,
            stderr_truncated=stderr_truncated,
            aggregated_truncated=aggregated_truncated,
            denial=denial,
            ended_with_sandbox=ended_with_sandbox,
        )
        if self._gaps:
            known = [gap.lost_bytes for gap in self._gaps if gap.lost_bytes is not None]
            raise OutputGap(sum(known) if len(known) == len(self._gaps) else None, result)
        return result


class Run:
    """A command that runs to its end, as `Executor.run` describes.

    Args:
        starter: starts the command.
        options: of the start.
        data: the standard input; None for none.
        max_output_bytes: of each stream, and of both together; None keeps everything.
    """

    def __init__(
        self, starter: Starter, options: StartOptions, data: bytes | None, max_output_bytes: int | None
    ) -> None:
        self._starter = starter
        self._session = starter.session
        self._options = options
        self._data = data
        self._output = RunOutput(max_output_bytes)
        self._inbox = Inbox(arguments.new_id(), None, sink=self._output.add)

    async def result(self, *, check: bool) -> RunResult:
        """Run the command. Raises as `Executor.run`."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        session, inbox, timeout = self._session, self._inbox, self._options.timeout
        try:
            if timeout is None:
                await self._complete()
            else:
                async with asyncio.timeout(timeout + BACKSTOP_SECONDS):
                    await self._complete()
        except TimeoutError as error:
            if isinstance(error, ExecServerError):  # of a single call, and not of the command
                await self._abandon()
                raise
            inbox.forced_cause = "timeout"
            if inbox.started:
                await session.kill(inbox)
                await linger(session, inbox)
        except BaseException:
            await self._abandon()
            raise
        finally:
            session.inboxes.forget(inbox)
        cause = inbox.forced_cause if inbox.exit_code is None else inbox.cause
        timed_out = cause in TIME_LIMITS
        exit_code = TIMED_OUT if timed_out or inbox.exit_code is None else inbox.exit_code
        result = self._output.result(
            exit_code,
            clock() - begin,
            cause=cause,
            timed_out=timed_out,
            denial=inbox.denial,
            ended_with_sandbox=inbox.ended_with_sandbox,
        )
        if check and exit_code:
            kind = CommandTimedOut if timed_out else CommandFailed
            failure = kind(os.fspath(self._options.argv[0]), result)
            raise failure.about(cwd=self._starter.absolute_cwd(self._options))
        return result

    async def _complete(self) -> None:
        inbox, options = self._inbox, self._options
        deadlines = self._starter.deadlines(inbox, options)
        process = await self._starter.start(inbox, options, deadlines)
        try:
            if self._data is None:
                exit_code = await inbox.until_exited()
            else:
                exit_code = await self._feed(process, self._data)
        finally:
            if deadlines is not None:
                deadlines.cancel()
        if not inbox.closed:
            await linger(self._session, inbox)
        if options.sandbox is not None and exit_code:
            await process.wait()
            if process.failure:
                raise CommandNotRun(process.failure)

    async def _feed(self, process: Process, data: bytes) -> int:
        inbox = self._inbox
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

    async def _abandon(self) -> None:
        """Kill the command: its result is no longer needed."""
        if self._inbox.started and not self._inbox.closed:
            await self._session.kill(self._inbox)


async def _pipe(process: Process, data: bytes) -> None:
    with suppress(StdinUnavailable, NoSuchProcess):  # a command need not read its input
        await process.write(data)
        await process.close_stdin()


async def _type(process: Process, data: bytes) -> None:
    at_line_start = not data or data.endswith(b"\n")
    with suppress(StdinUnavailable, NoSuchProcess):
        await process.write(data + (END_OF_FILE if at_line_start else 2 * END_OF_FILE))

"""Start processes, and run commands to their end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Self

from execclient import arguments
from execclient.arguments import AnyPath, Network, Sandbox
from execclient.connection.connection import Json
from execclient.deadlines import Deadlines
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.errors import (
    CallFailed,
    CommandFailed,
    CommandNotRun,
    CommandTimedOut,
    ExecServerError,
    ExecutorClosed,
    OutcomeUnknown,
    SessionLost,
    Unsupported,
)
from execclient.filesystem import FileSystem
from execclient.process import Process
from execclient.process_control import linger
from execclient.process_input import sending
from execclient.resource_limits import ResourceLimits
from execclient.results import TIMED_OUT, RunResult, is_timed_out
from execclient.run_output import RunOutput
from execclient.session.inbox import Inbox
from execclient.session.session import Session
from execclient.shells import shell_type_of

BACKSTOP_SECONDS = 5.0
"""`run` enforces a time limit this much later than the daemon, in case the daemon hangs or is unreachable."""

_GRACE = "process/start.graceMs"

IfExists = Literal["fail", "attach"]


class Limits(NamedTuple):
    """The time limits of a process, in seconds; None for no limit."""

    timeout: float | None
    idle_timeout: float | None
    grace: float
    """Between SIGTERM and SIGKILL, at either limit."""

    @classmethod
    def of(cls, timeout: object, idle_timeout: object, grace: object) -> Self:
        """The limits of a call.

        Raises:
            TypeError, ValueError: one of them is no time; the message names it.
        """
        run, idle = arguments.limit(timeout, "timeout"), arguments.limit(idle_timeout, "idle_timeout")
        return cls(run, idle, arguments.grace(grace))


class StartOptions(NamedTuple):
    """The arguments of `Executor.start`."""

    argv: Sequence[AnyPath]
    cwd: AnyPath | None
    env: Mapping[str, AnyPath] | None
    inherit: Inherit | EnvironmentPolicy
    tty: bool
    size: tuple[int, int] | None
    stdin: bool
    limits: Limits
    if_exists: IfExists
    sandbox: Sandbox | None
    network: Network | None = None
    arg0: str | None = None
    new_id: bool = False
    """Whether no other process can have the id, so that the start may be sent twice."""
    resources: ResourceLimits | None = None
    shell_snapshot: str | None = None


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
        repeatable = attach or (options.new_id and "process/start.ifExists" in session.capabilities)
        if not attach:
            # Before the start: a server may send events of a process before the response.
            session.add(inbox)
        if not known:  # else the questions are those of another process of this id
            session.network.serve_own(inbox.id, options.network)
        try:
            result, repeated = await self._call(params, repeatable=repeatable, new_id=options.new_id)
            inbox.started = True
            if repeated:
                # It may have missed events of the first start.
                session.inboxes.forget(inbox, returns=True)
            if attach or repeated:
                await session.attach(inbox)
        except BaseException as error:
            session.inboxes.forget(inbox)
            if not known:
                session.network.release(inbox.id)
            # The process may run all the same. But the id may also be that of an earlier process.
            failed = isinstance(error, SessionLost | ExecutorClosed | CallFailed) and not inbox.started
            if not (known or attach or failed):
                session.terminate_soon(inbox.id)
            raise
        session.network.serve_own(inbox.id, options.network)
        if deadlines is not None:
            deadlines.begin()
        process = Process(
            session,
            inbox,
            pid=result.get("pid"),
            program=params["argv"][0],
            cwd=self.absolute_cwd(options),
            tty=options.tty,
            stdin=options.stdin,
            confined="sandbox" in params,
            deadlines=deadlines,
        )
        process.snapshot_obstacle = result.get("snapshotObstacle")
        process.audit = result.get("audit")
        return process

    async def _call(self, params: Mapping[str, Json], *, repeatable: bool, new_id: bool) -> tuple[Json, bool]:
        """The response to a start, and whether it was sent more than once (`docs/protocol.md`, H45)."""
        repeated = False
        while True:
            try:
                return await self.session.call("process/start", params), repeated
            except OutcomeUnknown:
                # A process that has ended is forgotten in time (`docs/protocol.md`, P35). Then its id is
                # free, and the command would run twice.
                if not repeatable or (new_id and await self._is_forgotten(params["processId"])):
                    raise
            params, repeated = {**params, "ifExists": "attach"}, True

    async def _is_forgotten(self, process_id: str) -> bool:
        if "process/listForgotten" not in self.session.capabilities:
            return False
        result = await self.session.call("process/listForgotten", {"processId": process_id})
        return bool(result["processes"])

    def absolute_cwd(self, options: StartOptions) -> str:
        """The working directory of the process."""
        return self._cwd if options.cwd is None else os.path.join(self._cwd, options.cwd)

    def deadlines(self, inbox: Inbox, options: StartOptions) -> Deadlines | None:
        """The time limits that the server does not enforce; it would ignore them silently."""
        served = self.session.capabilities
        run, idle, _ = options.limits
        own_grace = self._own_grace(options.limits)
        if not own_grace:
            run = None if "process/start.timeoutMs" in served else run
            idle = None if "process/start.idleTimeoutMs" in served else idle
        return None if run is None and idle is None else Deadlines(self.session, inbox, run, idle, own_grace)

    def _own_grace(self, limits: Limits) -> float:
        """The grace that the client gives, because the server does not; then the client enforces the limits.

        Raises:
            Unsupported: the server cannot send SIGTERM either.
        """
        run, idle, grace = limits
        if not grace or (run is None and idle is None) or _GRACE in self.session.capabilities:
            return 0.0
        if "process/signal.scope" not in self.session.capabilities:
            raise Unsupported(_GRACE)
        return grace

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
            context = arguments.sandbox(options.sandbox, self.absolute_cwd(options))
            if context is not None:
                params["sandbox"] = context
        if options.network is not None:
            params["networkProxy"] = arguments.network(options.network)
            if "sandbox" in params:  # else there is nothing that could enforce it
                params["enforceManagedNetwork"] = True
        if options.arg0 is not None:
            params["arg0"] = arguments.text(options.arg0, "arg0")
        if options.shell_snapshot is not None:
            program = params["argv"][0]
            kind = shell_type_of(program)
            shell = {"name": program if kind is None else kind.name, "path": program}
            params["shellSnapshot"] = {"scopeId": options.shell_snapshot, "shell": shell}
        if options.size is not None:
            size = arguments.terminal_size(options.size)
            session.require("process/start.size")
            params["size"] = size
        if options.if_exists != "fail":
            session.require("process/start.ifExists")
            params["ifExists"] = options.if_exists
        params.update(self._wire_limits(options.limits))
        if options.resources is not None and (resources := options.resources.wire()):
            session.require("process/start.limits")
            params["limits"] = resources
            if options.limits.grace and options.resources.wall is not None:
                params["graceMs"] = _milliseconds(options.limits.grace)
        return params

    def _wire_limits(self, limits: Limits) -> Iterator[tuple[str, int]]:
        """The limits for the server, in milliseconds."""
        own_grace = self._own_grace(limits)
        for member, seconds in (("timeoutMs", limits.timeout), ("idleTimeoutMs", limits.idle_timeout)):
            if seconds is not None and f"process/start.{member}" in self.session.capabilities:
                # If the client enforces the limit, the server does so later, in case the client is gone.
                yield member, _milliseconds(min(seconds + own_grace, arguments.LONGEST_SECONDS))
                if limits.grace and not own_grace:
                    yield "graceMs", _milliseconds(limits.grace)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


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
        session, inbox, timeout = self._session, self._inbox, self._options.limits.timeout
        try:
            if timeout is None:
                await self._complete()
            else:
                async with asyncio.timeout(timeout + self._options.limits.grace + BACKSTOP_SECONDS):
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
        timed_out = is_timed_out(cause, inbox.limit)
        exit_code = TIMED_OUT if timed_out or inbox.exit_code is None else inbox.exit_code
        result = self._output.result(
            exit_code,
            clock() - begin,
            cause=cause,
            timed_out=timed_out,
            denial=inbox.denial,
            ended_with_sandbox=inbox.ended_with_sandbox,
            limit=inbox.limit,
            usage=inbox.usage,
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
            await process.wait()  # asks for the failure of a sandbox
            if process.failure:
                raise CommandNotRun(process.failure)

    async def _feed(self, process: Process, data: bytes) -> int:
        inbox = self._inbox
        feeding = sending(process, data)
        try:
            return await inbox.until_exited()
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})

    async def _abandon(self) -> None:
        """Kill the command: its result is no longer needed."""
        if self._inbox.started and not self._inbox.closed:
            await self._session.kill(self._inbox)

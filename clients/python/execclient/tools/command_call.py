"""One command of a model, from any tool: its decision, its approval, and its start."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from execclient.arguments import LONGEST_SECONDS
from execclient.client import Executor
from execclient.connection.connection import Json
from execclient.environment_policy import EnvironmentPolicy
from execclient.errors import ExecServerError
from execclient.govern.approval_policy import ApprovalPolicy
from execclient.govern.approvals import ApprovalCache, ApprovalRequest
from execclient.govern.orchestrator import RETRY_REASON, SandboxAttempt, SandboxPreference
from execclient.govern.policy.decision import Requirement, command_line, decide
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.proposals import propose
from execclient.govern.sandbox import ReadOnly, SandboxPolicy, WorkspaceWrite
from execclient.process import Process
from execclient.tools.environment import NETWORK_MARKER, explicit_repositories
from execclient.tools.exec_params import Cancellation, ExecEnv, ExecParams, confined
from execclient.tools.exec_session import ExecSession, OutputListener
from execclient.tools.network import CommandNetwork

GRACE_SECONDS = 0.2
"""Between SIGTERM and SIGKILL, for a tool that lets a command clean up: enough to remove a lock file."""

BACKSTOP_SECONDS = 5.0
"""How much later the other side enforces a time limit: the daemon if the client ends the command, in case the
client is gone, and the client if the daemon does."""

SNAPSHOT_SCOPE = "execclient.tools"
"""The shell snapshots that the tools of a session share."""

LEAST_SECONDS = 0.001
"""The shortest time limit on the wire. A model may ask for 0."""


class StartedCommand(NamedTuple):
    """A process that a call started."""

    executor: Executor
    process_id: str


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command with everything that decides on it."""

    call_id: str
    tool: str
    params: ExecParams
    executor: Executor
    policy: Policy
    approval: ApprovalPolicy
    sandbox: SandboxPolicy
    turn_cwd: str
    """The base of relative entries of a policy."""
    workspace_roots: tuple[str, ...]
    environment: EnvironmentPolicy
    network_marker: str = NETWORK_MARKER
    prefix_rule: tuple[str, ...] | None = None
    co_commands: tuple[str, ...] | None = None
    """The trusted commands of the profile `co`."""
    user_shell: str | None = None
    """The path of the account's shell, at the executor."""
    started: deque[StartedCommand] | None = None
    """Collects commands that may leave processes in the background."""
    snapshot_unused: Callable[[str], None] | None = None
    """Takes the reason why a login shell runs the command; None to ask for no shell snapshot."""
    network: CommandNetwork | None = None
    """The hosts that it may reach, while its sandbox is not lifted; None if the sandbox alone decides."""

    def requirement(self) -> Requirement:
        """The decision on the command: run, ask or refuse."""
        return decide(
            self.params.command,
            policy=self.policy,
            approval=self.approval,
            sandbox=self.sandbox,
            cwd=self.params.cwd,
            turn_cwd=self.turn_cwd,
            user_shell=self.user_shell,
            escalated=self.params.escalated,
            prefix_rule=self.prefix_rule,
            co_commands=self.co_commands,
            explicit_repositories=explicit_repositories({**self.environment.set, **self.params.env}),
        )

    def scope(self) -> Mapping[str, Json] | None:
        """The scope of an approval for the session; None with parity."""
        if self.policy.parity:
            return None
        return approval_scope(self.executor, self.sandbox, self.workspace_roots, self.environment)

    def env(self, attempt: SandboxAttempt) -> ExecEnv:
        """The command with its sandbox, as an attempt starts it."""
        return confined(
            self.params,
            attempt.policy,
            cwd=self.turn_cwd,
            workspace_roots=self.workspace_roots,
            platform=str(self.executor.info.get("platformOs") or "linux"),
            network_marker=self.network_marker,
            proxied=self.network is not None and not attempt.bypassed,
        )

    async def start(self, env: ExecEnv, *, limit: float | None = None) -> Process:
        """Start the command with a time limit in seconds. Raises as `Executor.start` does.

        A limit beyond the range of the wire is no limit.
        """
        if limit is not None:
            limit = None if limit > LONGEST_SECONDS else max(limit, LEAST_SECONDS)
        process = await self.executor.start(
            env.command,
            cwd=env.cwd,
            env=env.env,
            inherit=self.environment,
            tty=env.tty,
            arg0=env.arg0,
            timeout=limit,
            sandbox=env.context,
            shell_snapshot=None if self.snapshot_unused is None else SNAPSHOT_SCOPE,
            network=self.network if env.proxied else None,
            buffer_bytes=None,  # `ExecSession` takes all output at once
        )
        if self.snapshot_unused is not None and process.snapshot_obstacle is not None:
            self.snapshot_unused(process.snapshot_obstacle)
        if self.network is not None:
            self.network.started(process)
        # A sandbox that limits files ends with its command, and kills everything in it.
        if self.started is not None and not isinstance(env.policy, ReadOnly | WorkspaceWrite):
            self.started.append(StartedCommand(self.executor, process.id))
        return process


def approval_scope(
    executor: Executor,
    sandbox: SandboxPolicy,
    workspace_roots: Sequence[str],
    environment: EnvironmentPolicy | None = None,
) -> dict[str, Json]:
    """The scope of an approval for the session: in another scope, the approval does not hold."""
    scope = {"executor": executor.url, "sandbox": sandbox.to_json(), "workspace": list(workspace_roots)}
    return scope if environment is None else {**scope, "environment": environment.wire()}


class CommandRuntime:
    """The base of the runtimes of commands, which add `run`."""

    sandbox_preference: SandboxPreference = "auto"
    escalate_on_failure = True

    def __init__(self, call: CommandCall, listener: OutputListener | None) -> None:
        self.call = call
        self.listener = listener
        self.env: ExecEnv | None = None
        """The command of the last attempt."""

    @property
    def escalated(self) -> bool:
        """Whether the call asks to run without the sandbox."""
        return self.call.params.escalated

    def requirement(self) -> Requirement:
        """The decision on the command."""
        return self.call.requirement()

    def approval_keys(self) -> Sequence[str]:
        """One key: the command, its directory, its options and its scope."""
        params = self.call.params
        scope = self.call.scope()
        return (ApprovalCache.key_of(params.command, params.cwd, params.tty, params.escalated, scope=scope),)

    def approval_request(
        self, requirement: Requirement, permits: Sequence[str], *, retry: bool
    ) -> ApprovalRequest:
        """The question."""
        params = self.call.params
        amendment = requirement.amendment
        if retry:
            # As if a command that ran without a question had been asked about.
            amendment = self._retry_amendment(requirement)
        return ApprovalRequest(
            call_id=self.call.call_id,
            tool=self.call.tool,
            kind="command",
            command=command_line(params.command),
            argv=params.command,
            cwd=params.cwd,
            reason=RETRY_REASON if retry else requirement.reason or params.justification,
            amendment=amendment,
            permits=tuple(permits),
            retry=retry,
        )

    def denied(self, output: ExecSession) -> bool:
        """Whether the sandbox probably denied something to a command that ended by itself."""
        denial = output.process.denial
        return bool(output.process.exit_code and denial is not None and denial.get("likely"))

    def check_turn(self) -> None:
        """Raise `TurnAborted` if a reviewer ended the turn while the command ran."""
        if self.call.network is not None:
            self.call.network.check()

    def _retry_amendment(self, requirement: Requirement) -> tuple[str, ...] | None:
        if requirement.matches:
            return None
        return propose(
            self.call.policy.rules,
            self.call.params.command,
            requirement.lowered,
            requirement.lowered.commands[0],
            self.call.prefix_rule,
            cwd=self.call.params.cwd,
            parity=self.call.policy.parity,
        )


class RunToEndRuntime(CommandRuntime):
    """Runs a command to its end or to its time limit."""

    def __init__(self, call: CommandCall, listener: OutputListener | None, *, gently: bool = False) -> None:
        super().__init__(call, listener)
        self._gently = gently
        self.cancelled = False
        """Whether the call's token ended the command."""
        self.timed_out = False

    async def run(self, attempt: SandboxAttempt) -> ExecSession:
        """Run one attempt. Cancellation, like the time limit, kills the command with all its descendants."""
        self.cancelled = self.timed_out = False
        env = self.env = self.call.env(attempt)
        seconds = env.expiration.seconds
        limit = seconds if seconds is None or not self._gently else seconds + BACKSTOP_SECONDS
        process = await self.call.start(env, limit=limit)
        session = ExecSession(process, self.listener, split=True)
        try:
            if isinstance(env.expiration, Cancellation):
                await self._until_cancelled(session, env.expiration.token)
            else:
                await self._until_limit(session, seconds)
            self.check_turn()
        except BaseException:
            await session.end("cancelled")
            raise
        return session

    def denied(self, output: ExecSession) -> bool:
        """Not for a command that was ended from outside: it would only reach its limit again."""
        return not (self.timed_out or self.cancelled) and super().denied(output)

    async def _until_limit(self, session: ExecSession, seconds: float | None) -> None:
        # The daemon enforces the limit; if it hangs or is unreachable, the client does a little later.
        patience = seconds if self._gently or seconds is None else seconds + BACKSTOP_SECONDS
        if not await session.collect(patience):
            if session.exited:
                await session.collect(None)  # it ended in time; only its output is pending
            else:
                self.timed_out = True
                await self._stop(session)
        self.timed_out = self.timed_out or session.process.cause == "timeout"

    async def _until_cancelled(self, session: ExecSession, token: asyncio.Event) -> None:
        waiting = asyncio.create_task(token.wait())
        finishing = asyncio.create_task(session.finished.wait())
        try:
            await asyncio.wait({waiting, finishing}, return_when=asyncio.FIRST_COMPLETED)
            if session.exited:
                await session.collect(None)
            else:
                self.cancelled = True
                await self._stop(session)
        finally:
            waiting.cancel()
            finishing.cancel()

    async def _stop(self, session: ExecSession) -> None:
        if self._gently:
            # If the server cannot send the signal or is unreachable, the kill below follows.
            with suppress(ExecServerError, TimeoutError):
                async with asyncio.timeout(BACKSTOP_SECONDS):
                    await session.process.signal("TERM", "group")
                await session.collect(GRACE_SECONDS)
        # Even if the signal ended the command: its descendants may have ignored it.
        await session.kill()
        await session.end("its time was up")


class YieldingRuntime(CommandRuntime):
    """Starts a command and waits for a while; the command may keep running."""

    def __init__(self, call: CommandCall, listener: OutputListener | None, seconds: float) -> None:
        super().__init__(call, listener)
        self._seconds = seconds
        self.seconds = 0.0
        """How long the last attempt waited."""

    async def run(self, attempt: SandboxAttempt) -> ExecSession:
        """Run one attempt. Cancellation kills the command with all its descendants."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        env = self.env = self.call.env(attempt)
        session = ExecSession(await self.call.start(env), self.listener)
        try:
            await session.collect(self._seconds)
            self.seconds = loop.time() - began
            self.check_turn()
        except BaseException:
            await session.end("cancelled")
            raise
        return session

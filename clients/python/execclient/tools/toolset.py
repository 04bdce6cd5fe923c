"""`Toolset`: the tools of a model, for an agent host.

    toolset = Toolset(executor, policy=Policy.load(home), approvals=Approvals(user=…, policy=ON_REQUEST))
    tools = toolset.specs()
    result = await toolset.call("exec_command", '{"cmd": "make test"}', call_id)

Rules kept in this file:

1. Every call ends with a result for the model, whatever a handler raises. Only the end of the turn
   (`TurnAborted`) and the cancellation of the call pass through.
2. A call that may change something runs alone; other calls run at the same time. `exec_command` counts until
   its answer, not until the end of its process. `write_stdin` without input may wait for minutes and starts
   nothing, so it blocks no other call.
3. Each call has exactly one begin event and one end event.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from execclient.arguments import new_id
from execclient.client import Executor
from execclient.connection.connection import Json
from execclient.errors import ExecServerError
from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.approvals import Approvals
from execclient.govern.policy.decision import Requirement
from execclient.govern.policy.policy import Policy
from execclient.govern.sandbox import SandboxPolicy, WorkspaceWrite
from execclient.shells import Shell
from execclient.tools.apply_patch import ApplyPatchHandler, intercepted_patch
from execclient.tools.config import ToolsConfig, Turn
from execclient.tools.context import CallContext, Interceptor, Services, ToolSession
from execclient.tools.environment import without_secrets
from execclient.tools.errors import PolicyChanged, RespondToModel, TurnAborted, UnsupportedCall
from execclient.tools.events import CallEvents, EventSink, SessionClosed, notify
from execclient.tools.exec_command import ExecCommandHandler
from execclient.tools.function_handler import CommandHandler, FunctionHandler
from execclient.tools.parallel import CallGate, OpenCalls
from execclient.tools.payloads import FunctionOutput, FunctionPayload, McpOutput, ToolPayload
from execclient.tools.registry import Registry, ToolInvocation
from execclient.tools.result import CallRecord, ToolResult, failed, preview
from execclient.tools.saved_sessions import SavedSession, resume_session, saved_sessions
from execclient.tools.session_table import SessionTable
from execclient.tools.shell import RunShellCommandHandler, ShellCommandHandler, ShellHandler
from execclient.tools.specs import Form, all_specs
from execclient.tools.write_stdin import WriteStdinHandler

log = logging.getLogger(__name__)

Handled = CallRecord | FunctionOutput | McpOutput
"""The result of a handler: a record from the handlers of this package, an output from a host's own."""

ABORTED = "aborted by user"
CLOSED = "the tools were closed"

_NO_TURN = Turn()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The decision on a call that is not carried out."""

    command: tuple[str, ...]
    cwd: str
    requirement: Requirement
    policy_revision: str
    """For `Toolset.call`, which can then refuse the call after a change of the rules."""


class Toolset:
    """The tools of a model, at one executor or several. The end of an `async with` block closes them.

    Args:
        executor: the executor of commands; or several by id, for `environment_id` of `exec_command`. The
            first one is the default.
        policy: the rules; by default none.
        approvals: the reviewers and the approval policy; by default without reviewers: a call that needs an
            approval is refused.
        sandbox: the sandbox policy of commands.
        cwd: the workspace, absolute, at the executor; by default the working directory of its daemon.
        workspace_roots: the folders that a sandbox may allow to write; by default `cwd`.
        config: all other settings.
        events: called with the events of every call.
        shell: the user's shell; by default the shell of the daemon's account.
        session_id: the id of the conversation, for commands.
    """

    def __init__(
        self,
        executor: Executor | Mapping[str, Executor],
        *,
        policy: Policy | None = None,
        approvals: Approvals | None = None,
        sandbox: SandboxPolicy | None = None,
        cwd: str | None = None,
        workspace_roots: Sequence[str] | None = None,
        config: ToolsConfig | None = None,
        events: EventSink | None = None,
        shell: Shell | None = None,
        session_id: str | None = None,
    ) -> None:
        self.executors = {"": executor} if isinstance(executor, Executor) else dict(executor)
        if not self.executors:
            raise ValueError("executor: at least one is needed")
        self.executor = next(iter(self.executors.values()))
        self.config = config or ToolsConfig()
        self.approvals = approvals or Approvals(policy=ON_REQUEST)
        self.sandbox = WorkspaceWrite() if sandbox is None else sandbox
        self.cwd = cwd or self.executor.cwd
        self.workspace_roots = (self.cwd,) if workspace_roots is None else tuple(workspace_roots)
        self.session_id = session_id or new_id()
        self.registry: Registry[Handled] = Registry(self.config.shell_type)
        self._events = events
        self._shell = shell
        self._gate = CallGate()
        self._calls = OpenCalls()
        self._services = Services(
            config=self.config,
            policy=policy or Policy(),
            sessions=SessionTable[ToolSession](lambda session: session.exec.exited),
            interceptors=[],
            session_id=self.session_id,
            closed_session=self._session_closed,
        )
        self._register()

    @property
    def policy(self) -> Policy:
        """The rules."""
        return self._services.policy

    @property
    def interceptors(self) -> list[Interceptor]:
        """Called in order before a command is judged; may carry it out in another way."""
        return self._services.interceptors

    def specs(self, form: Form = "openai") -> list[dict[str, Json]]:
        """The specs of the tools that the model is shown, in the form of its family."""
        return [spec.form(form) for spec in self.registry.specs]

    async def call(
        self,
        name: str,
        arguments: str | Mapping[str, Json] | ToolPayload,
        call_id: str | None = None,
        *,
        turn: Turn | None = None,
        policy_revision: str | None = None,
        tracker: object = None,
    ) -> ToolResult:
        """Carry out a call of a model. Cancellation kills the command that it started.

        Args:
            name: the name of the tool.
            arguments: the arguments as the model wrote them, or a payload of another kind.
            call_id: the model's id of the call.
            turn: the settings of this turn.
            policy_revision: the revision from `inspect`; the call is refused if the rules have changed since.
            tracker: a `patch.TurnDiff` that collects the changes of patches.

        Raises:
            TurnAborted: a reviewer ended the turn.
            PolicyChanged: the rules are no longer those of `policy_revision`; nothing was started.
            ExecutorClosed: the toolset was closed before. A call that runs at `close` ends with a result.
        """
        call_id = call_id or f"call_{new_id()}"
        if policy_revision is not None and policy_revision != self.policy.revision:
            raise PolicyChanged(policy_revision, self.policy.revision)
        events = CallEvents(self._events, call_id, name)
        context = self._context(events, turn or _NO_TURN, tracker)
        payload = _payload(arguments)
        invocation = ToolInvocation(call_id, name, payload, context, turn, tracker)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with self._calls.entered():
                record = await self._handled(invocation)
        except BaseException as error:
            if not isinstance(error, TimeoutError) or isinstance(error, ExecServerError):
                self._fail(events, error, clock() - began)
                raise
            record = failed(CallRecord(call_id, name, duration=clock() - began), "cancelled", CLOSED)
        result = ToolResult.from_record(record)
        events.end(
            success=result.success,
            exit_code=result.exit_code,
            duration=clock() - began,
            preview=preview(result.content),
            failure=None if result.failure is None else result.failure.kind,
            process_id=result.process_id,
        )
        return result

    @staticmethod
    def _fail(events: CallEvents, error: BaseException, seconds: float) -> None:
        aborted = isinstance(error, TurnAborted)
        message = ABORTED if aborted else f"{type(error).__name__}"
        kind = "rejected" if aborted else "cancelled"
        events.end(success=False, exit_code=None, duration=seconds, preview=message, failure=kind)

    async def inspect(
        self,
        name: str,
        arguments: str | Mapping[str, Json] | ToolPayload,
        *,
        turn: Turn | None = None,
    ) -> Inspection:
        """Decide on a call that runs a command, without starting it and without asking for an approval.

        Raises:
            RespondToModel: there is no such tool, it runs no command, or the arguments are wrong.
        """
        context = self._context(CallEvents(None, "", name), turn or _NO_TURN)
        payload = _payload(arguments)
        handler = self.registry.lookup(name, payload)
        if not isinstance(handler, CommandHandler):
            raise RespondToModel(f"{name} runs no command: there is nothing to inspect")
        call = await handler.command(ToolInvocation("", name, payload, context, turn))
        requirement = call.requirement()
        return Inspection(call.params.command, call.params.cwd, requirement, requirement.revision)

    async def is_mutating(self, name: str, arguments: str | Mapping[str, Json] | ToolPayload) -> bool:
        """Whether a call may change something; True if that is unknown."""
        context = self._context(CallEvents(None, "", name), _NO_TURN)
        payload = _payload(arguments)
        try:
            handler = self.registry.lookup(name, payload)
            return await handler.is_mutating(ToolInvocation("", name, payload, context))
        except RespondToModel:
            return True

    @property
    def sessions(self) -> tuple[SavedSession, ...]:
        """The running commands at the default executor that a model can use, the least recently used first.

        They can be resumed in the same session of the daemon, also by another process after this one was
        killed.
        """
        return tuple(
            saved_sessions(self._context(CallEvents(None, "", ""), _NO_TURN), self._services.sessions)
        )

    async def resume(self, saved: SavedSession) -> None:
        """Continue a session of another toolset, from the first byte of output that no answer returned.

        The executor is connected to the same session of the daemon (`connect(session_id=…)`).

        Raises:
            NoSuchProcess: the daemon has forgotten the command (`--process-ttl`, 80 s after its end).
            ValueError: the number is taken, or the sandbox is not valid.
        """
        await resume_session(self._context(CallEvents(None, "", ""), _NO_TURN), saved)

    async def close(self) -> None:
        """End all calls, sessions and background processes, and accept no more calls. May be called again.

        The executor stays open. Background processes of a command that the daemon has forgotten
        (`--process-ttl`, 80 s after its end) end with the executor's session.
        """
        await self._calls.end()
        sessions = self._services.sessions
        left = [sessions.release(number) for number, _ in sessions]
        await asyncio.gather(*(session.exec.end(CLOSED) for session in left if session is not None))
        await self._end_left_behind()

    async def _end_left_behind(self) -> None:
        """Kill background processes of commands. A sandbox that limits files ends with its command."""
        started: dict[Executor, set[str]] = {}
        while self._services.started:
            executor, process_id = self._services.started.popleft()
            started.setdefault(executor, set()).add(process_id)
        await asyncio.gather(*(executor.kill_trees(ids) for executor, ids in started.items()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.executor.url} cwd={self.cwd!r} sandbox={self.sandbox.kind}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside

    def _register(self) -> None:
        specs = all_specs(request_rule=self.config.request_rule)
        shell = ShellHandler()
        register = self.registry.register
        register(shell, ("shell", "container.exec", "local_shell"), specs["shell"])
        register(ShellCommandHandler(), ("shell_command",), specs["shell_command"])
        register(ExecCommandHandler(), ("exec_command",), specs["exec_command"])
        register(WriteStdinHandler(), ("write_stdin",), specs["write_stdin"])
        co = self.config.profile == "co"
        register(ApplyPatchHandler(), ("apply_patch",), specs["apply_patch"], exposed=self.config.apply_patch)
        self.interceptors.append(intercepted_patch)
        register(RunShellCommandHandler(), ("run_shell_command",), specs["run_shell_command"], exposed=co)
        if self.config.file_tools:  # without them, a host may have tools of its own with these names
            from execclient.tools.file_tools import FILE_TOOLS  # late: most toolsets do not have them

            for name, handler in FILE_TOOLS.items():
                register(handler(), (name,), specs[name], exposed=True)

    def _context(self, events: CallEvents, turn: Turn, tracker: object = None) -> CallContext:
        cwd = turn.cwd or self.cwd
        approvals = self.approvals
        if turn.approval is not None:
            # The answers for the session hold in every turn.
            approvals = copy.copy(approvals)
            approvals.policy = turn.approval
        environment = turn.environment or self.config.environment
        roots = turn.workspace_roots or (self.workspace_roots if turn.cwd is None else (cwd,))
        return CallContext(
            services=self._services,
            events=events,
            executor=self.executor,
            cwd=cwd,
            workspace_roots=roots,
            sandbox=self.sandbox if turn.sandbox is None else turn.sandbox,
            approvals=approvals,
            environment=without_secrets(environment) if self.config.filter_secrets else environment,
            user_shell=self._shell,
            in_environment=self._at,
            tracker=tracker,
        )

    async def _handled(self, invocation: ToolInvocation) -> CallRecord:
        blank = CallRecord(invocation.call_id, invocation.tool_name)
        try:
            handler = self.registry.lookup(invocation.tool_name, invocation.payload)
            mutating = await handler.is_mutating(invocation)
            beside = isinstance(handler, FunctionHandler) and handler.beside_others and not mutating
            async with nullcontext() if beside else self._gate.entered(mutating=mutating):
                return _as_record(await handler.handle(invocation), blank)
        except TurnAborted:
            raise
        except UnsupportedCall as error:
            return failed(blank, "unsupported", error.message, terminal=True)
        except RespondToModel as error:
            return failed(blank, "arguments", error.message)
        except ExecServerError as error:
            return failed(blank, "io", f"{invocation.tool_name} failed: {error}")
        except Exception as error:  # a bug in a tool ends the call, not the turn
            log.exception("%s failed", invocation.tool_name)
            return failed(blank, "io", f"{invocation.tool_name} failed: {type(error).__name__}")

    def _at(self, context: CallContext, environment_id: str | None) -> CallContext:
        """The context of a call in another environment: its executor and its working directory."""
        if environment_id is None:
            return context
        executor = self.executors.get(environment_id)
        if executor is None:
            known = ", ".join(sorted(filter(None, self.executors))) or "no other"
            raise RespondToModel(f"unknown environment_id {environment_id!r}; there is {known}")
        if executor is context.executor:
            return context
        return replace(context, executor=executor, cwd=executor.cwd, workspace_roots=(executor.cwd,))

    def _session_closed(self, number: str, reason: str) -> None:
        log.info("session %s was ended: %s", number, reason)
        notify(self._events, SessionClosed(number, reason))


def _payload(arguments: str | Mapping[str, Json] | ToolPayload) -> ToolPayload:
    if isinstance(arguments, str):
        return FunctionPayload(arguments)
    if isinstance(arguments, Mapping):
        return FunctionPayload(json.dumps(dict(arguments)))
    return arguments


def _as_record(handled: Handled, blank: CallRecord) -> CallRecord:
    if isinstance(handled, CallRecord):
        return handled
    if isinstance(handled, FunctionOutput):
        record = replace(blank, text=handled.content, aggregated=handled.content)
        return failed(record, "exit", handled.content) if handled.success is False else record
    text = handled.error if handled.result is None else json.dumps(dict(handled.result))
    record = replace(blank, text=text or "")
    return failed(record, "exit", text or "") if handled.error is not None else record

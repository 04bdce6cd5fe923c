"""What a call is carried out with: the turn's settings, resolved, and what all calls of a toolset share."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from execclient.client import Executor
from execclient.environment_policy import EnvironmentPolicy
from execclient.govern.approval_policy import ApprovalPolicy, escalation_refused
from execclient.govern.approvals import Approvals
from execclient.govern.orchestrator import Orchestrator
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.safe import known_safe
from execclient.govern.sandbox import SandboxPolicy
from execclient.shells import Shell, shell_from_info
from execclient.tools import exec_text
from execclient.tools.command_call import CommandCall, StartedCommand
from execclient.tools.config import ToolsConfig
from execclient.tools.environment import call_variables, exec_environment, explicit_repositories
from execclient.tools.errors import RespondToModel
from execclient.tools.events import CallEvents
from execclient.tools.exec_params import ExecParams, SandboxPermissions
from execclient.tools.exec_session import ExecSession
from execclient.tools.exec_sessions import ExecSessions
from execclient.tools.result import CallRecord
from execclient.tools.terminal_text import TerminalText
from execclient.tools.truncation import Budget

log = logging.getLogger(__name__)

MAX_STARTED = 1024
"""Commands that are remembered, to end what is left of them. A daemon forgets those that ended 80 s ago."""


@dataclass(frozen=True, slots=True)
class InterceptedCall:
    """A command that is about to be judged, for who may want to carry it out in another way."""

    call_id: str
    tool: str
    argv: tuple[str, ...]
    cwd: str
    context: CallContext


class Interceptor(Protocol):
    """Carries out commands that are no commands, as a patch in a shell's clothes."""

    async def __call__(self, call: InterceptedCall) -> CallRecord | None:
        """What came of it; None to let it run. Raises `RespondToModel` for one that must not run at all."""
        ...


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A process that a model comes back to."""

    exec: ExecSession
    call: CommandCall
    """The call that started it."""
    policy: SandboxPolicy
    """What it runs under."""
    terminal: TerminalText | None = None
    """Cleans what a model reads of it."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever has to do with `terminal`, which reads all output in its order."""

    @property
    def confined(self) -> bool:
        """Whether a sandbox may be in its way."""
        return self.policy.confines


@dataclass(slots=True)
class Services:
    """What all calls of a toolset share."""

    config: ToolsConfig
    policy: Policy
    sessions: ExecSessions[ToolSession]
    interceptors: list[Interceptor]
    session_id: str
    """The model's conversation, as commands are told of it."""
    closed_session: Callable[[str, str], None]
    """Told of a process that was ended for another one's sake: its id, and why."""
    started: deque[StartedCommand] = field(default_factory=lambda: deque(maxlen=MAX_STARTED))
    """The latest commands that may have left something in the background."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call's surroundings."""

    services: Services
    events: CallEvents
    executor: Executor
    cwd: str
    """The turn's, absolute."""
    workspace_roots: tuple[str, ...]
    """What a sandbox lets be written."""
    sandbox: SandboxPolicy
    approvals: Approvals
    environment: EnvironmentPolicy
    user_shell: Shell | None
    """None for that of the executor's account."""
    elsewhere: Callable[[CallContext, str | None], CallContext]
    """The surroundings in another environment; raises `RespondToModel` for one that there is not."""
    tracker: object = None
    """What keeps account of the files that the turn changes: a `patch.TurnDiff`, or nothing."""
    warnings: list[str] = field(default_factory=list)
    """For the model, and in the record."""

    @property
    def shell(self) -> Shell:
        """The shell for scripts."""
        return self.user_shell or shell_from_info(self.executor.info)

    @property
    def approval(self) -> ApprovalPolicy:
        """When somebody is asked."""
        return self.approvals.policy

    def resolve(self, workdir: str | None) -> str:
        """A working directory that a model names, relative to the turn's."""
        return posixpath.normpath(posixpath.join(self.cwd, workdir)) if workdir else self.cwd

    def permissions(self, asked: str) -> SandboxPermissions:
        """What a call asks for.

        Raises:
            RespondToModel: there is no such thing here.
        """
        if asked == "with_additional_permissions":
            refused = None if self.approval.may_escalate else escalation_refused(self.approval)
            raise RespondToModel(refused or exec_text.ADDITIONAL_PERMISSIONS_REFUSED)
        return "require_escalated" if asked == "require_escalated" else "use_default"

    def budget(self, max_output_tokens: int | None) -> Budget:
        """What the text of an answer may have: what the call asks for, and what the model takes."""
        config = self.services.config
        asked = config.max_output_tokens if max_output_tokens is None else max_output_tokens
        return config.model_budget.at_most(asked)

    def env(self, call_id: str) -> dict[str, str]:
        """The variables of a command, on top of what it inherits."""
        services = self.services
        config = services.config
        return exec_environment(
            call=call_variables(
                thread_id=services.session_id, session_id=services.session_id, call_id=call_id
            ),
            dependencies=config.dependency_env,
            explicit=config.env,
            policy=self.environment,
        )

    def reads_only(self, argv: Sequence[str]) -> bool:
        """Whether a command of this turn is known to read only."""
        return known_safe(argv, explicit_repositories=explicit_repositories(self.env("")))

    def orchestrator(self) -> Orchestrator:
        """The phases, with this turn's settings."""
        services = self.services
        return Orchestrator(
            self.approvals, services.policy, self.sandbox, retry_unasked=services.config.retry_unasked
        )

    def command_call(
        self,
        call_id: str,
        tool: str,
        params: ExecParams,
        *,
        environment: EnvironmentPolicy | None = None,
        prefix_rule: Sequence[str] | None = None,
    ) -> CommandCall:
        """A command of this call."""
        config = self.services.config
        if prefix_rule and not config.request_rule:
            log.info("call %s: the rule that the model proposes is passed over", call_id)
        return CommandCall(
            call_id=call_id,
            tool=tool,
            params=params,
            executor=self.executor,
            policy=self.services.policy,
            approval=self.approval,
            sandbox=self.sandbox,
            turn_cwd=self.cwd,
            workspace_roots=self.workspace_roots,
            network_marker=config.network_marker,
            environment=environment or self.environment,
            prefix_rule=tuple(prefix_rule) if prefix_rule and config.request_rule else None,
            co_commands=config.shell_safe_commands if config.profile == "co" else None,
            user_shell=self.shell.path,
            started=self.services.started,
        )

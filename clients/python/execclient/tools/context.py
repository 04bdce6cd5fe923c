"""The context of a call: the settings of its turn, and the services that all calls of a toolset share."""

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
from execclient.govern.network import NetworkAccess
from execclient.govern.orchestrator import Orchestrator
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.safe import known_safe
from execclient.govern.sandbox import SandboxPolicy
from execclient.shells import Shell, is_login_script, shell_from_info
from execclient.tools import exec_text
from execclient.tools.command_call import CommandCall, StartedCommand, approval_scope
from execclient.tools.config import ToolsConfig
from execclient.tools.environment import call_variables, exec_environment, explicit_repositories
from execclient.tools.errors import RespondToModel
from execclient.tools.events import CallEvents
from execclient.tools.exec_params import ExecParams, SandboxPermissions
from execclient.tools.exec_session import ExecSession
from execclient.tools.network import CommandNetwork, access_of
from execclient.tools.result import CallRecord
from execclient.tools.session_table import SessionTable
from execclient.tools.terminal_text import TerminalText
from execclient.tools.truncation import Budget

log = logging.getLogger(__name__)

MAX_STARTED = 1024
"""Commands that are remembered, to kill their background processes. A daemon forgets an ended command after
80 s."""


@dataclass(frozen=True, slots=True)
class InterceptedCall:
    """A command before its decision, for an interceptor that may carry it out in another way."""

    call_id: str
    tool: str
    argv: tuple[str, ...]
    cwd: str
    context: CallContext


class Interceptor(Protocol):
    """Carries out commands without starting them, such as a patch inside a shell command."""

    async def __call__(self, call: InterceptedCall) -> CallRecord | None:
        """The result; None to run the command. Raises `RespondToModel` if it must not run."""
        ...


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A process that later calls can use."""

    exec: ExecSession
    call: CommandCall
    """The call that started it."""
    policy: SandboxPolicy
    """Its sandbox."""
    terminal: TerminalText | None = None
    """Cleans its output for the model."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while `terminal` is used, which must read all output in order."""

    @property
    def confined(self) -> bool:
        """Whether its sandbox limits it."""
        return self.policy.confines


@dataclass(slots=True)
class Services:
    """The state that all calls of a toolset share."""

    config: ToolsConfig
    policy: Policy
    sessions: SessionTable[ToolSession]
    interceptors: list[Interceptor]
    session_id: str
    """The id of the model's conversation, for commands."""
    closed_session: Callable[[str, str], None]
    """Called with the id of a session that was ended to make room, and the reason."""
    started: deque[StartedCommand] = field(default_factory=lambda: deque(maxlen=MAX_STARTED))
    """The latest commands that may have left processes in the background."""
    snapshot_obstacles: set[str] = field(default_factory=set)
    """The reasons for login shells that the host was told."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of one call."""

    services: Services
    events: CallEvents
    executor: Executor
    cwd: str
    """The turn's working directory, absolute."""
    workspace_roots: tuple[str, ...]
    """The folders of the workspace, absolute."""
    sandbox: SandboxPolicy
    approvals: Approvals
    environment: EnvironmentPolicy
    user_shell: Shell | None
    """None for the shell of the executor's account."""
    in_environment: Callable[[CallContext, str | None], CallContext]
    """Returns the context in another environment; raises `RespondToModel` for an unknown one."""
    tracker: object = None
    """A `patch.TurnDiff` that collects the changes of the turn, or None."""
    warnings: list[str] = field(default_factory=list)
    """Warnings for the model and the record."""

    @property
    def shell(self) -> Shell:
        """The shell for scripts."""
        return self.user_shell or shell_from_info(self.executor.info)

    @property
    def approval(self) -> ApprovalPolicy:
        """The approval policy of the turn."""
        return self.approvals.policy

    def resolve(self, workdir: str | None) -> str:
        """The working directory of a call, relative to the turn's."""
        return posixpath.normpath(posixpath.join(self.cwd, workdir)) if workdir else self.cwd

    def permissions(self, asked: str) -> SandboxPermissions:
        """The permissions that a call asks for.

        Raises:
            RespondToModel: they are not supported.
        """
        if asked == "with_additional_permissions":
            refused = None if self.approval.may_escalate else escalation_refused(self.approval)
            raise RespondToModel(refused or exec_text.ADDITIONAL_PERMISSIONS_REFUSED)
        return "require_escalated" if asked == "require_escalated" else "use_default"

    def budget(self, max_output_tokens: int | None) -> Budget:
        """The limit of an answer: the smaller of the call's and the model's."""
        config = self.services.config
        asked = config.max_output_tokens if max_output_tokens is None else max_output_tokens
        return config.model_budget.at_most(asked)

    def wait_seconds(self, asked_ms: int, low_ms: int, high_ms: int) -> float:
        """How long an answer waits for output: as the model asks, within the tool's limits and the host's."""
        return min(max(asked_ms, low_ms) / 1000, high_ms / 1000, self.services.config.max_wait)

    def env(self, call_id: str) -> dict[str, str]:
        """The variables of a command besides the inherited ones."""
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
        """Whether a command of this turn is known to only read."""
        return known_safe(argv, explicit_repositories=explicit_repositories(self.env("")))

    def orchestrator(self) -> Orchestrator:
        """An orchestrator with the settings of this turn."""
        services = self.services
        return Orchestrator(
            self.approvals,
            services.policy,
            self.sandbox,
            retry_unasked=services.config.retry_unasked,
            network=self.network,
        )

    @property
    def network(self) -> NetworkAccess | None:
        """The hosts that commands in the sandbox may reach; None if the sandbox alone decides."""
        capabilities = self.executor.info.get("capabilities") or {}
        has_proxy = bool(capabilities.get("networkProxyLaunch"))
        services = self.services
        return access_of(services.config.network, services.policy, self.sandbox, has_proxy=has_proxy)

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
        snapshot = config.shell_snapshot and not params.tty and is_login_script(params.command)
        if prefix_rule and not config.request_rule:
            log.info("call %s: the rule that the model proposes is ignored", call_id)
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
            snapshot_unused=self._snapshot_unused if snapshot else None,
            network=self._network_of(params),
        )

    def _network_of(self, params: ExecParams) -> CommandNetwork | None:
        access, policy = self.network, self.services.policy
        if access is None:
            return None
        scope = approval_scope(self.executor, self.sandbox, self.workspace_roots)
        return CommandNetwork(
            access=access,
            policy=policy,
            approvals=self.approvals,
            events=self.events,
            argv=params.command,
            cwd=params.cwd,
            scope=None if policy.parity else scope,
        )

    def _snapshot_unused(self, reason: str) -> None:
        if reason not in self.services.snapshot_obstacles:
            self.services.snapshot_obstacles.add(reason)
            self.events.snapshot_unused(reason)

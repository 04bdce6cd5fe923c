"""The network of a command of a toolset: answers the questions of its proxy, and collects what was denied.

    proxy asks ──> answered for this command? ──> settings and rules ──> reviewers, if they are to be asked
                                                                          │
                        rule file <──with an amendment── allowed <────────┴──> denied, with a reason

Rules kept in this file:

1. Every failure denies, and so does a sink that cannot record the decision.
2. An answer holds for the command that asked, unless the reviewer says more.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from execclient.connection.connection import Json
from execclient.errors import ExecServerError
from execclient.govern.approvals import ApprovalCache, ApprovalRequest, Approvals, DecidedBy
from execclient.govern.network import NetworkAccess, NetworkTarget, denial_text
from execclient.govern.policy.network import NetworkRequirement, decide_by_rule, decide_network, proxy_of
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import NetworkRule
from execclient.govern.sandbox import SandboxPolicy
from execclient.process import Process
from execclient.results import NetworkDecision, NetworkRequest
from execclient.tools.errors import TurnAborted
from execclient.tools.events import CallEvents
from execclient.tools.exec_text import REJECTED_BY_USER
from execprotocol.network import Decision

log = logging.getLogger(__name__)

MAX_DENIED = 100
"""Hosts of one command that are remembered for the note to the model."""

EVERYTHING = NetworkAccess(allow=("*",), allow_local=True)
"""The hosts of a sandbox with the network, where rules about hosts have to take effect."""


def access_of(
    configured: NetworkAccess | None, policy: Policy, sandbox: SandboxPolicy, *, has_proxy: bool
) -> NetworkAccess | None:
    """The hosts that a command in a sandbox may reach; None if the sandbox alone decides on the network.

    Args:
        configured: the setting.
        policy: the rules. Those about hosts take effect without the setting, too.
        sandbox: the sandbox of the command.
        has_proxy: whether the executor has network proxies. Where the sandbox has the network and a rule is
            to limit it, an executor without them refuses the command.
    """
    if configured is not None or not policy.rules.network_rules or policy.parity:
        return configured
    if sandbox.network_allowed:
        return EVERYTHING
    allows = any(rule.decision != "forbidden" for rule in policy.rules.network_rules)
    return NetworkAccess() if allows and has_proxy else None


@dataclass(slots=True)
class CommandNetwork:
    """The network of one command: the `network` of its start."""

    access: NetworkAccess
    policy: Policy
    approvals: Approvals
    events: CallEvents
    argv: tuple[str, ...]
    cwd: str
    scope: Mapping[str, Json] | None
    """The scope of an approval for the session."""
    aborted: str | None = None
    """Why a reviewer ended the turn."""
    _answers: dict[NetworkTarget, Decision] = field(default_factory=dict)
    _turns: dict[NetworkTarget, asyncio.Lock] = field(default_factory=dict)
    _denied: dict[NetworkTarget, str] = field(default_factory=dict)
    _reported: int = 0
    _process: Process | None = None
    _killing: asyncio.Task[None] | None = None

    def wire(self) -> Mapping[str, Json]:
        """The member `networkProxy` of the start."""
        return proxy_of(self.access, self.policy.rules)

    def started(self, process: Process) -> None:
        """The process that a reviewer may end with the turn."""
        self._process = process

    def check(self) -> None:
        """Raise `TurnAborted` if a reviewer ended the turn."""
        if self.aborted is not None:
            raise TurnAborted(self.aborted)

    async def decide(self, request: NetworkRequest) -> Decision:
        """The answer to a question of the proxy."""
        target = NetworkTarget.of(request)
        # After a lost connection an open question comes again.
        async with self._turns.setdefault(target, asyncio.Lock()):
            if target not in self._answers:
                self._answers[target] = await self._decided(target)
        return self._answers[target]

    def report(self, decision: NetworkDecision) -> None:
        """Process a decision of the proxy."""
        target = NetworkTarget.of(decision)
        if decision.decision == "allow" or target in self._denied or len(self._denied) >= MAX_DENIED:
            return
        reason = denial_text(target, decision.reason)
        rule = self.policy.rules.network_match(target) if decision.reason == "denied" else None
        if rule is not None:
            reason = decide_by_rule(rule, self.approvals.policy).reason or reason
        self._denied[target] = reason
        if decision.source != "decider":
            source = "network_access" if rule is None else "network_rule"
            self.events.network_decided(target, source, None, allowed=False, reason=reason)

    def take_denied(self) -> list[str]:
        """What was denied since the last call, as texts."""
        denied = [f"{target}: {reason}" for target, reason in self._denied.items()][self._reported :]
        self._reported = len(self._denied)
        return denied

    # -- inside

    async def _decided(self, target: NetworkTarget) -> Decision:
        requirement = decide_network(
            target, access=self.access, rules=self.policy.rules, approval=self.approvals.policy
        )
        allowed, reason = requirement.kind == "allow", requirement.reason
        decided_by: DecidedBy | None = None
        if requirement.kind == "ask":
            keys = (ApprovalCache.key_of_host(target, scope=self.scope),)
            reviewed = await self.approvals.ask(self._question(target, requirement), keys)
            review, decided_by = reviewed.review, reviewed.decided_by
            allowed, reason = review.approves, review.reason or REJECTED_BY_USER
            if review.rule is not None:
                await self._amend(review.rule)
            if review.answer == "abort":
                self._abort(review.reason or "the user ended the turn")
        reason = None if allowed else reason
        try:
            self.events.network_decided(
                target, requirement.source, decided_by, allowed=allowed, reason=reason
            )
        except Exception:
            log.exception("a decision on the network could not be recorded, and the host is denied")
            allowed, reason = False, "the decision could not be recorded"
        return Decision("allow", None, "once") if allowed else Decision("deny", reason, "once")

    def _question(self, target: NetworkTarget, requirement: NetworkRequirement) -> ApprovalRequest:
        return ApprovalRequest(
            call_id=self.events.call_id,
            tool=self.events.tool,
            kind="network",
            command=shlex.join(self.argv),
            argv=self.argv,
            cwd=self.cwd,
            reason=requirement.reason,
            amendment=None,
            permits=(f"connect to {target}",),
            retry=False,
            network=target,
            rule=requirement.amendment,
        )

    async def _amend(self, rule: NetworkRule) -> None:
        try:
            await asyncio.to_thread(self.policy.amend_network, rule)
        except (OSError, ValueError) as error:
            # This command was approved. Without the rule, the next one asks again.
            log.warning("the rule that allows %s was not saved: %s", rule.host, error)

    def _abort(self, reason: str) -> None:
        self.aborted = reason
        if self._process is not None and self._killing is None:
            self._killing = asyncio.create_task(_kill(self._process))


async def _kill(process: Process) -> None:
    try:
        await process.kill()
    except ExecServerError as error:
        log.warning("a command whose turn was ended could not be killed: %s", error)

"""Runs a request with an approval and a sandbox, and perhaps a second time without the sandbox.

    approve ──> select ──> run ──> done
       │                    └──denied by the sandbox, and the policy may ask──> approve ──> run ──> done
       └──refused: `Rejected`, or `TurnAborted`; nothing was started

Rules kept in this file:

1. Nothing runs before `approve` has returned. It returns only for a request that needs no approval or was
   approved.
2. The first attempt has the sandbox of the turn. It runs without a sandbox only if the call asked for that
   and was approved, or by a rule of a host whose rules may lift the sandbox.
3. A second attempt runs the command twice. It needs a denial by the sandbox, a policy that retries, and an
   approval of its own, unless the host lets the first approval count for both.

This module knows neither commands nor processes: a `ToolRuntime` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from execclient.govern.approvals import ApprovalRequest, Approvals, Reviewed
from execclient.govern.network import NetworkAccess
from execclient.govern.policy.decision import DecisionSource, Requirement, command_line
from execclient.govern.policy.policy import Policy
from execclient.govern.sandbox import SandboxPolicy, without_sandbox
from execclient.tools.errors import Rejected, TurnAborted
from execclient.tools.events import CallEvents
from execclient.tools.exec_text import REJECTED_BY_USER

OutputT = TypeVar("OutputT")

log = logging.getLogger(__name__)

SandboxPreference = Literal["auto", "require"]
"""`auto`: as the policies decide. `require`: never without a sandbox, even if approved."""

RETRY_REASON = "command failed; retry without sandbox?"


@dataclass(frozen=True, slots=True)
class SandboxAttempt:
    """One attempt."""

    policy: SandboxPolicy
    """The sandbox of the attempt."""
    bypassed: bool
    """Whether it confines less than the turn's sandbox."""
    number: int
    """1, or 2 after a denial."""


class ToolRuntime(Protocol[OutputT]):
    """Carries out one request. Each call has its own runtime."""

    sandbox_preference: SandboxPreference
    escalate_on_failure: bool
    """Whether a second attempt without the sandbox makes sense."""

    def requirement(self) -> Requirement:
        """The decision on the request: run, ask or refuse."""
        ...

    def approval_keys(self) -> Sequence[str]:
        """The keys that an approval for the session covers (`ApprovalCache`)."""
        ...

    def approval_request(
        self, requirement: Requirement, permits: Sequence[str], *, retry: bool
    ) -> ApprovalRequest:
        """The question for the reviewers."""
        ...

    @property
    def escalated(self) -> bool:
        """Whether the call asks to run without the sandbox."""
        ...

    async def run(self, attempt: SandboxAttempt) -> OutputT:
        """Run the request once."""
        ...

    def denied(self, output: OutputT) -> bool:
        """Whether the sandbox denied something that the request needed."""
        ...


Phase = Literal["approval", "sandbox", "run", "retry"]


@dataclass(slots=True)
class Trace:
    """The decisions on a request, phase by phase."""

    phases: list[Phase] = field(default_factory=list)
    requirement: Requirement | None = None
    reviewed: Reviewed | None = None
    """The answer to the first question, if one was asked."""
    retry_reviewed: Reviewed | None = None
    attempts: list[SandboxAttempt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Orchestrated(Generic[OutputT]):
    """The output of the last attempt, with its trace."""

    output: OutputT
    trace: Trace
    retry_refused: str | None = None
    """Why a second attempt, which could have helped, was refused."""


@dataclass(slots=True)
class Orchestrator:
    """Runs requests in phases. Each phase is a method of its own."""

    approvals: Approvals
    policy: Policy
    sandbox: SandboxPolicy
    """The sandbox of the turn."""
    retry_unasked: bool = False
    """Whether an approval of the first attempt covers the second one, as in the reference."""
    network: NetworkAccess | None = None
    """The hosts that a request in the sandbox may reach; None if the sandbox alone decides."""

    async def run(
        self, runtime: ToolRuntime[OutputT], events: CallEvents, trace: Trace | None = None
    ) -> Orchestrated[OutputT]:
        """Run all phases.

        Args:
            runtime: carries out the request.
            events: gets each decision.
            trace: filled on the way, so that the caller has it after an exception, too.

        Raises:
            Rejected: the request was forbidden or refused; nothing was started.
            TurnAborted: a reviewer ended the whole turn; nothing was started.
        """
        trace = Trace() if trace is None else trace
        await self.approve(runtime, events, trace)
        attempt = self.select(runtime, trace)
        output = await self.attempt(runtime, attempt, trace)
        return await self.retry(runtime, output, attempt, events, trace)

    async def approve(self, runtime: ToolRuntime[OutputT], events: CallEvents, trace: Trace) -> None:
        """Phase 1: returns if the request may run; else raises as `run` does."""
        trace.phases.append("approval")
        requirement = trace.requirement = runtime.requirement()
        bypassed = self._bypassed(runtime, requirement)
        if requirement.kind == "forbidden":
            reason = requirement.reason or "blocked by policy"
            events.decided("refuse", requirement.source, None, sandboxed=not bypassed, reason=reason)
            raise Rejected(reason, before=requirement.refused_before)
        reviewed = None
        if requirement.kind == "ask":
            request = runtime.approval_request(requirement, self.permits(bypassed=bypassed), retry=False)
            reviewed = trace.reviewed = await self._ask(request, runtime.approval_keys(), requirement, events)
        decided_by = None if reviewed is None else reviewed.decided_by
        events.decided(
            "run", requirement.source, decided_by, sandboxed=not bypassed and self.sandbox.confines
        )

    def select(self, runtime: ToolRuntime[OutputT], trace: Trace) -> SandboxAttempt:
        """Phase 2: the sandbox of the first attempt."""
        trace.phases.append("sandbox")
        requirement = trace.requirement
        assert requirement is not None
        if self._bypassed(runtime, requirement):
            return SandboxAttempt(without_sandbox(self.sandbox), bypassed=True, number=1)
        return SandboxAttempt(self.sandbox, bypassed=False, number=1)

    async def attempt(self, runtime: ToolRuntime[OutputT], attempt: SandboxAttempt, trace: Trace) -> OutputT:
        """Phase 3: run the request once."""
        trace.phases.append("run")
        trace.attempts.append(attempt)
        return await runtime.run(attempt)

    async def retry(
        self,
        runtime: ToolRuntime[OutputT],
        output: OutputT,
        attempt: SandboxAttempt,
        events: CallEvents,
        trace: Trace,
    ) -> Orchestrated[OutputT]:
        """Phase 4: run again without the sandbox after a denial, if that is approved.

        Raises:
            TurnAborted: a reviewer ended the whole turn.
        """
        requirement = trace.requirement
        assert requirement is not None
        if (
            attempt.bypassed
            or not attempt.policy.confines
            or not runtime.escalate_on_failure
            or runtime.sandbox_preference == "require"
            or self.approvals.policy.retry == "no"
            or not runtime.denied(output)
        ):
            return Orchestrated(output, trace)
        trace.phases.append("retry")
        decided_by = None
        if not (self.retry_unasked and trace.reviewed is not None):
            request = runtime.approval_request(requirement, self.permits(bypassed=True), retry=True)
            try:
                # Without keys: the session's approvals are for runs within the sandbox.
                reviewed = trace.retry_reviewed = await self._ask(
                    request, (), requirement, events, retry=True
                )
            except Rejected as refusal:
                return Orchestrated(output, trace, str(refusal))
            decided_by = reviewed.decided_by
        events.decided("run", requirement.source, decided_by, sandboxed=False, retry=True)
        second = SandboxAttempt(without_sandbox(self.sandbox), bypassed=True, number=2)
        return Orchestrated(await self.attempt(runtime, second, trace), trace)

    def permits(self, *, bypassed: bool) -> tuple[str, ...]:
        """What exactly an approval permits, in sentences."""
        if bypassed:
            return without_sandbox(self.sandbox).describe()
        if self.network is None:
            return self.sandbox.describe()
        has_rules = any(rule.decision == "allow" for rule in self.policy.rules.network_rules)
        return self.sandbox.describe(self.network.describe(has_rules=has_rules))

    # -- inside

    def _bypassed(self, runtime: ToolRuntime[OutputT], requirement: Requirement) -> bool:
        if runtime.sandbox_preference == "require" or not self.sandbox.confines:
            return False
        return requirement.bypass_sandbox or runtime.escalated

    async def _ask(
        self,
        request: ApprovalRequest,
        keys: Sequence[str],
        requirement: Requirement,
        events: CallEvents,
        *,
        retry: bool = False,
    ) -> Reviewed:
        reviewed = await ask(
            self.approvals, request, keys, events, source=requirement.source, sandboxed=True, retry=retry
        )
        review = reviewed.review
        if review.answer == "approved_with_amendment" and review.amendment is not None:
            await self._amend(review.amendment)
        return reviewed

    async def _amend(self, prefix: tuple[str, ...]) -> None:
        try:
            await asyncio.to_thread(self.policy.amend, prefix)
        except (OSError, ValueError) as error:
            # The call itself was approved. Without the rule, the next one asks again.
            log.warning("the rule that allows %s was not saved: %s", command_line(prefix[:1]), error)


async def ask(
    approvals: Approvals,
    request: ApprovalRequest,
    keys: Sequence[str],
    events: CallEvents,
    *,
    source: DecisionSource,
    sandboxed: bool,
    retry: bool = False,
) -> Reviewed:
    """Ask for an approval; a refusal is reported as an event.

    Args:
        approvals: the reviewers.
        request: the question.
        keys: the keys that an answer for the session covers.
        events: the events of the call.
        source: the source of the question.
        sandboxed: whether the request would run in a sandbox.
        retry: whether it is about a second attempt.

    Raises:
        Rejected: a reviewer refused, or there was none.
        TurnAborted: a reviewer ended the whole turn.
    """
    reviewed = await approvals.ask(request, keys)
    review = reviewed.review
    if not review.approves:
        reason = review.reason or REJECTED_BY_USER
        events.decided("refuse", source, reviewed.decided_by, sandboxed=sandboxed, retry=retry, reason=reason)
        raise TurnAborted(reason) if review.answer == "abort" else Rejected(reason)
    return reviewed

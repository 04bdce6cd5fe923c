"""A governed attempt: approval, then the choice of a sandbox, then the run, then perhaps a second run.

    approve ──> select ──> run ──> done
       │                    └──denied by the sandbox, and the policy lets us ask──> approve ──> run ──> done
       └──refused: `Rejected`, or `TurnAborted`; nothing was started

Rules kept in this file:

1. Nothing runs before `approve` has returned. It returns for what needs no approval, for what was approved,
   and for nothing else.
2. The sandbox of the first attempt is the turn's. It is left out only for a call that asked for that and was
   approved, or by a rule of a host that lets rules do so.
3. A second attempt is a command run twice. It comes about only after a denial by the sandbox, by a policy
   that retries, and after somebody was asked, unless the host said that the first approval counts for both.

It knows neither commands nor processes: a runtime does (`ToolRuntime`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from execclient.govern.approvals import ApprovalRequest, Approvals, Reviewed
from execclient.govern.policy.decision import Requirement, Source, shown
from execclient.govern.policy.policy import Policy
from execclient.govern.sandbox import SandboxPolicy, without_sandbox
from execclient.tools.errors import Rejected, TurnAborted
from execclient.tools.events import CallEvents
from execclient.tools.exec_text import REJECTED_BY_USER

Output = TypeVar("Output")

log = logging.getLogger(__name__)

SandboxPreference = Literal["auto", "require"]
"""`auto`: as the policies say. `require`: never without, whoever approves."""

RETRY_REASON = "command failed; retry without sandbox?"


@dataclass(frozen=True, slots=True)
class SandboxAttempt:
    """One attempt."""

    policy: SandboxPolicy
    """What it runs under."""
    bypassed: bool
    """Whether that is less than the turn's."""
    number: int
    """1, or 2 after a denial."""


class ToolRuntime(Protocol[Output]):
    """What carries out one request. One is made for each call."""

    sandbox_preference: SandboxPreference
    escalate_on_failure: bool
    """Whether a second attempt without the sandbox makes sense."""

    def requirement(self) -> Requirement:
        """What has to happen before it may run."""
        ...

    def approval_keys(self) -> Sequence[str]:
        """What an approval for the session covers; it is not asked for again if all are covered."""
        ...

    def approval_request(
        self, requirement: Requirement, permits: Sequence[str], *, retry: bool
    ) -> ApprovalRequest:
        """The question."""
        ...

    @property
    def escalated(self) -> bool:
        """Whether the call asks to run without the sandbox."""
        ...

    async def run(self, attempt: SandboxAttempt) -> Output:
        """Run it once."""
        ...

    def denied(self, output: Output) -> bool:
        """Whether the sandbox was in its way."""
        ...


Phase = Literal["approval", "sandbox", "run", "retry"]


@dataclass(slots=True)
class Trace:
    """What was decided on the way, phase by phase."""

    phases: list[Phase] = field(default_factory=list)
    requirement: Requirement | None = None
    reviewed: Reviewed | None = None
    """The answer to the first question, if there was one."""
    retry_reviewed: Reviewed | None = None
    attempts: list[SandboxAttempt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Orchestrated(Generic[Output]):
    """The last attempt's output, and how it came about."""

    output: Output
    trace: Trace
    retry_refused: str | None = None
    """Why the second attempt did not come about, though it could have helped."""


@dataclass(slots=True)
class Orchestrator:
    """The phases, each a function of its own. One for each turn and tool."""

    approvals: Approvals
    policy: Policy
    sandbox: SandboxPolicy
    """The turn's."""
    retry_unasked: bool = False
    """Whether an approval of the first attempt covers the second one, as in the reference."""

    async def run(
        self, runtime: ToolRuntime[Output], events: CallEvents, trace: Trace | None = None
    ) -> Orchestrated[Output]:
        """All phases.

        Args:
            runtime: carries out the request.
            events: told of each decision.
            trace: filled on the way, for one who wants it also when this raises.

        Raises:
            Rejected: it was forbidden, or somebody said no; nothing was started.
            TurnAborted: somebody wants the whole turn to end; nothing was started.
        """
        trace = Trace() if trace is None else trace
        await self.approve(runtime, events, trace)
        attempt = self.select(runtime, trace)
        output = await self.attempt(runtime, attempt, trace)
        return await self.retry(runtime, output, attempt, events, trace)

    async def approve(self, runtime: ToolRuntime[Output], events: CallEvents, trace: Trace) -> None:
        """Phase 1. Returns if it may run; raises as `run` does if not."""
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

    def select(self, runtime: ToolRuntime[Output], trace: Trace) -> SandboxAttempt:
        """Phase 2: what the first attempt runs under."""
        trace.phases.append("sandbox")
        requirement = trace.requirement
        assert requirement is not None
        if self._bypassed(runtime, requirement):
            return SandboxAttempt(without_sandbox(self.sandbox), bypassed=True, number=1)
        return SandboxAttempt(self.sandbox, bypassed=False, number=1)

    async def attempt(self, runtime: ToolRuntime[Output], attempt: SandboxAttempt, trace: Trace) -> Output:
        """Phase 3: run it once."""
        trace.phases.append("run")
        trace.attempts.append(attempt)
        return await runtime.run(attempt)

    async def retry(
        self,
        runtime: ToolRuntime[Output],
        output: Output,
        attempt: SandboxAttempt,
        events: CallEvents,
        trace: Trace,
    ) -> Orchestrated[Output]:
        """Phase 4: once more without the sandbox, if that was in the way and somebody agrees.

        Raises:
            TurnAborted: somebody wants the whole turn to end.
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
                # Not of the session's approvals: those were given for a run within the sandbox.
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
        policy = without_sandbox(self.sandbox) if bypassed else self.sandbox
        return policy.describe()

    # -- inside

    def _bypassed(self, runtime: ToolRuntime[Output], requirement: Requirement) -> bool:
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
            # The call itself was approved; that it is asked about again is the lesser evil.
            log.warning("the rule that allows %s was not written down: %s", shown(prefix[:1]), error)


async def ask(
    approvals: Approvals,
    request: ApprovalRequest,
    keys: Sequence[str],
    events: CallEvents,
    *,
    source: Source,
    sandboxed: bool,
    retry: bool = False,
) -> Reviewed:
    """An answer that approves; of another one the events are told.

    Args:
        approvals: answers.
        request: the question.
        keys: what an answer for the session covers.
        events: of the call.
        source: what the question came from.
        sandboxed: whether what was asked for would have been confined.
        retry: whether it is about a second attempt.

    Raises:
        Rejected: somebody said no.
        TurnAborted: somebody wants the whole turn to end.
    """
    reviewed = await approvals.ask(request, keys)
    review = reviewed.review
    if not review.approves:
        reason = review.reason or REJECTED_BY_USER
        events.decided("refuse", source, reviewed.decided_by, sandboxed=sandboxed, retry=retry, reason=reason)
        raise TurnAborted(reason) if review.answer == "abort" else Rejected(reason)
    return reviewed

"""The phases of a governed attempt, with a runtime that runs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from execclient.govern.approval_policy import NEVER, ON_FAILURE, ON_REQUEST, UNTRUSTED, ApprovalPolicy
from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    CANCEL,
    DECLINE,
    ApprovalCache,
    ApprovalRequest,
    Approvals,
    Review,
)
from execclient.govern.orchestrator import (
    RETRY_REASON,
    Orchestrated,
    Orchestrator,
    SandboxAttempt,
    SandboxPreference,
    Trace,
)
from execclient.govern.policy.decision import Requirement
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.scripts import lower
from execclient.govern.sandbox import DangerFullAccess, ReadOnly, SandboxPolicy, WorkspaceWrite
from execclient.tools.errors import Rejected, TurnAborted
from execclient.tools.events import CallEvents, ToolEvent

ARGV = ("make", "install")


def requirement(kind: str = "skip", *, bypass: bool = False, reason: str | None = None) -> Requirement:
    return Requirement(kind, "prefix_rule", reason, bypass, None, (), lower(ARGV), "r1")  # type: ignore[arg-type]


@dataclass
class Runtime:
    """Counts what is run, and says of each run whether it was denied."""

    required: Requirement = field(default_factory=requirement)
    escalated: bool = False
    escalate_on_failure: bool = True
    sandbox_preference: SandboxPreference = "auto"
    denials: tuple[bool, ...] = ()
    runs: list[SandboxAttempt] = field(default_factory=list)

    def requirement(self) -> Requirement:
        return self.required

    def approval_keys(self) -> Sequence[str]:
        return (ApprovalCache.key_of(ARGV, "/w", False, self.escalated, None),)

    def approval_request(
        self, requirement: Requirement, permits: Sequence[str], *, retry: bool
    ) -> ApprovalRequest:
        reason = RETRY_REASON if retry else requirement.reason
        return ApprovalRequest(
            "c1", "command", "make install", ARGV, "/w", reason, None, tuple(permits), retry, "shell"
        )

    async def run(self, attempt: SandboxAttempt) -> int:
        self.runs.append(attempt)
        return len(self.runs)

    def denied(self, output: int) -> bool:
        return output <= len(self.denials) and self.denials[output - 1]


class Reviewer:
    """Answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: Review) -> None:
        self.asked: list[ApprovalRequest] = []
        self._answers = iter(answers)

    async def review(self, request: ApprovalRequest) -> Review:
        self.asked.append(request)
        return next(self._answers)


def orchestrator(
    *answers: Review,
    policy: ApprovalPolicy = ON_REQUEST,
    sandbox: SandboxPolicy | None = None,
    retry_unasked: bool = False,
) -> tuple[Orchestrator, Reviewer]:
    user = Reviewer(*answers)
    approvals = Approvals(user=user, policy=policy)
    return Orchestrator(approvals, Policy(), sandbox or WorkspaceWrite(), retry_unasked), user


async def run(
    parts: tuple[Orchestrator, Reviewer], runtime: Runtime, told: list[ToolEvent] | None = None
) -> Orchestrated[int]:
    events = CallEvents(None if told is None else told.append, "c1", "shell")
    return await parts[0].run(runtime, events)


async def test_what_needs_no_approval_runs_once_in_the_sandbox_of_the_turn() -> None:
    parts, runtime = orchestrator(), Runtime()

    done = await run(parts, runtime)

    assert done.output == 1
    assert done.trace.phases == ["approval", "sandbox", "run"]
    assert runtime.runs == [SandboxAttempt(WorkspaceWrite(), bypassed=False, number=1)]
    assert parts[1].asked == []


async def test_what_is_forbidden_is_never_started() -> None:
    parts, runtime = orchestrator(), Runtime(requirement("forbidden", reason="no"))
    told: list[ToolEvent] = []

    with pytest.raises(Rejected, match="no"):
        await run(parts, runtime, told)

    assert runtime.runs == []
    assert [getattr(event, "decision", None) for event in told] == ["refuse"]


@pytest.mark.parametrize(("answer", "error"), [(DECLINE, Rejected), (CANCEL, TurnAborted)])
async def test_a_no_is_never_started_and_says_whether_the_turn_ends(
    answer: Review, error: type[Exception]
) -> None:
    parts, runtime = orchestrator(answer), Runtime(requirement("ask"))

    with pytest.raises(error):
        await run(parts, runtime)

    assert runtime.runs == []


async def test_an_approval_once_is_asked_for_again_and_one_for_the_session_is_not() -> None:
    parts = orchestrator(ACCEPT, ACCEPT_FOR_SESSION)

    for _ in range(4):
        await run(parts, Runtime(requirement("ask")))

    assert len(parts[1].asked) == 2


async def test_an_approval_for_the_session_does_not_cover_the_escalated_call() -> None:
    parts = orchestrator(ACCEPT_FOR_SESSION, ACCEPT)

    await run(parts, Runtime(requirement("ask")))
    await run(parts, Runtime(requirement("ask"), escalated=True))

    assert len(parts[1].asked) == 2


async def test_an_approval_alone_does_not_lift_the_sandbox() -> None:
    parts, runtime = orchestrator(ACCEPT), Runtime(requirement("ask"))

    await run(parts, runtime)

    assert not runtime.runs[0].bypassed


@pytest.mark.parametrize("how", ["asked for by the call", "by a rule"])
async def test_the_sandbox_is_lifted_for_the_first_attempt(how: str) -> None:
    by_rule = how == "by a rule"
    parts = orchestrator(ACCEPT)
    runtime = Runtime(requirement("skip" if by_rule else "ask", bypass=by_rule), escalated=not by_rule)

    await run(parts, runtime)

    assert runtime.runs == [SandboxAttempt(DangerFullAccess(), bypassed=True, number=1)]


async def test_a_runtime_that_requires_its_sandbox_keeps_it_despite_an_approval() -> None:
    parts = orchestrator(ACCEPT, ACCEPT, policy=UNTRUSTED)
    runtime = Runtime(
        requirement("ask", bypass=True), escalated=True, sandbox_preference="require", denials=(True,)
    )

    await run(parts, runtime)

    assert [attempt.bypassed for attempt in runtime.runs] == [False]


async def test_what_an_escalation_permits_is_said_and_what_stays_forbidden_too() -> None:
    parts = orchestrator(ACCEPT, sandbox=WorkspaceWrite(deny_read=("**/.env",)))
    runtime = Runtime(requirement("ask"), escalated=True)

    await run(parts, runtime)

    assert any("**/.env" in sentence for sentence in parts[1].asked[0].permits)
    assert runtime.runs[0].policy.denies_reads


@pytest.mark.parametrize(
    ("denied", "escalates", "policy"),
    list(itertools.product((True, False), (True, False), (ON_FAILURE, ON_REQUEST))),
)
async def test_a_second_attempt_needs_a_denial_a_runtime_and_a_policy_that_want_it(
    denied: bool, escalates: bool, policy: ApprovalPolicy
) -> None:
    parts = orchestrator(ACCEPT, policy=policy)
    runtime = Runtime(denials=(denied,), escalate_on_failure=escalates)

    done = await run(parts, runtime)

    again = denied and escalates and policy is ON_FAILURE
    assert [attempt.number for attempt in runtime.runs] == ([1, 2] if again else [1])
    assert len(parts[1].asked) == (1 if again else 0)
    assert done.trace.phases == ["approval", "sandbox", "run"] + (["retry", "run"] if again else [])


async def test_the_question_before_a_second_attempt_says_so_and_has_the_command() -> None:
    parts = orchestrator(ACCEPT, policy=ON_FAILURE)

    await run(parts, Runtime(denials=(True,)))

    (request,) = parts[1].asked
    assert (request.retry, request.reason, request.argv) == (True, RETRY_REASON, ARGV)


async def test_a_second_attempt_that_is_refused_leaves_the_output_of_the_first() -> None:
    parts, runtime = orchestrator(DECLINE, policy=ON_FAILURE), Runtime(denials=(True,))

    done = await run(parts, runtime)

    assert (done.output, done.retry_refused) == (1, "rejected by user")
    assert len(runtime.runs) == 1


async def test_an_approval_for_the_session_is_not_one_for_a_second_attempt() -> None:
    parts = orchestrator(ACCEPT_FOR_SESSION, ACCEPT, ACCEPT, policy=UNTRUSTED)

    for _ in range(2):
        await run(parts, Runtime(requirement("ask"), denials=(True,)))

    assert [request.retry for request in parts[1].asked] == [False, True, True]


async def test_a_host_may_let_the_first_approval_cover_the_second_attempt() -> None:
    parts = orchestrator(ACCEPT, policy=UNTRUSTED, retry_unasked=True)
    runtime = Runtime(requirement("ask"), denials=(True,))

    await run(parts, runtime)

    assert [attempt.bypassed for attempt in runtime.runs] == [False, True]
    assert len(parts[1].asked) == 1


async def test_what_was_never_asked_about_is_asked_about_before_a_second_attempt_all_the_same() -> None:
    parts = orchestrator(ACCEPT, policy=ON_FAILURE, retry_unasked=True)

    await run(parts, Runtime(denials=(True,)))

    assert [request.retry for request in parts[1].asked] == [True]


async def test_a_policy_that_never_asks_never_does() -> None:
    parts, runtime = orchestrator(policy=NEVER), Runtime(denials=(True,))

    await run(parts, runtime)
    with pytest.raises(Rejected):
        await run(parts, Runtime(requirement("ask")))

    assert parts[1].asked == []
    assert len(runtime.runs) == 1


async def test_there_is_no_second_attempt_where_nothing_confines() -> None:
    parts, runtime = orchestrator(policy=ON_FAILURE, sandbox=DangerFullAccess()), Runtime(denials=(True,))

    await run(parts, runtime)

    assert len(runtime.runs) == 1


async def test_the_trace_says_what_was_decided_also_when_it_was_refused() -> None:
    parts, _ = orchestrator(DECLINE, sandbox=ReadOnly())
    trace = Trace()

    with pytest.raises(Rejected):
        await parts.run(Runtime(requirement("ask")), CallEvents(None, "c", "shell"), trace)

    assert trace.phases == ["approval"]
    assert trace.reviewed is None
    assert trace.requirement is not None

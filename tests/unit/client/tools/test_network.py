"""The decisions on hosts that a command of a toolset asks for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    CANCEL,
    DECLINE,
    ApprovalRequest,
    Approvals,
    Review,
    Reviewer,
)
from execclient.govern.network import NetworkAccess
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rule_files import parse_rules
from execclient.govern.policy.rules import NO_RULES
from execclient.govern.sandbox import ReadOnly
from execclient.results import NetworkDecision, NetworkRequest
from execclient.tools.errors import TurnAborted
from execclient.tools.events import CallEvents, EventSink, NetworkDecided
from execclient.tools.network import EVERYTHING, CommandNetwork, access_of
from execprotocol.network import Decision
from tests.support.toolsets import User

PYPI = NetworkRequest("p", "https_connect", "pypi.org", 443)
EVIL = NetworkRequest("p", "https_connect", "evil.example", 443)
ASKING = NetworkAccess(ask=True)
RULES = parse_rules('network_rule("evil.example", "https", "deny", "known to leak")', "rules")


class Changing:
    """Gives its answers in turn."""

    def __init__(self, *answers: Review) -> None:
        self.asked: list[ApprovalRequest] = []
        self._answers = list(answers)

    async def review(self, request: ApprovalRequest) -> Review:
        self.asked.append(request)
        await asyncio.sleep(0)
        return self._answers.pop(0)


def network(
    user: Reviewer | None = None,
    *,
    access: NetworkAccess = ASKING,
    policy: Policy | None = None,
    approvals: Approvals | None = None,
    sink: EventSink | None = None,
) -> CommandNetwork:
    return CommandNetwork(
        access=access,
        policy=policy or Policy(),
        approvals=approvals or Approvals(user=user, policy=ON_REQUEST),
        events=CallEvents(sink, "call_1", "exec_command"),
        argv=("pip", "install", "left pad"),
        cwd="/w",
        scope={"sandbox": 1},
    )


def denied(host: str = "evil.example", **members: Any) -> NetworkDecision:
    common: dict[str, Any] = {
        "process_id": "p",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "decision": "deny",
        "source": "baseline_policy",
        "reason": "not_allowed",
        "protocol": "https_connect",
        "host": host,
        "port": 443,
        "method": None,
        "policy_override": False,
    }
    return NetworkDecision(**{**common, **members})


async def test_the_reviewer_sees_the_host_and_the_command_that_asks_for_it() -> None:
    user = User(ACCEPT)

    decision = await network(user).decide(PYPI)

    assert decision == Decision("allow", None, "once")
    (request,) = user.asked
    assert (request.kind, request.command, request.cwd) == ("network", "pip install 'left pad'", "/w")
    assert str(request.network) == "pypi.org:443 (https)"
    assert request.permits == ("connect to pypi.org:443 (https)",)


async def test_an_answer_holds_for_its_command_however_often_that_asks() -> None:
    user = Changing(ACCEPT, DECLINE, DECLINE)
    approvals = Approvals(user=user, policy=ON_REQUEST)
    first, second = network(approvals=approvals), network(approvals=approvals)

    assert [(await first.decide(PYPI)).type for _ in range(3)] == ["allow"] * 3
    assert [(await second.decide(PYPI)).type for _ in range(3)] == ["deny"] * 3
    assert (await first.decide(EVIL)).type == "deny"
    assert len(user.asked) == 3


async def test_a_question_that_is_sent_again_before_its_answer_is_one_question() -> None:
    user = Changing(ACCEPT)

    asking = network(user)
    answers = await asyncio.gather(*(asking.decide(PYPI) for _ in range(3)))

    assert [answer.type for answer in answers] == ["allow"] * 3


async def test_an_answer_for_the_session_holds_for_other_commands_of_the_same_scope() -> None:
    user = Changing(ACCEPT_FOR_SESSION, DECLINE)
    approvals = Approvals(user=user, policy=ON_REQUEST)

    assert (await network(approvals=approvals).decide(PYPI)).type == "allow"
    assert (await network(approvals=approvals).decide(PYPI)).type == "allow"

    elsewhere = network(approvals=approvals)
    elsewhere.scope = {"sandbox": 2}
    assert (await elsewhere.decide(PYPI)).type == "deny"


async def test_an_answer_with_a_rule_holds_in_later_processes(tmp_path: Path) -> None:
    class Always:
        async def review(self, request: ApprovalRequest) -> Review:
            return Review("approved_with_amendment", rule=request.rule)

    policy = Policy.load(tmp_path)
    assert (await network(Always(), policy=policy).decide(PYPI)).type == "allow"

    later = network(policy=Policy.load(tmp_path), access=NetworkAccess())
    assert (await later.decide(PYPI)).type == "allow"
    assert (await later.decide(NetworkRequest("p", "https_connect", "pypi.org", 80))).type == "deny"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Review("denied", "use the mirror"), "use the mirror"),
        (DECLINE, "rejected by user"),
        (RuntimeError("broken"), "Broken could not decide: RuntimeError"),
    ],
)
async def test_a_refusal_and_every_failure_denies_with_its_reason(
    answer: Review | Exception, reason: str
) -> None:
    class Broken:
        async def review(self, request: ApprovalRequest) -> Review:
            if isinstance(answer, Exception):
                raise answer
            return answer

    assert await network(Broken()).decide(PYPI) == Decision("deny", reason, "once")


async def test_without_a_reviewer_a_host_is_denied() -> None:
    decision = await network().decide(PYPI)

    assert decision == Decision("deny", "it needs an approval, and there is no reviewer", "once")


async def test_a_rule_decides_without_a_question() -> None:
    user = User(ACCEPT)

    decision = await network(user, policy=Policy(RULES)).decide(EVIL)

    assert decision == Decision("deny", "known to leak", "once")
    assert user.asked == []


async def test_a_reviewer_who_ends_the_turn_ends_it_and_the_host_is_denied() -> None:
    asking = network(User(CANCEL))

    assert (await asking.decide(PYPI)).type == "deny"
    with pytest.raises(TurnAborted):
        asking.check()


async def test_each_decision_is_an_event_and_one_that_cannot_be_recorded_denies() -> None:
    events: list[Any] = []
    await network(User(ACCEPT), sink=events.append).decide(PYPI)
    assert events == [
        NetworkDecided("call_1", "allow", "network_access", "user", "pypi.org", 443, "https", None)
    ]

    def full(_: object) -> None:
        raise OSError("no space")

    decision = await network(User(ACCEPT), sink=full).decide(PYPI)
    assert decision == Decision("deny", "the decision could not be recorded", "once")


def test_denied_hosts_are_told_once_each() -> None:
    found = network()
    for reported in (
        denied(),
        denied(),
        denied("ok.example", decision="allow"),
        denied(reason="use the mirror"),
    ):
        found.report(reported)

    assert found.take_denied() == ["evil.example:443 (https): no rule and no setting allows it"]
    assert found.take_denied() == []
    found.report(denied("10.0.0.1", reason="not_allowed_local", protocol="http", port=80))
    assert found.take_denied() == [
        "10.0.0.1:80 (http): it is a private or local address, which has to be allowed itself"
    ]


def test_what_the_proxy_denies_by_itself_is_an_event_with_its_source() -> None:
    events: list[Any] = []
    found = network(policy=Policy(RULES), sink=events.append)
    for reported in (
        denied(reason="denied"),
        denied("other.example"),
        denied("asked.example", source="decider"),
    ):
        found.report(reported)

    assert [(event.host, event.source, event.reason) for event in events] == [
        ("evil.example", "network_rule", "known to leak"),
        ("other.example", "network_access", "no rule and no setting allows it"),
    ]


def test_rules_about_hosts_take_effect_without_a_setting() -> None:
    offline, online = ReadOnly(), ReadOnly(network=True)

    assert access_of(None, Policy(NO_RULES), online, has_proxy=True) is None
    assert access_of(None, Policy(RULES), offline, has_proxy=True) is None, "there is nothing to forbid"
    allowing = Policy(parse_rules('network_rule("pypi.org", "https", "allow")', "rules"))
    assert access_of(None, allowing, offline, has_proxy=True) == NetworkAccess()
    assert access_of(None, allowing, offline, has_proxy=False) is None
    assert access_of(None, Policy(RULES), online, has_proxy=True) == EVERYTHING
    assert access_of(ASKING, Policy(RULES), online, has_proxy=True) is ASKING
    assert access_of(None, Policy(RULES, parity=True), online, has_proxy=True) is None


def test_an_executor_without_proxies_never_gets_a_command_that_rules_cannot_limit() -> None:
    assert access_of(None, Policy(RULES), ReadOnly(), has_proxy=False) is None
    assert access_of(None, Policy(RULES), ReadOnly(network=True), has_proxy=False) == EVERYTHING

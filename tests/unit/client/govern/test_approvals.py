from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable

import pytest

from execclient.govern.approval_policy import NEVER, ON_REQUEST, granular
from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    ANSWERS,
    CANCEL,
    COUNTED_TOOLS,
    DECLINE,
    Answer,
    ApprovalCache,
    ApprovalRequest,
    Approvals,
    Review,
)
from execclient.govern.network import NetworkTarget
from execclient.govern.policy.rules import NetworkRule

REQUEST = ApprovalRequest(
    call_id="c1",
    kind="command",
    command="rm -rf zz",
    argv=("rm", "-rf", "zz"),
    cwd="/w",
    reason=None,
    amendment=("rm", "-rf", "zz"),
    permits=("write the workspace",),
    retry=False,
    tool="exec_command",
)
HOST = NetworkTarget("pypi.org", 443, "https")
RULE = NetworkRule("pypi.org", "https", "allow", port=443)
NETWORK = dataclasses.replace(REQUEST, kind="network", amendment=None, network=HOST, rule=RULE)
KEYS = (ApprovalCache.key_of(REQUEST.argv, "/w", False, False),)


class Scripted:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.asked: list[ApprovalRequest] = []
        self._answers = list(answers)

    async def review(self, request: ApprovalRequest) -> Review | None:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]


class Slow:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[ApprovalRequest] = asyncio.Queue()
        self.answers: asyncio.Queue[Review] = asyncio.Queue()

    async def review(self, request: ApprovalRequest) -> Review | None:
        self.asked.put_nowait(request)
        return await self.answers.get()


def user(*answers: object) -> tuple[Approvals, Scripted]:
    scripted = Scripted(*answers)
    return Approvals(user=scripted, policy=ON_REQUEST), scripted


# -- who decides


async def test_hooks_come_first_then_the_guardian_then_the_user() -> None:
    order: list[str] = []

    def named(name: str, answer: Review | None) -> Scripted:
        class Named(Scripted):
            async def review(self, request: ApprovalRequest) -> Review | None:
                order.append(name)
                return answer

        return Named(answer)

    approvals = Approvals(
        [named("one", None), named("two", None)],
        named("guardian", None),
        named("user", ACCEPT),
        policy=ON_REQUEST,
    )

    reviewed = await approvals.ask(REQUEST, KEYS)

    assert order == ["one", "two", "guardian", "user"]
    assert (reviewed.review, reviewed.decided_by) == (ACCEPT, "user")


@pytest.mark.parametrize(
    ("answers", "review", "decided_by"),
    [
        ((DECLINE, ACCEPT, ACCEPT), DECLINE, "hook"),
        ((None, ACCEPT, DECLINE), ACCEPT, "guardian"),
        ((None, None, CANCEL), CANCEL, "user"),
    ],
)
async def test_the_first_opinion_decides_and_no_further_reviewer_is_asked(
    answers: tuple[Review | None, ...], review: Review, decided_by: str
) -> None:
    hook, guardian, person = (Scripted(answer) for answer in answers)

    reviewed = await Approvals([hook], guardian, person, policy=ON_REQUEST).ask(REQUEST, KEYS)

    assert (reviewed.review, reviewed.decided_by) == (review, decided_by)
    asked = [len(reviewer.asked) for reviewer in (hook, guardian, person)]
    assert asked == {"hook": [1, 0, 0], "guardian": [1, 1, 0], "user": [1, 1, 1]}[decided_by]


@pytest.mark.parametrize("hooks", [[], [Scripted(None)]])
async def test_without_an_opinion_it_is_denied(hooks: list[Scripted]) -> None:
    reviewed = await Approvals(hooks, policy=ON_REQUEST).ask(REQUEST, KEYS)

    assert (reviewed.review.answer, reviewed.decided_by) == ("denied", "nobody")
    assert "no reviewer" in str(reviewed.review.reason)


async def test_under_never_no_reviewer_is_called() -> None:
    person = Scripted(ACCEPT)

    reviewed = await Approvals([person], person, person, policy=NEVER).ask(REQUEST, KEYS)

    assert (reviewed.review.answer, reviewed.decided_by, person.asked) == ("denied", "nobody", [])


async def test_a_policy_without_sandbox_questions_still_asks_about_removals_by_force() -> None:
    person = Scripted(ACCEPT)
    policy = granular(sandbox_approval=False, rules=False, mcp_elicitations=False)

    assert (await Approvals(user=person, policy=policy).ask(REQUEST, KEYS)).review == ACCEPT


# -- what is no approval


async def test_a_reviewer_that_fails_denies_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    person = Scripted(ACCEPT)
    approvals = Approvals([Scripted(ValueError("the password is x"))], user=person, policy=ON_REQUEST)

    with caplog.at_level(logging.ERROR, "execclient.govern.approvals"):
        reviewed = await approvals.ask(REQUEST, KEYS)

    assert (reviewed.review.answer, reviewed.decided_by) == ("denied", "hook")
    assert reviewed.review.reason == "Scripted could not decide: ValueError"  # and nothing of its text
    assert person.asked == []
    assert "the password is x" in caplog.text


async def test_a_cancelled_question_stays_cancelled_and_leaves_no_lock() -> None:
    slow = Slow()
    approvals = Approvals(user=slow, policy=ON_REQUEST)
    asking = asyncio.create_task(approvals.ask(REQUEST, KEYS))
    await slow.asked.get()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    slow.answers.put_nowait(ACCEPT)
    assert (await approvals.ask(REQUEST, KEYS)).review == ACCEPT
    assert approvals._waiting == {}


async def test_a_reviewer_that_is_cancelled_cancels_the_question() -> None:
    approvals, _ = user(asyncio.CancelledError())

    with pytest.raises(asyncio.CancelledError):
        await approvals.ask(REQUEST, KEYS)


@pytest.mark.parametrize(
    ("offered", "amendment"),
    [(None, ("rm",)), (("rm", "-rf", "zz"), ("rm",)), (("rm",), ("rm", "-rf"))],
)
async def test_a_rule_that_was_not_proposed_is_refused(
    offered: tuple[str, ...] | None, amendment: tuple[str, ...]
) -> None:
    approvals, _ = user(Review("approved_with_amendment", amendment=amendment))

    reviewed = await approvals.ask(dataclasses.replace(REQUEST, amendment=offered), KEYS)

    assert reviewed.review.answer == "denied"
    assert "Scripted" in str(reviewed.review.reason)


async def test_the_proposed_rule_is_accepted() -> None:
    review = Review("approved_with_amendment", amendment=("rm", "-rf", "zz"))
    approvals, _ = user(review)

    assert (await approvals.ask(REQUEST, KEYS)).review == review


@pytest.mark.parametrize("answer", [True, "accept", "approved"])
async def test_what_is_no_review_is_a_refusal(answer: object) -> None:
    approvals, _ = user(answer)

    assert (await approvals.ask(REQUEST, KEYS)).review.answer == "denied"


# -- the session


async def test_an_answer_for_the_session_is_not_asked_for_again() -> None:
    approvals, person = user(ACCEPT_FOR_SESSION)

    first = await approvals.ask(REQUEST, KEYS)
    second = await approvals.ask(dataclasses.replace(REQUEST, reason="another"), KEYS)

    assert (first.decided_by, second.decided_by, len(person.asked)) == ("user", "cache", 1)
    assert second.review.approves


@pytest.mark.parametrize(
    "review", [ACCEPT, DECLINE, CANCEL, Review("approved_with_amendment", amendment=REQUEST.amendment)]
)
async def test_no_other_answer_is_remembered(review: Review) -> None:
    approvals, person = user(review)

    await approvals.ask(REQUEST, KEYS)
    await approvals.ask(REQUEST, KEYS)

    assert len(person.asked) == 2


async def test_without_keys_nothing_is_remembered() -> None:
    approvals, person = user(ACCEPT_FOR_SESSION)

    await approvals.ask(REQUEST, ())
    reviewed = await approvals.ask(REQUEST, ())

    assert (reviewed.decided_by, len(person.asked)) == ("user", 2)


async def test_another_folder_is_asked_about_unless_the_grant_is_for_any() -> None:
    elsewhere = (ApprovalCache.key_of(REQUEST.argv, "/v", False, False),)
    approvals, person = user(ACCEPT_FOR_SESSION, Review("approved_for_session", any_cwd=True), DECLINE)

    await approvals.ask(REQUEST, KEYS)
    await approvals.ask(REQUEST, elsewhere)
    third = await approvals.ask(REQUEST, (ApprovalCache.key_of(REQUEST.argv, "/u", False, False),))

    assert (len(person.asked), third.decided_by) == (2, "cache")


async def test_equal_requests_at_once_are_asked_about_once_if_it_is_for_the_session() -> None:
    slow = Slow()
    approvals = Approvals(user=slow, policy=ON_REQUEST)
    asking = [asyncio.create_task(approvals.ask(REQUEST, KEYS)) for _ in range(3)]
    await slow.asked.get()
    assert slow.asked.empty()

    slow.answers.put_nowait(ACCEPT_FOR_SESSION)

    assert [reviewed.decided_by for reviewed in await asyncio.gather(*asking)] == ["user", "cache", "cache"]
    assert slow.asked.empty()


async def test_equal_requests_at_once_are_asked_one_by_one_if_it_is_for_once() -> None:
    slow = Slow()
    approvals = Approvals(user=slow, policy=ON_REQUEST)
    asking = [asyncio.create_task(approvals.ask(REQUEST, KEYS)) for _ in range(2)]

    for review in (ACCEPT, DECLINE):
        await slow.asked.get()
        assert slow.asked.empty()
        slow.answers.put_nowait(review)

    assert [reviewed.review for reviewed in await asyncio.gather(*asking)] == [ACCEPT, DECLINE]


async def test_different_requests_do_not_wait_for_each_other() -> None:
    slow = Slow()
    approvals = Approvals(user=slow, policy=ON_REQUEST)
    other = (ApprovalCache.key_of(("ls",), "/w", False, False),)
    asking = [asyncio.create_task(approvals.ask(REQUEST, keys)) for keys in (KEYS, other)]

    await slow.asked.get()
    await slow.asked.get()
    for _ in asking:
        slow.answers.put_nowait(ACCEPT)

    assert [reviewed.review for reviewed in await asyncio.gather(*asking)] == [ACCEPT, ACCEPT]


async def test_patches_that_share_files_in_another_order_do_not_block_each_other() -> None:
    slow = Slow()
    approvals = Approvals(user=slow, policy=ON_REQUEST)
    a, b = ApprovalCache.key_of_file("/a"), ApprovalCache.key_of_file("/b")
    asking = [asyncio.create_task(approvals.ask(REQUEST, keys)) for keys in ((a, b), (b, a), (b, b))]

    for _ in asking:
        await slow.asked.get()
        slow.answers.put_nowait(ACCEPT)

    await asyncio.wait_for(asyncio.gather(*asking), 5)


# -- what is counted and what is shown


async def test_answers_are_counted_by_tool_and_answer_and_the_labels_are_known_beforehand() -> None:
    approvals, _ = user(ACCEPT_FOR_SESSION, DECLINE, ACCEPT)
    labels = set(approvals.counts)
    made_up = dataclasses.replace(REQUEST, tool="mcp__made_up")

    await approvals.ask(REQUEST, KEYS)
    await approvals.ask(REQUEST, KEYS)  # from the cache: no reviewer is asked
    await approvals.ask(REQUEST, ())
    await approvals.ask(made_up, ())

    given: dict[tuple[str, Answer], int] = {
        label: count for label, count in approvals.counts.items() if count
    }
    assert given == {
        ("exec_command", "approved_for_session"): 1,
        ("exec_command", "denied"): 1,
        ("other", "approved"): 1,
    }
    assert set(approvals.counts) == labels == {(tool, answer) for tool in COUNTED_TOOLS for answer in ANSWERS}


async def test_a_reviewer_sees_the_prompt_of_the_policy() -> None:
    policy = dataclasses.replace(ON_REQUEST, prompt_template="May {command} run in {cwd}? {reason}")
    person = Scripted(ACCEPT)

    await Approvals(user=person, policy=policy).ask(dataclasses.replace(REQUEST, reason="J"), KEYS)

    assert person.asked[0].prompt == "May rm -rf zz run in /w? J"


async def test_a_prompt_of_the_request_stays() -> None:
    approvals, person = user(ACCEPT)

    await approvals.ask(dataclasses.replace(REQUEST, prompt="Really?"), KEYS)

    assert person.asked[0].prompt == "Really?"


def test_a_request_has_the_shape_of_the_reference() -> None:
    shown = dataclasses.replace(REQUEST, reason="J").to_json()

    assert json.loads(json.dumps(shown)) == {
        "kind": "command",
        "reason": "J",
        "command": "rm -rf zz",
        "proposedExecpolicyAmendment": ["rm", "-rf", "zz"],
        "availableDecisions": [
            "accept",
            {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm", "-rf", "zz"]}},
            "cancel",
        ],
    }
    assert dataclasses.replace(REQUEST, amendment=None).to_json() == {
        "kind": "command",
        "command": "rm -rf zz",
        "availableDecisions": ["accept", "cancel"],
    }


# -- answers in the reference's words


@pytest.mark.parametrize(
    ("value", "review"),
    [
        ("accept", ACCEPT),
        ("acceptForSession", ACCEPT_FOR_SESSION),
        ("decline", DECLINE),
        ("cancel", CANCEL),
        (
            {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["wc", "-l"]}},
            Review("approved_with_amendment", amendment=("wc", "-l")),
        ),
    ],
)
def test_an_answer_is_read_in_the_words_of_the_reference(value: object, review: Review) -> None:
    assert Review.parse(value) == review


def test_whatever_a_request_offers_can_be_answered() -> None:
    assert [Review.parse(decision).answer for decision in REQUEST.available_decisions] == [
        "approved",
        "approved_with_amendment",
        "abort",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "Accept",
        "yes",
        "",
        None,
        True,
        ["accept"],
        {},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": []}},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": "rm -rf"}},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm", 1]}},
        {"acceptWithExecpolicyAmendment": None},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm"]}, "accept": True},
    ],
)
def test_what_is_no_answer_approves_nothing(value: object) -> None:
    with pytest.raises(ValueError, match=r"^decision: "):
        Review.parse(value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Review("approved_with_amendment"), "amendment"),
        (lambda: Review("approved", amendment=("rm",)), "amendment"),
        (lambda: Review("approved", any_cwd=True), "any_cwd"),
        (lambda: Review("sure"), "answer"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_contradicts_itself_cannot_be_made(make: Callable[[], Review], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        make()


def test_only_three_answers_let_a_call_go_on() -> None:
    reviews = [
        ACCEPT,
        ACCEPT_FOR_SESSION,
        Review("approved_with_amendment", amendment=("a",)),
        DECLINE,
        CANCEL,
    ]

    assert [review.approves for review in reviews] == [True, True, True, False, False]


async def test_a_rule_on_another_host_than_the_proposed_one_is_a_refusal() -> None:
    other = dataclasses.replace(RULE, host="evil.example")
    for offered, approved in ((RULE, other), (None, RULE)):
        user = Scripted(Review("approved_with_amendment", rule=approved))
        request = dataclasses.replace(NETWORK, rule=offered)

        reviewed = await Approvals(user=user, policy=ON_REQUEST).ask(request, ())

        assert reviewed.review.answer == "denied"
        assert reviewed.review.reason == "Scripted approved with a rule on a host that was not proposed"


async def test_an_approval_of_a_host_for_the_session_covers_its_port_and_protocol_only() -> None:
    approvals = Approvals(user=Scripted(ACCEPT_FOR_SESSION, DECLINE), policy=ON_REQUEST)
    others = [
        dataclasses.replace(HOST, port=80),
        dataclasses.replace(HOST, protocol="http"),
        dataclasses.replace(HOST, host="evil.example"),
    ]

    await approvals.ask(NETWORK, [ApprovalCache.key_of_host(HOST, scope={"sandbox": 1})])

    again = await approvals.ask(NETWORK, [ApprovalCache.key_of_host(HOST, scope={"sandbox": 1})])
    assert again.decided_by == "cache"
    for keys in ({"sandbox": 2}, {"sandbox": 1}):
        for target in [HOST, *others] if keys == {"sandbox": 2} else others:
            asked = await approvals.ask(NETWORK, [ApprovalCache.key_of_host(target, scope=keys)])
            assert (asked.decided_by, asked.review) == ("user", DECLINE)


def test_a_question_about_a_host_has_the_references_form_and_so_has_its_answer() -> None:
    shown = NETWORK.to_json()
    accept = {
        "applyNetworkPolicyAmendment": {"network_policy_amendment": {"host": "pypi.org", "action": "allow"}}
    }

    assert shown["networkApprovalContext"] == {"host": "pypi.org", "protocol": "https", "port": 443}
    assert shown["availableDecisions"] == ["accept", accept, "cancel"]
    assert Review.parse(accept, RULE) == Review("approved_with_amendment", rule=RULE)
    deny = {
        "applyNetworkPolicyAmendment": {"network_policy_amendment": {"host": "pypi.org", "action": "deny"}}
    }
    for value, rule in (
        (accept, None),
        (deny, RULE),
        (accept, dataclasses.replace(RULE, host="evil.example")),
    ):
        with pytest.raises(ValueError, match="the proposed applyNetworkPolicyAmendment"):
            Review.parse(value, rule)

from __future__ import annotations

import dataclasses

import pytest

from execclient.govern import approval_policy as module
from execclient.govern.approval_policy import (
    AUTO_EDIT,
    NEVER,
    ON_FAILURE,
    ON_REQUEST,
    UNLESS_TRUSTED,
    UNTRUSTED,
    ApprovalPolicy,
    approval_policy,
    escalation_refused,
    granular,
    register_approval_policy,
)

OPEN = granular(sandbox_approval=True, rules=True, mcp_elicitations=False)
SHUT = granular(sandbox_approval=False, rules=False, mcp_elicitations=False)


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(module, "_POLICIES", dict(module._POLICIES))


def situations(policy: ApprovalPolicy) -> tuple[str, str, str, str, str, str, str]:
    """What a policy says of a safe, an unknown and a dangerous command, of a prompting rule, of a patch in
    the workspace, of a denial by the sandbox, and of a wish to do without it.
    """
    return (
        "allow" if policy.trusts_known_safe else policy.unmatched,
        policy.unmatched,
        policy.dangerous,
        "ask" if policy.asks_for_rules else "reject",
        policy.patches,
        policy.retry,
        "ask" if policy.may_escalate else "reject",
    )


@pytest.mark.parametrize(
    ("policy", "safe", "unknown", "dangerous", "prompt_rule", "patch", "denial", "escalation"),
    [
        (NEVER, "allow", "allow", "reject", "reject", "allow", "no", "reject"),
        (ON_REQUEST, "allow", "allow", "ask", "ask", "allow", "no", "ask"),
        (ON_FAILURE, "allow", "allow", "ask", "ask", "allow", "ask", "ask"),
        (UNTRUSTED, "ask", "ask", "ask", "ask", "ask", "ask", "ask"),
        (UNLESS_TRUSTED, "allow", "ask", "ask", "ask", "ask", "ask", "ask"),
        (AUTO_EDIT, "allow", "ask", "ask", "ask", "allow", "ask", "ask"),
        (OPEN, "allow", "allow", "ask", "ask", "allow", "ask", "ask"),
        (SHUT, "allow", "allow", "ask", "reject", "allow", "no", "reject"),
    ],
    ids=lambda value: value.name if isinstance(value, ApprovalPolicy) else None,
)
def test_each_policy_gives_its_decision_for_each_situation(
    policy: ApprovalPolicy,
    safe: str,
    unknown: str,
    dangerous: str,
    prompt_rule: str,
    patch: str,
    denial: str,
    escalation: str,
) -> None:
    assert situations(policy) == (safe, unknown, dangerous, prompt_rule, patch, denial, escalation)


def test_a_flag_of_granular_moves_its_own_questions_only() -> None:
    rules = granular(sandbox_approval=False, rules=True, mcp_elicitations=False)

    assert (rules.asks_for_rules, rules.asks_for_sandbox, rules.may_escalate, rules.retry) == (
        True,
        False,
        False,
        "no",
    )


def test_only_never_has_nothing_to_ask() -> None:
    policies = [NEVER, ON_REQUEST, ON_FAILURE, UNTRUSTED, UNLESS_TRUSTED, AUTO_EDIT, OPEN, SHUT]

    assert [policy.name for policy in policies if not policy.asks] == ["never"]


@pytest.mark.parametrize(
    "policy", [NEVER, ON_REQUEST, ON_FAILURE, UNTRUSTED, UNLESS_TRUSTED, AUTO_EDIT, OPEN, SHUT]
)
def test_a_policy_is_read_from_what_it_is_written_as(policy: ApprovalPolicy) -> None:
    assert approval_policy(policy.to_json()) == policy
    assert approval_policy(policy) is policy


def test_granular_needs_three_flags_and_has_two_more() -> None:
    flags = {"sandbox_approval": True, "rules": False, "mcp_elicitations": True}

    policy = approval_policy({"granular": flags})

    assert policy.to_json() == {"granular": {**flags, "skill_approval": False, "request_permissions": False}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sometimes", r"^approval_policy: 'sometimes' is none of auto-edit, never, on-failure, .*granular"),
        ("Never", "'Never' is none of"),
        ("granular", "'granular' is none of"),
        (None, "^approval_policy: expected one of"),
        ({"granular": {}, "never": True}, "expected one of"),
        ({"granular": True}, "^approval_policy.granular: expected an object with sandbox_approval, rules, "),
        ({"granular": {"sandbox_approval": True, "rules": True}}, "granular.mcp_elicitations is missing"),
        (
            {"granular": {"sandbox_approval": 1, "rules": True, "mcp_elicitations": True}},
            "granular.sandbox_approval: 1 is neither true nor false",
        ),
        (
            {"granular": {"sandbox_approval": True, "rules": True, "mcp_elicitations": True, "all": True}},
            "granular.all is unknown; there are",
        ),
    ],
)
def test_what_is_no_policy_is_an_error_that_names_the_field(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        approval_policy(value)  # type: ignore[arg-type]


def test_a_refused_escalation_names_the_policy_twice() -> None:
    assert escalation_refused(NEVER) == (
        "approval policy is Never; reject command — you cannot ask for escalated permissions "
        "if the approval policy is Never"
    )


def test_granular_is_shown_with_all_its_flags() -> None:
    shown = (
        "Granular(GranularApprovalConfig { sandbox_approval: false, rules: true, skill_approval: false, "
        "request_permissions: false, mcp_elicitations: false })"
    )

    policy = granular(sandbox_approval=False, rules=True, mcp_elicitations=False)

    assert policy.shown == shown
    assert escalation_refused(policy).count(shown) == 2


def test_policies_are_shown_in_the_words_of_the_reference() -> None:
    policies = (NEVER, ON_REQUEST, ON_FAILURE, UNTRUSTED, UNLESS_TRUSTED)

    assert [policy.shown for policy in policies] == [
        "Never",
        "OnRequest",
        "OnFailure",
        "UnlessTrusted",
        "UnlessTrusted",
    ]


def test_a_registered_policy_is_found_by_its_name_with_its_prompt_and_its_decision() -> None:
    office = ApprovalPolicy(
        name="office-hours",
        shown="OfficeHours",
        unmatched="ask",
        dangerous="reject",
        prompt_template="{command} in {cwd} ({reason})",
    )

    register_approval_policy(office)
    register_approval_policy(dataclasses.replace(office))

    assert approval_policy("office-hours") is office
    assert office.prompt(command="echo {cwd}", cwd="/w", reason=None) == "echo {cwd} in /w ()"
    with pytest.raises(ValueError, match="office-hours"):
        approval_policy("sometimes")  # the error lists it, too


def test_no_policy_takes_the_place_of_another() -> None:
    with pytest.raises(ValueError, match="'never' is another policy already"):
        register_approval_policy(dataclasses.replace(NEVER, dangerous="allow"))
    with pytest.raises(ValueError, match="'granular' has fields of its own"):
        register_approval_policy(OPEN)

    assert approval_policy("never") == NEVER


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Two Words"}, "'Two Words' is no name"),
        ({"shown": " "}, "shown is empty"),
        ({"prompt_template": "{argv}"}, r"prompt_template has \{argv\}; there are only"),
        ({"prompt_template": "{cwd.x}"}, r"prompt_template has \{cwd.x\}"),
        ({"prompt_template": "{"}, "prompt_template: .*brace"),
    ],
)
def test_a_row_that_cannot_be_used_is_an_error(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ON_REQUEST, **change)  # type: ignore[arg-type]

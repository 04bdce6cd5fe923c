"""What is to become of one command: the table of GUARDRAILS, and where we are stricter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from execclient.govern.approval_policy import (
    NEVER,
    ON_FAILURE,
    ON_REQUEST,
    UNLESS_TRUSTED,
    UNTRUSTED,
    ApprovalPolicy,
    granular,
)
from execclient.govern.policy.decision import UNREADABLE, Requirement, decide
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import Decision, PrefixRule, RuleSet
from execclient.govern.sandbox import DangerFullAccess, SandboxPolicy, WorkspaceWrite

WORKSPACE = WorkspaceWrite()
ALL = granular(sandbox_approval=True, rules=True, mcp_elicitations=True)
NO_RULES_ASKED = granular(sandbox_approval=True, rules=False, mcp_elicitations=False)
NO_SANDBOX_ASKED = granular(sandbox_approval=False, rules=True, mcp_elicitations=False)


def rule(words: str, decision: Decision, justification: str | None = None) -> PrefixRule:
    return PrefixRule(tuple((word,) for word in words.split()), decision, justification)


RULES = RuleSet(
    (
        rule("cat", "forbidden", "no cat"),
        rule("head", "forbidden"),
        rule("head -n", "forbidden"),
        rule("touch", "prompt", "ask touch"),
        rule("mkdir", "prompt"),
        rule("mkdir -p", "prompt"),
        rule("cp", "allow"),
        rule("rm -rf okdir", "allow"),
    )
)


def judged(
    script: str,
    approval: ApprovalPolicy = ON_REQUEST,
    *,
    rules: RuleSet = RULES,
    sandbox: SandboxPolicy = WORKSPACE,
    parity: bool = False,
    bypass: bool = False,
    escalated: bool = False,
    prefix_rule: list[str] | None = None,
    co_commands: tuple[str, ...] | None = None,
) -> Requirement:
    return decide(
        ["/bin/bash", "-lc", script],
        policy=Policy(rules, parity=parity, bypass_sandbox=bypass),
        approval=approval,
        sandbox=sandbox,
        cwd="/w",
        escalated=escalated,
        prefix_rule=prefix_rule,
        co_commands=co_commands,
    )


# -- without rules: each policy by each kind of command


@pytest.mark.parametrize(
    ("approval", "ordinary", "safe", "dangerous"),
    [
        (NEVER, "skip", "skip", "forbidden"),
        (ON_REQUEST, "skip", "skip", "ask"),
        (ON_FAILURE, "skip", "skip", "ask"),
        (UNTRUSTED, "ask", "ask", "ask"),
        (UNLESS_TRUSTED, "ask", "skip", "ask"),
        (ALL, "skip", "skip", "ask"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_policy_decides_on_what_no_rule_matches(
    approval: ApprovalPolicy, ordinary: str, safe: str, dangerous: str
) -> None:
    kinds = [judged(script, approval, rules=RuleSet()).kind for script in ("npm i", "ls -la", "rm -rf build")]

    assert kinds == [ordinary, safe, dangerous]


def test_the_strictest_command_of_a_script_decides() -> None:
    assert judged("cp a b && cat a").kind == "forbidden"
    assert judged("cp a b && touch a").kind == "ask"
    assert judged("touch a && cat a").kind == "forbidden"


# -- rules


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("cat a.txt", "`/bin/bash -lc 'cat a.txt'` rejected: no cat"),
        ("head a", "`/bin/bash -lc 'head a'` rejected: policy forbids commands starting with `head`"),
        (
            "head -n 1",
            "`/bin/bash -lc 'head -n 1'` rejected: policy forbids commands starting with `head -n`",
        ),
    ],
)
def test_what_a_rule_forbids_says_why_or_by_which_rule(script: str, reason: str) -> None:
    requirement = judged(script)

    assert (requirement.kind, requirement.source, requirement.reason) == ("forbidden", "prefix_rule", reason)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("touch q", "`/bin/bash -lc 'touch q'` requires approval: ask touch"),
        ("mkdir q", "`/bin/bash -lc 'mkdir q'` requires approval by policy"),
    ],
)
def test_what_a_rule_asks_about_says_why_and_proposes_no_rule(script: str, reason: str) -> None:
    requirement = judged(script)

    assert (requirement.kind, requirement.reason, requirement.amendment) == ("ask", reason, None)


def test_an_allowing_rule_wins_over_the_fear_of_a_removal() -> None:
    assert judged("rm -rf okdir").kind == "skip"
    assert judged("rm -rf other").kind == "ask"


@pytest.mark.parametrize("approval", [NEVER, ON_REQUEST, UNTRUSTED], ids=lambda policy: policy.name)
def test_a_forbidding_rule_holds_under_every_policy_and_without_a_sandbox(approval: ApprovalPolicy) -> None:
    assert judged("cat a", approval, sandbox=DangerFullAccess()).kind == "forbidden"


def test_a_rule_that_asks_is_a_refusal_without_questions() -> None:
    assert judged("touch q", NEVER).reason == (
        "approval required by policy, but AskForApproval is set to Never"
    )
    assert judged("touch q", NO_RULES_ASKED).reason == (
        "approval required by policy rule, but AskForApproval::Granular.rules is false"
    )
    assert {judged("touch q", each).source for each in (NEVER, NO_RULES_ASKED)} == {"approval_policy"}


# -- heuristics


def test_a_removal_by_force_is_refused_with_advice_without_questions() -> None:
    assert judged("rm -rf zz", NEVER).reason == (
        "`/bin/bash -lc 'rm -rf zz'` rejected: rm -f style commands are not permitted. Use a safer approach"
    )


def test_a_removal_by_force_is_asked_about_without_a_rule_to_accept_where_the_sandbox_is_not() -> None:
    asked, offered = (judged("rm -rf zz", approval) for approval in (NO_SANDBOX_ASKED, ALL))

    assert (asked.kind, asked.amendment) == ("ask", None)
    assert (offered.kind, offered.amendment) == ("ask", ("rm", "-rf", "zz"))


def test_a_question_about_an_ordinary_command_proposes_it_as_a_rule() -> None:
    assert judged("wc -l a.txt", UNTRUSTED).amendment == ("wc", "-l", "a.txt")


# -- escalation


def test_an_escalation_is_refused_before_anything_else_where_it_may_not_be_asked_for() -> None:
    for sandbox in (WORKSPACE, DangerFullAccess()):
        requirement = judged("cat a", NEVER, sandbox=sandbox, escalated=True)
        assert requirement.refused_before
        assert requirement.reason == (
            "approval policy is Never; reject command — you cannot ask for escalated permissions "
            "if the approval policy is Never"
        )


@pytest.mark.parametrize("approval", [ON_REQUEST, UNTRUSTED, ON_FAILURE, ALL], ids=lambda policy: policy.name)
def test_an_escalation_is_asked_about(approval: ApprovalPolicy) -> None:
    assert judged("ls", approval, escalated=True).kind == "ask"


def test_an_escalation_runs_where_there_is_no_sandbox_to_leave() -> None:
    assert judged("ls", sandbox=DangerFullAccess(), escalated=True).kind == "skip"


def test_a_rule_that_allows_answers_an_escalation_only_if_the_host_lets_rules_lift_the_sandbox() -> None:
    asked = judged("cp a b", escalated=True)

    assert (asked.kind, asked.source) == ("ask", "approval_policy")
    assert judged("cp a b", escalated=True, bypass=True).kind == "skip"
    assert judged("cp a b", escalated=True, sandbox=DangerFullAccess()).kind == "skip"
    deny = replace(WORKSPACE, deny_read=("**/.env",))
    assert judged("cp a b", escalated=True, bypass=True, sandbox=deny).kind == "ask"


# -- the sandbox


def test_no_rule_lifts_the_sandbox_unless_the_host_wants_that() -> None:
    assert not judged("cp a b").bypass_sandbox
    assert judged("cp a b", bypass=True).bypass_sandbox


@pytest.mark.parametrize("script", ["cp a b && ls", "cp a b > /dev/null", "cp a $(pwd)"])
def test_a_sandbox_is_not_lifted_for_a_script_that_rules_allow_in_part(script: str) -> None:
    assert not judged(script, bypass=True).bypass_sandbox


def test_a_sandbox_that_denies_reading_is_never_lifted_by_a_rule() -> None:
    sandbox = replace(WORKSPACE, deny_read=("**/.env",))

    assert not judged("cp a b", bypass=True, sandbox=sandbox).bypass_sandbox


# -- stricter than the reference

BLIND_SPOTS = [
    "(cat x)",
    "X=1 cat x",
    "cat x >/dev/null",
    "cat <<EOF\nhi\nEOF",
    "echo $(cat x)",
    "bash -lc 'cat x'",
    "sudo cat x",
    "for f in *; do cat $f; done",
    "bash <<EOF\ncat x\nEOF",
    "/opt/none/cat x",
]


@pytest.mark.parametrize("script", BLIND_SPOTS)
def test_a_forbidding_rule_sees_into_a_script(script: str) -> None:
    requirement = judged(script)

    assert (requirement.kind, requirement.amendment) == ("forbidden", None)
    assert requirement.reason is not None
    assert requirement.reason.endswith("rejected: no cat")


@pytest.mark.parametrize("script", BLIND_SPOTS[:7])
def test_parity_has_the_blind_spots_of_the_reference(script: str) -> None:
    assert judged(script, parity=True).kind == "skip"


def test_a_rule_that_asks_sees_into_a_script_too_and_proposes_nothing() -> None:
    requirement = judged("(touch x)", UNTRUSTED)

    assert (requirement.kind, requirement.amendment) == ("ask", None)
    assert requirement.reason is not None
    assert requirement.reason.endswith("requires approval: ask touch")


def test_an_allowing_rule_does_not_see_into_a_script() -> None:
    assert judged("(cp a b)", UNTRUSTED).kind == "ask"


def test_what_cannot_be_read_is_asked_about_where_there_are_rules_to_be_kept() -> None:
    script = "$TOOL x"

    assert judged(script).reason == UNREADABLE
    assert judged(script).source == "heuristic"
    assert judged(script, rules=RuleSet((rule("cp", "allow"),))).kind == "skip"
    assert judged(script, parity=True).kind == "skip"
    assert judged(script, NEVER).kind == "forbidden"


def test_a_rule_on_a_name_allows_no_program_of_that_name_elsewhere() -> None:
    assert judged("./cp a b", UNTRUSTED).kind == "ask"
    assert judged("./cp a b", UNTRUSTED, parity=True).kind == "skip"


def test_a_listed_path_is_allowed_by_the_rule_on_its_name_and_named_as_the_source() -> None:
    rules = RuleSet(
        (rule("git", "allow"), rule("cat", "forbidden")),
        {"git": ("/usr/bin/git",), "cat": ("/bin/cat",)},
    )

    listed, other = (
        judged(f"{path} status", UNTRUSTED, rules=rules) for path in ("/usr/bin/git", "/opt/git")
    )
    assert (listed.kind, listed.source) == ("skip", "host_executable")
    assert other.kind == "ask"
    assert judged("/opt/cat x", rules=rules).kind == "forbidden"


def test_a_rule_that_asks_about_a_name_asks_about_an_unlisted_program() -> None:
    rules = RuleSet((rule("git push", "prompt"),), {"git": ("/usr/bin/git",)})

    requirement = judged("./git push", rules=rules)

    assert (requirement.kind, requirement.source, requirement.amendment) == ("ask", "prefix_rule", None)


# -- sources, records and the profile of Co


def test_each_of_the_five_sources_decides_something() -> None:
    rules = RuleSet((rule("git", "allow"), rule("make", "allow")), {"git": ("/usr/bin/git",)})
    sources = [
        judged("make", rules=rules).source,
        judged("/usr/bin/git log", rules=rules).source,
        judged("rm -rf x", rules=rules).source,
        judged("npm i", UNTRUSTED, rules=rules).source,
        judged("npm i", ON_REQUEST, rules=rules).source,
    ]

    assert sources == ["prefix_rule", "host_executable", "heuristic", "approval_policy", "sandbox_mode"]


def test_a_requirement_has_its_matches_and_the_revision_of_its_policy() -> None:
    requirement = judged("cp a b && touch c")

    assert [match.prefix for match in requirement.matches] == [("cp",), ("touch",)]
    assert requirement.revision == Policy(RULES).revision
    assert requirement.revision != judged("ls", parity=True).revision


def test_the_profile_of_co_trusts_its_own_list_and_by_the_whole_script() -> None:
    for script, kind in (("ls -la", "skip"), ("ls | wc", "ask"), ("git status", "ask"), ("uniq", "ask")):
        assert judged(script, UNLESS_TRUSTED, rules=RuleSet(), co_commands=("ls",)).kind == kind


def test_a_rule_that_the_model_proposes_is_offered_if_it_answers_the_question() -> None:
    offered = judged("npm install x", UNTRUSTED, rules=RuleSet(), prefix_rule=["npm", "install"])
    useless = judged("npm install x", UNTRUSTED, rules=RuleSet(), prefix_rule=["yarn"])

    assert offered.amendment == ("npm", "install")
    assert useless.amendment == ("npm", "install", "x")

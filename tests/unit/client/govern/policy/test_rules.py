from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import get_args

import pytest

from execclient.govern.policy.rules import (
    NO_RULES,
    STRICTNESS,
    Decision,
    NetworkRule,
    PrefixRule,
    RuleMatch,
    RuleSet,
    RuleSource,
    report,
    strictest,
)

GIT_STATUS = PrefixRule((("git",), ("status",)))
NO_PUSH = PrefixRule((("git",), ("push", "send-pack")), "forbidden", "nothing leaves this machine")
LISTED = {"git": ("/usr/bin/git", "/opt/git/bin/git")}


def rules(*prefix_rules: PrefixRule, listed: Mapping[str, tuple[str, ...]] | None = None) -> RuleSet:
    return RuleSet(prefix_rules, listed or {})


def decision(rule_set: RuleSet, *argv: str, cwd: str = "/", unlisted: bool = True) -> Decision | None:
    return strictest(match.decision for match in rule_set.matches(argv, cwd=cwd, unlisted=unlisted))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("git", "status"), "allow"),
        (("git", "status", "--short"), "allow"),
        (("git", "send-pack", "x"), "forbidden"),
        (("git",), None),
        (("git", "--no-pager", "status"), None),
        (("git", "status "), None),
        (("git status",), None),
        (("Git", "status"), None),
        (("sudo", "git", "push"), None),
        ((), None),
    ],
)
def test_whole_arguments_are_compared_from_the_first_on(
    argv: tuple[str, ...], expected: Decision | None
) -> None:
    assert decision(rules(GIT_STATUS, NO_PUSH), *argv) == expected


@pytest.mark.parametrize("decisions", list(product(get_args(Decision), repeat=3)))
def test_the_strictest_of_all_rules_that_match_wins_in_any_order(decisions: tuple[Decision, ...]) -> None:
    rule_set = rules(*(PrefixRule((("rm",),) * (index + 1), each) for index, each in enumerate(decisions)))

    found = decision(rule_set, "rm", "rm", "rm")

    assert found is not None
    assert STRICTNESS[found] == max(STRICTNESS[each] for each in decisions)


def test_a_longer_prefix_is_not_stronger_than_a_shorter_one() -> None:
    dry_run = PrefixRule((("git",), ("push",), ("--dry-run",)), "allow")

    matches = rules(NO_PUSH, dry_run).matches(["git", "push", "--dry-run"])

    assert [match.decision for match in matches] == ["forbidden", "allow"]
    assert report(matches)["decision"] == "forbidden"


def test_a_match_says_what_it_matched_why_and_where_the_rule_stands() -> None:
    source = RuleSource("a.rules", 3)
    rule_set = rules(PrefixRule(NO_PUSH.pattern, "prompt", "why", source))

    (match,) = rule_set.matches(["git", "send-pack", "origin"])

    assert match == RuleMatch(("git", "send-pack"), "prompt", "why", None, source)
    assert str(match.source) == "a.rules:3"


@pytest.mark.parametrize(
    ("program", "cwd", "resolved"),
    [
        ("/usr/bin/git", "/", "/usr/bin/git"),
        ("//usr//bin/./x/../git", "/", "/usr/bin/git"),
        ("./git", "/opt/git/bin", "/opt/git/bin/git"),
        ("../bin/git", "/usr/lib", "/usr/bin/git"),
        ("/opt/evil/git", "/", None),
        ("./git", "/opt/evil", None),
        ("/usr/bin/git/../../../opt/evil/git", "/", None),
        ("/usr/bin/GIT", "/", None),
        ("/usr/bin/git2", "/", None),
    ],
)
def test_a_path_counts_as_the_name_only_if_it_is_listed(program: str, cwd: str, resolved: str | None) -> None:
    matches = rules(GIT_STATUS, listed=LISTED).matches([program, "status"], cwd=cwd)

    assert [match.resolved_program for match in matches] == ([] if resolved is None else [resolved])


def test_an_empty_list_lets_a_name_stand_for_no_path() -> None:
    assert decision(rules(GIT_STATUS, listed={"git": ()}), "/usr/bin/git", "status") is None
    assert decision(rules(GIT_STATUS, listed={"git": ()}), "git", "status") == "allow"


def test_without_a_list_a_rule_on_a_name_is_about_every_path() -> None:
    assert decision(rules(GIT_STATUS, NO_PUSH), "./git", "status") == "allow"
    assert decision(rules(GIT_STATUS, NO_PUSH), "./git", "push") == "forbidden"


def test_or_only_if_it_does_not_allow() -> None:
    assert decision(rules(GIT_STATUS, NO_PUSH), "./git", "status", unlisted=False) is None
    assert decision(rules(GIT_STATUS, NO_PUSH), "./git", "push", unlisted=False) == "forbidden"
    assert decision(rules(GIT_STATUS, listed=LISTED), "/usr/bin/git", "status", unlisted=False) == "allow"
    assert decision(rules(GIT_STATUS), "git", "status", unlisted=False) == "allow"


def test_a_rule_on_the_path_comes_before_rules_on_the_name() -> None:
    path = PrefixRule((("/usr/bin/git",), ("push",)), "prompt")

    assert decision(rules(NO_PUSH, path), "/usr/bin/git", "push") == "prompt"


def test_resolution_can_be_left_out() -> None:
    assert rules(GIT_STATUS).matches(["/usr/bin/git", "status"], resolve=False) == ()


@pytest.mark.parametrize("program", ["/", "//", "/..", "", "."])
def test_what_is_no_program_matches_nothing(program: str) -> None:
    assert rules(GIT_STATUS).matches([program]) == ()


def test_the_report_has_the_members_of_the_reference() -> None:
    matches = rules(
        PrefixRule((("git",),), "prompt", "why"), PrefixRule((("git",), ("status",)), "allow"), listed=LISTED
    ).matches(["/usr/bin/git", "status"])

    assert report(matches) == {
        "matchedRules": [
            {
                "prefixRuleMatch": {
                    "matchedPrefix": ["git"],
                    "decision": "prompt",
                    "resolvedProgram": "/usr/bin/git",
                    "justification": "why",
                }
            },
            {
                "prefixRuleMatch": {
                    "matchedPrefix": ["git", "status"],
                    "decision": "allow",
                    "resolvedProgram": "/usr/bin/git",
                }
            },
        ],
        "decision": "prompt",
    }
    assert report(()) == {"matchedRules": []}


def test_rules_are_added_behind_and_what_is_said_of_an_executable_is_replaced() -> None:
    first = RuleSet((GIT_STATUS,), {"git": ("/a/git",), "ls": ("/bin/ls",)})
    second = RuleSet((NO_PUSH,), {"git": ()}, (NetworkRule("example.com", "https", "allow"),))

    both = first.plus(second)

    assert both.prefix_rules == (GIT_STATUS, NO_PUSH)
    assert both.host_executables == {"git": (), "ls": ("/bin/ls",)}
    assert both.network_rules == second.network_rules
    assert first.host_executables["git"] == ("/a/git",)
    assert first.with_rule(NO_PUSH).prefix_rules == (GIT_STATUS, NO_PUSH)


def test_the_revision_is_of_the_content_and_not_of_its_place() -> None:
    there = PrefixRule(GIT_STATUS.pattern, source=RuleSource("elsewhere.rules", 7))

    assert rules(GIT_STATUS).revision == rules(there).revision
    assert rules(GIT_STATUS, NO_PUSH).revision == rules(NO_PUSH, GIT_STATUS, there).revision
    assert len(NO_RULES.revision) == 16
    assert int(NO_RULES.revision, 16) >= 0


def test_whatever_could_change_a_decision_changes_the_revision() -> None:
    network = NetworkRule("example.com", "https", "allow")
    variants = [
        NO_RULES,
        rules(GIT_STATUS),
        rules(GIT_STATUS, NO_PUSH),
        rules(PrefixRule(GIT_STATUS.pattern, "prompt")),
        rules(PrefixRule(GIT_STATUS.pattern, "allow", "why")),
        rules(PrefixRule((("git", "status"),))),
        rules(listed={"git": ()}),
        rules(listed=LISTED),
        RuleSet(network_rules=(network,)),
        RuleSet(network_rules=(NetworkRule("example.com", "https", "allow", port=443),)),
    ]

    assert len({variant.revision for variant in variants}) == len(variants)

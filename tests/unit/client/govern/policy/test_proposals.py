from __future__ import annotations

import pytest

from execclient.govern.policy.proposals import BANNED_PREFIXES, is_banned, propose
from execclient.govern.policy.rules import NO_RULES, PrefixRule, RuleSet
from execclient.govern.policy.scripts import Lowered

NPM = ("npm", "install")
ECHO = ("echo", "x")
SCRIPT = ("/bin/bash", "-lc", "echo x > f")


def rules(*given: PrefixRule) -> RuleSet:
    return RuleSet(given)


def rule(*words: str, decision: str = "allow") -> PrefixRule:
    return PrefixRule(tuple((word,) for word in words), decision)  # type: ignore[arg-type]


def proposal(
    *commands: tuple[str, ...],
    requested: list[str] | None = None,
    prompted: tuple[str, ...] | None = None,
    known: RuleSet = NO_RULES,
    parity: bool = False,
) -> tuple[str, ...] | None:
    """What is proposed for a script that consists of these commands."""
    return propose(
        known,
        ("/bin/bash", "-lc", "…"),
        Lowered(commands, plain=True),
        prompted or commands[0],
        requested,
        cwd="/",
        parity=parity,
    )


@pytest.mark.parametrize(
    "prefix",
    [
        ["bash"], ["sh", "-c"], ["/bin/zsh", "-lc"], ["/usr/local/bin/fish", "-c"], ["dash"], ["ksh"],
        ["python3"], ["python3.12", "-c"], ["/usr/bin/python3", "-"], ["py", "-3"], ["pypy3"], ["pythonw"],
        ["node"], ["nodejs", "-e"], ["bun"], ["deno", "eval"], ["perl", "-e"], ["ruby"], ["php", "-r"],
        ["lua5.4"], ["julia"], ["Rscript"], ["osascript"], ["npm", "run"], ["pnpm", "run"], ["yarn", "run"],
        ["bun", "run"], ["powershell.exe", "-Command"], ["pwsh", "-c"], ["cmd.exe", "/c"], ["cmd"],
        ["env"], ["sudo"], ["git"], ["rm"], ["xargs"], [],
    ],
)  # fmt: skip
def test_what_would_allow_nearly_anything_is_banned(prefix: list[str]) -> None:
    assert is_banned(prefix)


@pytest.mark.parametrize(
    "prefix",
    [
        ["git", "status"], ["python3", "setup.py"], ["npm", "install"], ["npm", "run", "test"],
        ["bash", "x.sh"],
        ["/bin/bash", "-lc", "ls"], ["rm", "-rf", "build"], ["sha256sum"], ["base64"], ["b2sum"],
    ],
)  # fmt: skip
def test_what_says_more_is_not(prefix: list[str]) -> None:
    assert not is_banned(prefix)


def test_the_list_holds_only_short_prefixes() -> None:
    assert {len(prefix) for prefix in BANNED_PREFIXES} == {1, 2}


def test_the_first_command_that_was_asked_about_is_proposed() -> None:
    assert proposal(ECHO, NPM, prompted=NPM) == NPM


def test_what_the_model_asks_for_comes_first_if_it_covers_every_command() -> None:
    assert proposal(("npm", "install", "x"), requested=["npm", "install"]) == NPM
    assert proposal(("npm", "a"), ("npm", "b"), requested=["npm"]) == ("npm",)
    assert proposal(ECHO, NPM, requested=["npm"]) == ECHO


@pytest.mark.parametrize("requested", [["yarn"], ["npm", "install", "x"], ["python3"], []])
def test_a_request_that_is_banned_or_does_not_help_is_replaced(requested: list[str]) -> None:
    assert proposal(NPM, requested=requested) == NPM


def test_a_request_about_a_path_is_looked_for_as_rules_would_be() -> None:
    listed = RuleSet(host_executables={"npm": ("/usr/bin/npm",)})

    assert proposal(("/usr/bin/npm", "i"), requested=["npm"], known=listed) == ("npm",)
    assert proposal(("/opt/npm", "i"), requested=["npm"], known=listed) == ("/opt/npm", "i")


@pytest.mark.parametrize("decision", ["prompt", "forbidden"])
def test_nothing_is_proposed_against_a_rule_that_asks_or_forbids(decision: str) -> None:
    known = rules(rule("npm", decision=decision))

    assert proposal(ECHO, NPM, known=known, requested=["echo"]) is None


def test_beside_a_rule_that_allows_only_the_rest_is_proposed() -> None:
    assert proposal(ECHO, NPM, prompted=NPM, known=rules(rule("echo")), requested=["npm"]) == NPM


def test_nothing_is_proposed_when_the_question_came_from_no_command() -> None:
    assert propose(NO_RULES, SCRIPT, Lowered((SCRIPT,), plain=False), None, None, cwd="/") is None


def test_a_script_that_cannot_be_read_is_proposed_as_a_whole() -> None:
    lowered = Lowered((SCRIPT,), plain=False)

    assert propose(NO_RULES, SCRIPT, lowered, SCRIPT, ["echo"], cwd="/") == SCRIPT


def test_a_bare_interpreter_is_not_proposed_but_for_parity() -> None:
    assert proposal(("git",)) is None
    assert proposal(("git",), parity=True) == ("git",)
    assert proposal(("git",), requested=["git"], parity=True) == ("git",)
    assert proposal(("git", "push"), requested=["git"], parity=True) == ("git", "push")

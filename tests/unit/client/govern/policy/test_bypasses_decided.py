"""The attempts of `test_bypasses`, and some on rules, up to the decision: none may come to run unasked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from execclient.govern.approval_policy import NEVER, ON_REQUEST, UNLESS_TRUSTED, ApprovalPolicy
from execclient.govern.policy.decision import UNREADABLE, Requirement, decide
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.rules import NO_RULES, PrefixRule, RuleSet
from execclient.govern.policy.safe import CO_SAFE_COMMANDS
from execclient.govern.sandbox import WorkspaceWrite

_SPEC = importlib.util.spec_from_file_location("bypass_table", Path(__file__).with_name("test_bypasses.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
TABLE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(TABLE)

SCRIPTS: list[str] = [script for script, _ in TABLE.ATTEMPTS]
HIDING: list[tuple[str, str]] = TABLE.HIDING


def forbids(*words: str) -> RuleSet:
    return RuleSet((PrefixRule(tuple((word,) for word in words), "forbidden"),))


NO_PUSH = forbids("git", "push")
NO_RM = forbids("rm")


def decided(
    script: str,
    approval: ApprovalPolicy = ON_REQUEST,
    rules: RuleSet = NO_RULES,
    *,
    co_commands: tuple[str, ...] | None = None,
) -> Requirement:
    return decide(
        ["/bin/bash", "-lc", script],
        policy=Policy(rules),
        approval=approval,
        sandbox=WorkspaceWrite(),
        cwd="/w",
        turn_cwd="/w",
        user_shell="/bin/bash",
        co_commands=co_commands,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=ascii)
def test_no_attempt_runs_unasked_where_only_what_is_safe_does(script: str) -> None:
    assert decided(script, UNLESS_TRUSTED).kind == "ask"
    assert decided(script, UNLESS_TRUSTED, co_commands=CO_SAFE_COMMANDS).kind == "ask"


@pytest.mark.parametrize(("script", "program"), HIDING, ids=ascii)
def test_no_attempt_hides_a_forbidden_program(script: str, program: str) -> None:
    assert decided(script, rules=forbids(program)).kind in ("forbidden", "ask")
    assert decided(script, NEVER, forbids(program)).kind == "forbidden"


# -- words that are not known, within the prefix of a rule


@pytest.mark.parametrize(
    "script",
    [
        "X=push; git $X",
        'git "$(echo push)"',
        "git `echo push`",
        "git {push,}",
        "git p{u,}sh",
        "git pu?h",
        "git ${X}",
        "git $X origin",
        "$X git push",
        'f() { git "$@"; }; f push',
        "set -- push; git $1",
        "for x in push; do git $x; done",
        "echo push | xargs git",
        "xargs git <<< push",
        "find . -name push -exec git {} ';'",
        "env git $X",
        "sudo git $X",
        "timeout 5 git $X",
        'eval "git $X"',
        "sh -c 'git $0' push",
        "bash -c 'git \"$1\"' _ push",
        "trap 'git $X' EXIT",
        "/opt/git/bin/git $X",
        "git $X <<EOF\nEOF",
        "git >&2 $X",
        "git -C $DIR $X",
        'git -c "$SETTING" log',
        "hash -p /usr/bin/git g; g push",
        "alias g=git\ng push",
    ],
)
def test_a_word_that_may_be_the_forbidden_one_is_asked_about(script: str) -> None:
    requirement = decided(script, rules=NO_PUSH)

    assert (requirement.kind, requirement.source, requirement.reason) == ("ask", "heuristic", UNREADABLE)
    assert requirement.amendment is None
    assert decided(script, NEVER, NO_PUSH).kind == "forbidden"


@pytest.mark.parametrize(
    "script",
    [
        "git pu''sh",
        'git "push" $X',
        "git $'push'",
        "git -C . push",
        "git -C $DIR push",
        "git --no-pager push",
        "git -c a=b push",
        "git --git-dir=/x/.git --work-tree /x push",
        "git -c alias.z=push z",
        "git -c alias.z='!git push' z",
        "git submodule foreach 'git push'",
        "git rebase -x 'git push' main",
        "git bisect run git push",
        "uv run git push",
    ],
)
def test_a_forbidden_subcommand_is_found_behind_options_and_aliases(script: str) -> None:
    assert decided(script, rules=NO_PUSH).kind == "forbidden"


@pytest.mark.parametrize(
    "script",
    [
        'git commit -m "$MESSAGE"',
        "git log $BRANCH",
        "git add *",
        "git -C $DIR status",
        'echo "$X"',
        "ls $X | xargs cat",
        "npm install $X",
    ],
)
def test_a_word_that_is_not_known_behind_the_prefix_of_a_rule_is_no_question(script: str) -> None:
    assert decided(script, rules=NO_PUSH).kind == "skip"


def test_a_rule_that_asks_is_as_strict_on_unknown_words_and_one_that_allows_is_not() -> None:
    prompting = RuleSet((PrefixRule((("git",), ("push",)), "prompt"),))
    allowing = RuleSet((PrefixRule((("git",), ("push",)), "allow"),))

    assert decided("git $X", rules=prompting).kind == "ask"
    assert decided("git $X", rules=allowing).kind == "skip"
    assert decided("git $X", UNLESS_TRUSTED, rules=allowing).kind == "ask"


# -- more ways to run a program


@pytest.mark.parametrize(
    "script",
    [
        "test -v 'a[$(rm x)]'",
        "[[ 'a[$(rm x)]' -eq 0 ]]",
        "let 'a[$(rm x)]'",
        "unset 'a[`rm x`]'",
        "mapfile -C 'rm x' -c 1 y",
        "compgen -C 'rm x'",
        "- rm x",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
        "tcsh -c 'rm x'",
        "tmux new-session -d 'rm x'",
        "screen -dm rm x",
        "echo 'rm x' | at now",
        "valgrind --leak-check=full rm x",
        "perf stat -r 3 rm x",
        "ssh -o ProxyCommand='rm x' h",
        "tar --checkpoint-action=exec='rm x' -cf a b",
        "capsh -- -c 'rm x'",
        "linux64 rm x",
        "script -q /dev/null rm x",
        "start-stop-daemon --start --exec /bin/rm -- x",
        "poetry run rm x",
        "alias z='rm x'\nz",
        "hash -p /bin/rm ls; ls x",
        "git difftool -x 'rm x'",
        "git filter-branch --tree-filter 'rm x'",
    ],
)
def test_a_forbidden_program_is_found_in_what_other_programs_run(script: str) -> None:
    assert decided(script, rules=NO_RM).kind == "forbidden"


@pytest.mark.parametrize("script", ["pwsh -c 'rm x'", "nu -c 'rm x'", "cmd.exe /c del", "crontab x"])
def test_what_a_shell_runs_that_nothing_here_can_read_is_asked_about(script: str) -> None:
    assert decided(script, rules=NO_RM).reason == UNREADABLE
    assert decided(script).kind == "skip"

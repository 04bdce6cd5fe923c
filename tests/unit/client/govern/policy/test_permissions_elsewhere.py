"""What is allowed in the turn's folder and in the account's shell is not allowed for others of that name."""

from __future__ import annotations

import pytest

from execclient.govern.approval_policy import UNLESS_TRUSTED, UNTRUSTED, ApprovalPolicy
from execclient.govern.policy.decision import decide
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.proposals import is_banned
from execclient.govern.policy.rules import NO_RULES, PrefixRule, RuleSet
from execclient.govern.policy.safe import CO_SAFE_COMMANDS
from execclient.govern.sandbox import WorkspaceWrite


def allows(*words: str) -> RuleSet:
    return RuleSet((PrefixRule(tuple((word,) for word in words), "allow"),))


def kind(
    *argv: str,
    approval: ApprovalPolicy = UNLESS_TRUSTED,
    rules: RuleSet = NO_RULES,
    cwd: str = "/w",
    user_shell: str | None = "/opt/homebrew/bin/zsh",
    co_commands: tuple[str, ...] | None = None,
    parity: bool = False,
) -> str:
    return decide(
        argv,
        policy=Policy(rules, parity=parity),
        approval=approval,
        sandbox=WorkspaceWrite(),
        cwd=cwd,
        turn_cwd="/w",
        user_shell=user_shell,
        co_commands=co_commands,
        explicit_repositories=True,
    ).kind


SHELLS = ["/bin/bash", "/usr/bin/sh", "bash", "/opt/homebrew/bin/zsh"]
IMPOSTORS = ["/w/bash", "./bash", "/tmp/x/sh", "/usr/local/bin/zsh", "bash.exe", "/bin/../w/bash"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_taken_apart_for_a_known_shell(shell: str) -> None:
    assert kind(shell, "-lc", "ls") == "skip"
    assert kind(shell, "-lc", "ls", co_commands=CO_SAFE_COMMANDS) == "skip"
    assert kind(shell, "-lc", "make", rules=allows("make")) == "skip"


@pytest.mark.parametrize("shell", IMPOSTORS)
def test_a_program_that_only_calls_itself_a_shell_is_judged_by_itself(shell: str) -> None:
    assert kind(shell, "-lc", "ls") == "ask"
    assert kind(shell, "-lc", "ls", co_commands=CO_SAFE_COMMANDS) == "ask"
    assert kind(shell, "-lc", "make", rules=allows("make")) == "ask"
    forbidden = RuleSet((PrefixRule((("rm",),), "forbidden"),))
    assert kind(shell, "-lc", "rm x", rules=forbidden) == "forbidden"


def test_git_is_trusted_in_the_turn_s_folder_and_nowhere_else() -> None:
    script = ("/bin/bash", "-lc", "git log")

    assert kind(*script) == "skip"
    assert kind(*script, cwd="/w/vendored") == "ask"
    assert kind(*script, cwd="/w/vendored", co_commands=CO_SAFE_COMMANDS) == "ask"
    assert kind("/bin/bash", "-lc", "cd vendored && git log") == "ask"
    assert kind("/bin/bash", "-lc", "pushd vendored && git log", rules=allows("pushd")) == "ask"
    assert kind("/bin/bash", "-lc", "ls", cwd="/w/vendored") == "skip"


@pytest.mark.parametrize("move", ["cd /tmp/x", "pushd /tmp/x", "cd sub"])
@pytest.mark.parametrize("git", ["git", "/usr/bin/git"])
def test_a_rule_that_allows_git_is_about_the_turn_s_folder(move: str, git: str) -> None:
    rules = RuleSet((*allows(git, "status").prefix_rules, *allows(move.split()[0]).prefix_rules))

    assert kind("/bin/bash", "-lc", f"{git} status", rules=rules) == "skip"
    assert kind("/bin/bash", "-lc", f"{move} && {git} status", rules=rules) == "ask"
    assert kind("/bin/bash", "-lc", f"{move} && {git} status", rules=rules, parity=True) == "skip"
    assert kind(git, "status", rules=rules, cwd="/tmp/x") == "ask"


def test_a_rule_on_a_relative_program_is_about_the_one_in_the_turn_s_folder() -> None:
    rules = RuleSet((*allows("./build.sh").prefix_rules, *allows("cd").prefix_rules))

    assert kind("./build.sh", rules=rules, approval=UNTRUSTED) == "skip"
    assert kind("./build.sh", rules=rules, approval=UNTRUSTED, cwd="/tmp/x") == "ask"
    script = ("/bin/bash", "-lc", "cd /tmp/x && ./build.sh")
    assert kind(*script, rules=rules, approval=UNTRUSTED) == "ask"
    assert kind(*script, rules=rules, approval=UNTRUSTED, parity=True) == "skip"


def test_a_rule_on_a_whole_script_is_not_about_other_arguments_of_it() -> None:
    script = ("/bin/bash", "-lc", 'echo; "$@"')
    rules = allows(*script)

    assert kind(*script, rules=rules, approval=UNTRUSTED) == "skip"
    assert kind(*script, "_", "rm", "x", rules=rules, approval=UNTRUSTED) == "ask"


@pytest.mark.parametrize(
    "prefix",
    [
        "sudo -n",
        "nice -n 5",
        "timeout 10",
        "find . -exec",
        "bash -l -c",
        "python3 -u",
        "uv run",
        "rm -r",
        "git -c",
    ],
)
def test_a_prefix_that_leaves_open_what_is_run_is_banned(prefix: str) -> None:
    assert is_banned(prefix.split())


@pytest.mark.parametrize(
    "prefix", ["uv run pytest", "timeout 10 make", "git log", "python3 x.py", "rm -rf okdir"]
)
def test_a_prefix_that_says_what_is_run_is_not(prefix: str) -> None:
    assert not is_banned(prefix.split())

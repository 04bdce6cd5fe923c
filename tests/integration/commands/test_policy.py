from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.commands.conftest import EXECSERVER

Check = Callable[..., subprocess.CompletedProcess[str]]

RULES = """\
prefix_rule(["git", ["status", "diff"]])
prefix_rule(["git", "push"], "prompt", justification="leaves this machine")

prefix_rule(["cat"], "forbidden")
host_executable("git", ["/usr/bin/git"])
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with rules."""
    folder = tmp_path / "home"
    (folder / "rules").mkdir(parents=True)
    (folder / "rules" / "team.rules").write_text(RULES)
    return folder


@pytest.fixture
def check(tmp_path: Path, home: Path) -> Check:
    """Runs `execserver policy check` with that home as the default one; no daemon is needed."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
        return subprocess.run(
            [*EXECSERVER, "policy", "check", *arguments],
            env={**kept, "EXECSERVER_POLICY_HOME": str(home), "COLUMNS": "200", **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    return run


def test_a_command_that_a_rule_allows_may_run(check: Check, home: Path) -> None:
    done = check("git", "status", "--short")

    assert (done.returncode, done.stderr) == (0, "")
    assert "decision: run\nsource:   prefix_rule\n" in done.stdout
    assert f"allow      git status  {home}/rules/team.rules:1\n" in done.stdout


def test_the_strictest_rule_of_a_script_decides_and_says_why(check: Check, home: Path) -> None:
    done = check("--", "bash", "-lc", "git status && git push origin")

    assert done.returncode == 10
    assert "decision: ask\n" in done.stdout
    assert f"prompt     git push  {home}/rules/team.rules:2  leaves this machine\n" in done.stdout
    assert "commands:\n  git status\n  git push origin\n" in done.stdout


def test_a_rule_that_forbids_sees_into_substitutions_but_not_for_parity(check: Check) -> None:
    script = ("--", "bash", "-lc", "echo $(cat secret)")

    forbidden = check(*script)
    parity = check("--parity", *script)

    assert forbidden.returncode == 20
    assert "policy forbids commands starting with `cat`" in forbidden.stdout
    assert "checked against rules that ask or forbid:\n  echo\n  cat secret\n" in forbidden.stdout
    assert parity.returncode == 0
    assert "not checked:\n  echo\n  cat secret\n" in parity.stdout


def test_scripts_get_what_the_reference_prints_and_more(check: Check, home: Path) -> None:
    done = check("--json", "--", "/usr/bin/git", "push")

    assert done.returncode == 10
    answer = json.loads(done.stdout)
    match = {
        "matchedPrefix": ["git", "push"],
        "decision": "prompt",
        "resolvedProgram": "/usr/bin/git",
        "justification": "leaves this machine",
    }
    assert answer["matchedRules"] == [{"prefixRuleMatch": match}]
    assert answer["decision"] == "prompt"
    assert answer["files"] == [f"{home}/rules/team.rules"]
    assert answer["lowering"]["commands"] == [["/usr/bin/git", "push"]]
    assert answer["requirement"]["kind"] == "ask"
    assert answer["requirement"]["source"] == "host_executable"
    assert answer["requirement"]["matchedRules"][0]["source"] == f"{home}/rules/team.rules:2"


def test_without_a_match_there_is_no_decision_but_a_requirement(check: Check) -> None:
    done = check("--json", "--approval", "untrusted", "--", "npm", "install")

    answer = json.loads(done.stdout)
    assert done.returncode == 10
    assert answer["matchedRules"] == []
    assert "decision" not in answer
    assert answer["requirement"]["amendment"] == ["npm", "install"]


def test_a_path_is_looked_for_where_the_command_would_run(check: Check) -> None:
    there = check("--cwd", "/usr/bin", "--json", "--", "./git", "status")
    elsewhere = check("--cwd", "/opt", "--json", "--", "./git", "status")
    unresolved = check(
        "--cwd", "/usr/bin", "--no-resolve-host-executables", "--json", "--", "./git", "status"
    )

    assert json.loads(there.stdout)["decision"] == "allow"
    assert json.loads(elsewhere.stdout)["matchedRules"] == []
    assert json.loads(unresolved.stdout)["matchedRules"] == []


def test_the_revision_changes_with_the_rules_and_not_with_the_command(check: Check, home: Path) -> None:
    first = json.loads(check("--json", "--", "ls").stdout)["revision"]
    second = json.loads(check("--json", "--", "git", "push").stdout)["revision"]
    (home / "rules" / "z.rules").write_text('prefix_rule(["ls"])')
    third = json.loads(check("--json", "--", "ls").stdout)["revision"]

    assert first == second != third


def test_files_that_are_named_replace_those_of_the_home(check: Check, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text('# policy version: 0\nprefix_rule(["git"], "forbidden")')

    done = check("--rules", "mine", "--", "git", "status")

    assert done.returncode == 20
    assert (
        done.stderr == "execserver: warning: mine:1: policy version 0 is older than 1, by which it is read\n"
    )


def test_a_broken_file_is_named_with_its_line_and_nothing_is_said_of_the_command(
    check: Check, home: Path
) -> None:
    (home / "rules" / "broken.rules").write_text("\nprefix_rule([])\n")

    done = check("git", "status")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"execserver: {home}/rules/broken.rules:2: invalid pattern element: pattern cannot be empty\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--approval", "sometimes", "--", "ls"], "'sometimes'"),
        (["--approval", "{", "--", "ls"], "--approval:"),
        (["--home", "/nonexistent", "--", "ls"], "--home: /nonexistent is not a directory"),
        (["--home", "/tmp", "--rules", "x", "--", "ls"], "--rules and --home exclude each other"),
        ([], "no command is given"),
    ],
)
def test_what_is_no_question_is_a_usage_error(check: Check, arguments: list[str], message: str) -> None:
    done = check(*arguments)

    assert done.returncode == 2
    assert message in done.stderr


def test_a_user_without_rules_is_told_so(check: Check, tmp_path: Path) -> None:
    done = check("ls", EXECSERVER_POLICY_HOME="", XDG_CONFIG_HOME=str(tmp_path / "none"))

    assert done.returncode == 0
    assert "rules:\n  no rule matches\n" in done.stdout
    assert done.stdout.endswith("files:\n  none\n")


def test_nothing_that_a_terminal_would_obey_is_printed(check: Check) -> None:
    done = check("printf", "\x1b[2J\n")

    assert "\x1b" not in done.stdout
    assert r"printf '\x1b[2J\n'" in done.stdout


@pytest.fixture
def removed(tmp_path: Path) -> Path:
    """A folder for a shell to remove while it is in it."""
    folder = tmp_path / "removed"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ("policy check -- git status", 125, "was removed: change to another one, or give an absolute --cwd"),
        ("policy check --cwd x -- git status", 125, "or give an absolute --cwd"),
        ("policy check --json -- git status", 125, "was removed"),
        ("policy check --cwd / -- git status", 0, "decision: run"),
        ("cp --url unix:///no/such :/etc/hosts x", 69, "no server is listening"),
        ("ps --url unix:///no/such", 69, "one that ends with the client: --url stdio:)"),
        ("patch --url unix:///no/such x", 2, "x: No such file"),
        ("config show", 0, "log_level"),
        ("run --url stdio: -- pwd", 0, "/"),
    ],
)
def test_a_command_in_a_removed_folder_works_or_says_so(
    removed: Path, home: Path, arguments: str, status: int, told: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    done = subprocess.run(
        ["sh", "-c", f'rmdir "$PWD" && exec "$@" {arguments}', "sh", *EXECSERVER],
        env={**kept, "EXECSERVER_POLICY_HOME": str(home)},
        cwd=removed,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert done.returncode == status
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr

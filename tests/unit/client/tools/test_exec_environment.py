from __future__ import annotations

from collections.abc import Mapping

import pytest

from execclient.environment_policy import EnvironmentPolicy
from execclient.tools.environment import (
    CO_ENVIRONMENT,
    CO_FORCED,
    EXEC_ENVIRONMENT,
    call_variables,
    co_environment,
    exec_environment,
    explicit_repositories,
    sandbox_markers,
    without_secrets,
)
from execprotocol.model import decode
from execprotocol.process import EnvPolicy
from execserver.processes.child_environment import child_environment

GIT = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}


def child(policy: EnvironmentPolicy, overlay: Mapping[str, str], daemon: Mapping[str, str]) -> dict[str, str]:
    """What the daemon makes of it."""
    return child_environment(daemon, decode(EnvPolicy, policy.wire()), overlay)


def test_programs_are_told_to_write_plainly_in_ten_variables() -> None:
    assert child(EnvironmentPolicy("none"), exec_environment(), {"X": "y"}) == {
        "NO_COLOR": "1",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "LC_CTYPE": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "COLORTERM": "",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GH_PAGER": "cat",
        "CODEX_CI": "1",
        **GIT,
    }


def test_what_is_set_nearer_to_the_call_wins() -> None:
    names = ("LANG", "A", "B", "C", "D")
    policy = EnvironmentPolicy(set=dict.fromkeys((*names, "E"), "policy"))

    overlay = exec_environment(
        call=dict.fromkeys(("A", "B", "C"), "call"),
        dependencies=dict.fromkeys(("B", "C"), "dependency"),
        explicit=dict.fromkeys(("C", "PAGER"), "explicit"),
    )

    made = child(policy, overlay, dict.fromkeys((*names, "E", "F"), "daemon"))
    assert {name: made[name] for name in (*names, "E", "F", "PAGER")} == {
        "LANG": "C.UTF-8",
        "A": "call",
        "B": "dependency",
        "C": "explicit",
        "D": "policy",
        "E": "policy",
        "F": "daemon",
        "PAGER": "explicit",
    }


@pytest.mark.parametrize("where", ["explicit", "dependencies", "policy"])
def test_the_setting_for_git_comes_behind_those_that_there_are(where: str) -> None:
    own = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "x"}
    policy = EnvironmentPolicy("none", set=own if where == "policy" else {})
    layers = {} if where == "policy" else {where: own}

    made = child(policy, exec_environment(policy=policy, **layers), {})

    assert {name: made[name] for name in made if name.startswith("GIT_CONFIG")} == {
        **own,
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_1": "safe.bareRepository",
        "GIT_CONFIG_VALUE_1": "explicit",
    }
    assert explicit_repositories(made)


@pytest.mark.parametrize(
    "explicit",
    [
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "SAFE.barerepository", "GIT_CONFIG_VALUE_0": "all"},
        {"GIT_CONFIG_COUNT": "many"},
        {"GIT_CONFIG_COUNT": "-1"},
        {"GIT_CONFIG_PARAMETERS": "'safe.bareRepository'='all'"},
        {"GIT_DIR": "."},
    ],
)
def test_what_a_host_tells_git_is_not_changed_and_not_trusted(explicit: dict[str, str]) -> None:
    made = exec_environment(explicit=explicit)

    assert {name: made[name] for name in explicit} == explicit
    assert not explicit_repositories(made)


def test_a_call_is_named_by_what_is_known_of_it() -> None:
    assert call_variables(thread_id="t", call_id="c") == {
        "CODEX_THREAD_ID": "t",
        "CODEX_TOOL_CALL_ID": "c",
    }
    assert call_variables(session_id="s") == {"CODEX_SESSION_ID": "s"}


@pytest.mark.parametrize(
    ("explicit", "message"),
    [
        ({"A=B": "x"}, "'A=B': a name is not empty"),
        ({"": "x"}, "'': a name"),
        ({"A\0": "x"}, "a name"),
        ({"A": "x\0y"}, "A: its value has a NUL"),
    ],
)
def test_a_variable_that_cannot_be_is_refused_by_its_name(explicit: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exec_environment(explicit=explicit)


def test_nothing_that_is_merged_changes_what_it_was_made_of() -> None:
    before = dict(EXEC_ENVIRONMENT)

    exec_environment(explicit={"TERM": "xterm"})["PAGER"] = "less"

    assert dict(EXEC_ENVIRONMENT) == before


# -- markers


def test_a_command_without_network_is_told_so() -> None:
    assert sandbox_markers("linuxSeccomp", network_allowed=False) == {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}
    assert sandbox_markers("none", network_allowed=False) == {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}


def test_a_command_with_network_is_told_nothing_of_it() -> None:
    assert sandbox_markers("linuxSeccomp", network_allowed=True) == {}


def test_the_network_marker_may_have_another_name_or_none() -> None:
    assert sandbox_markers("none", network_allowed=False, network_marker="OFFLINE") == {"OFFLINE": "1"}
    assert sandbox_markers("none", network_allowed=False, network_marker="") == {}


def test_on_a_mac_the_sandbox_itself_is_told() -> None:
    assert sandbox_markers("macosSeatbelt", network_allowed=False) == {
        "CODEX_SANDBOX": "seatbelt",
        "CODEX_SANDBOX_NETWORK_DISABLED": "1",
    }


# -- secrets


SECRETS = (
    "API_KEY",
    "aws_secret_access_key",
    "GITHUB_TOKEN",
    "DB_PASSWORD",
    "PGPASSWORD",
    "MYSQL_PWD",
    "SSH_KEY_PASSPHRASE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GH_PAT",
)
HARMLESS = ("PATH", "HOME", "PWD", "OLDPWD", "SSH_AUTH_SOCK", "PYTHONPATH", "PATTERN", "XAUTHORITY")


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_named_like_a_secret_does_not_reach_a_command(name: str) -> None:
    assert name not in child(without_secrets(EnvironmentPolicy()), {}, {name: "x"})
    assert name in child(EnvironmentPolicy(), {}, {name: "x"})


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_not_stays(name: str) -> None:
    assert name in child(without_secrets(EnvironmentPolicy()), {}, {name: "x"})


def test_secrets_that_are_set_on_purpose_are_given() -> None:
    policy = without_secrets(EnvironmentPolicy(set={"API_KEY": "a"}))

    made = child(policy, exec_environment(explicit={"GITHUB_TOKEN": "b"}), {"DB_PASSWORD": "c"})

    assert (made["API_KEY"], made["GITHUB_TOKEN"]) == ("a", "b")
    assert "DB_PASSWORD" not in made


def test_the_rest_of_a_policy_is_kept_and_keeping_secrets_twice_changes_nothing() -> None:
    policy = EnvironmentPolicy("core", exclude=("X*",), set={"A": "b"}, include_only=("H*", "A"))

    once = without_secrets(policy)

    assert once.exclude[0] == "X*"
    assert (once.inherit, once.set, once.include_only) == ("core", {"A": "b"}, ("H*", "A"))
    assert without_secrets(once) == once


# -- the profile co


HIJACKS = (
    *(
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "DYLD_INSERT_LIBRARIES",
        "MANPAGER",
        "EDITOR",
        "VISUAL",
        "BASH_ENV",
        "ENV",
    ),
    *("PYTHONSTARTUP", "PYTHONPATH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_EDITOR", "NODE_OPTIONS"),
    *("PERL5OPT", "RUBYOPT", "LESSOPEN", "PROMPT_COMMAND", "IFS"),
)

CO_ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("LANG", "LC_ALL"),
)


def test_co_lets_ten_variables_through_and_forces_three() -> None:
    daemon = dict.fromkeys([*CO_ALLOWED, *(f"OTHER_{number}" for number in range(100))], "daemon")

    made = child(CO_ENVIRONMENT, co_environment(), daemon)

    assert made == {
        **dict.fromkeys(CO_ALLOWED, "daemon"),
        "PYTHONUNBUFFERED": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        **GIT,
    }


@pytest.mark.parametrize("name", HIJACKS)
def test_co_keeps_back_what_makes_a_program_run_another_one(name: str) -> None:
    assert name not in child(CO_ENVIRONMENT, co_environment(), {name: "/tmp/evil", "HOME": "/"})


def test_co_forces_its_pager_over_everything() -> None:
    evil = dict.fromkeys(CO_FORCED, "/tmp/evil")

    made = child(CO_ENVIRONMENT, co_environment(dependencies=evil, explicit={**evil, "A": "b"}), evil)

    assert made == {**CO_FORCED, **GIT, "A": "b"}

"""What a toolset is set to, and where a host reads that from."""

from __future__ import annotations

import pytest

from execclient.environment_policy import EnvironmentPolicy
from execclient.govern.approval_policy import NEVER, UNTRUSTED
from execclient.govern.sandbox import DangerFullAccess, ReadOnly
from execclient.tools.config import HostSettings, ToolsConfig


def test_file_variables_and_flags_are_one_model_and_win_in_this_order() -> None:
    file = {"sandbox": {"type": "read-only"}, "approval": "never", "shell_max_timeout": 10}
    environ = {"EXECCLIENT_APPROVAL": "untrusted", "CO_CLI_SHELL_MAX_TIMEOUT": "20", "OTHER": "x"}

    only_file = HostSettings.load(file=file)
    both = HostSettings.load(file=file, environ=environ)
    all_three = HostSettings.load(
        file=file, environ=environ, flags={"shell_max_timeout": 30, "approval": None}
    )

    assert (only_file.sandbox, only_file.approval, only_file.shell_max_timeout) == (ReadOnly(), NEVER, 10)
    assert (both.sandbox, both.approval, both.shell_max_timeout) == (ReadOnly(), UNTRUSTED, 20)
    assert (all_three.approval, all_three.shell_max_timeout) == (UNTRUSTED, 30)


def test_commands_in_a_variable_are_separated_by_commas() -> None:
    settings = HostSettings.load(environ={"CO_CLI_SHELL_SAFE_COMMANDS": "ls, git status ,,cat"})

    assert settings.shell_safe_commands == ("ls", "git status", "cat")
    assert settings.configure(ToolsConfig()).shell_safe_commands == ("ls", "git status", "cat")


def test_what_is_not_set_leaves_a_configuration_as_it_is() -> None:
    config = ToolsConfig(shell_max_timeout=5)

    assert HostSettings.load().configure(config) == config
    assert HostSettings.load(flags={"filter_secrets": False}).configure(config).filter_secrets is False


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CO_CLI_SHELL_MAX_TIMEOUT": "soon"}, r"shell_max_timeout \(environment\)"),
        ({"CO_CLI_SHELL_MAX_TIMEOUT": "0"}, r"shell_max_timeout \(environment\)"),
        ({"CO_CLI_SHELL_MAX_TIMEOUT": "inf"}, r"shell_max_timeout \(environment\)"),
        ({"CO_CLI_SHELL_SAFE_COMMANDS": " , "}, r"shell_safe_commands \(environment\): it has no command"),
        ({"EXECCLIENT_APPROVAL": "perhaps"}, r"approval \(environment\): .*'perhaps'"),
        ({"EXECCLIENT_SANDBOX": "sieve"}, r"sandbox \(environment\): .*sieve"),
        ({"EXECCLIENT_ENVIRONMENT": "some"}, r"environment \(environment\): inherit: 'some' is none of all"),
        ({"EXECCLIENT_FILTER_SECRETS": "maybe"}, r"filter_secrets \(environment\): 'maybe'"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_key(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HostSettings.load(environ=environ)


def test_an_unknown_key_of_a_file_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"sandboks \(file\): unknown; known are approval"):
        HostSettings.load(file={"sandboks": "read-only"})


def test_an_environment_is_given_by_a_word_or_by_its_members() -> None:
    members = {"inherit": "none", "exclude": ["A*"], "set": {"B": "1"}, "default_excludes": True}

    word = HostSettings.load(environ={"EXECCLIENT_ENVIRONMENT": "core"}).environment
    whole = HostSettings.load(file={"environment": members}).environment

    assert word == EnvironmentPolicy("core")
    assert whole == EnvironmentPolicy("none", default_excludes=True, exclude=("A*",), set={"B": "1"})
    assert HostSettings(environment=word).configure(ToolsConfig()).environment == word


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"exclude": "A*"}, "exclude: a list"),
        ({"set": {"A": 1}}, "set: an object of strings"),
        ({"default_excludes": 1}, "default_excludes: 1 is neither"),
        ({"inherits": "all"}, "inherits: unknown; there are"),
    ],
)
def test_a_member_of_an_environment_that_cannot_be_is_named(members: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"environment \(file\): {message}"):
        HostSettings.load(file={"environment": members})


def test_a_sandbox_may_be_given_by_its_name_alone() -> None:
    assert HostSettings.load(flags={"sandbox": "danger-full-access"}).sandbox == DangerFullAccess()


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"shell_command_backend": "shell-escalation"}, "shell_command_backend"),
        ({"profile": "other"}, "profile"),
        ({"shell_max_timeout": 0}, "shell_max_timeout"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
    ],
)
def test_a_configuration_that_cannot_be_is_an_error_that_names_the_field(
    members: dict[str, object], field: str
) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        ToolsConfig(**members)  # type: ignore[arg-type]

"""The environment variables of commands, in order of priority:

    policy  <  this module's  <  the call's ids  <  dependencies  <  explicit  <  sandbox markers

The daemon applies the policy (`docs/protocol.md`, "Environment policy"): its variables are unknown here. The
others are the `env` of the start, which overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from execclient.environment_policy import EnvironmentPolicy
from execclient.govern.policy.git import EXPLICIT_REPOSITORIES
from execclient.govern.sandbox import SandboxType

EXEC_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
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
    }
)
"""Make programs write without colors and pagers, and ask no questions."""

NETWORK_MARKER = "CODEX_SANDBOX_NETWORK_DISABLED"
"""If it is set, test suites skip tests that need a network."""

SANDBOX_MARKER = "CODEX_SANDBOX"

SECRET_PATTERNS = (
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*CREDENTIAL*",
    "*_PWD",  # DB_PWD, and neither PWD nor OLDPWD
    "*_PAT",  # personal access tokens
)
"""Names of secrets, besides those with KEY, SECRET or TOKEN, which the daemon removes by itself."""

CO_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TERM",
    "SHELL",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
)

CO_ENVIRONMENT: Final = EnvironmentPolicy(include_only=CO_VARIABLES)
"""The inherited variables of the profile `co`: those that cannot make a program run another one. Others, such
as LD_PRELOAD, BASH_ENV, EDITOR or GIT_SSH_COMMAND, are not inherited."""

CO_FORCED: Final[Mapping[str, str]] = MappingProxyType(
    {"PYTHONUNBUFFERED": "1", "PAGER": "cat", "GIT_PAGER": "cat"}
)
"""Override all other variables in the profile `co`: no pager waits, and the output of a Python program is not
lost when its time limit is reached."""


def exec_environment(
    *,
    call: Mapping[str, str] | None = None,
    dependencies: Mapping[str, str] | None = None,
    explicit: Mapping[str, str] | None = None,
    policy: EnvironmentPolicy | None = None,
) -> dict[str, str]:
    """The variables that override those of a policy.

    Args:
        call: the result of `call_variables`.
        dependencies: variables of the session's dependencies, such as the PATH of a virtual environment.
        explicit: variables of this call, or of the host.
        policy: the policy, whose settings for git are kept.

    Raises:
        ValueError: a name or a value is not possible for a variable.
    """
    return _with_git_setting(_merged(EXEC_ENVIRONMENT, call, dependencies, explicit), policy)


def co_environment(
    *, dependencies: Mapping[str, str] | None = None, explicit: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for the profile `co`, in which `CO_FORCED` overrides all others.

    Raises:
        ValueError: see `exec_environment`.
    """
    return _with_git_setting(_merged(dependencies, explicit, CO_FORCED), None)


def explicit_repositories(variables: Mapping[str, str]) -> bool:
    """Whether the variables set git's `safe.bareRepository=explicit`."""
    name, wanted = EXPLICIT_REPOSITORIES
    values = [
        variables.get(f"GIT_CONFIG_VALUE_{number}")
        for number in range(_git_settings(variables) or 0)
        if variables.get(f"GIT_CONFIG_KEY_{number}", "").lower() == name.lower()
    ]
    return values[-1:] == [wanted] and not {"GIT_CONFIG_PARAMETERS", "GIT_DIR"} & set(variables)


def call_variables(
    *, thread_id: str | None = None, session_id: str | None = None, call_id: str | None = None
) -> dict[str, str]:
    """The variables with the ids of the conversation and the call, without those that are None."""
    variables = {
        "CODEX_THREAD_ID": thread_id,
        "CODEX_SESSION_ID": session_id,
        "CODEX_TOOL_CALL_ID": call_id,
    }
    return {name: value for name, value in variables.items() if value is not None}


def sandbox_markers(
    sandbox: SandboxType, *, network_allowed: bool, network_marker: str = NETWORK_MARKER
) -> dict[str, str]:
    """The variables that tell a command about its sandbox.

    On Linux, a sandbox as such has no variable; only a missing network has.

    Args:
        sandbox: the mechanism that confines the command.
        network_allowed: whether its policy allows the network.
        network_marker: the name of the variable for a missing network; empty for none.
    """
    markers = {SANDBOX_MARKER: "seatbelt"} if sandbox == "macosSeatbelt" else {}
    if network_marker and not network_allowed:
        markers[network_marker] = "1"
    return markers


def without_secrets(policy: EnvironmentPolicy) -> EnvironmentPolicy:
    """The policy without inherited variables that are named like secrets. Variables that it sets are kept."""
    exclude = (*policy.exclude, *(each for each in SECRET_PATTERNS if each not in policy.exclude))
    return replace(policy, default_excludes=True, exclude=exclude)


def _with_git_setting(variables: dict[str, str], policy: EnvironmentPolicy | None) -> dict[str, str]:
    """The variables with `safe.bareRepository=explicit` added to git's settings."""
    settings = {**(policy.set if policy is not None else {}), **variables}
    count = _git_settings(settings)
    name, value = EXPLICIT_REPOSITORIES
    given = (settings.get(f"GIT_CONFIG_KEY_{number}", "").lower() for number in range(count or 0))
    if count is None or name.lower() in given:
        return variables
    return {
        **variables,
        "GIT_CONFIG_COUNT": str(count + 1),
        f"GIT_CONFIG_KEY_{count}": name,
        f"GIT_CONFIG_VALUE_{count}": value,
    }


def _git_settings(variables: Mapping[str, str]) -> int | None:
    """The number of git's settings in the variables; None if git would refuse it."""
    text = variables.get("GIT_CONFIG_COUNT") or "0"
    return int(text) if text.isdecimal() and len(text) < _LONGEST_COUNT else None


_LONGEST_COUNT = 5
"""Digits of the number of settings. No environment has more."""


def _merged(*layers: Mapping[str, str] | None) -> dict[str, str]:
    merged: dict[str, str] = {}
    for layer in layers:
        merged.update(layer or {})
    for name, value in merged.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(
                f"environment variable {name!r}: a name is not empty and has neither '=' nor NUL in it"
            )
        if "\0" in value:
            raise ValueError(f"environment variable {name}: its value has a NUL in it")
    return merged

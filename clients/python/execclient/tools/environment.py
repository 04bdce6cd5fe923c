"""The variables that tools give to commands, and those that they keep from them.

    policy  <  this page's own  <  the call's names  <  dependencies  <  explicit  <  sandbox markers

What stands further right wins. The policy is carried out by the daemon (`docs/protocol.md`, "Environment
policy"): its variables are never seen here. All the rest is the `env` that it lays over that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from execclient.environment_policy import EnvironmentPolicy
from execclient.govern.policy.safe_arguments import EXPLICIT_REPOSITORIES
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
"""What makes programs write for a reader that sees no colors, cannot turn pages and answers nothing."""

NETWORK_MARKER = "CODEX_SANDBOX_NETWORK_DISABLED"
"""Test suites skip what needs a network when it is set."""

SANDBOX_MARKER = "CODEX_SANDBOX"

SECRET_PATTERNS = (
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*CREDENTIAL*",
    "*_PWD",  # DB_PWD, and neither PWD nor OLDPWD
    "*_PAT",  # personal access tokens
)
"""Names that go besides those with KEY, SECRET or TOKEN in them, which the daemon knows itself."""

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
"""Of the profile `co`: what cannot make a program run another one. Whatever else the daemon has, such as
LD_PRELOAD, BASH_ENV, EDITOR or GIT_SSH_COMMAND, stays with it."""

CO_FORCED: Final[Mapping[str, str]] = MappingProxyType(
    {"PYTHONUNBUFFERED": "1", "PAGER": "cat", "GIT_PAGER": "cat"}
)
"""Of the profile `co`, whatever else is set: nothing waits at a page's end, and what a Python program has
printed is there when its time is up."""


def exec_environment(
    *,
    call: Mapping[str, str] | None = None,
    dependencies: Mapping[str, str] | None = None,
    explicit: Mapping[str, str] | None = None,
    policy: EnvironmentPolicy | None = None,
) -> dict[str, str]:
    """What is laid over the environment that a policy gives.

    Args:
        call: as `call_variables` has it.
        dependencies: of what the session was set up with, such as the PATH of a virtual environment.
        explicit: of this very call, or of a host that knows better.
        policy: which may have settings for git, too; they stay.

    Raises:
        ValueError: no system has a variable of such a name or value.
    """
    return _with_git_setting(_merged(EXEC_ENVIRONMENT, call, dependencies, explicit), policy)


def co_environment(
    *, dependencies: Mapping[str, str] | None = None, explicit: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The same for the profile `co`, where what is forced wins over all.

    Raises:
        ValueError: as `exec_environment`.
    """
    return _with_git_setting(_merged(dependencies, explicit, CO_FORCED), None)


def explicit_repositories(variables: Mapping[str, str]) -> bool:
    """Whether git takes no folder for a repository only because it looks like a bare one."""
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
    """The variables that tell a command who runs it, without those that are None."""
    variables = {
        "CODEX_THREAD_ID": thread_id,
        "CODEX_SESSION_ID": session_id,
        "CODEX_TOOL_CALL_ID": call_id,
    }
    return {name: value for name, value in variables.items() if value is not None}


def sandbox_markers(
    sandbox: SandboxType, *, network_allowed: bool, network_marker: str = NETWORK_MARKER
) -> dict[str, str]:
    """The variables that tell a command of its sandbox.

    On Linux a sandbox as such has none: only a missing network is told, whoever keeps it away.

    Args:
        sandbox: what confines the command.
        network_allowed: whether its policy lets it use the network.
        network_marker: the name to tell it by; an empty one for not at all.
    """
    markers = {SANDBOX_MARKER: "seatbelt"} if sandbox == "macosSeatbelt" else {}
    if network_marker and not network_allowed:
        markers[network_marker] = "1"
    return markers


def without_secrets(policy: EnvironmentPolicy) -> EnvironmentPolicy:
    """The policy, and variables go that are named like secrets. What it sets by itself stays."""
    exclude = (*policy.exclude, *(each for each in SECRET_PATTERNS if each not in policy.exclude))
    return replace(policy, default_excludes=True, exclude=exclude)


def _with_git_setting(variables: dict[str, str], policy: EnvironmentPolicy | None) -> dict[str, str]:
    """Variables, and behind git's settings in them the one that makes it safe to read with."""
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
    """How many there are; None if git would refuse the number."""
    text = variables.get("GIT_CONFIG_COUNT") or "0"
    return int(text) if text.isdecimal() and len(text) < _LONGEST_COUNT else None


_LONGEST_COUNT = 5
"""Digits of a number of settings. No environment holds more."""


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

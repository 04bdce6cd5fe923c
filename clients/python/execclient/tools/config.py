"""The configuration of a toolset, of one turn, and of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from execclient.environment_policy import EnvironmentPolicy, environment_policy
from execclient.govern.approval_policy import ApprovalPolicy, approval_policy
from execclient.govern.network import NetworkAccess
from execclient.govern.policy.safe import CO_SAFE_COMMANDS
from execclient.govern.sandbox import SandboxPolicy, sandbox_policy
from execclient.tools.environment import NETWORK_MARKER
from execclient.tools.truncation import DEFAULT_BUDGET, DEFAULT_MAX_OUTPUT_TOKENS, Budget

ShellBackend = Literal["direct"]
"""How `shell_command` runs its script. The reference also has `shell-escalation`, with a shell that asks for
each program; there is no such shell here, and the value is an error."""

ToolProfile = Literal["codex", "co"]
"""With `co`, commands in the list `shell_safe_commands` run, and all others need an approval."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The settings of one turn that differ from the toolset's; None for the toolset's."""

    id: str | None = None
    cwd: str | None = None
    """Absolute, at the executor."""
    workspace_roots: tuple[str, ...] | None = None
    """Absolute, at the executor: the folders that a sandbox may allow to write."""
    sandbox: SandboxPolicy | None = None
    approval: ApprovalPolicy | None = None
    environment: EnvironmentPolicy | None = None


@dataclass(frozen=True, slots=True)
class ToolsConfig:
    """The configuration of a toolset.

    Raises:
        ValueError: a value is out of range; the message names the field.
    """

    profile: ToolProfile = "codex"
    shell_type: Literal["default", "shell_command", "unified_exec", "disabled"] = "unified_exec"
    """The shell tools that a model is shown. The others work, too, when a model calls them, except with
    `disabled`."""
    shell_command_backend: ShellBackend = "direct"
    apply_patch: bool = False
    """Whether a model is shown `apply_patch`. The tool also works if it is not shown, as do calls inside a
    shell command, for models that know it."""
    file_tools: bool = False
    """Whether a model is shown, and can call, `read_file`, `list_dir`, `grep` and `glob`. They read what
    a command in the sandbox could read, without an approval."""
    request_rule: bool = False
    """Whether a model may propose rules (`prefix_rule`)."""
    retry_unasked: bool = False
    """Whether one approval covers the second attempt without the sandbox, too, as in the reference. A command
    that was approved once may then run twice."""
    filter_secrets: bool = True
    """Whether to remove variables that look like secrets from the environment of commands."""
    environment: EnvironmentPolicy = field(default_factory=EnvironmentPolicy)
    """The variables that commands inherit from the daemon."""
    dependency_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the session's dependencies, which override inherited ones."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that override all others."""
    network_marker: str = NETWORK_MARKER
    """The variable that tells a command that its sandbox has no network."""
    network: NetworkAccess | None = None
    """The hosts that commands in a sandbox may reach, in place of what the sandbox says about the network.
    None leaves it to the sandbox and to rules about hosts."""
    shell_safe_commands: tuple[str, ...] = CO_SAFE_COMMANDS
    """The commands that run without an approval in the profile `co`."""
    shell_max_timeout: float = 600.0
    """The longest time limit of `run_shell_command` in seconds, whatever a model asks for."""
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    """The default for calls without `max_output_tokens`."""
    model_budget: Budget = DEFAULT_BUDGET
    """The limit of one output, whatever a call asks for."""
    max_wait: float = 300.0
    """Seconds for which `exec_command` and `write_stdin` wait for output at most, whatever a model asks for.
    Some hosts give up on a call after 60 s."""
    shell_snapshot: bool = False
    """Whether the state that the account's profile leaves in a shell is restored instead of running the
    profile for each command (`SnapshotUnused` says where that cannot be). It pays with a slow profile:
    the first command of each folder waits until the profile has run twice."""
    clean_terminal: bool = False
    """Whether models get the text of a terminal without escape sequences, echo and prompt."""

    def __post_init__(self) -> None:
        if self.shell_command_backend != "direct":
            raise ValueError(
                f"shell_command_backend: {self.shell_command_backend!r} is not supported; it can be 'direct'"
            )
        if self.profile not in ("codex", "co"):
            raise ValueError(f"profile: {self.profile!r} is unknown; it can be 'codex' or 'co'")
        if self.shell_max_timeout <= 0:
            raise ValueError(
                f"shell_max_timeout: {self.shell_max_timeout} is not a number of seconds above 0"
            )
        if not self.max_wait > 0:
            raise ValueError(f"max_wait: {self.max_wait} is not a number of seconds above 0")
        if self.max_output_tokens < 0:
            raise ValueError(f"max_output_tokens: {self.max_output_tokens} is below 0")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of a host, from its configuration file, environment variables and flags."""

    sandbox: SandboxPolicy | None = None
    approval: ApprovalPolicy | None = None
    environment: EnvironmentPolicy | None = None
    shell_safe_commands: tuple[str, ...] | None = None
    shell_max_timeout: float | None = None
    filter_secrets: bool | None = None

    @classmethod
    def load(
        cls,
        *,
        file: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """Merge the three sources. Flags override variables, variables override the file.

        Args:
            file: a table of a TOML file, as tomllib returns it, with the names of the fields as keys.
            environ: environment variables: `EXECCLIENT_` and the name of a field in capitals, and
                `CO_CLI_SHELL_SAFE_COMMANDS` and `CO_CLI_SHELL_MAX_TIMEOUT`.
            flags: values by the names of the fields; None for a flag that was not given.

        Raises:
            ValueError: a key is unknown, or its value is not valid; the message names the key and its source.
        """
        known = {each.name for each in fields(cls)}
        merged: dict[str, Any] = {}
        for origin, values in (
            ("file", dict(file or {})),
            ("environment", _variables(environ or {}, known)),
            ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
        ):
            for name, value in values.items():
                if name not in known:
                    raise ValueError(f"{name} ({origin}): unknown; known are {', '.join(sorted(known))}")
                try:
                    merged[name] = _read(name, value)
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{name} ({origin}): {error}") from None
        return cls(**merged)

    def configure(self, config: ToolsConfig) -> ToolsConfig:
        """The configuration with these settings applied."""
        from dataclasses import replace

        names = ("environment", "shell_safe_commands", "shell_max_timeout", "filter_secrets")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(config, **given)


def _variables(environ: Mapping[str, str], known: set[str]) -> dict[str, str]:
    found = {}
    for name in known:
        for variable in (f"CO_CLI_{name.upper()}", f"EXECCLIENT_{name.upper()}"):
            if variable in environ:
                found[name] = environ[variable]
    return found


def _read(name: str, value: Any) -> Any:
    match name:
        case "sandbox":
            return sandbox_policy(value)
        case "approval":
            return approval_policy(value)
        case "environment":
            return environment_policy(value)
        case "shell_safe_commands":
            parts = value.split(",") if isinstance(value, str) else list(value)
            commands = tuple(part.strip() for part in parts if part.strip())
            if not commands:
                raise ValueError("it has no command; separate commands by commas")
            return commands
        case "shell_max_timeout":
            seconds = float(value)
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{value!r} is not a number of seconds above 0")
            return seconds
        case _:
            if isinstance(value, str):
                if value.lower() in ("true", "1", "yes"):
                    return True
                if value.lower() in ("false", "0", "no"):
                    return False
            elif isinstance(value, bool):
                return value
            raise ValueError(f"{value!r} is neither true nor false")

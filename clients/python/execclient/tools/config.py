"""What a toolset is set to, for all its turns; and what one turn has otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from execclient.environment_policy import EnvironmentPolicy, environment_policy
from execclient.govern.approval_policy import ApprovalPolicy, approval_policy
from execclient.govern.policy.safe import CO_SAFE_COMMANDS
from execclient.govern.sandbox import SandboxPolicy, sandbox_policy
from execclient.tools.environment import NETWORK_MARKER
from execclient.tools.truncation import DEFAULT_BUDGET, DEFAULT_MAX_OUTPUT_TOKENS, Budget

ShellBackend = Literal["direct"]
"""How `shell_command` runs its script. The reference has `shell-escalation` too, by a shell of its own that
asks for each program; there is no such shell here, and naming it is an error."""

ToolProfile = Literal["codex", "co"]
"""`co`: ordinary commands are known by the list `shell_safe_commands`, everything else is asked about."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn has otherwise than its toolset; None for what is the same."""

    id: str | None = None
    cwd: str | None = None
    """Absolute, at the executor."""
    workspace_roots: tuple[str, ...] | None = None
    """Absolute, at the executor: what a sandbox lets be written."""
    sandbox: SandboxPolicy | None = None
    approval: ApprovalPolicy | None = None
    environment: EnvironmentPolicy | None = None


@dataclass(frozen=True, slots=True)
class ToolsConfig:
    """What a toolset is set to.

    Raises:
        ValueError: a value is out of its range; the message names the field.
    """

    profile: ToolProfile = "codex"
    shell_type: Literal["default", "shell_command", "unified_exec", "disabled"] = "unified_exec"
    """Which tools a model is shown. The others work all the same when a model calls them, unless it is
    `disabled`: then there is none."""
    shell_command_backend: ShellBackend = "direct"
    apply_patch: bool = False
    """Whether a model is shown `apply_patch`. It works all the same when it is called, also in a shell's
    clothes, as the models that know it do."""
    request_rule: bool = False
    """Whether a model may propose rules (`prefix_rule`)."""
    retry_unasked: bool = False
    """Whether an approval covers the second attempt without the sandbox, too. As in the reference; it runs a
    command twice that somebody agreed to once."""
    filter_secrets: bool = True
    """Whether variables that look like secrets are kept from commands."""
    environment: EnvironmentPolicy = field(default_factory=EnvironmentPolicy)
    """What commands inherit of the daemon's environment."""
    dependency_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the session's dependencies, laid over that."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that win over all others."""
    network_marker: str = NETWORK_MARKER
    """The variable that tells a command that its sandbox has no network."""
    shell_safe_commands: tuple[str, ...] = CO_SAFE_COMMANDS
    """Of the profile `co`."""
    shell_max_timeout: float = 600.0
    """Seconds that `run_shell_command` may take at most, whatever a model asks for."""
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    """Of a call that does not say."""
    model_budget: Budget = DEFAULT_BUDGET
    """What the model takes of one output, whatever a call asks for."""
    clean_terminal: bool = False
    """Whether models get the text of a terminal without escapes, echo and prompt."""

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
        if self.max_output_tokens < 0:
            raise ValueError(f"max_output_tokens: {self.max_output_tokens} is below 0")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What a host reads from its configuration: one model for its file, its variables and its flags."""

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
        """Merge the three; flags win over variables, variables over the file.

        Args:
            file: a table of a TOML file, as tomllib gives it, with the names of the fields as keys.
            environ: variables; those named `EXECCLIENT_` and a field's name in capitals are read, and
                `CO_CLI_SHELL_SAFE_COMMANDS` and `CO_CLI_SHELL_MAX_TIMEOUT`.
            flags: by the names of the fields; None for a flag that was not given.

        Raises:
            ValueError: a key is unknown, or its value is none; the message names it and where it is from.
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
        """A configuration with what is set here."""
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
                raise ValueError("no command in it; give some, separated by commas")
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

"""A command before and after the choice of a sandbox.

A tool makes `ExecParams` from the arguments of a call: of sandboxes they only tell whether the call asks to
run without one. `ExecEnv` is the command as it is started.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from execclient.connection.connection import Json
from execclient.govern.sandbox import SandboxPolicy, SandboxType, platform_sandbox
from execclient.tools.environment import NETWORK_MARKER, sandbox_markers

SandboxPermissions = Literal["use_default", "require_escalated"]

DEFAULT_TIMEOUT_SECONDS = 10.0
"""The default of the shell tools: long enough for small commands of a build tool, short enough for a model
that waits at a prompt."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """Ends the command after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DefaultTimeout:
    """Ends the command after `DEFAULT_TIMEOUT_SECONDS`."""

    @property
    def seconds(self) -> float:
        """The time limit."""
        return DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Ends the command when the event is set, and not before."""

    token: asyncio.Event

    @property
    def seconds(self) -> None:
        """No time limit."""
        return


Expiration = Timeout | DefaultTimeout | Cancellation


@dataclass(frozen=True, slots=True)
class ExecParams:
    """A command, ready to be judged.

    Raises:
        ValueError: the command is empty, or `cwd` is not absolute.
    """

    command: tuple[str, ...]
    cwd: str
    """Absolute, at the executor."""
    expiration: Expiration = field(default_factory=DefaultTimeout)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that override inherited ones."""
    sandbox_permissions: SandboxPermissions = "use_default"
    justification: str | None = None
    arg0: str | None = None
    tty: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command is empty: it needs at least a program")
        if not posixpath.isabs(self.cwd):
            raise ValueError(f"cwd is not absolute: {self.cwd!r}")

    @property
    def escalated(self) -> bool:
        """Whether the call asks to run without the sandbox."""
        return self.sandbox_permissions == "require_escalated"


@dataclass(frozen=True, slots=True)
class ExecEnv:
    """A command, ready to be started."""

    command: tuple[str, ...]
    """Unchanged: the daemon adds the sandbox."""
    cwd: str
    env: Mapping[str, str]
    """With the variables that tell a command about its sandbox."""
    expiration: Expiration
    sandbox: SandboxType
    policy: SandboxPolicy
    context: Mapping[str, Json] | None
    """The sandbox context for the daemon (`docs/protocol.md`, "Sandbox context"); None for no sandbox."""
    sandbox_permissions: SandboxPermissions
    justification: str | None
    arg0: str | None
    tty: bool
    proxied: bool = False
    """Whether its only way to the network is a proxy."""


def confined(
    params: ExecParams,
    policy: SandboxPolicy,
    *,
    cwd: str,
    workspace_roots: tuple[str, ...],
    platform: str = "linux",
    network_marker: str = NETWORK_MARKER,
    proxied: bool = False,
) -> ExecEnv:
    """A command with the sandbox of a policy.

    Args:
        params: the command; not changed.
        policy: the sandbox policy.
        cwd: the turn's working directory, the base of relative entries of the policy.
        workspace_roots: the folders of the workspace.
        platform: the executor's platform, as `sys.platform` names it.
        network_marker: the variable for a missing network.
        proxied: whether a sandbox has a network proxy. Without a sandbox there is none.
    """
    sandbox = platform_sandbox(platform) if policy.confines else "none"
    proxied = proxied and policy.confines
    markers = sandbox_markers(
        sandbox, network_allowed=proxied or policy.network_allowed, network_marker=network_marker
    )
    return ExecEnv(
        command=params.command,
        cwd=params.cwd,
        env={**params.env, **markers},
        expiration=params.expiration,
        sandbox=sandbox,
        policy=policy,
        context=policy.context(cwd, workspace_roots),
        sandbox_permissions=params.sandbox_permissions,
        justification=params.justification,
        arg0=params.arg0,
        tty=params.tty,
        proxied=proxied,
    )

"""What is to be run, before and after the choice of a sandbox.

`ExecParams` is what a front door makes of a model's arguments: it says nothing of sandboxes but whether the
call asks to do without. `ExecEnv` is what is started. Making one of the other never changes the first.
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
"""Of a shell tool's call that names none: long enough for a build tool's small commands, short enough for
a model that waits for a prompt nobody answers."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """Ends the command after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DefaultTimeout:
    """Ends the command after `DEFAULT_TIMEOUT_SECONDS`."""

    @property
    def seconds(self) -> float:
        """As of `Timeout`."""
        return DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Ends the command when the event is set, and not before."""

    token: asyncio.Event

    @property
    def seconds(self) -> None:
        """As of `Timeout`: no limit."""
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
    """Laid over what the command inherits."""
    sandbox_permissions: SandboxPermissions = "use_default"
    justification: str | None = None
    arg0: str | None = None
    tty: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command is empty: it needs the program at least")
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
    """As it was: the daemon puts the sandbox around it."""
    cwd: str
    env: Mapping[str, str]
    """With the variables that tell a command of its sandbox."""
    expiration: Expiration
    sandbox: SandboxType
    policy: SandboxPolicy
    context: Mapping[str, Json] | None
    """What the daemon is told (`docs/protocol.md`, "Sandbox context"); None for nothing."""
    sandbox_permissions: SandboxPermissions
    justification: str | None
    arg0: str | None
    tty: bool


def confined(
    params: ExecParams,
    policy: SandboxPolicy,
    *,
    cwd: str,
    workspace_roots: tuple[str, ...],
    platform: str = "linux",
    network_marker: str = NETWORK_MARKER,
) -> ExecEnv:
    """A command under a policy.

    Args:
        params: the command; not changed.
        policy: what it may touch.
        cwd: the turn's, which the policy's relative entries are relative to.
        workspace_roots: what the policy means by the workspace.
        platform: the executor's, as `sys.platform` names it.
        network_marker: the variable that tells of a missing network.
    """
    sandbox = platform_sandbox(platform) if policy.confines else "none"
    markers = sandbox_markers(sandbox, network_allowed=policy.network_allowed, network_marker=network_marker)
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
    )

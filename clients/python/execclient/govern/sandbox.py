"""Sandbox policies: the files and the network that a command may use.

Rules kept in this file:

1. A policy is a value. `context` returns its form on the wire (`docs/protocol.md`, "Sandbox context"); the
   daemon enforces it or refuses the command.
2. Only the folders that the host names as the workspace can be written, never the working directory that a
   call names. Without such folders there is no workspace.
3. Denied reads stay denied, whatever else is lifted: `without_sandbox` keeps them.
4. An unknown name is an error, never a weaker policy.

Nothing here does I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Literal

from execclient.connection.connection import Json
from execclient.govern.sandbox_entries import (
    ROOT,
    Permissions,
    at_path,
    at_special,
    checked_patterns,
    checked_roots,
    denied,
    denies,
    limits,
    managed,
    network,
    sentences,
    widened,
    writes_workspace,
)
from execprotocol.path_uri import path_to_uri

__all__ = [
    "MODES",
    "DangerFullAccess",
    "ExternalSandbox",
    "Profile",
    "ReadOnly",
    "SandboxPolicy",
    "SandboxType",
    "WorkspaceWrite",
    "platform_sandbox",
    "sandbox_policy",
    "without_sandbox",
]

SandboxType = Literal["none", "macosSeatbelt", "linuxSeccomp", "windowsRestrictedToken"]
"""The mechanism that confines commands, in the reference's words."""

_PLATFORMS: Mapping[str, SandboxType] = MappingProxyType(
    {
        "linux": "linuxSeccomp",
        "darwin": "macosSeatbelt",
        "macos": "macosSeatbelt",
        "win32": "windowsRestrictedToken",
        "windows": "windowsRestrictedToken",
    }
)


def platform_sandbox(platform: str) -> SandboxType:
    """The mechanism that confines commands on a platform.

    Args:
        platform: the platform, as `sys.platform` or the daemon's `platformOs` names it.

    Returns:
        `none` for a platform without a sandbox. There, a caller that needs a sandbox must refuse.
    """
    return _PLATFORMS.get(platform, "none")


class _Policy:
    """The base of all policies."""

    __slots__ = ()

    kind: ClassVar[str]
    """The `type` in JSON."""
    members: ClassVar[Mapping[str, str]] = {}
    """The names of the members in JSON, with the names of their fields here."""

    def permissions(self) -> Permissions:
        """What the daemon enforces: the member `permissions` of a sandbox context."""
        raise NotImplementedError

    @property
    def network_allowed(self) -> bool:
        """Whether the policy allows the network."""
        permissions = self.permissions()
        return bool(permissions["type"] == "disabled" or permissions["network"] == "enabled")

    @property
    def confines(self) -> bool:
        """Whether the policy limits the command at all."""
        return limits(self.permissions())

    @property
    def denies_reads(self) -> bool:
        """Whether some files must not be read, even with an approval."""
        return bool(denied(self.permissions()))

    @property
    def writes_workspace(self) -> bool:
        """Whether the command may write to the workspace."""
        return writes_workspace(self.permissions())

    def to_json(self) -> dict[str, Json]:
        """The policy as JSON, for `sandbox_policy`."""
        fields = {name: getattr(self, field) for name, field in self.members.items()}
        # An extension of the reference's form: left out if it is empty, for other readers of these objects.
        if not fields.get("deny_read", True):
            del fields["deny_read"]
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        return {"type": self.kind, **plain}

    def describe(self, network: Sequence[str] | None = None) -> tuple[str, ...]:
        """Sentences for an approver: what the policy permits, and what stays denied.

        Args:
            network: those of a `NetworkAccess` that the command has besides.
        """
        return sentences(self.permissions(), network)

    def context(self, cwd: str, workspace_roots: Sequence[str]) -> Mapping[str, Json] | None:
        """The member `sandbox` of a request; None for no sandbox.

        Args:
            cwd: the turn's working directory, absolute: the base of relative patterns. Never the directory of
                a model's call, which would then choose the denied files.
            workspace_roots: the folders of the workspace, absolute; may be empty. `cwd` is not added.

        Raises:
            ValueError: a path is not absolute.
        """
        permissions = self.permissions()
        if permissions["type"] == "disabled":
            return None
        return {
            "permissions": permissions,
            "cwd": path_to_uri(*checked_roots("cwd", (cwd,))),
            "workspaceRoots": [
                path_to_uri(root) for root in checked_roots("workspace_roots", workspace_roots)
            ],
            "windowsSandboxLevel": "disabled",
        }


@dataclass(frozen=True, slots=True)
class ReadOnly(_Policy):
    """Allows to read everything and to write nothing.

    Raises:
        ValueError: a pattern is not valid; the message gives the reason.
    """

    network: bool = False
    """Whether the command may use the network."""
    deny_read: tuple[str, ...] = ()
    """Paths and patterns (`**/.env`) of files that must not be read, relative to the turn's directory."""

    kind: ClassVar[str] = "read-only"
    members: ClassVar[Mapping[str, str]] = {"network_access": "network", "deny_read": "deny_read"}

    def __post_init__(self) -> None:
        checked_patterns(self.deny_read)

    def permissions(self) -> Permissions:
        """The permissions in the form of the wire."""
        return managed([at_special("root", "read"), *denies(self.deny_read)], network_allowed=self.network)


@dataclass(frozen=True, slots=True)
class WorkspaceWrite(_Policy):
    """Allows to read everything, and to write to the workspace, temporary folders and listed folders.

    Raises:
        ValueError: a root is not absolute, or is `/`; a pattern is not valid.
    """

    writable_roots: tuple[str, ...] = ()
    """Absolute folders besides the workspace. A folder that does not exist grants nothing."""
    network: bool = False
    """Whether the command may use the network."""
    exclude_tmpdir: bool = False
    """Whether to exclude the folder of `TMPDIR` from the writable folders."""
    exclude_slash_tmp: bool = False
    """Whether to exclude `/tmp` from the writable folders."""
    deny_read: tuple[str, ...] = ()
    """See `ReadOnly`."""

    kind: ClassVar[str] = "workspace-write"
    members: ClassVar[Mapping[str, str]] = {
        "writable_roots": "writable_roots",
        "network_access": "network",
        "exclude_tmpdir_env_var": "exclude_tmpdir",
        "exclude_slash_tmp": "exclude_slash_tmp",
        "deny_read": "deny_read",
    }

    def __post_init__(self) -> None:
        checked_patterns(self.deny_read)
        if ROOT in checked_roots("writable_roots", self.writable_roots):
            raise ValueError("writable_roots: '/' is everything: use the policy danger-full-access")

    def permissions(self) -> Permissions:
        """The permissions in the form of the wire."""
        entries = [at_special("root", "read"), at_special("project_roots", "write")]
        if not self.exclude_slash_tmp:
            entries.append(at_special("slash_tmp", "write"))
        if not self.exclude_tmpdir:
            entries.append(at_special("tmpdir", "write"))
        entries += [at_path(root, "write") for root in self.writable_roots]
        return managed([*entries, *denies(self.deny_read)], network_allowed=self.network)


@dataclass(frozen=True, slots=True)
class DangerFullAccess(_Policy):
    """No sandbox: allows everything that the daemon's user may do."""

    kind: ClassVar[str] = "danger-full-access"

    def permissions(self) -> Permissions:
        """The permissions in the form of the wire."""
        return {"type": "disabled"}


@dataclass(frozen=True, slots=True)
class ExternalSandbox(_Policy):
    """For a sandbox around the daemon, which limits files. The daemon only limits the network."""

    network: bool = False

    kind: ClassVar[str] = "external-sandbox"
    members: ClassVar[Mapping[str, str]] = {"network_access": "network"}

    def permissions(self) -> Permissions:
        """The permissions in the form of the wire."""
        return {"type": "external", "network": network(self.network)}

    def to_json(self) -> dict[str, Json]:
        """The policy as JSON, for `sandbox_policy`."""
        return {"type": self.kind, "network_access": network(self.network)}


@dataclass(frozen=True, slots=True, init=False)
class Profile(_Policy):
    """Any permissions that the wire can express.

    Args:
        permissions: the member `permissions` of a sandbox context; copied.

    Raises:
        ValueError: the daemon would refuse it; the message names the field.
    """

    canonical: str
    """The permissions as JSON with sorted names, so that equal profiles compare equal."""

    kind: ClassVar[str] = "profile"
    members: ClassVar[Mapping[str, str]] = {"permissions": "permissions"}

    def __init__(self, permissions: Mapping[str, Json]) -> None:
        _check_permissions(permissions)
        # frozen: there is no other way to set a field.
        object.__setattr__(self, "canonical", json.dumps(permissions, sort_keys=True))

    def permissions(self) -> Permissions:
        """The permissions in the form of the wire."""
        permissions: Permissions = json.loads(self.canonical)
        return permissions

    def to_json(self) -> dict[str, Json]:
        """The policy as JSON, for `sandbox_policy`."""
        return {"type": self.kind, "permissions": self.permissions()}


SandboxPolicy = ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox | Profile
"""Any of the five policies. All of them have the members below."""


def without_sandbox(policy: SandboxPolicy) -> SandboxPolicy:
    """The policy of a command whose sandbox was lifted by an approval.

    It allows everything except for denied reads: these still need a sandbox. A sandbox around the daemon
    cannot be lifted; with `ExternalSandbox` only the limit on the network is lifted.
    """
    if policy.permissions()["type"] == "external":
        return ExternalSandbox(network=True)
    if policy.denies_reads:
        return Profile(widened(policy.permissions()))
    return DangerFullAccess()


MODES: Final[Mapping[str, tuple[str, SandboxPolicy]]] = MappingProxyType(
    {
        "suggest": ("unless-trusted", ReadOnly()),
        "auto-edit": ("auto-edit", WorkspaceWrite()),
        "full-auto": ("on-failure", WorkspaceWrite()),
    }
)
"""The three older modes, each with the name of its approval policy and its sandbox."""


def sandbox_policy(value: str | Mapping[str, Json] | SandboxPolicy) -> SandboxPolicy:
    """The policy for a value in a configuration or a request.

    Args:
        value: a type such as `read-only`, or an object with the member `type` and the members of that type.

    Raises:
        ValueError: the value is not valid; the message names the field and the possible values.
    """
    if isinstance(value, _Policy):
        return value
    members = {"type": value} if isinstance(value, str) else value
    if not isinstance(members, Mapping):
        raise ValueError(f"sandbox_policy: expected a type or an object, not {members!r}")
    kind = members.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"sandbox_policy.type: {kind!r} is none of {', '.join(_KINDS)}")
    policy = _KINDS[kind]
    # A profile without permissions gets the same error as one with wrong permissions.
    fields: dict[str, Json] = {"permissions": None} if policy is Profile else {}
    for name, member in members.items():
        if name != "type":
            value = _read(policy, name, member)
            fields[policy.members[name]] = value
    return policy(**fields)


# -- inside

_KINDS: Mapping[str, type[SandboxPolicy]] = {
    policy.kind: policy for policy in (ReadOnly, WorkspaceWrite, DangerFullAccess, ExternalSandbox, Profile)
}


def _read(policy: type[SandboxPolicy], name: str, value: Json) -> Json:
    """The value of a member for the constructor."""
    field = f"sandbox_policy.{name}"
    if name not in policy.members:
        possible = ", ".join(policy.members) or "no other member"
        raise ValueError(f"{field} is unknown; the type {policy.kind} has {possible}")
    if name == "permissions":
        return value
    if name in ("writable_roots", "deny_read"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{field}: expected a list of texts, not {value!r}")
        return tuple(value)
    if policy is ExternalSandbox and value in ("restricted", "enabled"):
        return value == "enabled"
    if not isinstance(value, bool):
        raise ValueError(f"{field}: {value!r} is neither true nor false")
    return value


def _check_permissions(permissions: Json) -> None:
    # Imported here: only a few hosts have their own profiles.
    from msgspec import ValidationError

    from execprotocol.faults import first_fault
    from execprotocol.model import decode
    from execprotocol.sandbox import SandboxContext

    context = {"permissions": permissions, "windowsSandboxLevel": "disabled"}
    try:
        decode(SandboxContext, context)
    except ValidationError:
        fault = first_fault(SandboxContext, context)
        raise ValueError(f"{fault.field}: {fault.text}") from None

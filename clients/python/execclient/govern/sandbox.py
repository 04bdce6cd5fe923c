"""What a command may touch: the policies that a host chooses from, and what the daemon is told of them.

Rules kept in this file:

1. A policy is a value. `context` gives what goes over the wire (`docs/protocol.md`, "Sandbox context"); the
   daemon enforces it or refuses the command.
2. Only the folders that the host calls the workspace can be written, never the one that a call names as its
   own. Without any, there is none.
3. What must not be read stays so whatever else is lifted: `without_sandbox` keeps it.
4. A name that nothing knows is an error, never a weaker policy.

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
"""What confines commands, in the reference's words."""

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
    """What confines commands on a platform, as `sys.platform` or the daemon's `platformOs` names it; `none`
    on one that has nothing, where whoever needs a sandbox has to refuse.
    """
    return _PLATFORMS.get(platform, "none")


class _Policy:
    """What all policies have in common."""

    __slots__ = ()

    kind: ClassVar[str]
    """Its `type` in JSON."""
    members: ClassVar[Mapping[str, str]] = {}
    """Its members in JSON, with the names that its fields have here."""

    def permissions(self) -> Permissions:
        """What the daemon enforces, as the member `permissions` of the wire."""
        raise NotImplementedError

    @property
    def network_allowed(self) -> bool:
        """Whether the network may be used."""
        permissions = self.permissions()
        return bool(permissions["type"] == "disabled" or permissions["network"] == "enabled")

    @property
    def confines(self) -> bool:
        """Whether the daemon puts anything around the command."""
        return limits(self.permissions())

    @property
    def denies_reads(self) -> bool:
        """Whether some files must not be read, whoever approves what."""
        return bool(denied(self.permissions()))

    def to_json(self) -> dict[str, Json]:
        """As `sandbox_policy` reads it."""
        fields = {name: getattr(self, field) for name, field in self.members.items()}
        # Ours alone: other readers of these objects need not know it until it says something.
        if not fields.get("deny_read", True):
            del fields["deny_read"]
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        return {"type": self.kind, **plain}

    def describe(self) -> tuple[str, ...]:
        """Sentences for whoever approves: what it permits, and what stays denied."""
        return sentences(self.permissions())

    def context(self, cwd: str, workspace_roots: Sequence[str]) -> Mapping[str, Json] | None:
        """The member `sandbox` of a request; None for no sandbox.

        Args:
            cwd: the turn's folder, absolute. Relative patterns begin there. Never the folder that a model's
                call names: it would choose by that which files are denied.
            workspace_roots: the folders of the workspace, absolute. None is none: `cwd` is not added.

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
    """Reading everything, writing nothing.

    Raises:
        ValueError: a pattern is none; the message says why.
    """

    network: bool = False
    deny_read: tuple[str, ...] = ()
    """Paths and patterns (`**/.env`) of what must not be read; relative ones begin at the turn's folder."""

    kind: ClassVar[str] = "read-only"
    members: ClassVar[Mapping[str, str]] = {"network_access": "network", "deny_read": "deny_read"}

    def __post_init__(self) -> None:
        checked_patterns(self.deny_read)

    def permissions(self) -> Permissions:
        """As the wire has it."""
        return managed([at_special("root", "read"), *denies(self.deny_read)], network_allowed=self.network)


@dataclass(frozen=True, slots=True)
class WorkspaceWrite(_Policy):
    """Reading everything, writing to the workspace, to folders for temporary files, and to listed ones.

    Raises:
        ValueError: a root is not absolute, or is all there is; a pattern is none.
    """

    writable_roots: tuple[str, ...] = ()
    """Absolute folders, besides the workspace. Those that do not exist grant nothing."""
    network: bool = False
    exclude_tmpdir: bool = False
    """Whether the folder of `TMPDIR` is not to be written."""
    exclude_slash_tmp: bool = False
    """Whether `/tmp` is not to be written."""
    deny_read: tuple[str, ...] = ()
    """As in `ReadOnly`."""

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
            raise ValueError("writable_roots: '/' is everything; that is the policy danger-full-access")

    def permissions(self) -> Permissions:
        """As the wire has it."""
        entries = [at_special("root", "read"), at_special("project_roots", "write")]
        if not self.exclude_slash_tmp:
            entries.append(at_special("slash_tmp", "write"))
        if not self.exclude_tmpdir:
            entries.append(at_special("tmpdir", "write"))
        entries += [at_path(root, "write") for root in self.writable_roots]
        return managed([*entries, *denies(self.deny_read)], network_allowed=self.network)


@dataclass(frozen=True, slots=True)
class DangerFullAccess(_Policy):
    """No sandbox: whatever the daemon's user may do."""

    kind: ClassVar[str] = "danger-full-access"

    def permissions(self) -> Permissions:
        """As the wire has it."""
        return {"type": "disabled"}


@dataclass(frozen=True, slots=True)
class ExternalSandbox(_Policy):
    """A sandbox around the daemon limits files; the daemon limits the network only, unless it is allowed."""

    network: bool = False

    kind: ClassVar[str] = "external-sandbox"
    members: ClassVar[Mapping[str, str]] = {"network_access": "network"}

    def permissions(self) -> Permissions:
        """As the wire has it."""
        return {"type": "external", "network": network(self.network)}

    def to_json(self) -> dict[str, Json]:
        """As `sandbox_policy` reads it."""
        return {"type": self.kind, "network_access": network(self.network)}


@dataclass(frozen=True, slots=True, init=False)
class Profile(_Policy):
    """Any permissions that the wire can state.

    Args:
        permissions: the member `permissions` of a sandbox context; copied.

    Raises:
        ValueError: the daemon would not take it; the message names the field.
    """

    canonical: str
    """The permissions as JSON with sorted names: equal profiles have equal texts."""

    kind: ClassVar[str] = "profile"
    members: ClassVar[Mapping[str, str]] = {"permissions": "permissions"}

    def __init__(self, permissions: Mapping[str, Json]) -> None:
        _check_permissions(permissions)
        # frozen: there is no other way to set a field.
        object.__setattr__(self, "canonical", json.dumps(permissions, sort_keys=True))

    def permissions(self) -> Permissions:
        """As the wire has it."""
        permissions: Permissions = json.loads(self.canonical)
        return permissions

    def to_json(self) -> dict[str, Json]:
        """As `sandbox_policy` reads it."""
        return {"type": self.kind, "permissions": self.permissions()}


SandboxPolicy = ReadOnly | WorkspaceWrite | DangerFullAccess | ExternalSandbox | Profile
"""Any of the five policies. All of them have what follows."""


def without_sandbox(policy: SandboxPolicy) -> SandboxPolicy:
    """What a command runs under when somebody approved to lift the sandbox.

    Everything is permitted, but what must not be read stays unreadable: then there is still a sandbox, which
    holds just that. A sandbox around the daemon is not ours to lift; of such a policy only the limit on the
    network goes.
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
"""The three older modes, as the name of an approval policy and a sandbox."""


def sandbox_policy(value: str | Mapping[str, Json] | SandboxPolicy) -> SandboxPolicy:
    """The policy that a configuration or a request names.

    Args:
        value: a type, as `read-only`, or an object with the member `type` and those of that type.

    Raises:
        ValueError: it is none; the message names the field, and what is possible.
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
    # A profile without permissions is refused in the words for bad ones.
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
    """A member, as the constructor takes it."""
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
    # Imported here: the model is for the few hosts that have profiles of their own.
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

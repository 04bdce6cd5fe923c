"""The sandbox context of the wire (`docs/protocol.md`, "Sandbox context").

As in the reference, members of the outer object are camelCase, and those inside `permissions` snake_case.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from execprotocol.model import Params, PathUri

Network = Literal["restricted", "enabled"]


class SpecialPath(Struct):
    """A path that is resolved on the executor, such as the workspace roots."""

    kind: Literal[
        "root", "minimal", "current_working_directory", "project_roots", "tmpdir", "slash_tmp", "unknown"
    ]
    """The role of the path: the root folder, the minimum that programs need, the `cwd` of the context, its
    `workspaceRoots`, `TMPDIR`, `/tmp`, or one that this version does not know, which matches nothing."""

    subpath: str | None = None
    """A relative path below it, without a way out of it; null for all of it."""

    path: str | None = None
    """The text of a role that is `unknown`; null otherwise."""


class LiteralEntryPath(Struct, tag_field="type", tag="path"):
    """One path and everything below it."""

    type: ClassVar[Literal["path"]] = "path"
    """The tag of this kind of entry."""

    path: PathUri
    """The path of the entry."""


class GlobEntryPath(Struct, tag_field="type", tag="glob_pattern"):
    """All files and folders that match a pattern when the sandbox is created."""

    type: ClassVar[Literal["glob_pattern"]] = "glob_pattern"
    """The tag of this kind of entry."""

    pattern: str
    """The pattern, with `*`, `?`, `**`, `[…]` and `{a,b}`; a relative one is resolved against the context's
    `cwd`."""


class SpecialEntryPath(Struct, tag_field="type", tag="special"):
    """A path, given by its role."""

    type: ClassVar[Literal["special"]] = "special"
    """The tag of this kind of entry."""

    value: SpecialPath
    """The role that names the path."""


class FileSystemEntry(Struct):
    """The access to one path and everything below it.

    The entry for the deepest path applies; of several for one path, `deny` comes first, then `write`.
    """

    path: LiteralEntryPath | GlobEntryPath | SpecialEntryPath
    """The path to which the entry applies."""

    access: Literal["read", "write", "deny", "none"]
    """The granted access; `write` includes reading, `none` is an alias of `deny`."""

    missing_path_behavior: Literal["skip"] | None = None
    """`skip` allows a missing path to be created; null prevents it, if the entry forbids writing."""


class UnrestrictedFileSystem(Struct, tag_field="type", tag="unrestricted"):
    """No limit on the file system."""

    type: ClassVar[Literal["unrestricted"]] = "unrestricted"
    """The tag of this kind of limits."""


class RestrictedFileSystem(Struct, tag_field="type", tag="restricted"):
    """Only what the entries grant."""

    type: ClassVar[Literal["restricted"]] = "restricted"
    """The tag of this kind of limits."""

    entries: list[FileSystemEntry]
    """Grants and denials by path."""

    glob_scan_max_depth: Annotated[int, Meta(ge=1)] | None = None
    """How many levels of folders are searched for patterns, at least 1; null for all."""


class ManagedPermissions(Struct, tag_field="type", tag="managed"):
    """Limits that the executor enforces."""

    type: ClassVar[Literal["managed"]] = "managed"
    """The tag of this kind of permissions."""

    file_system: UnrestrictedFileSystem | RestrictedFileSystem
    """The limits on files."""

    network: Network
    """Whether the network may be used."""


class DisabledPermissions(Struct, tag_field="type", tag="disabled"):
    """No limits at all."""

    type: ClassVar[Literal["disabled"]] = "disabled"
    """The tag of this kind of permissions."""


class ExternalPermissions(Struct, tag_field="type", tag="external"):
    """An external sandbox around the executor limits files; the executor limits the network only."""

    type: ClassVar[Literal["external"]] = "external"
    """The tag of this kind of permissions."""

    network: Network
    """Whether the network may be used."""


class PolicyContext(Params):
    """The folders for relative entries."""

    cwd: PathUri | None = None
    """The folder for relative entries; null for that of the sandbox context."""

    workspace_roots: list[PathUri] | None = None
    """The folders that the role `project_roots` stands for; null for those of the sandbox context."""


class SandboxContext(Params):
    """What a request may access. Limits are enforced, or refused with -32600; without limits the request is
    executed without a sandbox.
    """

    permissions: ManagedPermissions | DisabledPermissions | ExternalPermissions
    """The permissions. Their members are in snake_case, as the agent has them."""

    windows_sandbox_level: Literal["disabled", "restricted-token", "elevated", "mxc"]
    """The kind of sandbox on Windows; required, without effect on Linux."""

    cwd: PathUri | None = None
    """The folder to which entries may refer. If it is null, such entries grant nothing, and `fs/*` refuses
    them if `workspaceRoots` is empty, too."""

    policy_context: PolicyContext | None = None
    """The folders for relative entries; null for the folders of this context."""

    workspace_roots: list[PathUri] = []
    """The folders that the role `project_roots` stands for."""

    user_home_dir: PathUri | None = None
    """Without effect: no entry refers to it. Null if it is not known."""

    temporary_directories: list[PathUri] | None = None
    """In `fs/*`, the folders that the role `tmpdir` stands for; null for the executor's `TMPDIR`. Without
    effect in `process/start`, which uses `TMPDIR` of the command."""

    windows_sandbox_private_desktop: bool = False
    """For Windows only; without effect on Linux."""

    windows_sandbox_proxy_settings_mode: str | None = None
    """For Windows only; without effect on Linux. Null if it is not set."""

    use_legacy_landlock: bool = False
    """A request for an older kind of sandbox on Linux, which cannot enforce limits on files: refused with
    such limits, without effect otherwise."""

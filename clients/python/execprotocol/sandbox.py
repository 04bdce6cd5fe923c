"""The sandbox context as it stands on the wire (`docs/protocol.md`, "Sandbox context").

The outer object is camelCase, everything inside `permissions` is snake_case, as the
reference has it.
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
    """The role of the path: the root folder, the least that programs need, the `cwd` of the context, its
    `workspaceRoots`, `TMPDIR`, `/tmp`, or one that this version does not know, which stands for nothing."""

    subpath: str | None = None
    """A path below it, relative and not leading out of it; null for all of it."""

    path: str | None = None
    """The text of a role that is `unknown`; null otherwise."""


class LiteralEntryPath(Struct, tag_field="type", tag="path"):
    """One path and everything below it."""

    type: ClassVar[Literal["path"]] = "path"
    """The mark of this kind of entry."""

    path: PathUri
    """The path that the entry is about."""


class GlobEntryPath(Struct, tag_field="type", tag="glob_pattern"):
    """All files and folders that match a pattern when the sandbox is made."""

    type: ClassVar[Literal["glob_pattern"]] = "glob_pattern"
    """The mark of this kind of entry."""

    pattern: str
    """The pattern, with `*`, `?`, `**`, `[…]` and `{a,b}`; a relative one begins at the context's `cwd`."""


class SpecialEntryPath(Struct, tag_field="type", tag="special"):
    """A path named by its role."""

    type: ClassVar[Literal["special"]] = "special"
    """The mark of this kind of entry."""

    value: SpecialPath
    """The role that names the path."""


class FileSystemEntry(Struct):
    """What may be done with one path and below it.

    The entry for the deepest path wins; of two for one path `deny` does, then `write`.
    """

    path: LiteralEntryPath | GlobEntryPath | SpecialEntryPath
    """Where the entry applies."""

    access: Literal["read", "write", "deny", "none"]
    """What is granted there; `write` includes reading, `none` is another word for `deny`."""

    missing_path_behavior: Literal["skip"] | None = None
    """`skip` lets a path that is missing be made; null guards its place, where the entry forbids writing."""


class UnrestrictedFileSystem(Struct, tag_field="type", tag="unrestricted"):
    """No limit on the file system."""

    type: ClassVar[Literal["unrestricted"]] = "unrestricted"
    """The mark of this kind of limits."""


class RestrictedFileSystem(Struct, tag_field="type", tag="restricted"):
    """Only what the entries grant."""

    type: ClassVar[Literal["restricted"]] = "restricted"
    """The mark of this kind of limits."""

    entries: list[FileSystemEntry]
    """What is granted and denied, by path."""

    glob_scan_max_depth: Annotated[int, Meta(ge=1)] | None = None
    """How many levels of folders are searched for patterns, at least 1; null for all."""


class ManagedPermissions(Struct, tag_field="type", tag="managed"):
    """Limits that the executor enforces."""

    type: ClassVar[Literal["managed"]] = "managed"
    """The mark of this kind of permissions."""

    file_system: UnrestrictedFileSystem | RestrictedFileSystem
    """The limits on files."""

    network: Network
    """Whether the network may be used."""


class DisabledPermissions(Struct, tag_field="type", tag="disabled"):
    """No limits at all."""

    type: ClassVar[Literal["disabled"]] = "disabled"
    """The mark of this kind of permissions."""


class ExternalPermissions(Struct, tag_field="type", tag="external"):
    """Somebody else's sandbox around the executor limits files; only the network is ours to limit."""

    type: ClassVar[Literal["external"]] = "external"
    """The mark of this kind of permissions."""

    network: Network
    """Whether the network may be used."""


class PolicyContext(Params):
    """Where relative entries are resolved."""

    cwd: PathUri | None = None
    """The folder for relative entries; null for that of the sandbox context."""

    workspace_roots: list[PathUri] | None = None
    """The folders that the role `project_roots` stands for; null for those of the sandbox context."""


class SandboxContext(Params):
    """What a request may touch. What limits something is enforced, or refused with -32600; what limits
    nothing is served plain.
    """

    permissions: ManagedPermissions | DisabledPermissions | ExternalPermissions
    """What is permitted. Members inside it are spelled with underscores, as the agent has them."""

    windows_sandbox_level: Literal["disabled", "restricted-token", "elevated", "mxc"]
    """The kind of sandbox on Windows; it must be there, and has no effect on Linux."""

    cwd: PathUri | None = None
    """The folder that entries may refer to; with null such entries grant nothing, and in `fs/*` they are
    refused if `workspaceRoots` is empty too."""

    policy_context: PolicyContext | None = None
    """Where relative entries are resolved; null for the folders of this context."""

    workspace_roots: list[PathUri] = []
    """The folders that the role `project_roots` stands for."""

    user_home_dir: PathUri | None = None
    """Without effect: no entry refers to it. Null when it is not told."""

    temporary_directories: list[PathUri] | None = None
    """In `fs/*` the folders that the role `tmpdir` stands for; null for the executor's `TMPDIR`. Without
    effect in `process/start`, where the variables of the command say it."""

    windows_sandbox_private_desktop: bool = False
    """For Windows only; without effect on Linux."""

    windows_sandbox_proxy_settings_mode: str | None = None
    """For Windows only; without effect on Linux. Null when it is not set."""

    use_legacy_landlock: bool = False
    """A wish for an older kind of sandbox on Linux. It cannot enforce limits on files, and is refused with
    them; without effect otherwise."""

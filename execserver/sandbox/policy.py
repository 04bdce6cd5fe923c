"""Resolves the sandbox context of a request to absolute rules. Pure: the disk is not read.

`docs/protocol.md`, "Sandbox context". Rules of this module:

1. The most specific path wins; of two entries for one path, `deny` beats `write` beats `read`.
2. A grant needs everything that it depends on: without workspace roots, `project_roots` grants nothing. A
   denial that lacks something applies as widely as it may be meant.
3. An entry of a kind that this version does not know (`unknown`) grants and denies nothing.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from execprotocol.errors import InvalidParams
from execprotocol.path_uri import ForeignPath
from execprotocol.sandbox import (
    DisabledPermissions,
    ExternalPermissions,
    FileSystemEntry,
    GlobEntryPath,
    LiteralEntryPath,
    RestrictedFileSystem,
    SandboxContext,
    SpecialPath,
    UnrestrictedFileSystem,
)
from execserver.sandbox import ENTRIES_FIELD
from execserver.sandbox.glob_patterns import require_few

PROTECTED_NAMES = (".git", ".agents", ".codex", ".aws")
"""Direct children of a writable root that stay read-only: programs outside the sandbox execute or trust their
content."""

PLATFORM_FOLDERS = (
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/run/current-system/sw",
)
"""Folders that programs need to run at all: the read set of `minimal`."""

_SLASH_TMP = "/tmp"  # noqa: S108 - the entry's own name for it


class Access(enum.IntEnum):
    """The access to a path and everything below it."""

    DENY = 0
    READ = 1
    WRITE = 2


_ACCESS = {"read": Access.READ, "write": Access.WRITE, "deny": Access.DENY, "none": Access.DENY}


class Rule(msgspec.Struct, frozen=True):
    """The access to a path and everything below it, except where a deeper rule applies."""

    path: str
    access: Access
    skip_missing: bool = False
    """Whether a missing path may be created."""


class Glob(msgspec.Struct, frozen=True):
    """The access to the files and folders that match a pattern when the sandbox is made."""

    pattern: str
    """Absolute."""

    access: Access


class Policy(msgspec.Struct, frozen=True):
    """What a request may do. Equal policies share an fs worker."""

    unrestricted: bool
    """Whether files are not limited."""

    network: bool
    """Whether the network of the host may be used."""

    rules: tuple[Rule, ...] = ()
    """At most one rule per path; shallow paths first."""

    minimal: bool = False
    """Whether the platform's folders may be read."""

    globs: tuple[Glob, ...] = ()
    glob_depth: int | None = None
    """Levels of folders to search below a pattern's own folder; None for all."""

    unresolved: bool = False
    """Whether an entry depends on a working directory or workspace roots, and the request has neither."""

    managed_network: bool = False
    """Whether there is a network namespace that is left through a network proxy only; `network` is false."""

    @property
    def limits_files(self) -> bool:
        """Whether the policy limits access to files."""
        return not self.unrestricted

    @property
    def limits_anything(self) -> bool:
        """Whether there is anything to enforce."""
        return not (self.unrestricted and self.network)

    @property
    def deny_globs(self) -> tuple[str, ...]:
        """The patterns that deny reading."""
        return tuple(glob.pattern for glob in self.globs if glob.access is Access.DENY)

    def access(self, path: str) -> Access:
        """The access to an absolute path by the text of the rules, without patterns, links and protected
        names.
        """
        if self.unrestricted:
            return Access.WRITE
        path = normal(path)
        found = Access.DENY
        if self.minimal and any(is_below(path, folder) for folder in PLATFORM_FOLDERS):
            found = Access.READ
        for rule in self.rules:
            if is_below(path, rule.path):
                found = rule.access
        return found


def is_below(path: str, folder: str) -> bool:
    """Whether a path equals a folder or lies in it, by their texts."""
    return path == folder or folder == "/" or path.startswith(folder + "/")


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and repeated slashes; links are not resolved."""
    # `normpath` keeps two leading slashes, which mean nothing here.
    return "/" + os.path.normpath(path).lstrip("/")


def depth(path: str) -> int:
    """The number of names in an absolute path; 0 for the root."""
    return 0 if path == "/" else path.count("/")


class RequestFolders(msgspec.Struct, frozen=True):
    """Folders of the request that the entries of a sandbox context may refer to."""

    cwd: str | None
    """The working directory of the command; None for `fs/*`."""

    tmpdir: str | None
    """`TMPDIR` of the command, or of the daemon for `fs/*`."""


def resolve(context: SandboxContext, folders: RequestFolders) -> Policy:
    """The policy of a request.

    Raises:
        InvalidParams: a path is invalid on this host; the message names the parameter.
        InvalidRequest: a pattern is malformed, or the patterns are too large.
    """
    permissions = context.permissions
    if isinstance(permissions, DisabledPermissions):
        return Policy(unrestricted=True, network=True)
    network = permissions.network == "enabled"
    if isinstance(permissions, ExternalPermissions) or isinstance(
        permissions.file_system, UnrestrictedFileSystem
    ):
        return Policy(unrestricted=True, network=network)
    return _Resolver(context, folders, permissions.file_system).policy(network)


class _Resolver:
    """Translates the entries of one context to rules."""

    def __init__(
        self, context: SandboxContext, folders: RequestFolders, file_system: RestrictedFileSystem
    ) -> None:
        place = context.policy_context
        self._entries = file_system.entries
        self._glob_depth = file_system.glob_scan_max_depth
        cwd = place.cwd if place is not None and place.cwd is not None else context.cwd
        roots: Sequence[str] = context.workspace_roots
        if place is not None and place.workspace_roots is not None:
            roots = place.workspace_roots
        self._cwd = None if cwd is None else _native(cwd, "sandbox.cwd")
        self._roots = [_native(root, "sandbox.workspaceRoots") for root in roots]
        self._command_cwd = None if folders.cwd is None else normal(folders.cwd)
        self._tmpdirs = _temporary(context, folders)
        self._dynamic = False
        self._minimal = False

    def policy(self, network: bool) -> Policy:
        rules = _strongest(self._rules())
        globs = tuple(dict.fromkeys(self._globs()))
        if globs:
            require_few(tuple(glob.pattern for glob in globs))
        narrowed = any(rule.access is not Access.WRITE for rule in rules) or globs
        return Policy(
            unrestricted=bool(rules) and rules[0].path == "/" and not narrowed,
            network=network,
            rules=rules,
            minimal=self._minimal,
            globs=globs,
            glob_depth=self._glob_depth,
            unresolved=self._dynamic and self._cwd is None and not self._roots,
        )

    def _rules(self) -> Iterator[Rule]:
        for entry in self._entries:
            skip = entry.missing_path_behavior == "skip"
            for path in self._paths(entry):
                yield Rule(path, _ACCESS[entry.access], skip)

    def _paths(self, entry: FileSystemEntry) -> Iterable[str]:
        where = entry.path
        if isinstance(where, LiteralEntryPath):
            return [_native(where.path, ENTRIES_FIELD)]
        if isinstance(where, GlobEntryPath):
            return []
        value = where.value
        if value.kind == "minimal":
            # It is readable as a whole or not at all, and never writable.
            self._minimal = self._minimal or entry.access in ("read", "write")
            return []
        return [_joined(base, value.subpath) for base in self._bases(value, entry.access)]

    def _bases(self, value: SpecialPath, access: str) -> Sequence[str]:
        match value.kind:
            case "root":
                return ["/"]
            case "slash_tmp":
                return [_SLASH_TMP]
            case "tmpdir":
                return self._tmpdirs
            case "project_roots":
                self._dynamic = True
                return self._roots or self._instead_of_nothing(access)
            case "current_working_directory":
                self._dynamic = True
                return [self._cwd] if self._cwd is not None else self._instead_of_nothing(access)
            case _:
                return []

    def _instead_of_nothing(self, access: str) -> list[str]:
        """The folders of an entry that depends on a folder which the request lacks: for a denial only."""
        denied = _ACCESS[access] is Access.DENY
        return (
            [folder for folder in (self._cwd, self._command_cwd) if folder is not None][:1] if denied else []
        )

    def _globs(self) -> Iterator[Glob]:
        for entry in self._entries:
            where = entry.path
            if not isinstance(where, GlobEntryPath):
                continue
            if "\0" in where.pattern:
                raise InvalidParams("a glob pattern holds a NUL byte", field=ENTRIES_FIELD)
            access = _ACCESS[entry.access]
            for pattern in self._absolute(where.pattern, access):
                yield Glob(pattern, access)

    def _absolute(self, pattern: str, access: Access) -> Iterable[str]:
        if pattern.startswith("/"):
            return [normal(pattern)]
        self._dynamic = True
        if self._cwd is not None:
            folders = [self._cwd]
        elif access is Access.DENY:
            folders = [*self._roots, *([self._command_cwd] if self._command_cwd is not None else [])]
        else:
            folders = []
        return [normal(f"{_as_literal(folder)}/{pattern}") for folder in folders]


def _temporary(context: SandboxContext, folders: RequestFolders) -> list[str]:
    if folders.cwd is None and context.temporary_directories is not None:
        return [_native(path, "sandbox.temporaryDirectories") for path in context.temporary_directories]
    tmpdir = folders.tmpdir
    return [normal(tmpdir)] if tmpdir is not None and tmpdir.startswith("/") else []


def _native(path: str, field: str) -> str:
    if isinstance(path, ForeignPath):
        raise InvalidParams(f"{field}: '{path}' is invalid on 'linux'", field=field)
    return normal(path)


def _joined(base: str, subpath: str | None) -> str:
    """A path below a base.

    Raises:
        InvalidParams: it would lead out of the base.
    """
    if not subpath:
        return base
    path = normal(f"{base}/{subpath}")
    if subpath.startswith("/") or "\0" in subpath or not is_below(path, base):
        raise InvalidParams(
            f"subpath {subpath!r} must be relative and stay below its folder",
            field=ENTRIES_FIELD,
        )
    return path


def _as_literal(folder: str) -> str:
    """A pattern that matches only this folder."""
    return "".join(f"[{char}]" if char in "*?[{\\" else char for char in folder)


def _strongest(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The strongest rule for each path, shallow paths first."""
    kept: dict[str, Rule] = {}
    for rule in rules:
        other = kept.get(rule.path)
        if other is None or _rank(rule) > _rank(other):
            kept[rule.path] = rule
    return tuple(sorted(kept.values(), key=lambda rule: (depth(rule.path), rule.path)))


def _rank(rule: Rule) -> tuple[int, bool]:
    order: Mapping[Access, int] = {Access.READ: 0, Access.WRITE: 1, Access.DENY: 2}
    return order[rule.access], not rule.skip_missing

"""The entries in the permissions of a sandbox context: creates, reads, widens and describes them.

See `docs/protocol.md`, "Entries". Rules kept in this file:

1. Only the form of an entry is known here. The daemon resolves it to paths.
2. Widening turns every grant into the widest one and keeps every denial.
3. Descriptions for approvers name every denial.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from execclient.connection.connection import Json
from execprotocol.path_uri import parse_path_uri, path_to_uri

Permissions = dict[str, Json]
PermissionEntry = dict[str, Json]
EntryAccess = Literal["read", "write", "deny"]

ROOT = "/"

RUNTIME_FOLDER = "/run"
"""Hidden if files are limited and the network is not, unless an entry names it."""

PROTECTED_NAMES = (".git", ".agents", ".codex", ".aws")
"""Names that the daemon protects in a writable folder, unless an entry names them (statement C18)."""

_DENYING = ("deny", "none")

_WORKSPACE = ("project_roots", "current_working_directory")
"""The roles of the workspace."""

_PATTERN_CHARACTERS = frozenset("*?[{\\")

_SPECIAL_WORDS = {
    "root": "everything",
    "minimal": "what programs need to run",
    "current_working_directory": "the working directory",
    "project_roots": "the workspace",
    "tmpdir": "$TMPDIR",
    "slash_tmp": "/tmp",  # noqa: S108 - a word, not a use of the folder
}


# -- making


def network(allowed: bool) -> Literal["restricted", "enabled"]:
    """The value of `network` on the wire."""
    return "enabled" if allowed else "restricted"


def managed(entries: Iterable[PermissionEntry], *, network_allowed: bool) -> Permissions:
    """Permissions that the daemon enforces."""
    return {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": list(entries)},
        "network": network(network_allowed),
    }


def at_special(kind: str, access: EntryAccess) -> PermissionEntry:
    """An entry for a path that is named by its role."""
    return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}


def at_path(path: str, access: EntryAccess) -> PermissionEntry:
    """An entry for an absolute path."""
    return {"path": {"type": "path", "path": path_to_uri(path)}, "access": access}


def denies(patterns: Iterable[str]) -> list[PermissionEntry]:
    """Entries for files that must not be read: absolute paths as paths, all others as patterns."""
    return [
        at_path(pattern, "deny")
        if posixpath.isabs(pattern) and not _PATTERN_CHARACTERS & set(pattern)
        else {"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"}
        for pattern in patterns
    ]


def checked_patterns(patterns: Sequence[str]) -> Sequence[str]:
    """The patterns, unchanged.

    Raises:
        ValueError: a pattern is empty, or has a `~` that would not be expanded.
    """
    for pattern in _texts("deny_read", patterns):
        if pattern.startswith("~"):
            raise ValueError(f"deny_read: {pattern!r}: ~ is not expanded; write the home folder out")
    return patterns


def checked_roots(field: str, roots: Sequence[str]) -> Sequence[str]:
    """The folders, with `.` and `..` resolved.

    Raises:
        ValueError: a folder is not absolute.
    """
    for root in _texts(field, roots):
        if not posixpath.isabs(root):
            raise ValueError(f"{field}: {root!r} is not an absolute path")
    # `normpath` keeps two slashes at the beginning, which have no meaning here.
    return [ROOT + posixpath.normpath(root).lstrip(ROOT) for root in roots]


def _texts(field: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str):
        raise ValueError(f"{field}: {values!r} is one text; a sequence of them is needed: ({values!r},)")
    for value in values:
        if not value or "\0" in value:
            raise ValueError(f"{field}: {value!r} is empty, or has a NUL byte in it")
    return values


# -- reading


def denied(permissions: Mapping[str, Json]) -> list[str]:
    """Descriptions of the paths that must not be read."""
    return [_words(entry) for entry in _entries(permissions) if entry["access"] in _DENYING]


def limits(permissions: Mapping[str, Json]) -> bool:
    """Whether the permissions limit anything (statement C2)."""
    if permissions["type"] == "disabled":
        return False
    if permissions["network"] != "enabled":
        return True
    if permissions["type"] == "external" or permissions["file_system"]["type"] == "unrestricted":
        return False
    entries = _entries(permissions)
    return not (
        any(_is_root(entry) for entry in entries) and all(entry["access"] == "write" for entry in entries)
    )


def writes_workspace(permissions: Mapping[str, Json]) -> bool:
    """Whether the workspace, and not only a part of it, may be written to."""
    return any(
        entry["access"] == "write"
        and entry["path"]["type"] == "special"
        and entry["path"]["value"]["kind"] in _WORKSPACE
        and not entry["path"]["value"].get("subpath")
        for entry in _entries(permissions)
    )


def widened(permissions: Mapping[str, Json]) -> Permissions:
    """Permissions for everything except for the denials, with the network."""
    entries = _entries(permissions)
    denials = [entry for entry in entries if entry["access"] in _DENYING]
    wide: list[PermissionEntry] = [at_special("root", "write"), at_path(RUNTIME_FOLDER, "write")]
    for entry in entries:
        # A grant below a denial still counts. Any other grant is covered by the root, and by itself would
        # only make the daemon protect names in its folder.
        if entry["access"] not in _DENYING and any(_may_lie_below(entry, denial) for denial in denials):
            grants = ({**entry, "access": "write"}, *_protected_in(entry))
            wide += [grant for grant in grants if grant not in wide]
    return {
        "type": "managed",
        "file_system": {**permissions["file_system"], "type": "restricted", "entries": [*wide, *denials]},
        "network": "enabled",
    }


def _may_lie_below(entry: PermissionEntry, denial: PermissionEntry) -> bool:
    if _is_root(entry) or denial["path"]["type"] == "glob_pattern":
        return False
    path, folder = _fixed_path(entry), _fixed_path(denial)
    # A path that only the daemon can resolve may be anywhere.
    return path is None or folder is None or path == folder or path.startswith(folder + "/")


def _fixed_path(entry: PermissionEntry) -> str | None:
    """The path of an entry, if it does not depend on the request."""
    where = entry["path"]
    return parse_path_uri(where["path"]) if where["type"] == "path" else None


def _protected_in(entry: PermissionEntry) -> list[PermissionEntry]:
    """Entries that lift the protection of names in a workspace."""
    where = entry["path"]
    if where["type"] != "special" or where["value"].get("subpath"):
        return []
    if where["value"]["kind"] not in _WORKSPACE:
        return []
    return [
        {"path": {"type": "special", "value": {**where["value"], "subpath": name}}, "access": "write"}
        for name in PROTECTED_NAMES
    ]


def sentences(permissions: Mapping[str, Json], network: Sequence[str] | None = None) -> tuple[str, ...]:
    """Sentences on what is permitted, and what stays denied.

    Args:
        permissions: the permissions.
        network: sentences about the network, in place of what the permissions say about it.
    """
    if permissions["type"] == "disabled":
        return ("run without a sandbox, with all that the daemon's user may do",)
    uses = network or ("use the network" if permissions["network"] == "enabled" else "no network",)
    if permissions["type"] == "external":
        return ("run with no limits on files but those of the sandbox around the daemon", *uses)
    if permissions["file_system"]["type"] == "unrestricted":
        return ("read and write everything", *uses)
    entries = _entries(permissions)
    written = [_words(entry) for entry in entries if entry["access"] == "write"]
    read = [_words(entry) for entry in entries if entry["access"] == "read"]
    everything = _SPECIAL_WORDS["root"]
    if everything in written and everything not in read:
        granted = ["read and write everything"]
        if read:
            granted.append("not write " + _listed(read))
    else:
        granted = ["read " + (everything if everything in read else _listed([*read, *written]) or "nothing")]
        granted.append("write " + (_listed(written) or "nothing"))
    granted += uses
    if stays := denied(permissions):
        granted.append("still denied: reading " + _listed(stays))
    granted.append("still confined: it sees no processes but its own, and gains no privileges")
    return tuple(granted)


def _entries(permissions: Mapping[str, Json]) -> Sequence[PermissionEntry]:
    files = permissions.get("file_system") or {}
    entries: Sequence[PermissionEntry] = files.get("entries", ())
    return entries


def _is_root(entry: PermissionEntry) -> bool:
    where = entry["path"]
    if where["type"] == "special":
        value = where["value"]
        return bool(value["kind"] == "root" and not value.get("subpath"))
    return bool(where["type"] == "path" and parse_path_uri(where["path"]) == ROOT)


def _words(entry: PermissionEntry) -> str:
    """A description of the path of an entry."""
    where = entry["path"]
    if _is_root(entry):
        return _SPECIAL_WORDS["root"]
    if where["type"] == "path":
        return parse_path_uri(where["path"])
    if where["type"] == "glob_pattern":
        return str(where["pattern"])
    value = where["value"]
    name = _SPECIAL_WORDS.get(value["kind"]) or str(value.get("path") or "an unknown role")
    return f"{value['subpath']} in {name}" if value.get("subpath") else name


def _listed(words: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(words))


# -- writable paths

_STRENGTH = {"read": 0, "write": 1, "deny": 2, "none": 2}
"""The higher one wins for the same path."""


class _Place(NamedTuple):
    path: str
    access: str


def may_write(
    permissions: Mapping[str, Json], path: str, *, cwd: str, workspace_roots: Sequence[str]
) -> bool:
    """Whether a path may be written, as far as that is known without the daemon.

    The answer decides only which patches need an approval; the daemon enforces the permissions. A path whose
    place is unknown here, such as `$TMPDIR`, counts as not writable. A writable path that a link leads
    elsewhere is refused by the daemon.

    Args:
        permissions: the member `permissions` of a context.
        path: absolute, without `.` and `..`.
        cwd: the turn's working directory.
        workspace_roots: the folders of the workspace.
    """
    if permissions["type"] != "managed" or permissions["file_system"]["type"] == "unrestricted":
        return True
    entries = permissions["file_system"].get("entries", [])
    if any(_denies_by_pattern(entry, path, cwd) for entry in entries):
        return False
    places = [place for entry in entries for place in _places(entry, cwd, workspace_roots)]
    holding = [place for place in places if _is_within(path, place.path)]
    if not holding:
        return False
    deciding = max(holding, key=lambda place: (len(place.path.rstrip("/")), _STRENGTH[place.access]))
    return deciding.access == "write" and not _is_protected(path, deciding.path)


def _is_protected(path: str, root: str) -> bool:
    below = path.removeprefix(root.rstrip("/")).lstrip("/")
    return root != "/" and below.partition("/")[0] in PROTECTED_NAMES


def _places(entry: Mapping[str, Json], cwd: str, workspace_roots: Sequence[str]) -> Iterator[_Place]:
    where, access = entry["path"], str(entry["access"])
    if where["type"] == "path":
        yield _Place(parse_path_uri(where["path"]), access)
        return
    if where["type"] != "special":
        return
    value = where["value"]
    roots = {
        "root": ("/",),
        "current_working_directory": (cwd,),
        "project_roots": tuple(workspace_roots),
        "slash_tmp": ("/tmp",),  # noqa: S108 - the meaning of the entry
    }.get(str(value["kind"]), ())
    for root in roots:
        yield _Place(posixpath.normpath(posixpath.join(root, value.get("subpath") or "")), access)


def _denies_by_pattern(entry: Mapping[str, Json], path: str, cwd: str) -> bool:
    where = entry["path"]
    if where["type"] != "glob_pattern" or entry["access"] == "write":
        return False
    pattern = posixpath.join(cwd, where["pattern"])
    # `**/` also matches nothing. `*` of this matcher spans folders, so that it denies rather too much.
    return any(fnmatch.fnmatchcase(path, each) for each in (pattern, pattern.replace("**/", "")))


def _is_within(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder + "/")

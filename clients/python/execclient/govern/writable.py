"""Whether a path may be written under the permissions of a sandbox context, as far as that can be told here.

`docs/protocol.md`, "Entries". It decides what somebody is asked about before a patch is applied, and never
what is permitted: the daemon enforces that when it writes. What cannot be told from here, such as where
`$TMPDIR` is, is not taken for writable; where a link makes another path of one that is, the daemon refuses.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from execclient.connection.connection import Json
from execclient.govern.sandbox_entries import PROTECTED_NAMES
from execprotocol.path_uri import parse_path_uri

_STRENGTH = {"read": 0, "write": 1, "deny": 2, "none": 2}
"""At one path the higher one wins."""


class _Place(NamedTuple):
    path: str
    access: str


def may_write(
    permissions: Mapping[str, Json], path: str, *, cwd: str, workspace_roots: Sequence[str]
) -> bool:
    """Whether a path may be written.

    Args:
        permissions: the member `permissions` of a context.
        path: absolute, without `.` and `..`.
        cwd: the turn's folder.
        workspace_roots: those of the context.
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
        "slash_tmp": ("/tmp",),  # noqa: S108 - what the entry means
    }.get(str(value["kind"]), ())
    for root in roots:
        yield _Place(posixpath.normpath(posixpath.join(root, value.get("subpath") or "")), access)


def _denies_by_pattern(entry: Mapping[str, Json], path: str, cwd: str) -> bool:
    where = entry["path"]
    if where["type"] != "glob_pattern" or entry["access"] == "write":
        return False
    pattern = posixpath.join(cwd, where["pattern"])
    # Of `**/` also nothing at all; `*` of this matcher spans folders, so that it denies rather too much.
    return any(fnmatch.fnmatchcase(path, each) for each in (pattern, pattern.replace("**/", "")))


def _is_within(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder + "/")

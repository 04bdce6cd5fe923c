"""The names of a watched tree, kept up to date by the changes of the wire alone.

`mirror.py` has the contents, too, and follows the changes of the client.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tests.support.wire import Json


def names_below(folder: Path) -> dict[str, bool]:
    """The paths below a folder, and whether each is a directory; links are not followed."""
    found: dict[str, bool] = {}
    for parent, directories, files in os.walk(folder):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            found[path] = os.path.isdir(path) and not os.path.islink(path)
    return found


class NameMirror:
    """The names below a root, changed by events.

    Args:
        root: the watched folder, which is listed once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = names_below(root)
        self.gaps = 0
        self.next_seq = 1

    def apply_event(self, params: Json) -> None:
        """Apply the changes of an event or a page, without those that were applied before."""
        first = params["firstSeq"]
        assert first <= self.next_seq, f"changes {self.next_seq} to {first - 1} are missing"
        changes = params["changes"][self.next_seq - first :]
        self.apply(changes)
        self.next_seq = max(self.next_seq, first + len(params["changes"]))

    def apply(self, changes: Iterable[Json]) -> None:
        """Apply changes in their order."""
        for change in changes:
            path = native(change["path"])
            kind = change["kind"]
            if kind == "gap":
                self._look_again(path)
            elif kind == "renamed":
                self._rename(native(change["from"]), path, change["isDirectory"])
            elif kind == "removed":
                self._remove(path)
            else:
                self.names[path] = change["isDirectory"]

    def _remove(self, gone: str) -> None:
        for path in [path for path in self.names if path == gone or path.startswith(gone + "/")]:
            del self.names[path]

    def _rename(self, old: str, new: str, is_directory: bool) -> None:
        self._remove(new)
        for path in [path for path in self.names if path.startswith(old + "/")]:
            self.names[new + path.removeprefix(old)] = self.names.pop(path)
        self.names.pop(old, None)
        self.names[new] = is_directory

    def _look_again(self, path: str) -> None:
        self.gaps += 1
        self._remove(path)
        if os.path.lexists(path) and path != str(self.root):
            self.names[path] = os.path.isdir(path)
        self.names.update(names_below(Path(path)))


def native(uri: str) -> str:
    """The path of a URI without escapes."""
    assert "%" not in uri
    return uri.removeprefix("file://")

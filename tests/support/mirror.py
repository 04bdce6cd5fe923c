"""A copy of a tree that follows its changes, and looks again only where a change says so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from execclient import Change

Node = tuple[str, bytes]
"""What a path is: `directory`, `link` with its target, or `file` or `program` with its content."""


def node_at(path: str) -> Node | None:
    """What is at a path now; None if nothing is."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return "directory", b""
        if stat.S_ISLNK(mode):
            return "link", os.fsencode(os.readlink(path))
        return "program" if mode & 0o100 else "file", Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def tree_at(root: str, exclude: str = "") -> dict[str, Node]:
    """Everything below a directory, without that itself, by absolute path.

    Args:
        root: the directory.
        exclude: the name of directories that are left out.
    """
    found: dict[str, Node] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != exclude]
        for path in (os.path.join(folder, name) for name in (*folders, *files)):
            if (node := node_at(path)) is not None:
                found[path] = node
    return found


class Mirror:
    """The copy.

    Args:
        root: the watched directory, whose tree is read once.
        exclude: the name of directories that are not watched.
    """

    def __init__(self, root: Path, exclude: str = "") -> None:
        self.root = str(root)
        self.tree = tree_at(self.root, exclude)
        self.changes = self.rescans = 0
        self._exclude = exclude

    def apply(self, change: Change) -> None:
        """Follow a change. Below its path nothing is looked at, unless it is a gap."""
        self.changes += 1
        if change.gap:
            self._rescan(change.path)
        elif change.kind == "removed":
            self._take(change.path)
        elif change.previous is not None:
            moved = self._take(change.previous)
            self._take(change.path)
            self.tree.update({change.path + rest: node for rest, node in moved.items()})
            self._look(change.path)
        else:
            self._look(change.path)

    def _rescan(self, path: str) -> None:
        self.rescans += 1
        self._take(path)
        self._look(path)
        self.tree.update(tree_at(path, self._exclude))

    def _look(self, path: str) -> None:
        node = node_at(path)
        if node is None or node[0] != "directory":
            self._take(path)
        if node is not None and path != self.root:
            self.tree[path] = node

    def _take(self, path: str) -> dict[str, Node]:
        """Forget a path with everything below it; returns that by the rest of its path."""
        if path != self.root and self.tree.get(path, ("", b""))[0] != "directory":
            return {"": self.tree.pop(path)} if path in self.tree else {}
        below = path + "/"
        found = [each for each in self.tree if each == path or each.startswith(below)]
        return {each[len(path) :]: self.tree.pop(each) for each in found}

    def differences(self) -> list[str]:
        """The paths where the copy is not what the tree is now."""
        now = tree_at(self.root, self._exclude)
        return sorted(path for path in {*now, *self.tree} if now.get(path) != self.tree.get(path))

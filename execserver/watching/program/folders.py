"""The folders of a watched tree, opened without following links."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execserver.watching.program.ignore_rules import IgnoreRules, Rules

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Folder:
    """A folder of the tree. A rename changes `parent` and `name`, and so the paths of everything below it."""

    __slots__ = ("folders", "losses", "name", "parent", "rules", "watch")

    def __init__(self, parent: Folder | None, name: str) -> None:
        self.parent = parent
        self.name = name
        self.folders: dict[str, Folder] = {}
        self.rules: Rules | None = None
        self.watch: int | None = None
        """The inotify watch; None if there is none."""
        self.losses = 0
        """How often another folder turned out to have its watch."""

    @property
    def path(self) -> str:
        """The path below the root; "" for the root."""
        return "/".join(reversed([folder.name for folder in self.upwards() if folder.parent is not None]))

    def path_of(self, name: str) -> str:
        """The path of a name in it."""
        path = self.path
        return f"{path}/{name}" if path else name

    def upwards(self) -> Iterator[Folder]:
        """It and the folders above it, up to the root."""
        folder: Folder | None = self
        while folder is not None:
            yield folder
            folder = folder.parent

    def downwards(self) -> Iterator[Folder]:
        """It and all folders below it."""
        todo = [self]
        while todo:
            folder = todo.pop()
            yield folder
            todo += folder.folders.values()


class Opener:
    """Opens the folders of a tree, one name after the other, so that a link in the place of a folder leads
    nowhere.

    Args:
        root_fd: the open root.
    """

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._parent: Folder | None = None
        """The folder that was opened last for its children, which are often opened one after the other."""
        self._parent_fd = -1

    def open(self, folder: Folder) -> int:
        """A descriptor of a folder.

        Raises:
            OSError: among others ENOENT and ENOTDIR, if something else has taken its place.
        """
        if folder.parent is None:
            return os.open(".", _FLAGS, dir_fd=self._root_fd)
        if self._parent is not folder.parent:
            if self._parent is not None and self._parent is folder.parent.parent:
                # A walk goes one folder down: each name of a deep path is opened once.
                fd = os.open(folder.parent.name, _FLAGS, dir_fd=self._parent_fd)
            else:
                fd = self._open_chain(folder.parent)
            self.forget()
            self._parent, self._parent_fd = folder.parent, fd
        return os.open(folder.name, _FLAGS, dir_fd=self._parent_fd)

    def forget(self) -> None:
        """Close what is kept: the tree may have changed."""
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
        self._parent, self._parent_fd = None, -1

    def _open_chain(self, folder: Folder) -> int:
        fd = os.open(".", _FLAGS, dir_fd=self._root_fd)
        for each in reversed([each for each in folder.upwards() if each.parent is not None]):
            try:
                below = os.open(each.name, _FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd


class Scope:
    """What is watched.

    Args:
        root_fd: the open root, or the folder of the root if that is a file.
        only: the name of a root that is a file; None for a directory.
        recursive: whether folders below the root are watched.
        rules: which paths are left out.
        alive: called for each folder of a walk.
    """

    def __init__(
        self, root_fd: int, only: str | None, recursive: bool, rules: IgnoreRules, alive: Callable[[], None]
    ) -> None:
        self.opener = Opener(root_fd)
        self.only = only
        self.recursive = recursive and only is None
        self.rules = rules
        self.alive = alive

    def has(self, folder: Folder, name: str, is_directory: bool) -> bool:
        """Whether a name in a folder is watched."""
        return self.only in (None, name) and not self.rules.ignores(folder, name, is_directory)

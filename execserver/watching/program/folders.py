"""The folders of a watched tree, each with its ignore rules, opened without following links."""

from __future__ import annotations

import os
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_VERDICT_SECONDS = 0.05
"""Of the processor, for a verdict of one folder's rules; usually it takes a few microseconds."""

_MAX_SLOW = 3
"""Slow verdicts after which the rules of a folder do not count. A few may be slow for another reason."""


class _TooSlow(Exception):
    """A verdict took too long."""


class Rules:
    """The rules of one folder. Only the main thread may use them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._slow = 0
        self.has_paths = any("/" in line.strip().rstrip("/") for line in text.splitlines())
        """Whether a pattern depends on more of a path than its last name."""
        # These load 80 ms of modules, which most trees without rules do not need.
        import signal

        from pathspec import GitIgnoreSpec

        signal.signal(signal.SIGVTALRM, _stop_verdict)
        self._set_timer = partial(signal.setitimer, signal.ITIMER_VIRTUAL)
        lines = text.splitlines()
        try:
            self._spec = GitIgnoreSpec.from_lines(lines)
        except ValueError:
            self._spec = GitIgnoreSpec.from_lines([line for line in lines if _is_valid(line)])

    def verdict(self, path: str) -> bool | None:
        """Whether a path below the folder is ignored; None if no pattern matches, or if that takes too long.
        Directories end in `/`.
        """
        if self._slow >= _MAX_SLOW:
            return None
        try:
            try:
                self._set_timer(_VERDICT_SECONDS)
                return self._spec.check_file(path).include
            finally:
                self._set_timer(0)
        except _TooSlow:
            self._slow += 1
            return None


def _stop_verdict(*_: object) -> None:
    # An expression that is being matched looks for signals, too.
    raise _TooSlow


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


def _is_valid(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True

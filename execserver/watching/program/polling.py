"""A tree that is listed again and again: on mounts whose changes the kernel does not report."""

from __future__ import annotations

import errno
import os

from execserver.watching.program.changes import Batch
from execserver.watching.program.folders import Folder
from execserver.watching.program.ignore_rules import Scope

_State = tuple[bool, int, int, int, int, int]
"""Whether it is a directory, inode, mode, size, and the times of its content and its metadata."""


class TooManyEntries(Exception):
    """The tree has more entries than are polled."""


class PolledTree:
    """The tree as it was listed last.

    Args:
        scope: what is listed.
        max_entries: entries below the root.
    """

    def __init__(self, scope: Scope, max_entries: int) -> None:
        self.batch = Batch()
        self._scope = scope
        self._max_entries = max_entries
        self._seen: dict[str, _State] = {}
        self._unread: set[str] = set()
        """Folders that could not be read."""

    def start(self) -> None:
        """List the tree.

        Raises:
            OSError: the root cannot be read.
            TooManyEntries: there are more than `max_entries`.
        """
        self._seen = self._list()
        for path in sorted(self._unread):
            self.batch.gap(path)

    def poll(self) -> None:
        """List the tree again, and compare.

        Raises:
            OSError: the root cannot be read.
            TooManyEntries: there are more than `max_entries`.
        """
        unread_before = self._unread
        earlier, self._seen = self._seen, self._list()
        for path in sorted(self._unread - unread_before):
            self.batch.gap(path)
        for path in sorted(earlier.keys() - self._seen.keys(), reverse=True):  # entries before their folder
            self.batch.removed(path, earlier[path][0])
        for path in sorted(self._seen):
            state, before = self._seen[path], earlier.get(path)
            if before is None:
                self.batch.created(path, state[0])
            elif before[0] != state[0]:
                self.batch.removed(path, before[0])
                self.batch.created(path, state[0])
            elif before != state:
                self.batch.modified(path, state[0])

    def _list(self) -> dict[str, _State]:
        found: dict[str, _State] = {}
        self._unread = set()
        self._scope.rules.forget_verdicts()  # and with them the folders of before, whose rules count as used
        todo = [Folder(None, "")]
        try:
            while todo:
                self._scope.alive()
                self._list_folder(todo.pop(), found, todo)
        finally:
            self._scope.opener.forget()
        return found

    def _list_folder(self, folder: Folder, found: dict[str, _State], todo: list[Folder]) -> None:
        try:
            fd = self._scope.opener.open(folder)
            try:
                os.fchdir(fd)
                with os.scandir(fd) as listed:
                    entries = [(each.name, each.stat(follow_symlinks=False)) for each in listed]
            finally:
                os.close(fd)
        except FileNotFoundError:
            if folder.parent is None:
                raise
            return  # gone meanwhile; another listing follows
        except OSError as error:
            if folder.parent is None or error.errno == errno.EMFILE:
                raise
            self._unread.add(folder.path)
            return
        self._scope.rules.load(folder, ".", {name for name, _ in entries})
        for name, status in entries:
            is_directory = status.st_mode & 0o170000 == 0o040000
            if not self._scope.has(folder, name, is_directory):
                continue
            if len(found) >= self._max_entries:
                raise TooManyEntries
            found[folder.path_of(name)] = _state(status, is_directory)
            if is_directory and self._scope.recursive:
                todo.append(Folder(folder, name))


def _state(status: os.stat_result, is_directory: bool) -> _State:
    # The times of a directory change with its entries, which are changes of their own.
    times = (0, 0) if is_directory else (status.st_mtime_ns, status.st_ctime_ns)
    size = 0 if is_directory else status.st_size
    return is_directory, status.st_ino, status.st_mode, size, *times

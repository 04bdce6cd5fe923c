"""A tree of folders with an inotify watch each, which turns events into changes.

Rules kept in this file:

1. A folder is watched *before* it is listed: an earlier entry is found, a later one is an event. An entry may
   be reported twice, never missed.
2. Events name a watch. The path of its folder is that of the tree at the time of the event, because renames
   are events, too, and are applied in their order.
3. inotify has one watch for an inode. If another folder of the tree turns out to have it (folders were
   renamed and made faster than events were read), that folder is walked again.
   The events of a forgotten watch are lost. So a folder that has one is reported as removed and created when
   it is walked again, and is left alone if an event only says what a walk has found already.
4. What may have been missed is a gap: after an overflow of the kernel's queue for the root, and for a folder
   that cannot be read, or whose rules changed.
"""

from __future__ import annotations

import errno
import os

from execserver import inotify
from execserver.watching.program.changes import Batch, Place
from execserver.watching.program.folders import Folder
from execserver.watching.program.ignore_rules import RULE_FILES, Scope

_MASK = (
    inotify.MODIFY
    | inotify.ATTRIBUTES
    | inotify.CREATE
    | inotify.DELETE
    | inotify.MOVED_FROM
    | inotify.MOVED_TO
    | inotify.ONLY_DIRECTORY
    | inotify.EXCLUDE_UNLINKED
)
_ROOT_MASK = _MASK | inotify.DELETE_SELF | inotify.MOVE_SELF
_ENDS_ROOT = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED

_MAX_LOSSES = 3

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors of a folder that was replaced meanwhile, which an event reports."""


class _Moved:
    """The first half of a rename."""

    def __init__(self, place: Place | None, path: str, is_directory: bool, folder: Folder | None) -> None:
        self.place = place
        """None if the path was ignored."""
        self.path = path
        self.is_directory = is_directory
        self.folder = folder


class Tree:
    """The watched tree.

    Args:
        scope: what is watched.
        foreign: devices of mounts whose changes the kernel does not report; their folders are not entered.
    """

    def __init__(self, scope: Scope, foreign: frozenset[int]) -> None:
        self.fd = inotify.open_inotify()
        self.batch = Batch()
        self.root_left = False
        """Whether the root was removed, renamed or unmounted."""
        self._scope = scope
        self._foreign = foreign
        self._root = Folder(None, "")
        self._folders: dict[int, Folder] = {}
        """The folders by their inotify watches."""
        self._moved: dict[int, _Moved] = {}
        """First halves of renames by their cookies."""
        self._to_walk: list[Folder] = []
        """Folders that lost their watch to another one."""
        self._stale_rules: dict[Folder, None] = {}
        self._overflowed = False

    def start(self) -> None:
        """Watch every folder.

        Raises:
            OSError: the root cannot be read; ENOSPC: the user has too many watches.
        """
        fd = self._scope.opener.open(self._root)
        os.close(fd)
        self._walk(self._root, report=False)
        if self._root.watch is None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @property
    def unsettled(self) -> bool:
        """Whether a rename may be only half read."""
        return bool(self._moved)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to settle or to send."""
        return bool(len(self.batch) or self._moved or self._overflowed or self._stale_rules or self._to_walk)

    def apply(self, event: inotify.Event) -> None:
        """Process one event."""
        mask = event.mask
        if mask & inotify.QUEUE_OVERFLOW:
            self._overflowed = True
            return
        folder = self._folders.get(event.watch)
        if folder is None:
            return
        if mask & _ENDS_ROOT:
            self._watch_ended(folder, mask)
        elif event.name and self._scope.only in (None, event.name):
            self._apply_named(folder, event)

    def settle(self) -> None:
        """Do what was put off, at the end of a batch. Call it until there is no pending event.

        Raises:
            OSError: ENOSPC: the user has too many watches.
        """
        for moved in self._moved.values():
            if moved.place is not None:
                self.batch.settle(moved.place, moved.path, moved.is_directory, None)
            self._drop(moved.folder)
        self._moved.clear()
        if self._overflowed:
            self._overflowed = False
            self._stale_rules.clear()
            self._walk(self._root, report=False)
            self.batch.gap("")
        for folder in [each for each in self._stale_rules if self._is_attached(each)]:
            before = folder.rules
            self._walk(folder, report=False)
            if (before and before.text) != (folder.rules and folder.rules.text):
                self.batch.gap(folder.path)
        self._stale_rules.clear()
        while self._to_walk:
            folder = self._to_walk.pop()
            if self._is_attached(folder) and folder.watch is None:
                self._walk_lost(folder)

    # -- events

    def _watch_ended(self, folder: Folder, mask: int) -> None:
        if folder is self._root:
            self.root_left = True
        elif mask & inotify.IGNORED and folder.watch is not None:
            self._folders.pop(folder.watch, None)
            folder.watch = None

    def _apply_named(self, folder: Folder, event: inotify.Event) -> None:
        mask, name = event.mask, event.name
        is_directory = bool(mask & inotify.IS_DIRECTORY)
        visible = not self._scope.rules.ignores(folder, name, is_directory)
        if name in RULE_FILES and self._scope.rules.enabled:
            self._stale_rules[folder] = None
        if mask & inotify.MOVED_FROM:
            self._moved_from(folder, event, is_directory, visible)
        elif mask & inotify.MOVED_TO:
            self._moved_to(folder, event, is_directory, visible)
        elif mask & inotify.DELETE:
            self._drop(folder.folders.pop(name, None))
            if visible:
                self.batch.removed(folder.path_of(name), is_directory)
        elif not visible:
            pass
        elif mask & inotify.CREATE:
            self._appeared(folder, name, is_directory)
        else:
            self.batch.modified(folder.path_of(name), is_directory)

    def _moved_from(self, folder: Folder, event: inotify.Event, is_directory: bool, visible: bool) -> None:
        path = folder.path_of(event.name)
        place = self.batch.reserve(path, is_directory) if visible else None
        # Its parent stays until it has another one: it tells which rules were meant.
        below = folder.folders.pop(event.name, None)
        self._moved[event.cookie] = _Moved(place, path, is_directory, below)

    def _moved_to(self, folder: Folder, event: inotify.Event, is_directory: bool, visible: bool) -> None:
        name = event.name
        moved = self._moved.pop(event.cookie, None)
        path = folder.path_of(name)
        if moved is None or moved.place is None:
            if moved is not None:
                self._drop(moved.folder)
            if visible:
                self._appeared(folder, name, is_directory)
        elif not visible:
            self.batch.settle(moved.place, moved.path, is_directory, None)
            self._drop(moved.folder)
        else:
            self.batch.settle(moved.place, moved.path, is_directory, path)
            if is_directory and self._scope.recursive:
                self._adopt(folder, name, moved.folder)

    def _appeared(self, folder: Folder, name: str, is_directory: bool) -> None:
        self.batch.created(folder.path_of(name), is_directory)
        if is_directory and self._scope.recursive:
            known = folder.folders.get(name)
            if known is None or known.watch is None:
                self._drop(known)
                below = folder.folders[name] = Folder(folder, name)
                self._walk(below, report=True)
            elif self._watch_again(known) != known.watch:
                self._renew(folder, name)

    def _renew(self, parent: Folder, name: str) -> None:
        """Walk a folder of which events may be lost."""
        path = parent.path_of(name)
        self.batch.removed(path, True)
        self.batch.created(path, True)
        self._drop(parent.folders.get(name))
        fresh = parent.folders[name] = Folder(parent, name)
        self._walk(fresh, report=True)

    def _walk_lost(self, folder: Folder) -> None:
        """Walk a folder that lost its watch to another one, or that was renamed during its walk."""
        losses, parent = folder.losses, folder.parent
        if parent is None or losses >= _MAX_LOSSES:
            self.batch.gap(folder.path)  # the same directory is at two places: a bind mount
            return
        self._renew(parent, folder.name)
        parent.folders[folder.name].losses = losses + 1

    def _adopt(self, parent: Folder, name: str, folder: Folder | None) -> None:
        """A folder was renamed: what is known of it stays, if its watch is that of the new name."""
        self._drop(parent.folders.pop(name, None))  # a walk may have found it already
        known = folder or Folder(None, name)
        watch = known.watch
        before = self._scope.rules.of(known)
        known.parent, known.name = parent, name
        parent.folders[name] = known
        self._scope.rules.forget_verdicts()
        self._scope.opener.forget()
        if watch is None or self._watch_again(known) != watch:
            self._renew(parent, name)
            return
        # A walk under the earlier name may have come to its end too early.
        self._to_walk += [each for each in known.downwards() if each.watch is None]
        if self._scope.rules.mean_other_paths(before, self._scope.rules.of(known)):
            self._walk(known, report=False)
            self.batch.gap(known.path)

    def _watch_again(self, folder: Folder) -> int | None:
        """The watch of the folder that is at the path of one now."""
        try:
            fd = self._scope.opener.open(folder)
        except OSError:
            return None
        try:
            return self._add_watch(folder, fd)
        except OSError:
            return None
        finally:
            os.close(fd)
            self._scope.opener.forget()

    # -- walks

    def _walk(self, folder: Folder, *, report: bool) -> None:
        """Watch a folder and those below it.

        Args:
            folder: of the tree.
            report: whether its entries are reported as created.
        """
        todo = [folder]
        try:
            while todo:
                self._scope.alive()
                self._enter(todo.pop(), report, todo)
        finally:
            self._scope.opener.forget()

    def _enter(self, folder: Folder, report: bool, todo: list[Folder]) -> None:
        try:
            fd = self._scope.opener.open(folder)
            try:
                if folder.parent is not None and os.fstat(fd).st_dev in self._foreign:
                    self.batch.gap(folder.path)
                    return
                self._take(folder, self._add_watch(folder, fd))
                with os.scandir(fd) as listed:
                    entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            if error.errno not in _GONE:
                self.batch.gap(folder.path)
            return
        self._scope.rules.load(folder, ".", {name for name, _ in entries})
        self._enter_entries(folder, entries, report, todo)

    def _enter_entries(
        self, folder: Folder, entries: list[tuple[str, bool]], report: bool, todo: list[Folder]
    ) -> None:
        found = set()
        for name, is_directory in entries:
            if not self._scope.has(folder, name, is_directory):
                continue
            if report:
                self.batch.created(folder.path_of(name), is_directory)
            if is_directory and self._scope.recursive:
                found.add(name)
                below = folder.folders.get(name)
                if below is None:
                    below = folder.folders[name] = Folder(folder, name)
                todo.append(below)
        for name in folder.folders.keys() - found:
            self._drop(folder.folders.pop(name))

    def _add_watch(self, folder: Folder, fd: int) -> int:
        # By the descriptor, which is the folder itself whatever its path leads to by now.
        os.fchdir(fd)
        return inotify.add_watch(self.fd, ".", _ROOT_MASK if folder is self._root else _MASK)

    def _take(self, folder: Folder, watch: int) -> None:
        """A folder has a watch, which may have been that of another one."""
        other = self._folders.get(watch)
        if other is not None and other is not folder:
            other.watch = None
            self._to_walk.append(other)
        if folder.watch is not None and folder.watch != watch:
            self._folders.pop(folder.watch, None)
            inotify.remove_watch(self.fd, folder.watch)
        folder.watch = watch
        self._folders[watch] = folder

    def _drop(self, folder: Folder | None) -> None:
        """Forget a folder and those below it."""
        if folder is None:
            return
        for each in folder.downwards():
            if each.watch is not None and self._folders.get(each.watch) is each:
                del self._folders[each.watch]
                inotify.remove_watch(self.fd, each.watch)
            each.watch = None
        folder.parent = None

    def _is_attached(self, folder: Folder) -> bool:
        while (above := folder.parent) is not None:
            if above.folders.get(folder.name) is not folder:
                return False
            folder = above
        return folder is self._root

"""Keeps a command from turning its workspace into a bare git repository.

Git takes a folder with `HEAD`, `objects` and `refs` for a repository, and `git status` runs programs that its
`config` names, also outside the sandbox. Only mount points could stop a command from creating these names in
a writable folder, and every listing of the workspace would show them. So the folder is watched while a
command may write to it, and checked once more at the end: a `HEAD` that makes it a repository is renamed.

For a fraction of a millisecond the folder is a repository. `safe.bareRepository=explicit` closes that gap.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
from collections.abc import Sequence
from contextlib import suppress

from execserver import inotify
from execserver.sandbox import git_files
from execserver.sandbox.mount_points.description import Folder
from execserver.sandbox.policy import Access, Policy
from execserver.telemetry.logs import Logger

log = Logger()

_NAMES = frozenset({"HEAD", "objects", "refs", "commondir"})
_MASK = inotify.CREATE | inotify.MOVED_TO | inotify.ONLY_DIRECTORY


def candidates(policy: Policy) -> list[str]:
    """The writable folders of a policy that a command could turn into repositories, as the disk is now: for
    a command of a server that did not store them.
    """
    paths = [os.path.realpath(rule.path) for rule in policy.rules if rule.access is Access.WRITE]
    folders = [path for path in paths if os.path.isdir(path) and not os.path.lexists(f"{path}/HEAD")]
    return [folder for folder in folders if not git_files.is_found(f"{folder}/.git")]


class _WatchedRoot:
    __slots__ = ("count", "folder", "watch")

    def __init__(self, folder: int, watch: int | None) -> None:
        self.folder = folder
        self.watch = watch
        """None if it cannot be watched; then it is checked only at the end."""
        self.count = 0


class WatchedRoots:
    """Folders that are watched until `release`."""

    def __init__(self, owner: BareRoots, folders: tuple[Folder, ...]) -> None:
        self._owner = owner
        self.folders = folders

    def release(self) -> None:
        """Check the folders once more and stop watching them (idempotent, never raises)."""
        folders, self.folders = self.folders, ()
        self._owner.release(folders)


class BareRoots:
    """Watches all writable roots of a daemon. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roots: dict[tuple[int, int], _WatchedRoot] = {}
        """Key: device and inode."""
        self._by_watch: dict[int, _WatchedRoot] = {}
        self._inotify: int | None = None
        self._wake: int | None = None

    def watch(self, paths: Sequence[str]) -> WatchedRoots:
        """Watch folders that are not repositories now.

        Raises:
            OSError: a folder cannot be opened.
        """
        folders: list[Folder] = []
        with self._lock:
            try:
                for path in paths:
                    folders.append(self._add(path))
            except OSError:
                self._drop(folders)
                raise
        return WatchedRoots(self, tuple(folders))

    def watch_again(self, known: Sequence[Folder]) -> WatchedRoots:
        """Watch the folders that a dead server watched, and undo what was done to them meanwhile. A folder
        that is not at its path any more is not watched.
        """
        folders: list[Folder] = []
        with self._lock:
            for each in known:
                try:
                    found = self._add(each.path)
                except OSError as error:
                    log.warning("a workspace cannot be watched any more", reason=str(error))
                    continue
                if found == each:
                    folders.append(found)
                    _undo(self._roots[_key(found)].folder)
                else:
                    self._drop([found])
        return WatchedRoots(self, tuple(folders))

    def release(self, folders: Sequence[Folder]) -> None:
        """See `WatchedRoots.release`."""
        with self._lock:
            for each in folders:
                _undo(self._roots[_key(each)].folder)
            self._drop(folders)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            if self._wake is not None:
                os.close(self._wake)
                self._wake = None

    def _add(self, path: str) -> Folder:
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(folder)
        added = Folder(path, status.st_dev, status.st_ino)
        key = _key(added)
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = _WatchedRoot(folder, self._watch(folder))
            if root.watch is not None:
                self._by_watch[root.watch] = root
        else:
            os.close(folder)
        root.count += 1
        return added

    def _watch(self, folder: int) -> int | None:
        try:
            if self._inotify is None or self._wake is None:
                self._start()
            assert self._inotify is not None
            return inotify.add_watch(self._inotify, f"/proc/self/fd/{folder}", _MASK)
        except (OSError, RuntimeError) as error:
            log.warning(
                "workspaces are looked at for repositories at the end of a command only", reason=str(error)
            )
            return None

    def _start(self) -> None:
        number = inotify.open_inotify()
        reading, wake = os.pipe2(os.O_CLOEXEC)
        try:
            threading.Thread(target=self._run, args=(number, reading), name="bare roots", daemon=True).start()
        except RuntimeError:
            for descriptor in (number, reading, wake):
                os.close(descriptor)
            raise
        self._inotify, self._wake = number, wake

    def _run(self, number: int, wake: int) -> None:
        poll = select.poll()
        poll.register(number, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not any(descriptor == wake for descriptor, _ in poll.poll()):
            for event in inotify.read_events(number):
                if event.name in _NAMES:
                    with self._lock:
                        root = self._by_watch.get(event.watch)
                        if root is not None:
                            _undo(root.folder)
        os.close(wake)
        os.close(number)

    def _drop(self, folders: Sequence[Folder]) -> None:
        for key in map(_key, folders):
            root = self._roots[key]
            root.count -= 1
            if not root.count:
                del self._roots[key]
                if root.watch is not None and self._inotify is not None:
                    del self._by_watch[root.watch]
                    inotify.remove_watch(self._inotify, root.watch)
                os.close(root.folder)


def _key(folder: Folder) -> tuple[int, int]:
    return folder.device, folder.inode


def _undo(folder: int) -> None:
    """Rename `HEAD` if it makes a folder a repository, or will once it is written to."""
    path = f"/proc/self/fd/{folder}"
    with suppress(OSError):
        has_folders = os.path.isdir(f"{path}/objects") and os.path.isdir(f"{path}/refs")
        if os.path.lexists(f"{path}/HEAD") and (has_folders or os.path.lexists(f"{path}/commondir")):
            name = f"HEAD.{secrets.token_hex(4)}"
            os.rename("HEAD", name, src_dir_fd=folder, dst_dir_fd=folder)
            log.warning(
                "a command made its workspace a git repository; its HEAD has another name now", name=name
            )

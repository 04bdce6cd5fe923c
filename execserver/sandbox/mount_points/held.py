"""A mount point that this daemon uses: a folder made for the purpose, or a foreign file or folder.

A foreign one has no entry in our registry. A foreign empty folder may belong to a daemon with another
registry, and a mount disappears together with the folder below it. So each daemon locks the folder that it
uses (shared), and takes an exclusive lock before it removes one. A folder that is not empty is removed only
by its owner.

The first daemon to release a folder cannot remove it, so the last one must. Therefore a daemon marks the
folders that it makes, and removes marked foreign folders like its own. Each daemon releases its shared lock
*before* it tries the exclusive one: of several that release at the same time, one gets it. The mark is set
under the shared lock, so that no other daemon can find and remove a marked folder before its maker has locked
it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from execserver.sandbox.mount_points.description import MountPoint
from execserver.sandbox.mount_points.entry import (
    MountPointEntry,
    identity,
    is_marked,
    read,
)


class HeldMountPoint:
    """The file or folder at `path`, which has no symbolic links; `count` leases use it."""

    __slots__ = (
        "changed",
        "count",
        "descriptor",
        "entry",
        "filled",
        "folder",
        "identity",
        "path",
        "spellings",
    )

    def __init__(
        self,
        path: str,
        identity: tuple[int, int, int],
        folder: int | None,
        entry: MountPointEntry | None = None,
        descriptor: int | None = None,
        changed: int = 0,
    ) -> None:
        self.path = path
        self.entry = entry
        """None if it is foreign."""
        self.descriptor = descriptor
        """Of the entry's file, with the shared lock. None if it is foreign, or closed."""
        self.folder = folder
        """Of the folder itself, with the shared lock. None if no daemon can remove it, or lock it."""
        self.identity = identity
        self.changed = changed
        """The folder's modification time at the last check (ns)."""
        self.filled = False
        """Whether it was made by us, and is not empty any more."""
        self.count = 0
        self.spellings: set[str] = set()
        """The paths by which it was acquired."""

    @property
    def is_own(self) -> bool:
        """Whether it is an empty folder of ours, as far as known."""
        return self.entry is not None and not self.filled

    def stands(self, path: str) -> bool:
        """Whether it is still at `path`. One system call, unless the folder was modified."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if identity(status) != self.identity:
            return False
        if self.entry is not None and status.st_mtime_ns != self.changed:
            self.filled = not is_empty(path)
            self.changed = status.st_mtime_ns
        return True

    def left_to_us(self) -> MountPointEntry | None:
        """For a foreign folder that was made for mounts: the entry by which to remove it if it is unused."""
        if self.entry is not None or self.folder is None or self.identity[2] != os.geteuid():
            return None
        try:
            # Checked now and not when we acquired it, because its maker may not have marked it yet then.
            if not is_marked(self.folder):
                return None
        except OSError:
            return None
        # With `sys.maxsize` as its time, a folder on another device never matches.
        return MountPointEntry(self.path, sys.maxsize, self.identity, marked=True)

    def lock(self) -> None:
        """Take the shared locks, which usually are held already (idempotent)."""
        for descriptor in self._descriptors():
            with suppress(OSError):
                share_lock(descriptor)

    def leave(self) -> None:
        """Release the lock on the folder (idempotent)."""
        if self.folder is not None:
            unlock(self.folder)
            os.close(self.folder)
            self.folder = None

    def unlock(self) -> None:
        """Release all locks (idempotent)."""
        for descriptor in self._descriptors():
            unlock(descriptor)

    def close(self) -> None:
        """Close the descriptors without releasing the locks, which copies may still hold (idempotent)."""
        for descriptor in self._descriptors():
            os.close(descriptor)
        self.folder = self.descriptor = None

    def recovery_state(self) -> tuple[MountPoint, list[int]]:
        """The state from which another process can adopt it, with copies of the descriptors (`adopt`)."""
        point = MountPoint(self.path, self.identity, self.folder is not None, self.descriptor is not None)
        return point, self._descriptors()

    def _descriptors(self) -> list[int]:
        return [descriptor for descriptor in (self.folder, self.descriptor) if descriptor is not None]


def adopt(points: Sequence[MountPoint], descriptors: Sequence[int]) -> list[HeldMountPoint]:
    """Adopt the mount points of a dead server, with copies of its descriptors.

    Raises:
        ValueError: they do not belong together.
    """
    if sum(point.has_folder + point.has_entry for point in points) != len(descriptors):
        raise ValueError("not the descriptors that were stored")
    rest = iter(descriptors)
    adopted = []
    for point in points:
        folder = next(rest) if point.has_folder else None
        descriptor = next(rest) if point.has_entry else None
        entry = None
        try:
            if folder is not None and identity(os.fstat(folder)) != point.identity:
                raise ValueError("not the folder that was stored")
            if descriptor is not None:
                entry = read(descriptor)
                if entry is None or entry.path != point.path:
                    raise ValueError("not the entry that was stored")
        except OSError as error:
            raise ValueError(f"not a descriptor of a mount point: {error}") from None
        # Whether it is empty is checked when it is shared first.
        adopted.append(HeldMountPoint(point.path, point.identity, folder, entry, descriptor))
    for held in adopted:
        # The dead server may have released the locks already.
        held.lock()
    return adopted


def unlock(descriptor: int) -> None:
    """Release a lock, if there is one."""
    # Closing is not enough while copies exist: in the supervisor, and in forked children before their exec.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def share_lock(descriptor: int) -> None:
    """Take a shared lock.

    Raises:
        BlockingIOError: another file has an exclusive one.
        OSError: a file system without locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_empty(folder: str | int) -> bool:
    """Whether it is an empty folder."""
    try:
        with os.scandir(folder) as names:
            return next(names, None) is None
    except OSError:
        return False  # it is gone or cannot be listed, so it is not the empty folder that we made

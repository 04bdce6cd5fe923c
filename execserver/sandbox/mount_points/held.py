"""What one daemon uses at one path: a folder made for the purpose, or a guest.

A guest is what somebody else put there. When it is an empty folder, it may be that of a daemon with another
registry; and a mount vanishes together with the folder below it. So who uses a folder, his own or a guest,
locks the folder itself (shared), and whoever removes one takes that lock exclusively before. A folder with
something in it can be removed by its owner only, who may do so.

Who comes first to let go cannot remove it, who comes last must: so a daemon marks what it makes, and removes
a guest with a mark as it does its own. Each gives its shared lock back *before* it tries the exclusive one:
of those that let go at the same moment one gets it then. The mark is made under the shared lock, so that
nobody finds a folder that he may remove before its maker holds it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from execserver.sandbox.mount_points.description import MountPoint
from execserver.sandbox.mount_points.entry import (
    Entry,
    identity,
    is_marked,
    read,
)


class HeldMountPoint:
    """What stands at `path`, which is free of symbolic links; `count` leases use it."""

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
        entry: Entry | None = None,
        descriptor: int | None = None,
        changed: int = 0,
    ) -> None:
        self.path = path
        self.entry = entry
        """None: a guest."""
        self.descriptor = descriptor
        """Of the entry's file, with the shared lock. None: a guest, or closed."""
        self.folder = folder
        """Of the folder itself, with the shared lock. None: nobody like us can remove it, or lock it."""
        self.identity = identity
        self.changed = changed
        """When something was put into it or taken out of it last, as of when we looked (ns)."""
        self.filled = False
        """Made by us, but somebody put something in."""
        self.count = 0
        self.spellings: set[str] = set()
        """The paths by which it was asked for."""

    @property
    def is_own(self) -> bool:
        """Whether it is an empty folder of ours, for all that is known."""
        return self.entry is not None and not self.filled

    def stands(self, path: str) -> bool:
        """Does `path` lead to what we hold? One system call, unless somebody did something in there."""
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

    def left_to_us(self) -> Entry | None:
        """What to remove when this guest is let go, if nobody else uses it: a folder made for mounts, too."""
        if self.entry is not None or self.folder is None or self.identity[2] != os.geteuid():
            return None
        try:
            # Not when we took it: its maker may just have been about to mark it.
            if not is_marked(self.folder):
                return None
        except OSError:
            return None
        # On no other device: nothing is younger than that.
        return Entry(self.path, sys.maxsize, self.identity, marked=True)

    def lock(self) -> None:
        """Take the shared locks, which usually are held already (idempotent)."""
        for descriptor in self._descriptors():
            with suppress(OSError):
                share_lock(descriptor)

    def leave(self) -> None:
        """Give back the lock on the folder (idempotent)."""
        if self.folder is not None:
            unlock(self.folder)
            os.close(self.folder)
            self.folder = None

    def unlock(self) -> None:
        """Give back all locks (idempotent)."""
        for descriptor in self._descriptors():
            unlock(descriptor)

    def close(self) -> None:
        """Close the descriptors, and leave the locks to whoever has copies (idempotent)."""
        for descriptor in self._descriptors():
            os.close(descriptor)
        self.folder = self.descriptor = None

    def recovery_state(self) -> tuple[MountPoint, list[int]]:
        """What makes the same of copies of the descriptors, in another process (`adopt`)."""
        point = MountPoint(self.path, self.identity, self.folder is not None, self.descriptor is not None)
        return point, self._descriptors()

    def _descriptors(self) -> list[int]:
        return [descriptor for descriptor in (self.folder, self.descriptor) if descriptor is not None]


def adopt(points: Sequence[MountPoint], descriptors: Sequence[int]) -> list[HeldMountPoint]:
    """What a dead server held, made of copies of its descriptors.

    Raises:
        ValueError: they do not belong together.
    """
    if sum(point.has_folder + point.has_entry for point in points) != len(descriptors):
        raise ValueError("other descriptors than were kept")
    rest = iter(descriptors)
    adopted = []
    for point in points:
        folder = next(rest) if point.has_folder else None
        descriptor = next(rest) if point.has_entry else None
        entry = None
        try:
            if folder is not None and identity(os.fstat(folder)) != point.identity:
                raise ValueError("another folder than was kept")
            if descriptor is not None:
                entry = read(descriptor)
                if entry is None or entry.path != point.path:
                    raise ValueError("another entry than was kept")
        except OSError as error:
            raise ValueError(f"no descriptor of a mount point: {error}") from None
        # Not looked into yet: the first one who wants to share it does that.
        adopted.append(HeldMountPoint(point.path, point.identity, folder, entry, descriptor))
    for held in adopted:
        # The dead server may have been about to let it go.
        held.lock()
    return adopted


def unlock(descriptor: int) -> None:
    """Give back a lock, if there is one."""
    # Closing is not enough while others have copies: who keeps them for a new server, and a child that was
    # forked elsewhere and has not got to its exec.
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
    """Is it a folder, with nothing in it?"""
    try:
        with os.scandir(folder) as names:
            return next(names, None) is None
    except OSError:
        return False  # gone, or closed to us: in any case not the empty folder that we made

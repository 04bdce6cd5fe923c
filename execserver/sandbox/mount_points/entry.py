"""An entry in the registry of mount points: its file, and the removal of the folder that it names.

Each step appends a line of JSON to the file, so that after a kill the file holds the state before or after
the step:

    {"path": "/workspace/.git", "created": 1763769600000000000}     before the folder is made
    {"device": 64512, "inode": 1234, "owner": 1000, "marked": true} afterwards

The folder itself is marked by an extended attribute if the file system has these. The mark tells daemons with
another registry, which have no entry, that the folder was made for mounts. It also tells us whether the
folder is still ours: another daemon may have removed it, and its inode may be reused for a folder of the
user.

Nothing is synced to the disk: an entry has to survive processes, not a power failure.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from typing import Any

from execserver.private_folder import lock

# The clock of file times, which may lag behind the precise one by a tick; Python has no name for it.
_CLOCK_REALTIME_COARSE = 5
# A path has at most 4096 bytes, JSON makes six of each that is not UTF-8; the rest is small.
_MAX_BYTES = 32 * 1024
# Errors that prove that our folder is not at the path.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_MARK, _MARKED = "user.execserver.mount-point", b"1"


class Outcome(enum.Enum):
    """The result of removing a folder."""

    REMOVED = enum.auto()
    NOT_OURS = enum.auto()
    """The folder is gone, or must not be removed (any more): the entry can be removed."""
    LATER = enum.auto()
    """The folder is in use, or cannot be removed now: the entry has to stay."""


class MountPointEntry:
    """A folder that was made, or was about to be made, for a mount.

    `path` is absolute and had no symbolic links. `created`: nanoseconds since 1970. `identity`: device, inode
    and owner of the folder; None if the second line is missing. `marked`: whether it had our mark.
    """

    __slots__ = ("created", "identity", "marked", "path", "text")

    def __init__(
        self, path: str, created: int, identity: tuple[int, int, int] | None = None, *, marked: bool = False
    ) -> None:
        self.path = path
        self.created = created
        self.identity = identity
        self.marked = marked
        self.text = b""
        """The content of its file when we last wrote or read it."""

    def describes(self, status: os.stat_result) -> bool:
        """Whether the file at the path is the folder that was made for this entry."""
        if not stat.S_ISDIR(status.st_mode):
            return False
        younger = status.st_ctime_ns >= self.created
        if self.identity is None:
            # A kill between mkdir and the second line: then the folder is ours and younger than the first
            # line.
            return status.st_uid == os.geteuid() and younger
        device, inode, owner = self.identity
        # Some file systems (overlays, btrfs) get another device number when they are mounted again, after a
        # power failure or at the restart of a container.
        return (inode, owner) == (status.st_ino, status.st_uid) and (device == status.st_dev or younger)

    def remove_folder(self, close: Callable[[int], None] = os.close) -> Outcome:
        """Remove the folder if it is the one that was made, is unused, and is empty. Never raises.

        Our own shared lock on the folder must be released before.

        Args:
            close: closes the removed folder's descriptor, now or later. Closing the last descriptor frees the
                disk space; that took 4 ms on an ext4 with `discard` and no journal, the rest 0.03 ms.
        """
        parent, name = os.path.split(self.path)
        try:
            # If the parent has become a link, our folder is not behind it.
            folder = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            return Outcome.NOT_OURS if error.errno in _GONE else Outcome.LATER
        target = None
        outcome = Outcome.LATER
        try:
            if not self.describes(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return Outcome.NOT_OURS
            target = _open_target(folder, name)
            if self.marked and target is not None and not is_marked(target):
                return Outcome.NOT_OURS
            # Held until the folder is removed, so that no other daemon can acquire it in between.
            if not _lock_unused(target):
                return Outcome.LATER
            os.rmdir(name, dir_fd=folder)
            outcome = Outcome.REMOVED
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                # A folder that is not empty belongs to its owner from now on, even if it is emptied later.
                unmark(target)
                outcome = Outcome.NOT_OURS
            elif error.errno in _GONE:
                outcome = Outcome.NOT_OURS
        finally:
            if target is not None:
                (close if outcome is Outcome.REMOVED else os.close)(target)
            os.close(folder)
        return outcome


def identity(status: os.stat_result) -> tuple[int, int, int]:
    """Device, inode and owner, to recognize a folder. Not unique for ever: inodes are reused."""
    return status.st_dev, status.st_ino, status.st_uid


def begin(descriptor: int, path: str) -> MountPointEntry:
    """Write the first line to a file (open to append), which may hold an old entry for the same path."""
    entry = MountPointEntry(path, time.clock_gettime_ns(_CLOCK_REALTIME_COARSE))
    # After a truncation, even of an empty file, ext4 would write the file out when it is closed.
    if restore_mode(descriptor).st_size:
        os.ftruncate(descriptor, 0)
    # The output of `json`, at a fraction of the cost.
    _append(descriptor, entry, f'{{"path": {encode_basestring_ascii(path)}, "created": {entry.created}}}\n')
    return entry


def complete(descriptor: int, entry: MountPointEntry, status: os.stat_result, *, marked: bool) -> None:
    """Write the second line: the folder exists now."""
    entry.identity = identity(status)
    entry.marked = marked
    device, inode, owner = entry.identity
    text = "true" if marked else "false"
    line = f'{{"device": {device}, "inode": {inode}, "owner": {owner}, "marked": {text}}}\n'
    _append(descriptor, entry, line)


def read(descriptor: int) -> MountPointEntry | None:
    """The entry in a file; None if its first line is incomplete or invalid.

    Raises:
        OSError: the file cannot be read.
    """
    text = os.pread(descriptor, _MAX_BYTES, 0)
    *lines, _torn = text.split(b"\n")
    try:
        first, *rest = map(json.loads, lines)
        entry = _first_line(first)
        if entry is not None and rest:
            entry.identity, entry.marked = _second_line(rest[-1])
    except (ValueError, RecursionError):
        return None
    if entry is not None:
        entry.text = text
    return entry


def read_again(descriptor: int, known: MountPointEntry) -> MountPointEntry:
    """The entry in a file, if the file has changed; else the known entry.

    Raises:
        OSError: the file cannot be read.
    """
    if os.pread(descriptor, _MAX_BYTES, 0) == known.text:
        return known
    return read(descriptor) or known


def _append(descriptor: int, entry: MountPointEntry, text: str) -> None:
    line = text.encode()
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    entry.text += line


def _first_line(value: Any) -> MountPointEntry | None:
    match value:
        case {"path": str(path), "created": int(created)}:
            os.fsencode(path)  # ValueError: not a file name
            return MountPointEntry(path, created) if path.startswith("/") and "\0" not in path else None
    return None


def _second_line(value: Any) -> tuple[tuple[int, int, int] | None, bool]:
    match value:
        case {"device": int(device), "inode": int(inode), "owner": int(owner)}:
            return (device, inode, owner), value.get("marked") is True
    return None, False


def mark(folder: int) -> bool:
    """Mark an open folder as made for mounts; False if its file system has no extended attributes."""
    try:
        os.setxattr(folder, _MARK, _MARKED)
    except OSError:
        return False
    return True


def is_marked(folder: int) -> bool:
    """Whether an open folder was made for mounts, by any daemon.

    Raises:
        OSError: the mark cannot be read, for example because the file system has no extended attributes.
    """
    try:
        return os.getxattr(folder, _MARK) == _MARKED
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        raise


def is_mount_point(path: str) -> bool:
    """Whether a path is a folder that was made for mounts, by any daemon; False if that cannot be read."""
    try:
        return os.getxattr(path, _MARK, follow_symlinks=False) == _MARKED
    except OSError:
        return False


def unmark(target: int | None) -> None:
    """Remove the mark of an open folder, if it has one."""
    if target is not None:
        with suppress(OSError):
            os.removexattr(target, _MARK)


def _open_target(folder: int, name: str) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return None


def _lock_unused(target: int | None) -> bool:
    """Lock a folder unless a daemon with another registry uses it (`registry.py`)."""
    if target is None:
        return True  # if we cannot open it, no other daemon of this user can
    try:
        fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: other daemons have no lock either
    return True


def key(path: str) -> str:
    """The file name of an entry. A path itself has slashes and may be too long."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:40]


def open_file(folder: int, name: str, flags: int = 0) -> int:
    """Open an entry's file, or the registry's lock, in the registry's folder."""
    flags |= os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)


def restore_mode(descriptor: int) -> os.stat_result:
    """Set the owner's mode bits of a new file if a strict umask cleared them; returns its status before."""
    status = os.fstat(descriptor)
    if status.st_mode & 0o600 != 0o600:
        os.fchmod(descriptor, 0o600)
    return status


def unlink(folder: int, path: str, descriptor: int) -> None:
    """Remove the file of an entry."""
    # If it has no name, the registry was removed with it, and the name belongs to another file.
    if os.fstat(descriptor).st_nlink:
        with suppress(FileNotFoundError):
            os.unlink(key(path), dir_fd=folder)


def discard(folder: int, path: str, descriptor: int) -> None:
    """Remove an entry unless another daemon uses it, and close it."""
    try:
        if lock(descriptor):
            unlink(folder, path, descriptor)
    finally:
        os.close(descriptor)

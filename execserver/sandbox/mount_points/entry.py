"""One entry of the registry of mount points: what its file says, and how the folder that it names is removed.

The file is only appended to, a line of JSON for each step, so that a kill at any point leaves what was true
before or after the step:

    {"path": "/workspace/.git", "created": 1763769600000000000}     before the folder is made
    {"device": 64512, "inode": 1234, "owner": 1000, "marked": true} afterwards

The folder itself bears a mark where the file system has such attributes. It tells those who find no entry, as
their registry is another one, that the folder is no user's. And it tells us: another registry's daemon may
have removed ours, and an inode is used again, perhaps for a folder of the user's.

Nothing is forced to the disk: an entry has to outlive processes, and only by chance a power failure.
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

# As the clock of files, which may lag behind the precise one by a tick; Python has no name for it.
_CLOCK_REALTIME_COARSE = 5
# A path has 4096 bytes at most, JSON makes six of each one that is no UTF-8; the rest is small.
_MAX_BYTES = 32 * 1024
# Answers that say for sure that nothing of ours is at the path.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_MARK, _MARKED = "user.execserver.mount-point", b"1"


class Outcome(enum.Enum):
    """What became of a folder that was to be removed."""

    REMOVED = enum.auto()
    NOT_OURS = enum.auto()
    """Nothing is there, or something that is not (or no longer) to be removed: the entry can go."""
    LATER = enum.auto()
    """Somebody uses it, or it cannot be removed at present: the entry has to stay."""


class Entry:
    """A folder that was made, or was about to be made, for a mount.

    `path` is absolute and was free of symbolic links. `created`: nanoseconds since 1970. `identity`: device,
    inode and owner of the folder; None when nobody wrote down that it was made. `marked`: it bore our mark.
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
        """What its file said when we wrote or read it."""

    def describes(self, status: os.stat_result) -> bool:
        """Is what stands at the path the folder that was made for this entry?"""
        if not stat.S_ISDIR(status.st_mode):
            return False
        younger = status.st_ctime_ns >= self.created
        if self.identity is None:
            # Killed between mkdir and the second line: then it is one of ours that the first is older than.
            return status.st_uid == os.geteuid() and younger
        device, inode, owner = self.identity
        # Some file systems (overlays, btrfs) get another device number when they are mounted again: after a
        # power failure, at the restart of a container.
        return (inode, owner) == (status.st_ino, status.st_uid) and (device == status.st_dev or younger)

    def remove_folder(self, close: Callable[[int], None] = os.close) -> Outcome:
        """Remove the folder if it is the one that was made, nobody uses it, and it is empty. Never raises.

        A shared lock of our own on the folder is in the way and has to be given back before.

        Args:
            close: what closes the removed folder, then or later. The disk is told of the free space with the
                last descriptor; that took 4 ms on an ext4 with `discard` and no journal, the rest 0.03 ms.
        """
        parent, name = os.path.split(self.path)
        try:
            # A link in the place of the parent leads to where we never made anything.
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
            # Kept until the folder is gone, so that it cannot become a guest in between.
            if not _lock_unused(target):
                return Outcome.LATER
            os.rmdir(name, dir_fd=folder)
            outcome = Outcome.REMOVED
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                # What has something in it is its owner's from now on, also when it is emptied one day.
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
    """What tells a folder from one that took its place, as far as can be told: inodes are used again."""
    return status.st_dev, status.st_ino, status.st_uid


def begin(descriptor: int, path: str) -> Entry:
    """Write the first line into a file (open to append) that may hold an old entry for the same path."""
    entry = Entry(path, time.clock_gettime_ns(_CLOCK_REALTIME_COARSE))
    # Truncating even an empty file would make ext4 write it out when it is closed.
    if mend_mode(descriptor).st_size:
        os.ftruncate(descriptor, 0)
    # As `json` would write it, at a fraction of the cost.
    _append(descriptor, entry, f'{{"path": {encode_basestring_ascii(path)}, "created": {entry.created}}}\n')
    return entry


def complete(descriptor: int, entry: Entry, status: os.stat_result, *, marked: bool) -> None:
    """Write the second line: the folder exists now."""
    entry.identity = identity(status)
    entry.marked = marked
    device, inode, owner = entry.identity
    said = "true" if marked else "false"
    line = f'{{"device": {device}, "inode": {inode}, "owner": {owner}, "marked": {said}}}\n'
    _append(descriptor, entry, line)


def read(descriptor: int) -> Entry | None:
    """The entry in a file, or None when its first line is torn or no entry.

    Raises:
        OSError: it cannot be read.
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


def read_again(descriptor: int, known: Entry) -> Entry:
    """The entry in a file of which one is known; that one, when there is none, or no other.

    Raises:
        OSError: it cannot be read.
    """
    if os.pread(descriptor, _MAX_BYTES, 0) == known.text:
        return known
    return read(descriptor) or known


def _append(descriptor: int, entry: Entry, text: str) -> None:
    line = text.encode()
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    entry.text += line


def _first_line(value: Any) -> Entry | None:
    match value:
        case {"path": str(path), "created": int(created)}:
            os.fsencode(path)  # ValueError: not the name of any file
            return Entry(path, created) if path.startswith("/") and "\0" not in path else None
    return None


def _second_line(value: Any) -> tuple[tuple[int, int, int] | None, bool]:
    match value:
        case {"device": int(device), "inode": int(inode), "owner": int(owner)}:
            return (device, inode, owner), value.get("marked") is True
    return None, False


def mark(folder: int) -> bool:
    """Write on an open folder that it was made for mounts; False: its file system takes no such notes."""
    try:
        os.setxattr(folder, _MARK, _MARKED)
    except OSError:
        return False
    return True


def is_marked(folder: int) -> bool:
    """Was this open folder made for mounts, by whomever?

    Raises:
        OSError: it cannot be told; among others, its file system has no such attributes.
    """
    try:
        return os.getxattr(folder, _MARK) == _MARKED
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        raise


def unmark(target: int | None) -> None:
    """Take the mark from an open folder, if it bears one."""
    if target is not None:
        with suppress(OSError):
            os.removexattr(target, _MARK)


def _open_target(folder: int, name: str) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return None


def _lock_unused(target: int | None) -> bool:
    """Lock a folder unless a daemon with another registry has it as a guest (`registry.py`)."""
    if target is None:
        return True  # what we cannot open no guest could open
    try:
        fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: no guest has one either
    return True


def key(path: str) -> str:
    """The name of an entry: a path may be longer than a name, and has slashes."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:40]


def open_file(folder: int, name: str, flags: int = 0) -> int:
    """Open an entry's file, or the registry's lock, in the registry's folder."""
    flags |= os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)


def mend_mode(descriptor: int) -> os.stat_result:
    """Give a new file our own bits again if an odd umask took them; returns what it was."""
    status = os.fstat(descriptor)
    if status.st_mode & 0o600 != 0o600:
        os.fchmod(descriptor, 0o600)
    return status


def unlink(folder: int, path: str, descriptor: int) -> None:
    """Remove the file of an entry."""
    # Without a name it went with a registry that somebody removed; the name is another one's then.
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


def leads_to(name: str, descriptor: int, parent: int | None = None) -> bool:
    """Is it (still) that file which has that name?"""
    try:
        return os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False

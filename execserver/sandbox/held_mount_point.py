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

import errno
import fcntl
import os
import stat
import sys
import time
from contextlib import ExitStack, suppress

from execserver.sandbox.mount_point_entry import (
    Entry,
    Outcome,
    begin,
    complete,
    discard,
    identity,
    is_marked,
    key,
    leads_to,
    mark,
    open_file,
    read,
)

# What a user's own mkdir makes: whoever runs `git init` meanwhile gets a normal folder. Read-only would
# protect nothing, sandboxes mount it read-only or hide it, and would make that `git init` fail.
_MODE = 0o755
# A folder that another registry's daemon is about to remove is gone within a moment, or it stays.
_GUEST_TIMEOUT_S = 2.0


class Held:
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
        status: os.stat_result,
        folder: int | None,
        entry: Entry | None = None,
        descriptor: int | None = None,
    ) -> None:
        self.path = path
        self.entry = entry
        """None: a guest."""
        self.descriptor = descriptor
        """Of the entry's file, with the shared lock. None: a guest, or closed."""
        self.folder = folder
        """Of the folder itself, with the shared lock. None: nobody like us can remove it, or lock it."""
        self.identity = identity(status)
        self.changed = status.st_mtime_ns if entry is not None else 0
        """When something was put into it or taken out of it last, as of when we looked (ns)."""
        self.filled = False
        """Made by us, but somebody put something in."""
        self.count = 0
        self.spellings: set[str] = set()
        """The paths by which it was asked for."""

    def stands(self, path: str) -> bool:
        """Does `path` lead to what we hold? One system call, unless somebody did something in there."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if identity(status) != self.identity:
            return False
        if self.entry is not None and status.st_mtime_ns != self.changed:
            self.filled = not _is_empty(path)
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

    def unlock(self) -> None:
        """Give back the lock on the folder (idempotent)."""
        if self.folder is not None:
            with suppress(OSError):
                # Closing is not enough while a child that was forked elsewhere has not got to its exec.
                fcntl.flock(self.folder, fcntl.LOCK_UN)
            os.close(self.folder)
            self.folder = None


class Parents:
    """The folders in which the paths of one `acquire` lie, each opened once and closed with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._opened: dict[str, tuple[int, str]] = {}

    def resolve(self, path: str) -> tuple[int, str]:
        """A descriptor of the parent, and the path without symbolic links on the way."""
        parent, name = os.path.split(path)
        if not parent.startswith("/") or name in ("", ".", "..") or "\0" in path:
            raise OSError(errno.EINVAL, "not an absolute path that ends with a name")
        opened = self._opened.get(parent)
        if opened is None:
            descriptor = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, descriptor)
            real = os.readlink(f"/proc/self/fd/{descriptor}")
            # What lies in another mount namespace (/proc/PID/root/…) has no such path here.
            opened = self._opened[parent] = descriptor, real if leads_to(real, descriptor) else parent
        return opened[0], os.path.join(opened[1], name)


def take(folder: int, parent: int, path: str) -> Held:
    """Hold what stands at `path`, which is made if need be.

    Args:
        folder: the registry's, which is locked.
        parent: the folder of `path`.
        path: free of symbolic links.

    Raises:
        OSError: it cannot be made; then nothing is left.
    """
    name = os.path.basename(path)
    deadline = time.monotonic() + _GUEST_TIMEOUT_S
    while True:
        status = _lstat(parent, name)
        if status is None:
            held = _make_own(folder, parent, path)
        else:
            try:
                held = _find_own(folder, parent, path, status) or _take_guest(parent, path, status)
            except BlockingIOError:
                held = None
        if held is not None:
            return held
        if time.monotonic() >= deadline:
            raise OSError(errno.EBUSY, "locked, or made and removed again and again, by another program")
        time.sleep(0.001)


def _make_own(folder: int, parent: int, path: str) -> Held | None:
    """Make the folder; None: somebody made something there just now, or took ours away."""
    descriptor = open_file(folder, key(path), os.O_CREAT)
    entry = target = None
    name = os.path.basename(path)
    try:
        _share_lock(descriptor)
        entry = begin(descriptor, path)
        status = _make(parent, name)
        entry.identity = identity(status)
        target = _hold(parent, name, status)
        complete(descriptor, entry, status, marked=target is not None and mark(target))
    except FileExistsError:
        discard(folder, path, descriptor)
        return None
    except BaseException as error:
        if target is not None:
            os.close(target)
        if entry is not None and entry.remove_folder() is Outcome.LATER:
            os.close(descriptor)  # unlocked: for the next sweep
        else:
            discard(folder, path, descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return Held(path, status, target, entry, descriptor)


def _find_own(folder: int, parent: int, path: str, status: os.stat_result) -> Held | None:
    """Share what another daemon made, or take over what a dead one left; None: there is no such folder.

    Raises:
        BlockingIOError: it changes at this very moment.
    """
    try:
        descriptor = open_file(folder, key(path))
    except FileNotFoundError:
        return None
    target = None
    try:
        entry = read(descriptor)
        if entry is not None and entry.path == path and entry.describes(status):
            _share_lock(descriptor)
            target = _hold(parent, os.path.basename(path), status)
            marked = target is not None and _bears_mark(target)
            if target is None or marked or not entry.marked:
                if entry.identity is None:
                    complete(descriptor, entry, status, marked=marked)
                held = Held(path, status, target, entry, descriptor)
                held.filled = not _is_empty(path)
                return held
    except BaseException:
        if target is not None:
            os.close(target)
        os.close(descriptor)
        raise
    if target is not None:
        os.close(target)
    discard(folder, path, descriptor)
    return None


def _take_guest(parent: int, path: str, status: os.stat_result) -> Held:
    """Hold what somebody else put there.

    Raises:
        BlockingIOError: it changes at this very moment.
    """
    if not stat.S_ISDIR(status.st_mode):
        return Held(path, status, None)
    target = _hold(parent, os.path.basename(path), status)
    if target is not None and not _is_empty(target):
        os.close(target)
        target = None
    return Held(path, status, target)


def _hold(parent: int, name: str, status: os.stat_result) -> int | None:
    """Open a folder and lock it against removal; None: no daemon like us can remove it, or none can lock it.

    Raises:
        BlockingIOError: it is being removed, or is not there any more.
    """
    try:
        target = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except PermissionError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise BlockingIOError(errno.EAGAIN, "replaced by something else at once") from None
        raise
    held = False
    try:
        _share_lock(target)
        if not leads_to(name, target, parent) or identity(os.fstat(target)) != identity(status):
            raise BlockingIOError(errno.EAGAIN, "replaced by something else at once")
        held = True
    except BlockingIOError:
        # When something is in it, it is a program of its user's that locks it: rmdir does nothing to it.
        if _is_empty(target) or not leads_to(name, target, parent):
            raise
    except OSError:
        pass  # a file system without locks
    finally:
        if not held:
            os.close(target)
    return target if held else None


def _make(parent: int, name: str) -> os.stat_result:
    os.mkdir(name, _MODE, dir_fd=parent)
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "replaced by something else at once")
    if status.st_mode & _MODE == _MODE:
        return status
    # An odd umask or a default ACL. By descriptor: a command that runs there may have made the name a link.
    target = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{target}", _MODE)
        return os.fstat(target)
    finally:
        os.close(target)


def _share_lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _bears_mark(target: int) -> bool:
    try:
        return is_marked(target)
    except OSError:
        return False


def _lstat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_empty(folder: str | int) -> bool:
    try:
        with os.scandir(folder) as names:
            return next(names, None) is None
    except OSError:
        return False  # gone, or closed to us: in any case not the empty folder that we made

"""Acquires the mount point at a path: a new folder, one in the registry, or a foreign one.

Other processes may create, lock or remove the path at the same time. Each step checks its finding again
before it relies on it, and the acquisition is retried for a while.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import ExitStack

from execserver.private_folder import leads_to
from execserver.sandbox.mount_points.entry import (
    Outcome,
    begin,
    complete,
    discard,
    identity,
    is_marked,
    key,
    mark,
    open_file,
    read,
    unmark,
)
from execserver.sandbox.mount_points.held import HeldMountPoint, is_empty, share_lock

# The mode of a user's own mkdir, so that a `git init` at the same time gets a normal folder. Read-only would
# protect nothing, because sandboxes mount it read-only or hide it, and that `git init` would fail.
_MODE = 0o755
# A folder that a daemon with another registry is about to remove disappears within a moment, or stays.
_TIMEOUT_S = 2.0
# Such a daemon locks the folder for less than a millisecond. A longer lock belongs to another program: every
# confined command that may read the folder can lock it.
_FOREIGN_LOCK_S = 0.1


class Parents:
    """The parent folders of the paths of one `acquire`, each opened once and closed with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._opened: dict[str, tuple[int, str]] = {}

    def resolve(self, path: str) -> tuple[int, str]:
        """A descriptor of the parent, and the path with the links in its parent resolved."""
        parent, name = os.path.split(path)
        if not parent.startswith("/") or name in ("", ".", "..") or "\0" in path:
            raise OSError(errno.EINVAL, "not an absolute path that ends with a name")
        opened = self._opened.get(parent)
        if opened is None:
            descriptor = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, descriptor)
            real = os.readlink(f"/proc/self/fd/{descriptor}")
            # A folder in another mount namespace (/proc/PID/root/…) has no such path here.
            opened = self._opened[parent] = descriptor, real if leads_to(real, descriptor) else parent
        return opened[0], os.path.join(opened[1], name)


def take(folder: int, parent: int, path: str) -> HeldMountPoint:
    """Acquire the mount point at `path`, which is created if missing.

    Args:
        folder: the registry's folder, which is locked.
        parent: the folder of `path`.
        path: has no symbolic links.

    Raises:
        OSError: the folder cannot be made; nothing is left behind.
    """
    name = os.path.basename(path)
    begin = time.monotonic()
    insist = False
    while True:
        status = _lstat(parent, name)
        if status is None:
            held = _make_own(folder, parent, path, insist)
        else:
            try:
                held = _find_own(folder, parent, path, status, insist)
                held = held or _take_foreign(parent, path, status, insist)
            except BlockingIOError:
                held = None
        if held is not None:
            return held
        now = time.monotonic()
        if insist and now >= begin + _TIMEOUT_S:
            raise OSError(errno.EBUSY, "made and removed again and again by another program")
        insist = now >= begin + _FOREIGN_LOCK_S
        time.sleep(0.001)


def _make_own(folder: int, parent: int, path: str, insist: bool) -> HeldMountPoint | None:
    """Make the folder; None if another process created the path first, or removed our folder."""
    descriptor = open_file(folder, key(path), os.O_CREAT)
    entry = target = None
    name = os.path.basename(path)
    try:
        share_lock(descriptor)
        entry = begin(descriptor, path)
        status = _make(parent, name)
        entry.identity = identity(status)
        target = _hold(parent, name, status, insist)
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
    return HeldMountPoint(path, identity(status), target, entry, descriptor, status.st_mtime_ns)


def _find_own(
    folder: int, parent: int, path: str, status: os.stat_result, insist: bool
) -> HeldMountPoint | None:
    """Share the folder of another daemon, or take over that of a dead one; None if there is none.

    Raises:
        BlockingIOError: the folder is changing right now.
    """
    try:
        descriptor = open_file(folder, key(path))
    except FileNotFoundError:
        return None
    target = None
    try:
        entry = read(descriptor)
        if entry is not None and entry.path == path and entry.describes(status):
            share_lock(descriptor)
            target = _hold(parent, os.path.basename(path), status, insist)
            marked = target is not None and _bears_mark(target)
            if target is None or marked or not entry.marked:
                if entry.identity is None or (target is None and insist and entry.marked):
                    complete(descriptor, entry, status, marked=marked)
                held = HeldMountPoint(path, identity(status), target, entry, descriptor, status.st_mtime_ns)
                held.filled = not is_empty(path)
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


def _take_foreign(parent: int, path: str, status: os.stat_result, insist: bool) -> HeldMountPoint:
    """Acquire a file or folder that is in no entry of the registry.

    Raises:
        BlockingIOError: it is changing right now.
    """
    if not stat.S_ISDIR(status.st_mode):
        return HeldMountPoint(path, identity(status), None)
    target = _hold(parent, os.path.basename(path), status, insist)
    if target is not None and not is_empty(target):
        os.close(target)
        target = None
    return HeldMountPoint(path, identity(status), target)


def _hold(parent: int, name: str, status: os.stat_result, insist: bool) -> int | None:
    """Open a folder and lock it against removal; None if no daemon can remove it, or none can lock it.

    Args:
        parent: the folder that contains it.
        name: its name.
        status: its status at the last check.
        insist: do without the lock if another program has it. Then the folder loses its mark, and daemons
            with another registry do not remove it.

    Raises:
        BlockingIOError: it is being removed, or has disappeared.
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
        share_lock(target)
        if not leads_to(name, target, parent) or identity(os.fstat(target)) != identity(status):
            raise BlockingIOError(errno.EAGAIN, "replaced by something else at once")
        held = True
    except BlockingIOError:
        # If it is not empty, rmdir fails, and the lock belongs to a program of its user.
        stays = leads_to(name, target, parent)
        if not stays or (is_empty(target) and not insist):
            raise
        if insist:
            unmark(target)
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
    # A strict umask or a default ACL. By descriptor: a running command may have replaced the name by a link.
    target = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{target}", _MODE)
        return os.fstat(target)
    finally:
        os.close(target)


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

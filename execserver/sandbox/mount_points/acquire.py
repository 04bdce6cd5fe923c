"""Taking hold of what stands at a path, for mounts: what is made for the purpose, what is ours, or a guest.

Whoever else makes, locks or removes something there at the same moment is waited for, for a while: each step
looks again at what it has found before it relies on it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import ExitStack

from execserver.sandbox.mount_points.entry import (
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
    unmark,
)
from execserver.sandbox.mount_points.held import HeldMountPoint, is_empty, share_lock

# What a user's own mkdir makes: whoever runs `git init` meanwhile gets a normal folder. Read-only would
# protect nothing, sandboxes mount it read-only or hide it, and would make that `git init` fail.
_MODE = 0o755
# A folder that another registry's daemon is about to remove is gone within a moment, or it stays.
_GUEST_TIMEOUT_S = 2.0
# Such a daemon has the folder locked for less than a millisecond. What has it locked for longer is another
# program: every confined command that may read the folder can lock it.
_STRANGER_S = 0.1


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


def take(folder: int, parent: int, path: str) -> HeldMountPoint:
    """Hold what stands at `path`, which is made if need be.

    Args:
        folder: the registry's, which is locked.
        parent: the folder of `path`.
        path: free of symbolic links.

    Raises:
        OSError: it cannot be made; then nothing is left.
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
                held = held or _take_guest(parent, path, status, insist)
            except BlockingIOError:
                held = None
        if held is not None:
            return held
        insist = time.monotonic() >= begin + _STRANGER_S
        if time.monotonic() >= begin + _GUEST_TIMEOUT_S:
            raise OSError(errno.EBUSY, "made and removed again and again by another program")
        time.sleep(0.001)


def _make_own(folder: int, parent: int, path: str, insist: bool) -> HeldMountPoint | None:
    """Make the folder; None: somebody made something there just now, or took ours away."""
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


def _take_guest(parent: int, path: str, status: os.stat_result, insist: bool) -> HeldMountPoint:
    """Hold what somebody else put there.

    Raises:
        BlockingIOError: it changes at this very moment.
    """
    if not stat.S_ISDIR(status.st_mode):
        return HeldMountPoint(path, identity(status), None)
    target = _hold(parent, os.path.basename(path), status, insist)
    if target is not None and not is_empty(target):
        os.close(target)
        target = None
    return HeldMountPoint(path, identity(status), target)


def _hold(parent: int, name: str, status: os.stat_result, insist: bool) -> int | None:
    """Open a folder and lock it against removal; None: no daemon like us can remove it, or none can lock it.

    Args:
        parent: the folder that it lies in.
        name: its own.
        status: what it was when it was looked at.
        insist: do without the lock where another program has it. Then the folder loses its mark: daemons with
            another registry do not remove what bears none.

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
        share_lock(target)
        if not leads_to(name, target, parent) or identity(os.fstat(target)) != identity(status):
            raise BlockingIOError(errno.EAGAIN, "replaced by something else at once")
        held = True
    except BlockingIOError:
        # When something is in it, it is a program of its user's that locks it: rmdir does nothing to it.
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
    # An odd umask or a default ACL. By descriptor: a command that runs there may have made the name a link.
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

"""The parts of `fs/applyEdits`: inspect a target, stage a new file, do and undo steps.

They run in a thread of the daemon or in an fs worker. Rules kept in this file:

1. Inspecting and staging change no path of the user. The files made here have the prefix `EDIT_PREFIX`.
2. A new file gets the mode, the owner and the attributes of the old one before it gets any content. If the
   owner cannot be kept, nothing is made: an edit must not turn another user's file into one of ours.
3. The old file stays in place and gets a second name. On a file system without hard links it is copied.
4. A step can be done, and undone, again after any part of it: the daemon that recovers from a crash repeats
   it. Files are recognized by device and inode. A file that another program has put there is never touched.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from execprotocol.errors import InvalidRequest, RpcError, file_error
from execprotocol.path_text import printable_path
from execserver.filesystem.cancel import raise_if_cancelled
from execserver.filesystem.content import content_digest
from execserver.filesystem.directories import rename_to_free_place
from execserver.filesystem.edit_model import Identity, Inspection, Staged, Staging, Step, TargetState
from execserver.filesystem.opening import is_read_only, may_write, open_to_read
from execserver.filesystem.replacing import inherit_attributes
from execserver.filesystem.tree_operations import copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.filesystem.cancel import StopFlag

EDIT_PREFIX = ".execserver-edit-"
"""The prefix of our temporary names; a random word and a number follow."""

_MAX_LINKS = 40
"""As many as the kernel follows in one path."""

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of a file system that cannot give the file a second name."""

_NO_SYNC = (errno.EINVAL, errno.EACCES, errno.ENOENT, errno.ENOTDIR)
"""Errors of a folder that cannot be opened, is gone, or is on a file system without a disk."""


# -- inspecting


def inspect(
    path: str,
    *,
    writes: bool,
    digest: bool,
    mode_from: str | None,
    stop: StopFlag,
    refuse: Callable[[int], None] = lambda device: None,
) -> Inspection:
    """Find the target of an edit, and check that we may change it.

    Args:
        path: absolute.
        writes: the edit writes the target, and links are followed; otherwise it removes the path.
        digest: also compute the digest of the content, which is read through links.
        mode_from: a file whose permission bits are returned.
        stop: cancels the reading.
        refuse: called with the device of the target, or of its folder if there is no target; may raise.

    Raises:
        InvalidRequest: the edit would write a fifo, a socket or a device.
        RpcError: `mode_from` cannot be inspected.
        OSError: among others EISDIR for a directory, ENOTDIR, EACCES, EROFS.
        RequestCancelled: `stop` is set.
    """
    raise_if_cancelled(stop)
    mode = None if mode_from is None else _mode_of(mode_from)
    folder, missing, names, status = _follow(path, writes)
    target = os.path.join(folder, *missing)
    refuse(os.stat(folder).st_dev if status is None else status.st_dev)
    if status is None:
        return Inspection(target, "", names, len(missing) - 1, None, 0, 0, None, mode)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if writes:
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"path `{printable_path(path)}` is not a file")
        may_write(target)
    elif not os.access(folder, os.W_OK | os.X_OK):
        code = errno.EROFS if is_read_only(folder) else errno.EACCES
        raise OSError(code, os.strerror(code))
    read, found = _digest(target, stop, refuse) if digest else ("", None)
    return Inspection(
        target, read, names, 0, _identity(status), status.st_size, status.st_mtime_ns, found, mode
    )


def require_unchanged(states: Sequence[TargetState]) -> None:
    """Check that all targets are in the state in which they were inspected.

    Raises:
        InvalidRequest: one is not.
        OSError: one cannot be inspected.
    """
    for state in states:
        if not _is_unchanged(state):
            raise _conflict(state.target)


def _is_unchanged(state: TargetState) -> bool:
    try:
        status = os.lstat(state.target)
    except (FileNotFoundError, NotADirectoryError):
        return state.identity is None
    return (
        _identity(status) == state.identity
        and status.st_size == state.size
        and status.st_mtime_ns == state.changed
    )


def _conflict(path: str) -> InvalidRequest:
    """The error for a target that another program has changed since it was inspected."""
    return InvalidRequest(
        f"{printable_path(path)} was changed by another program just now: read it again", name="edit_conflict"
    )


def _mode_of(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o777
    except OSError as error:
        found = file_error(error)
        raise type(found)(f"modeFrom ({printable_path(path)}): {found.message}", name=found.name) from None


def _follow(path: str, through_links: bool) -> tuple[str, list[str], tuple[str, ...], os.stat_result | None]:
    """Resolve a path as far as it exists.

    Returns:
        The deepest existing folder, without links; the names below it; all names passed (`Inspection.names`);
        the status of the target, None if there is none.
    """
    names: list[str] = []
    for _ in range(_MAX_LINKS):
        folder, missing = _deepest_folder(path)
        existing = os.stat(folder)
        names.append(f"{existing.st_dev}:{existing.st_ino}/{'/'.join(missing)}")
        if len(missing) > 1:
            return folder, missing, tuple(names), None
        target = os.path.join(folder, missing[0])
        try:
            status = os.lstat(target)
        except FileNotFoundError:
            return folder, missing, tuple(names), None
        if not (through_links and stat.S_ISLNK(status.st_mode)):
            return folder, missing, tuple(names), status
        path = os.path.join(folder, os.readlink(target))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _deepest_folder(path: str) -> tuple[str, list[str]]:
    """The deepest existing folder above a path, and the names below it; the last one is the path's own.

    Raises:
        IsADirectoryError: the path can only name a directory.
        OSError: a folder above it cannot be inspected, or is no folder.
    """
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    missing = [name]
    while not os.path.lexists(folder or "/"):
        folder, name = os.path.split(folder.rstrip("/"))
        if name in (".", ".."):
            # A missing folder has no parent to go up to.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        missing.insert(0, name)
    real = os.path.realpath(folder or "/", strict=True)
    if not os.path.isdir(real):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return real, missing


def _digest(path: str, stop: StopFlag, refuse: Callable[[int], None]) -> tuple[str, str | None]:
    """The resolved path and the digest of a regular file; `("", None)` if the path leads to none."""
    try:
        fd, status = open_to_read(path)
    except (InvalidRequest, FileNotFoundError):
        return "", None
    except OSError as error:
        if error.errno == errno.ENXIO:
            return "", None  # a socket
        raise
    try:
        refuse(status.st_dev)
        digest, _ = content_digest(fd, stop)
        return os.readlink(f"/proc/self/fd/{fd}"), digest
    finally:
        os.close(fd)


# -- staging


def stage(staging: Staging, stop: StopFlag) -> tuple[int, Staged]:
    """Make an empty new file, and give the old one its second name.

    Returns:
        The new file, open for writing, and the identities of the files.

    Raises:
        InvalidRequest: the target was changed since it was inspected, or its owner cannot be kept.
        OSError: a file or a folder cannot be made.
    """
    before = staging.before
    require_unchanged([before])
    for folder in staging.folders:
        with suppress(FileExistsError):
            os.mkdir(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(staging.staged, flags, 0o600 if staging.backup else 0o666)
    try:
        old = None
        if staging.backup:
            inherit_attributes(before.target, fd)
            old = _back_up(before.target, staging.backup, stop)
        elif staging.mode is not None:
            os.fchmod(fd, staging.mode)
        folder_identity = _identity_at(staging.folders[0]) if staging.folders else None
        return fd, Staged(_identity(os.fstat(fd)), old, folder_identity)
    except BaseException:
        os.close(fd)
        raise


def discard(files: Sequence[str], folders: Sequence[str]) -> None:
    """Remove files, then folders, which must be empty by then. Missing ones are no error.

    Raises:
        OSError: the first error; removal of the rest was tried.
    """
    first: OSError | None = None
    for remove, paths in ((os.unlink, files), (os.rmdir, folders)):
        for path in paths:
            try:
                remove(path)
            except OSError as error:
                # In a folder that forbids removal the kernel reports that, also for a missing file.
                if os.path.lexists(path):
                    first = first or error
    if first is not None:
        raise first


def _back_up(target: str, backup: str, stop: StopFlag) -> Identity | None:
    try:
        os.link(target, backup, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(target, backup, stop)
    # Looked up after the link, for which an overlay may have given the file a new inode.
    return _identity_at(target)


def _copy(target: str, backup: str, stop: StopFlag) -> None:
    copy(target, backup, recursive=False, stop=stop)
    fd = os.open(backup, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        inherit_attributes(target, fd)
        os.fsync(fd)
    finally:
        os.close(fd)


# -- steps


def do(steps: Sequence[Step], between: Callable[[], None] = lambda: None) -> None:
    """Do steps; those that were done before are skipped.

    Args:
        steps: in order.
        between: called after each one.

    Raises:
        RpcError: a step failed. The steps before it stay done.
    """
    for step in steps:
        try:
            _do(step)
        except OSError as error:
            raise _step_error(step.target, error) from None
        between()


def undo(steps: Sequence[Step], between: Callable[[], None] = lambda: None) -> None:
    """Undo steps in reverse order; those that were not done are skipped.

    Raises:
        RpcError: the first error; undoing the rest was tried.
    """
    first: RpcError | None = None
    for step in reversed(steps):
        try:
            _undo(step)
        except OSError as error:
            first = first or _step_error(step.target, error)
        between()
    if first is not None:
        raise first


def sync(folders: Sequence[str]) -> None:
    """Make the names in folders durable.

    Raises:
        OSError: the disk failed.
    """
    for folder in folders:
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise


def _step_error(path: str, error: OSError) -> RpcError:
    found = file_error(error)
    return type(found)(f"{printable_path(path)}: {found.message}", name=found.name)


def _do(step: Step) -> None:
    existing = _identity_at(step.target)
    if step.kind == "remove":
        if existing == step.old and os.lstat(step.target).st_mtime_ns == step.changed:
            os.rename(step.target, step.backup)
        elif existing is not None:
            raise _conflict(step.target)
    elif existing != step.identity:
        staged = _identity_at(step.staged)
        if staged is None and existing != (step.old or step.identity):
            return  # Done before; another program has replaced the target since.
        if staged != step.identity or existing != step.old:
            raise _conflict(step.target)
        if step.old is not None:
            os.rename(step.staged, step.target)
        else:
            rename_to_free_place(step.staged, step.target)


def _undo(step: Step) -> None:
    existing = _identity_at(step.target)
    if step.kind == "remove":
        if existing is None and _identity_at(step.backup) == step.old:
            rename_to_free_place(step.backup, step.target)
    elif existing != step.identity:
        return
    elif step.kind == "replace":
        os.rename(step.backup, step.target)
    else:
        # Back to its temporary name, under which `discard` removes it.
        os.rename(step.target, step.staged)


def _identity_at(path: str) -> Identity | None:
    """The identity of the file at a path, not following a link; None if there is none.

    Raises:
        OSError: it cannot be inspected.
    """
    try:
        return _identity(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino

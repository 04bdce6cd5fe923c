"""`fs/copy` and `fs/remove`: of a file, a link or a whole tree. Also used by fs workers.

Rules kept in this file:

1. A tree is copied to a temporary name, which is renamed at the end: the copy is complete or not there. The
   temporary tree is locked; one that a killed process has left is removed by the next copy into its folder.
2. A tree is removed through descriptors of its directories, never by path: replacing a directory by a link
   cannot redirect the removal, and a path may be longer than the kernel accepts. Only one directory is open
   at a time; the way up is `..`, and is checked against the directory that the way down came from.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from execprotocol.errors import InternalError, InvalidRequest
from execserver.filesystem.cancel import raise_if_cancelled
from execserver.filesystem.content import copy_content, copy_whole
from execserver.filesystem.directories import create_directory, rename_to_free_place
from execserver.filesystem.opening import open_to_write
from execserver.filesystem.replacing import (
    Attributes,
    CannotNameError,
    Replacement,
    can_be_written_only,
    inherit_attributes,
    lock_temporary,
    overwrite,
    remove_left,
    resolve_destination,
    temporary_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.filesystem.cancel import StopFlag

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_INTO_ITSELF = "fs/copy cannot copy a directory to itself or one of its descendants"


# -- copy


class CopyOptions:
    """What a copy keeps of its source besides the content.

    Args:
        keep_mode: as with cp(1): an existing file keeps its permission bits; a new one gets no set-id bits.
        preserve_times: the copy gets the times of the source.
    """

    # No named tuple: the module `typing` would delay the first request to a worker.
    __slots__ = ("keep_mode", "preserve_times")

    def __init__(self, keep_mode: bool = False, preserve_times: bool = False) -> None:
        self.keep_mode = keep_mode
        self.preserve_times = preserve_times


DEFAULT_OPTIONS = CopyOptions()


def copy(
    source: str, destination: str, *, recursive: bool, stop: StopFlag, options: CopyOptions = DEFAULT_OPTIONS
) -> bool:
    """Copy a file with its permission bits, a link as a link, or a tree: whole or not at all.

    Args:
        source: the file, link or directory to copy; a link is not followed.
        destination: a free path; for a file also an existing file, which is replaced, through links too.
        recursive: whether `source` may be a directory.
        stop: cancels the copy; nothing is changed then.
        options: further properties of the source to keep.

    Returns:
        Whether a file had to be written in place (`replacing.overwrite`).

    Raises:
        InvalidRequest: the source is a directory without `recursive`, a special file, or the destination
            itself; or the destination is inside the source.
        OSError: among others EEXIST, and EISDIR for a file onto a directory.
    """
    status = os.lstat(source)
    kind = status.st_mode
    if stat.S_ISREG(kind):
        return _copy_file(source, destination, stop, options)
    if stat.S_ISLNK(kind):
        os.symlink(os.readlink(source), destination)
        if options.preserve_times:
            _set_times(destination, status)
    elif not stat.S_ISDIR(kind):
        raise InvalidRequest("fs/copy only supports regular files, directories, and symlinks")
    elif not recursive:
        raise InvalidRequest("fs/copy requires recursive: true when sourcePath is a directory")
    else:
        _copy_tree(source, destination, stop, options)
    return False


def _copy_tree(source: str, destination: str, stop: StopFlag, options: CopyOptions) -> None:
    """Copy a tree under a temporary name, and rename that."""
    _require_outside(source, destination)
    if os.path.lexists(destination):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    folder = os.path.dirname(destination)
    create_directory(folder, recursive=True)
    remove_left(folder, lambda path: remove(path, recursive=True, force=True))
    temporary = temporary_name(folder)
    os.mkdir(temporary, 0o700)
    made: list[tuple[str, os.stat_result]] = []
    fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_temporary(fd)
        _fill_tree(source, temporary, made, stop, options)
        rename_to_free_place(temporary, destination)
    except BaseException:
        _discard_tree(temporary, made)
        raise
    finally:
        os.close(fd)


def _fill_tree(
    source: str,
    destination: str,
    made: list[tuple[str, os.stat_result]],
    stop: StopFlag,
    options: CopyOptions,
) -> None:
    top = os.stat(destination)
    pending = [(source, destination)]
    while pending:
        raise_if_cancelled(stop)
        original, copied = pending.pop()
        status = os.lstat(original)
        if os.path.samestat(status, top):
            # The destination is below the source by a bind mount, which no path shows.
            raise InvalidRequest(_INTO_ITSELF)
        made.append((copied, status))
        pending += _copy_entries(original, copied, stop, options)
    # Modes and times are set last: a mode may forbid writing, and each new name changes the time.
    for directory, status in reversed(made):
        inherited = os.stat(directory).st_mode & stat.S_ISGID
        mode = stat.S_IMODE(status.st_mode) & ~stat.S_ISGID
        if options.keep_mode:
            mode &= 0o777
        os.chmod(directory, mode | inherited)
        if options.preserve_times:
            _set_times(directory, status)


def _discard_tree(temporary: str, made: list[tuple[str, os.stat_result]]) -> None:
    for directory, _ in made:
        with suppress(OSError):
            os.chmod(directory, 0o700)
    with suppress(OSError):
        remove(temporary, recursive=True, force=True)


def _copy_entries(
    source: str, destination: str, stop: StopFlag, options: CopyOptions
) -> list[tuple[str, str]]:
    """Copy the entries of a directory, except special files. Its directories are made, and left empty.

    Returns:
        Source and destination of each directory.
    """
    directories = []
    with os.scandir(source) as scan:
        for entry in scan:
            target = f"{destination}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
                if options.preserve_times:
                    _set_times(target, entry.stat(follow_symlinks=False))
            elif entry.is_file(follow_symlinks=False):
                _copy_inside(entry.path, target, stop, options)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(target, 0o700)
                directories.append((entry.path, target))
    return directories


def _require_outside(source: str, destination: str) -> None:
    """Refuse a destination that is the source or lies below it, by any path."""
    identity = os.stat(source)
    directory = destination
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    # Go up by `..`, which leads to the real parent; the path may contain links.
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        while True:
            if os.path.samestat(status, identity):
                raise InvalidRequest(_INTO_ITSELF)
            parent = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = parent
            child, status = status, os.fstat(fd)
            if os.path.samestat(status, child):
                return
    finally:
        os.close(fd)


def _copy_file(source: str, destination: str, stop: StopFlag, options: CopyOptions) -> bool:
    original = os.open(source, _SOURCE)
    try:
        status = os.fstat(original)
        target, existing = resolve_destination(destination)
        if existing is not None and os.path.samestat(existing, status):
            raise InvalidRequest("fs/copy cannot copy a file to itself")
        if (existing is not None and not stat.S_ISREG(existing.st_mode)) or target.endswith("/"):
            _write_to_special(original, target, stop)
            return False
        try:
            _replace(original, status, target, existing, stop, options)
        except InvalidRequest:
            pass  # the owner of the existing file cannot be kept
        except OSError as error:
            if existing is None or not can_be_written_only(error):
                raise
        else:
            return False
        assert existing is not None
        overwrite(original, target, _attributes(status, existing, existing, options), stop)
        return True
    finally:
        os.close(original)


def _replace(
    original: int,
    status: os.stat_result,
    target: str,
    existing: os.stat_result | None,
    stop: StopFlag,
    options: CopyOptions,
) -> None:
    for named in (False, True):
        replacement = Replacement(target, existing, named=named)
        try:
            fd = replacement.fd
            if existing is not None:
                inherit_attributes(target, fd)
                os.fchmod(fd, 0o600)
            copy_whole(original, fd, status, stop)
            # Set last: writing clears the set-id bits, and changes the time.
            _attributes(status, os.fstat(fd), existing, options).set(fd)
            replacement.commit()
        except CannotNameError:
            if named:
                raise
            os.lseek(original, 0, os.SEEK_SET)
        else:
            return
        finally:
            replacement.close()


def _copy_inside(source: str, target: str, stop: StopFlag, options: CopyOptions) -> None:
    """Copy a file of a tree. The tree has a temporary name, so the file needs none."""
    original = os.open(source, _SOURCE)
    try:
        status = os.fstat(original)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            copy_whole(original, fd, status, stop)
            _attributes(status, os.fstat(fd), None, options).set(fd)
        finally:
            os.close(fd)
    finally:
        os.close(original)


def _write_to_special(original: int, target: str, stop: StopFlag) -> None:
    """Write into a fifo or a device. A directory gives the kernel's error."""
    copied = open_to_write(target)
    try:
        copy_content(original, copied, stop)
    finally:
        os.close(copied)


def _attributes(
    original: os.stat_result, copied: os.stat_result, existing: os.stat_result | None, options: CopyOptions
) -> Attributes:
    """The attributes of a copy. It gets a set-id bit only if the owner (or group) is the same: a program of
    another user must not become a set-user-id program of the server's user.
    """
    mode = stat.S_IMODE(original.st_mode)
    if options.keep_mode:
        mode = stat.S_IMODE(original.st_mode if existing is None else existing.st_mode) & 0o777
    if original.st_uid != copied.st_uid:
        mode &= ~stat.S_ISUID
    if original.st_gid != copied.st_gid:
        mode &= ~stat.S_ISGID
    if not options.preserve_times:
        return Attributes(mode)
    return Attributes(mode, original.st_mtime_ns, original.st_atime_ns)


def _set_times(path: str, status: os.stat_result) -> None:
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


# -- remove


class _Level:
    """A directory between the root of the removal and the open directory.

    `names` are its subdirectories that are still to be removed.
    """

    __slots__ = ("device", "inode", "names")

    def __init__(self, device: int, inode: int, names: list[str]) -> None:
        self.device = device
        self.inode = inode
        self.names = names


def remove(path: str, *, recursive: bool, force: bool) -> None:
    """Remove a path; a link goes, not its target.

    Args:
        path: the file, link or directory to remove.
        recursive: remove a directory with its content.
        force: a missing path is no error.

    Raises:
        OSError: among others ENOENT without `force`, and ENOTEMPTY without `recursive`.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif recursive:
            _remove_tree(path)
        else:
            os.rmdir(path)
    except FileNotFoundError:
        if not force:
            raise


def _remove_tree(path: str) -> None:
    if path == "/":
        # The root itself cannot be removed, so its content stays too.
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    fd = os.open(path, _DIRECTORY)
    try:
        levels = [_empty(fd)]
        while True:
            level = levels[-1]
            if level.names:
                child = _open_directory(level.names[-1], fd)
                if child is None:
                    level.names.pop()
                    continue
                os.close(fd)
                fd = child
                levels.append(_empty(fd))
                continue
            levels.pop()
            if not levels:
                break
            parent = os.open("..", _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = parent
            _require_same(fd, levels[-1])
            with suppress(FileNotFoundError):
                os.rmdir(levels[-1].names.pop(), dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(path)


def _empty(fd: int) -> _Level:
    """Remove everything but the subdirectories from an open directory."""
    directories = []
    with os.scandir(fd) as scan:
        for entry in scan:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=fd)
    status = os.fstat(fd)
    return _Level(status.st_dev, status.st_ino, directories)


def _open_directory(name: str, parent: int) -> int | None:
    """Open a subdirectory; None if it was removed, or replaced by something else, which is removed here."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    return None


def _require_same(fd: int, level: _Level) -> None:
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (level.device, level.inode):
        raise InternalError("a directory was moved while it was being removed")

"""`fs/copy`: files, links and trees. Content is copied inside the kernel where it can do that."""

from __future__ import annotations

import errno
import os
import stat

from execserver.filesystem.directories import create_directory
from execserver.filesystem.giving_up import give_up_if
from execserver.filesystem.opening import open_to_write
from execserver.protocol.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.filesystem.giving_up import Stop

_STEP_BYTES = 16 << 20
"""Copied by one system call, so that work nobody waits for any more ends soon."""

_BUFFER_BYTES = 1 << 20

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Words of a kernel or a file system for that it cannot copy by itself, here or at all.
_CANNOT_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)

_INTO_ITSELF = "fs/copy cannot copy a directory to itself or one of its descendants"


def copy(source: str, destination: str, *, recursive: bool, stop: Stop) -> None:
    """Copy a file with its permission bits, a link as a link, or a tree.

    Args:
        source: what to copy; a link is not followed.
        destination: for a file, a place that is free or a file that is replaced in place, also
            through links; for anything else, a place that is free.
        recursive: whether `source` may be a directory.
        stop: ends the copying of a tree or a large file half-way.

    Raises:
        InvalidRequest: a directory without `recursive` or into itself, a file onto itself, or
            something that is no file, directory or link.
        OSError: among others EEXIST, and EISDIR for a file onto a directory.
    """
    kind = os.lstat(source).st_mode
    if stat.S_ISREG(kind):
        _copy_file(source, destination, stop)
    elif stat.S_ISLNK(kind):
        os.symlink(os.readlink(source), destination)
    elif not stat.S_ISDIR(kind):
        raise InvalidRequest("fs/copy only supports regular files, directories, and symlinks")
    elif not recursive:
        raise InvalidRequest("fs/copy requires recursive: true when sourcePath is a directory")
    else:
        _copy_tree(source, destination, stop)


def _copy_tree(source: str, destination: str, stop: Stop) -> None:
    _require_outside(source, destination)
    create_directory(os.path.dirname(destination), recursive=True)
    os.mkdir(destination, 0o700)
    top = os.stat(destination)
    modes = []
    pending = [(source, destination)]
    while pending:
        give_up_if(stop)
        original, copied = pending.pop()
        status = os.lstat(original)
        if os.path.samestat(status, top):
            # Below the source after all, by a way that no path shows, such as a bind mount.
            raise InvalidRequest(_INTO_ITSELF)
        modes.append((copied, status.st_mode))
        pending += _copy_entries(original, copied, stop)
    # A directory may forbid writing, so each gets its mode when everything is in place.
    for directory, mode in reversed(modes):
        inherited = os.stat(directory).st_mode & stat.S_ISGID
        os.chmod(directory, stat.S_IMODE(mode) & ~stat.S_ISGID | inherited)


def _copy_entries(source: str, destination: str, stop: Stop) -> list[tuple[str, str]]:
    """Copy what is in a directory, but for special files; its directories are made and left empty.

    Returns:
        Source and destination of each of them.
    """
    directories = []
    with os.scandir(source) as scan:
        for entry in scan:
            target = f"{destination}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(entry.path, target, stop)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(target, 0o700)
                directories.append((entry.path, target))
    return directories


def _require_outside(source: str, destination: str) -> None:
    """Refuse a destination that is the source or lies below it, by whatever path."""
    identity = os.stat(source)
    directory = destination
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    # Up by `..`, which leads to the real parent where the path may lead through a link.
    number = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(number)
        while True:
            if os.path.samestat(status, identity):
                raise InvalidRequest(_INTO_ITSELF)
            parent = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=number)
            os.close(number)
            number = parent
            child, status = status, os.fstat(number)
            if os.path.samestat(status, child):
                return
    finally:
        os.close(number)


def _copy_file(source: str, destination: str, stop: Stop) -> None:
    original = os.open(source, _SOURCE)
    try:
        status = os.fstat(original)
        copied = open_to_write(destination, stat.S_IMODE(status.st_mode) & 0o777)
        try:
            _fill(original, copied, status, stop)
        finally:
            os.close(copied)
    finally:
        os.close(original)


def _fill(original: int, copied: int, status: os.stat_result, stop: Stop) -> None:
    target = os.fstat(copied)
    if os.path.samestat(target, status):
        raise InvalidRequest("fs/copy cannot copy a file to itself")
    if not stat.S_ISREG(target.st_mode):
        _copy_content(original, copied, stop)
        return
    # The mode first: what is copied may be secret. And last: writing clears the set-id bits.
    mode = _mode_of_copy(status, target)
    os.fchmod(copied, mode & 0o777)
    os.ftruncate(copied, 0)
    _copy_content(original, copied, stop)
    if mode & ~0o777:
        os.fchmod(copied, mode)


def _mode_of_copy(original: os.stat_result, copied: os.stat_result) -> int:
    """The permission bits. The set-id bits only where they give the same rights again: a
    program of somebody else must not become a set-user-id one of the server's user.
    """
    mode = stat.S_IMODE(original.st_mode)
    if original.st_uid != copied.st_uid:
        mode &= ~stat.S_ISUID
    if original.st_gid != copied.st_gid:
        mode &= ~stat.S_ISGID
    return mode


def _copy_content(original: int, copied: int, stop: Stop) -> None:
    """Copy from both files' offsets to the end, by the best way that works; a worse one goes on
    where a better one ends. The last finds the end of files that the kernel takes for empty.
    """
    ways: tuple[Callable[[int, int], int], ...] = (_copy_range, _send, _read_and_write)
    for way in ways:
        try:
            while way(original, copied):
                give_up_if(stop)
        except OSError as error:
            if way is _read_and_write or error.errno not in _CANNOT_COPY:
                raise


def _copy_range(original: int, copied: int) -> int:
    return os.copy_file_range(original, copied, _STEP_BYTES)


def _send(original: int, copied: int) -> int:
    return os.sendfile(copied, original, None, _STEP_BYTES)


def _read_and_write(original: int, copied: int) -> int:
    data = os.read(original, _BUFFER_BYTES)
    view = memoryview(data)
    while view:
        view = view[os.write(copied, view) :]
    return len(data)

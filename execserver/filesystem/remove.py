"""`fs/remove`, of a tree of any depth.

A tree is removed through descriptors of its directories, never by path: nobody can turn the
removal elsewhere by putting a link in the place of a directory, and a path may be longer than
the kernel takes at once. Only one directory is open at a time; the way up is `..`, and is
checked against the directory that the way down came from.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from execprotocol.errors import InternalError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Level:
    """A directory on the way down to the open one, and its directories that are left to remove."""

    __slots__ = ("device", "inode", "names")

    def __init__(self, device: int, inode: int, names: list[str]) -> None:
        self.device = device
        self.inode = inode
        self.names = names


def remove(path: str, *, recursive: bool, force: bool) -> None:
    """Remove a path; a link goes, not its target.

    Args:
        path: what to remove.
        recursive: also a directory with something in it.
        force: it is no error when there is nothing to remove.

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
        # It cannot go in the end, so nothing of it goes before.
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    number = os.open(path, _DIRECTORY)
    try:
        levels = [_empty(number)]
        while True:
            level = levels[-1]
            if level.names:
                child = _open_directory(level.names[-1], number)
                if child is None:
                    level.names.pop()
                    continue
                os.close(number)
                number = child
                levels.append(_empty(number))
                continue
            levels.pop()
            if not levels:
                break
            parent = os.open("..", _DIRECTORY, dir_fd=number)
            os.close(number)
            number = parent
            _require_same(number, levels[-1])
            with suppress(FileNotFoundError):
                os.rmdir(levels[-1].names.pop(), dir_fd=number)
    finally:
        os.close(number)
    os.rmdir(path)


def _empty(number: int) -> _Level:
    """Remove everything from an open directory but its directories."""
    directories = []
    with os.scandir(number) as scan:
        for entry in scan:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=number)
    status = os.fstat(number)
    return _Level(status.st_dev, status.st_ino, directories)


def _open_directory(name: str, parent: int) -> int | None:
    """Open a directory in an open one; None when it went away, or something else took its place."""
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


def _require_same(number: int, level: _Level) -> None:
    status = os.fstat(number)
    if (status.st_dev, status.st_ino) != (level.device, level.inode):
        raise InternalError("a directory was moved while it was being removed")

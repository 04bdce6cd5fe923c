"""`fs/copy`: files, links and trees, whole or not at all. Also done by fs workers."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import NamedTuple

from execprotocol.errors import InvalidRequest
from execserver.filesystem.cancel import give_up_if
from execserver.filesystem.content import copy_content, copy_whole
from execserver.filesystem.directories import create_directory
from execserver.filesystem.opening import open_to_write
from execserver.filesystem.rename import rename_to_free_place
from execserver.filesystem.replacing import (
    Attributes,
    CannotNameError,
    Replacement,
    can_be_written_only,
    find,
    lock_temporary,
    overwrite,
    sweep,
    take_after,
    temporary_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.filesystem.cancel import Stop

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_INTO_ITSELF = "fs/copy cannot copy a directory to itself or one of its descendants"


class Wish(NamedTuple):
    """What a copy gets of its source beside the content."""

    keep_mode: bool = False
    """A file that is there keeps its permission bits, and a new one gets no set-id bits; as cp(1) does it."""

    preserve_times: bool = False


PLAIN = Wish()


def copy(source: str, destination: str, *, recursive: bool, stop: Stop, wish: Wish = PLAIN) -> bool:
    """Copy a file with its permission bits, a link as a link, or a tree: whole or not at all.

    Args:
        source: what to copy; a link is not followed.
        destination: for a file, a place that is free or a file that is replaced, also through links; for
            anything else, a place that is free.
        recursive: whether `source` may be a directory.
        stop: ends the copying half-way; everything is as it was then.
        wish: what else is kept.

    Returns:
        Whether a file had to be written in place (`replacing.overwrite`).

    Raises:
        InvalidRequest: a directory without `recursive` or into itself, a file onto itself, or
            something that is no file, directory or link.
        OSError: among others EEXIST, and EISDIR for a file onto a directory.
    """
    status = os.lstat(source)
    kind = status.st_mode
    if stat.S_ISREG(kind):
        return _copy_file(source, destination, stop, wish)
    if stat.S_ISLNK(kind):
        os.symlink(os.readlink(source), destination)
        if wish.preserve_times:
            _set_times(destination, status)
    elif not stat.S_ISDIR(kind):
        raise InvalidRequest("fs/copy only supports regular files, directories, and symlinks")
    elif not recursive:
        raise InvalidRequest("fs/copy requires recursive: true when sourcePath is a directory")
    else:
        _copy_tree(source, destination, stop, wish)
    return False


def _copy_tree(source: str, destination: str, stop: Stop, wish: Wish) -> None:
    """Copy a tree under a temporary name, and rename that."""
    _require_outside(source, destination)
    if os.path.lexists(destination):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    folder = os.path.dirname(destination)
    create_directory(folder, recursive=True)
    sweep(folder)
    temporary = temporary_name(folder)
    os.mkdir(temporary, 0o700)
    made: list[tuple[str, os.stat_result]] = []
    number = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_temporary(number)
        _fill_tree(source, temporary, made, stop, wish)
        rename_to_free_place(temporary, destination)
    except BaseException:
        _remove_tree(temporary, made)
        raise
    finally:
        os.close(number)


def _fill_tree(
    source: str, destination: str, made: list[tuple[str, os.stat_result]], stop: Stop, wish: Wish
) -> None:
    top = os.stat(destination)
    pending = [(source, destination)]
    while pending:
        give_up_if(stop)
        original, copied = pending.pop()
        status = os.lstat(original)
        if os.path.samestat(status, top):
            # Below the source after all, by a way that no path shows, such as a bind mount.
            raise InvalidRequest(_INTO_ITSELF)
        made.append((copied, status))
        pending += _copy_entries(original, copied, stop, wish)
    # A directory may forbid writing, and its time is that of the last new name: so each gets its mode and
    # its times when everything is in place.
    for directory, status in reversed(made):
        inherited = os.stat(directory).st_mode & stat.S_ISGID
        mode = stat.S_IMODE(status.st_mode) & ~stat.S_ISGID
        if wish.keep_mode:
            mode &= 0o777
        os.chmod(directory, mode | inherited)
        if wish.preserve_times:
            _set_times(directory, status)


def _remove_tree(temporary: str, made: list[tuple[str, os.stat_result]]) -> None:
    from execserver.filesystem.remove import remove

    for directory, _ in made:
        with suppress(OSError):
            os.chmod(directory, 0o700)
    with suppress(OSError):
        remove(temporary, recursive=True, force=True)


def _copy_entries(source: str, destination: str, stop: Stop, wish: Wish) -> list[tuple[str, str]]:
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
                if wish.preserve_times:
                    _set_times(target, entry.stat(follow_symlinks=False))
            elif entry.is_file(follow_symlinks=False):
                _copy_inside(entry.path, target, stop, wish)
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


def _copy_file(source: str, destination: str, stop: Stop, wish: Wish) -> bool:
    original = os.open(source, _SOURCE)
    try:
        status = os.fstat(original)
        target, standing = find(destination)
        if standing is not None and os.path.samestat(standing, status):
            raise InvalidRequest("fs/copy cannot copy a file to itself")
        if (standing is not None and not stat.S_ISREG(standing.st_mode)) or target.endswith("/"):
            _write_to_special(original, target, stop)
            return False
        try:
            _replace(original, status, target, standing, stop, wish)
        except InvalidRequest:
            pass  # the owner of the file that is there cannot be kept
        except OSError as error:
            if standing is None or not can_be_written_only(error):
                raise
        else:
            return False
        assert standing is not None
        overwrite(original, target, _attributes(status, standing, standing, wish), stop)
        return True
    finally:
        os.close(original)


def _replace(
    original: int,
    status: os.stat_result,
    target: str,
    standing: os.stat_result | None,
    stop: Stop,
    wish: Wish,
) -> None:
    for named in (False, True):
        replacement = Replacement(target, standing, named=named)
        try:
            number = replacement.number
            if standing is not None:
                take_after(target, number)
                os.fchmod(number, 0o600)
            copy_whole(original, number, status, stop)
            # Last: writing clears the set-id bits, and changes the time.
            _attributes(status, os.fstat(number), standing, wish).set(number)
            replacement.put()
        except CannotNameError:
            if named:
                raise
            os.lseek(original, 0, os.SEEK_SET)
        else:
            return
        finally:
            replacement.close()


def _copy_inside(source: str, target: str, stop: Stop, wish: Wish) -> None:
    """Copy a file of a tree, which has a temporary name itself."""
    original = os.open(source, _SOURCE)
    try:
        status = os.fstat(original)
        number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            copy_whole(original, number, status, stop)
            _attributes(status, os.fstat(number), None, wish).set(number)
        finally:
            os.close(number)
    finally:
        os.close(original)


def _write_to_special(original: int, target: str, stop: Stop) -> None:
    """Write into a fifo or a device; for a directory the kernel gives the error."""
    copied = open_to_write(target)
    try:
        copy_content(original, copied, stop)
    finally:
        os.close(copied)


def _attributes(
    original: os.stat_result, copied: os.stat_result, standing: os.stat_result | None, wish: Wish
) -> Attributes:
    """What a copy gets. Set-id bits only where they give the same rights again: a program of another user
    must not become a set-user-id one of the server's user.
    """
    mode = stat.S_IMODE(original.st_mode)
    if wish.keep_mode:
        mode = stat.S_IMODE(original.st_mode if standing is None else standing.st_mode) & 0o777
    if original.st_uid != copied.st_uid:
        mode &= ~stat.S_ISUID
    if original.st_gid != copied.st_gid:
        mode &= ~stat.S_ISGID
    if not wish.preserve_times:
        return Attributes(mode)
    return Attributes(mode, original.st_mtime_ns, original.st_atime_ns)


def _set_times(path: str, status: os.stat_result) -> None:
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)

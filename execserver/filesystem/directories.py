"""Names in directories: `fs/createDirectory`, `fs/readDirectory` and `fs/rename`.

Every fs worker imports this module at its start: it imports nothing that takes long.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.filesystem.cancel import raise_if_cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.filesystem.cancel import StopFlag


_DEFAULT_MODE = 0o777

_RENAME_NOREPLACE = 1  # linux/fs.h
_AT_FDCWD = -100  # linux/fcntl.h: relative paths start at the working directory

_NO_NOREPLACE = (errno.EINVAL, errno.ENOSYS)
"""Errors of a file system without RENAME_NOREPLACE."""


def create_directory(path: str, *, recursive: bool, permissions: int | None = None) -> None:
    """Make a directory.

    Args:
        path: the directory.
        recursive: also make missing parents; an existing directory is no error.
        permissions: the permission bits of the directory itself, before the umask; None for 0777.

    Raises:
        OSError: among others EEXIST, and ENOENT for a missing parent without `recursive`.
    """
    mode = _DEFAULT_MODE if permissions is None else permissions
    if not recursive:
        os.mkdir(path, mode)
        return
    missing: list[tuple[str, int]] = []
    while not ensure_directory(path, mode):
        missing.append((path, mode))
        path, mode = os.path.dirname(path), _DEFAULT_MODE
    for path, mode in reversed(missing):
        if not ensure_directory(path, mode):
            os.mkdir(path, mode)  # another process has removed it


def ensure_directory(path: str, mode: int) -> bool:
    """Make one directory unless it exists; False if its parent is missing.

    Raises:
        OSError: it cannot be made; EEXIST if something else is there.
    """
    try:
        os.mkdir(path, mode)
    except FileNotFoundError:
        if path == "/":
            raise
        return False
    except OSError:
        if not os.path.isdir(path):
            raise
    return True


def entries(path: str, stop: StopFlag) -> Iterator[tuple[str, int]]:
    """The names in a directory, in no order, each with the type bits of its target.

    Dangling links are left out.

    Raises:
        OSError: the directory cannot be opened or read.
        RequestCancelled: `stop` is set.
    """
    with os.scandir(path) as scan:
        for entry in scan:
            raise_if_cancelled(stop)
            kind = entry_kind(entry)
            if kind is not None:
                yield entry.name, kind


def entry_kind(entry: os.DirEntry[str]) -> int | None:
    """The type bits of an entry's target; None for a dangling link, or if the entry was removed."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return stat.S_IFDIR
        if entry.is_file(follow_symlinks=False):
            return stat.S_IFREG
        return stat.S_IFMT(entry.stat().st_mode)
    except OSError:
        return None


def rename(source: str, destination: str, *, overwrite: bool) -> None:
    """Rename a file, a link (never its target) or a directory.

    It is one system call: at no time do both names exist, or neither.

    Args:
        source: the old path.
        destination: its new path.
        overwrite: whether an existing file may be replaced, or an empty directory by a directory.

    Raises:
        OSError: among others EXDEV, the paths are on two file systems. Without `overwrite` also EEXIST, and
            EINVAL if the file system has no RENAME_NOREPLACE.
    """
    if overwrite:
        os.rename(source, destination)
    else:
        _rename_noreplace(source, destination)


def rename_to_free_place(source: str, destination: str) -> None:
    """Rename to a free path; check for it first where the file system cannot do both in one step.

    Raises:
        OSError: among others EEXIST.
    """
    try:
        rename(source, destination, overwrite=False)
    except OSError as error:
        if error.errno not in _NO_NOREPLACE:
            raise
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(source, destination)


def _rename_noreplace(source: str, destination: str) -> None:
    # The standard library has no renameat2. `ctypes` is slow to import, and few workers need it.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = library.renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(destination), _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

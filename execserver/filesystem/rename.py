"""`fs/rename`: one system call, for which there is both names or neither at no time."""

from __future__ import annotations

import errno
import os

_RENAME_NOREPLACE = 1  # linux/fs.h
_AT_FDCWD = -100  # linux/fcntl.h: a relative path would be that of the working directory


_CANNOT = (errno.EINVAL, errno.ENOSYS)
"""Errors of a file system that cannot rename to a free place only."""


def rename(source: str, destination: str, *, overwrite: bool) -> None:
    """Rename a file, a link (never its target) or a directory.

    Args:
        source: what to rename.
        destination: its new path.
        overwrite: whether a file, or an empty directory in the place of a directory, may be replaced.

    Raises:
        OSError: among others EXDEV, the paths are on two file systems; EEXIST without `overwrite`, and then
            EINVAL where the file system cannot do that.
    """
    if overwrite:
        os.rename(source, destination)
    else:
        _rename_to_free_place(source, destination)


def rename_to_free_place(source: str, destination: str) -> None:
    """Rename to a place where nothing is; where the file system cannot do that in one step, after a look.

    Raises:
        OSError: among others EEXIST.
    """
    try:
        rename(source, destination, overwrite=False)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(source, destination)


def _rename_to_free_place(source: str, destination: str) -> None:
    # The standard library has no other way. Seldom needed, and slow to import for the worker.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = library.renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(destination), _RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

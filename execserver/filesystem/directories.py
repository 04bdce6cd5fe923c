"""Making and listing directories: `fs/createDirectory` and `fs/readDirectory`. Also used by fs workers."""

from __future__ import annotations

import os
import stat

from execserver.filesystem.cancel import raise_if_cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.filesystem.cancel import StopFlag


_DEFAULT_MODE = 0o777


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
    while not _ensure_directory(path, mode):
        missing.append((path, mode))
        path, mode = os.path.dirname(path), _DEFAULT_MODE
    for path, mode in reversed(missing):
        if not _ensure_directory(path, mode):
            os.mkdir(path, mode)  # another process has removed it


def _ensure_directory(path: str, mode: int) -> bool:
    """Make one directory unless it exists; False if its parent is missing."""
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

"""Making and listing directories: `fs/createDirectory` and `fs/readDirectory`."""

from __future__ import annotations

import os
import stat

from execserver.filesystem.cancel import raise_if_cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.filesystem.cancel import StopFlag


_USUAL_MODE = 0o777


def create_directory(path: str, *, recursive: bool, permissions: int | None = None) -> None:
    """Make a directory; with `recursive` also its parents, and one that is there is no error.

    Args:
        path: which.
        recursive: see above.
        permissions: the permission bits of the directory itself, before the umask; None for 0777.

    Raises:
        OSError: among others EEXIST, and ENOENT for a missing parent without `recursive`.
    """
    mode = _USUAL_MODE if permissions is None else permissions
    if not recursive:
        os.mkdir(path, mode)
        return
    missing: list[tuple[str, int]] = []
    while not _made_or_there(path, mode):
        missing.append((path, mode))
        path, mode = os.path.dirname(path), _USUAL_MODE
    for path, mode in reversed(missing):
        if not _made_or_there(path, mode):
            os.mkdir(path, mode)  # another process removes what was made


def _made_or_there(path: str, mode: int) -> bool:
    """Make one directory; False when its parent is missing."""
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
    """The names in a directory, in no order, each with the type bits of what it leads to.

    Links to nothing are left out.

    Raises:
        OSError: it cannot be opened or read.
    """
    with os.scandir(path) as scan:
        for entry in scan:
            raise_if_cancelled(stop)
            kind = entry_kind(entry)
            if kind is not None:
                yield entry.name, kind


def entry_kind(entry: os.DirEntry[str]) -> int | None:
    """The type bits of a name's target; None when it is a link to nothing, or gone."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return stat.S_IFDIR
        if entry.is_file(follow_symlinks=False):
            return stat.S_IFREG
        return stat.S_IFMT(entry.stat().st_mode)
    except OSError:
        return None

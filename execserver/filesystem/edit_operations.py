"""`fs/applyEdits`, beside the files that it is about: new ones under hidden names, second names of old ones.

Also done by fs workers. Rules kept in this file:

1. Nothing here changes what any path of the user's shows. All names made here bear `MARK`.
2. A new file has the mode, the owner and the attributes of the old one before it has any content. Where the
   owner cannot be kept nothing is made: somebody else's file must not become ours by an edit.
3. The old file stays where it is and gets a second name. A file system without hard links gives it a copy.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from execserver.filesystem.edit_looking import require_still
from execserver.filesystem.edit_model import Identity, Staged, Staging
from execserver.filesystem.replacing import take_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.filesystem.cancel import Stop

MARK = ".execserver-edit-"
"""How the names begin that are ours; a random word and a number follow."""

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""A file system's words for that it gives a file no second name."""


def stage(staging: Staging, stop: Stop) -> tuple[int, Staged]:
    """Make a new file, empty, and give the old one its second name.

    Returns:
        The new file, open for writing, and what there is now.

    Raises:
        InvalidRequest: the target was changed since it was looked at, or its owner cannot be kept.
        OSError: something cannot be made.
    """
    before = staging.before
    require_still([before])
    for folder in staging.folders:
        with suppress(FileExistsError):
            os.mkdir(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(staging.staged, flags, 0o600 if staging.backup else 0o666)
    try:
        old = None
        if staging.backup:
            take_after(before.target, number)
            old = _back_up(before.target, staging.backup, stop)
        elif staging.mode is not None:
            os.fchmod(number, staging.mode)
        folder_identity = identity_of(staging.folders[0]) if staging.folders else None
        return number, Staged(_identity(os.fstat(number)), old, folder_identity)
    except BaseException:
        os.close(number)
        raise


def discard(files: Sequence[str], folders: Sequence[str]) -> None:
    """Remove files, then folders, which must be empty then; what is not there is no error.

    Raises:
        OSError: the first of them that could not be removed; all were tried.
    """
    first: OSError | None = None
    for remove, paths in ((os.unlink, files), (os.rmdir, folders)):
        for path in paths:
            try:
                remove(path)
            except OSError as error:
                # Where nothing may be removed that is said before it is looked whether there is anything.
                if os.path.lexists(path):
                    first = first or error
    if first is not None:
        raise first


def identity_of(path: str) -> Identity | None:
    """What stands at a path, not following a link; None for nothing.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        return _identity(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _back_up(target: str, backup: str, stop: Stop) -> Identity | None:
    try:
        os.link(target, backup, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(target, backup, stop)
    # After the link: a file system of layers may have given the file a new number for it.
    return identity_of(target)


def _copy(target: str, backup: str, stop: Stop) -> None:
    from execserver.filesystem.tree_operations import copy

    copy(target, backup, recursive=False, stop=stop)
    number = os.open(backup, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        take_after(target, number)
        os.fsync(number)
    finally:
        os.close(number)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino

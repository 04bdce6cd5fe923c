"""`fs/applyEdits`, the change itself: steps that are done one after the other, and undone in reverse.

Also done by fs workers, and by daemons that find what a dead one has begun. So every step can be done, and
undone, again, after any part of it: what stands where is told by device and inode. What somebody else put
into a place meanwhile is never touched.
"""

from __future__ import annotations

import errno
import os

from execprotocol.errors import RpcError, file_error
from execprotocol.path_text import printable_path
from execserver.filesystem.edit_looking import changed_meanwhile
from execserver.filesystem.edit_operations import identity_of
from execserver.filesystem.rename import rename_to_free_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.filesystem.edit_model import Step

_NO_SYNC = (errno.EINVAL, errno.EACCES, errno.ENOENT, errno.ENOTDIR)
"""A folder that cannot be opened, is gone, or lies where nothing is ever written to a disk."""


def do(steps: Sequence[Step], between: Callable[[], None] = lambda: None) -> None:
    """Do steps, or what is left of them.

    Args:
        steps: in order.
        between: called after each one.

    Raises:
        RpcError: one of them cannot be done. What was done before it stays done.
    """
    for step in steps:
        try:
            _do(step)
        except OSError as error:
            raise _at(step.target, error) from None
        between()


def undo(steps: Sequence[Step], between: Callable[[], None] = lambda: None) -> None:
    """Undo steps, the last one first, or what is left to be undone; those that were not done are left alone.

    Raises:
        RpcError: the first that could not be undone; all were tried.
    """
    first: RpcError | None = None
    for step in reversed(steps):
        try:
            _undo(step)
        except OSError as error:
            first = first or _at(step.target, error)
        between()
    if first is not None:
        raise first


def sync(folders: Sequence[str]) -> None:
    """Make the names in some folders durable.

    Raises:
        OSError: the disk failed.
    """
    for folder in folders:
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise


def _at(path: str, error: OSError) -> RpcError:
    found = file_error(error)
    return type(found)(f"{printable_path(path)}: {found.message}", name=found.name)


def _do(step: Step) -> None:
    standing = identity_of(step.target)
    if step.kind == "remove":
        if standing == step.old and os.lstat(step.target).st_mtime_ns == step.changed:
            os.rename(step.target, step.backup)
        elif standing is not None:
            raise changed_meanwhile(step.target)
    elif standing != step.identity:
        staged = identity_of(step.staged)
        if staged is None and standing != (step.old or step.identity):
            return  # Done before, and since then somebody else's business.
        if staged != step.identity or standing != step.old:
            raise changed_meanwhile(step.target)
        if step.old is not None:
            os.rename(step.staged, step.target)
        else:
            rename_to_free_place(step.staged, step.target)


def _undo(step: Step) -> None:
    standing = identity_of(step.target)
    if step.kind == "remove":
        if standing is None and identity_of(step.backup) == step.old:
            rename_to_free_place(step.backup, step.target)
    elif standing != step.identity:
        return
    elif step.kind == "replace":
        os.rename(step.backup, step.target)
    else:
        # Removed there with the other files of ours.
        os.rename(step.target, step.staged)

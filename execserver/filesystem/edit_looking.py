"""`fs/applyEdits`, before anything is changed: where an edit's path leads, and what stands there.

Also done by fs workers.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat

from execprotocol.errors import InvalidRequest, file_error
from execprotocol.path_text import printable_path
from execserver.filesystem.cancel import give_up_if
from execserver.filesystem.edit_model import Look, Watched
from execserver.filesystem.opening import is_read_only, may_write, open_to_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.filesystem.cancel import Stop

_MOST_LINKS = 40
"""As many as the kernel follows in one path."""

_BLOCK_BYTES = 1 << 20


def look(
    path: str,
    *,
    writes: bool,
    digest: bool,
    mode_from: str | None,
    stop: Stop,
    refuse: Callable[[int], None] = lambda device: None,
) -> Look:
    """Say what stands at a path, and see whether we may change it.

    Args:
        path: absolute.
        writes: whether it is to be written: then links are followed. Otherwise it is to be removed.
        digest: whether the digest of its content is asked for; that is read through links.
        mode_from: a file whose permission bits are asked for.
        stop: ends the reading half-way.
        refuse: called with the device of what stands there, or of the folder; may raise.

    Raises:
        InvalidRequest: a fifo, a socket or a device is to be written.
        RpcError: `mode_from` cannot be looked at.
        OSError: among others EISDIR for a directory, ENOTDIR, EACCES, EROFS.
        Abandoned: `stop` is set.
    """
    give_up_if(stop)
    mode = None if mode_from is None else _mode_of(mode_from)
    folder, missing, names, status = _follow(path, writes)
    target = os.path.join(folder, *missing)
    refuse(os.stat(folder).st_dev if status is None else status.st_dev)
    if status is None:
        return Look(target, "", names, len(missing) - 1, None, 0, 0, None, mode)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if writes:
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"path `{printable_path(path)}` is not a file")
        may_write(target)
    elif not os.access(folder, os.W_OK | os.X_OK):
        number = errno.EROFS if is_read_only(folder) else errno.EACCES
        raise OSError(number, os.strerror(number))
    read, found = _digest(target, stop, refuse) if digest else ("", None)
    identity = (status.st_dev, status.st_ino)
    return Look(target, read, names, 0, identity, status.st_size, status.st_mtime_ns, found, mode)


def still_so(watched: Watched) -> bool:
    """Whether a target is as it was looked at."""
    try:
        status = os.lstat(watched.target)
    except (FileNotFoundError, NotADirectoryError):
        return watched.identity is None
    return (
        (status.st_dev, status.st_ino) == watched.identity
        and status.st_size == watched.size
        and status.st_mtime_ns == watched.changed
    )


def require_still(watched: Sequence[Watched]) -> None:
    """Refuse to go on when a target is not as it was looked at.

    Raises:
        InvalidRequest: it is not.
        OSError: it cannot be looked at.
    """
    for each in watched:
        if not still_so(each):
            raise changed_meanwhile(each.target)


def changed_meanwhile(path: str) -> InvalidRequest:
    """Somebody else was there between our look at a target and its change."""
    return InvalidRequest(
        f"{printable_path(path)} was changed by somebody else just now: read it again", name="edit_conflict"
    )


def _mode_of(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o777
    except OSError as error:
        found = file_error(error)
        raise type(found)(f"modeFrom ({printable_path(path)}): {found.message}", name=found.name) from None


def _follow(path: str, through_links: bool) -> tuple[str, list[str], tuple[str, ...], os.stat_result | None]:
    """The deepest folder that exists, without links; the names below it; all names on the way; the status."""
    names: list[str] = []
    for _ in range(_MOST_LINKS):
        folder, missing = _deepest_folder(path)
        standing = os.stat(folder)
        names.append(f"{standing.st_dev}:{standing.st_ino}/{'/'.join(missing)}")
        if len(missing) > 1:
            return folder, missing, tuple(names), None
        target = os.path.join(folder, missing[0])
        try:
            status = os.lstat(target)
        except FileNotFoundError:
            return folder, missing, tuple(names), None
        if not (through_links and stat.S_ISLNK(status.st_mode)):
            return folder, missing, tuple(names), status
        path = os.path.join(folder, os.readlink(target))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _deepest_folder(path: str) -> tuple[str, list[str]]:
    """The deepest folder above a path that exists, and the names below it, the path's own last.

    Raises:
        IsADirectoryError: the path can only be one.
        OSError: what is above it cannot be looked at, or is no folder.
    """
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    missing = [name]
    while not os.path.lexists(folder or "/"):
        folder, name = os.path.split(folder.rstrip("/"))
        if name in (".", ".."):
            # The way up from a folder that is not there leads nowhere.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        missing.insert(0, name)
    real = os.path.realpath(folder or "/", strict=True)
    if not os.path.isdir(real):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return real, missing


def _digest(path: str, stop: Stop, refuse: Callable[[int], None]) -> tuple[str, str | None]:
    """Where a path leads, and the digest of the regular file there; None if it is none, or leads nowhere."""
    try:
        number, status = open_to_read(path)
    except (InvalidRequest, FileNotFoundError):
        return "", None
    except OSError as error:
        if error.errno == errno.ENXIO:
            return "", None  # a socket
        raise
    try:
        refuse(status.st_dev)
        found, block = hashlib.sha256(), memoryview(bytearray(_BLOCK_BYTES))
        while length := os.readv(number, [block]):
            found.update(block[:length])
            give_up_if(stop)
        return os.readlink(f"/proc/self/fd/{number}"), found.hexdigest()
    finally:
        os.close(number)

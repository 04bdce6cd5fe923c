"""Migrates the state that earlier versions kept in `/tmp/execserver-UID`, once.

They did so without XDG_STATE_HOME. Any process can create that name, also a command in a sandbox, which runs
as our own user; and records of edits are executed with all our rights. So the folder is trusted only when a
daemon of this version finds it at its first start (earlier versions hid the folder from their sandboxes), or
later if a daemon of an earlier version was using the same folder then. A file in the new folder stores that
finding.

After a kill at any time no record may be lost or duplicated. So a record is copied under a temporary name,
renamed to the name of an arrival, the original is removed, and then the copy is renamed to its final name. An
arrival whose original still exists is copied again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress

from execprotocol.trust import owner_name
from execserver.private_folder import (
    FolderError,
    lock,
    lock_folder,
    open_private,
    runtime_folder,
    state_folder,
)

_SEEN = "earlier-state"
"""The file with the device and inode of the old folder that was in use, or `done`."""
_DONE = "done"
_PARTIAL, _ARRIVED = "arriving", "arrived-"

_INSTANCES = "instances"
_KINDS = (_INSTANCES, "mount-points", "edits")
"""Folders of records. A daemon locks (flock) the records that it uses; each running daemon has one in the
first folder."""
_LOCK = "lock"
_MAX_BYTES = 64 << 20


class _InUseError(Exception):
    """A daemon uses the old folder."""


def earlier_place() -> str:
    """The folder in which earlier versions kept state without XDG_STATE_HOME."""
    return f"/tmp/execserver-{os.geteuid()}"  # noqa: S108  nothing is made there


def is_own_folder(path: str) -> bool:
    """Whether the path is a folder of this user, and not a link, which any user could have made."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def migrate(environment: Mapping[str, str], old: str | None = None) -> str | None:
    """Move the records of dead daemons from the old folder to the state folder in the home folder.

    Args:
        environment: the daemon's environment.
        old: the old folder; None for that of all earlier versions.

    Returns:
        A message for the user; None if there is nothing to report.

    Raises:
        FolderError, OSError: not possible; the remaining records are moved at a later start.
    """
    if runtime_folder(environment) is not None or environment.get("XDG_STATE_HOME", "").startswith("/"):
        return None  # earlier versions used the same folder
    old = old or earlier_place()
    try:
        path = state_folder(environment)
        new = open_private(path)
    except FolderError:
        return None  # claiming a record reports the error
    try:
        if _read(new, _SEEN) == _DONE:
            return None
        lock_folder(new, path)  # if two daemons start at once, only one migrates
        return _migrate(old, path, new)
    finally:
        os.close(new)


def _migrate(old: str, path: str, new: int) -> str | None:
    seen = _read(new, _SEEN)
    if seen == _DONE:
        return None
    try:
        status = os.lstat(old)
    except FileNotFoundError:
        _finish(new, None)
        _store(new, _SEEN, _DONE.encode())
        return None
    identity = f"{status.st_dev}:{status.st_ino}"
    fault = _fault(status)
    if fault is None and seen not in (None, identity):
        fault = "is not the folder that an earlier version used"
    if fault is not None:
        _finish(new, None)
        _store(new, _SEEN, _DONE.encode())
        return f"{old}, where earlier versions kept state, {fault}: it is ignored; state is in {path}"
    folder = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not os.path.samestat(status, os.fstat(folder)):
            raise FolderError(f"folder {old} is changed by another program right now")
        try:
            count = _move(folder, new)
        except _InUseError:
            _store(new, _SEEN, identity.encode())
            return f"{old} is in use by a daemon of an earlier version: it is migrated at a later start"
        if count:
            _tidy(folder)
    finally:
        os.close(folder)
    _store(new, _SEEN, _DONE.encode())
    if not count:
        return None  # perhaps the folder of another home folder, whose daemon runs
    with suppress(OSError):
        os.rmdir(old)
    rest = "; the rest of it can be removed" if os.path.lexists(old) else ""
    return f"state of an earlier version was migrated from {old} to {path}: records: {count}{rest}"


def _fault(status: os.stat_result) -> str | None:
    """Why it cannot be a state folder of ours; None if it can."""
    if not stat.S_ISDIR(status.st_mode):
        return "is a symbolic link" if stat.S_ISLNK(status.st_mode) else "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to {owner_name(status.st_uid)}"
    mode = stat.S_IMODE(status.st_mode)
    return f"has mode {mode:04o}, open to others" if mode & 0o077 else None


def _move(old: int, new: int) -> int:
    """Move all records, and return their number.

    Raises:
        _InUseError: a daemon uses them; no record was moved.
    """
    with ExitStack() as stack:
        found = [(kind, folder) for kind in _KINDS if (folder := _subfolder(old, kind, stack)) is not None]
        # Locked during the move: a daemon that starts meanwhile waits, and sees no record before its lock.
        records = [(kind, folder, name) for kind, folder in found for name in _records(folder, kind, stack)]
        _finish(new, old)
        for kind, folder, name in records:
            _copy(folder, name, new, f"{_ARRIVED}{kind}.{name}")
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)
            _settle(new, kind, name)
    return len(records)


def _subfolder(old: int, kind: str, stack: ExitStack) -> int | None:
    try:
        folder = os.open(kind, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=old)
    except OSError:
        return None
    stack.callback(os.close, folder)
    guards = [folder]
    if kind != _INSTANCES:
        with suppress(FileNotFoundError):
            guards = [os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)]
            stack.callback(os.close, guards[0])
    for guard in guards:
        lock_folder(guard, f"{kind} of an earlier version")
    return folder


def _records(folder: int, kind: str, stack: ExitStack) -> Iterator[str]:
    """The names of records, each locked by us from now on."""
    for name in sorted(os.listdir(folder)):
        if name == _LOCK and kind != _INSTANCES:
            continue
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            continue
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        stack.callback(os.close, descriptor)
        if not lock(descriptor):
            raise _InUseError
        yield name


def _finish(new: int, old: int | None) -> None:
    """Rename the arrivals of an interrupted start to their final names, unless the original still exists."""
    for arrived in os.listdir(new):
        kind, _, name = arrived.removeprefix(_ARRIVED).partition(".")
        if not arrived.startswith(_ARRIVED) or kind not in _KINDS:
            continue
        if old is not None and _exists(old, f"{kind}/{name}"):
            continue
        _settle(new, kind, name)


def _settle(new: int, kind: str, name: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(kind, 0o700, dir_fd=new)
    os.rename(f"{_ARRIVED}{kind}.{name}", f"{kind}/{name}", src_dir_fd=new, dst_dir_fd=new)
    os.fsync(new)


def _copy(folder: int, name: str, new: int, target: str) -> None:
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as source:
        content = source.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise FolderError(f"record {name} has more than {_MAX_BYTES} bytes; remove it")
    _store(new, target, content)


def _store(folder: int, name: str, content: bytes) -> None:
    """Write a file atomically and durably."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(_PARTIAL, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(_PARTIAL, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def _tidy(old: int) -> None:
    """Remove files and folders that are useless without records. Others are left alone."""
    for kind in _KINDS[1:]:
        with suppress(OSError):
            os.unlink(f"{kind}/{_LOCK}", dir_fd=old)
    with suppress(OSError):
        os.unlink("empty-file", dir_fd=old)
    for name in (*_KINDS, "spool", "empty-folder"):
        with suppress(OSError):
            os.rmdir(name, dir_fd=old)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _read(folder: int, name: str) -> str | None:
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as file:
            return file.read()
    except FileNotFoundError:
        return None

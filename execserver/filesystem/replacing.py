"""Puts a finished file in the place of another one: whole or not at all. Also done by fs workers.

    new content ──▶ temporary file in the target's folder ──▶ attributes ──▶ rename
                                             └─ cannot be renamed ──▶ written in place

Rules kept in this file:

1. The temporary file has no name where the file system allows that (O_TMPFILE), and gets one for the rename
   only: a process that is killed leaves nothing. Temporary files and folders that need a name are locked;
   those that a killed process has left are removed by the next copy of a tree into their folder (`sweep`).
2. A file that is replaced passes on its owner, access list and extended attributes, and its permission bits
   unless others are asked for. The temporary file is readable by its owner only until it has them.
3. A file that cannot be replaced is written in place: a mount point, a file in a folder that takes no new
   names, a file whose owner cannot be kept. Space is reserved first, the old content is kept aside where
   there is room, and is written back after a failure. Only a kill in between leaves a part.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress

from execprotocol.errors import InvalidRequest, RpcError
from execprotocol.path_text import printable_path
from execserver.filesystem.content import copy_content, reserve
from execserver.filesystem.opening import ALWAYS, may_write, open_to_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.filesystem.cancel import Stop

MARK = ".execserver-copy-"
"""How the names of temporary files and folders begin; a random word follows."""

_CANNOT_REPLACE = frozenset(
    {errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.ENOENT}
)
"""Errors of a rename, or of a new name in the folder, for a file that can perhaps still be written. ENOENT is
the answer of /proc to a new name."""

_NO_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS})
"""Errors of a file system, or of an old kernel, that has no O_TMPFILE."""

_NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT, errno.EXDEV})
"""Errors of a link to a file without a name, where another way may be open."""

_SURELY_LOCKED_SECONDS = 60.0
"""Between the making of a temporary file and its lock no process takes longer."""

_MOST_IN_MEMORY = 64 << 20
"""Bytes of old content that are kept in memory where no folder takes them."""

_ACL = "system.posix_acl_access"

_NOBODY = 65534
"""The owner that the kernel shows for a user without a number in a user namespace."""

_NOT_OURS = ("security.capability", "security.ima", "security.evm", "trusted.")
"""Beginnings of the names of attributes that belong to a content, or that only the system sets."""


class Attributes:
    """The permission bits and the times that a file gets; None for those that are not asked for."""

    __slots__ = ("accessed", "modified", "permissions")

    def __init__(
        self, permissions: int | None = None, modified: int | None = None, accessed: int | None = None
    ) -> None:
        self.permissions = permissions
        self.modified = modified
        """Nanoseconds since 1970."""
        self.accessed = accessed

    def numbers(self) -> tuple[int | None, ...]:
        """For the way to an fs worker, which makes them anew of it."""
        return self.permissions, self.modified, self.accessed

    def set(self, path: int | str) -> None:
        """Give them to a file or a directory, following links.

        Raises:
            OSError: it is gone or of another owner, or the file system cannot do that.
        """
        if self.permissions is not None:
            os.chmod(path, self.permissions)
        self.set_times(path)

    def set_times(self, path: int | str) -> None:
        """The same of the times only."""
        if self.modified is None and self.accessed is None:
            return
        found = os.stat(path)
        accessed = found.st_atime_ns if self.accessed is None else self.accessed
        modified = found.st_mtime_ns if self.modified is None else self.modified
        os.utime(path, ns=(accessed, modified))


def find(destination: str) -> tuple[str, os.stat_result | None]:
    """Where a file would be written.

    Returns:
        The path behind all links, and the status of what is there; None for nothing, as behind a dangling
        link.

    Raises:
        OSError: it cannot be looked at; among others ELOOP.
    """
    try:
        status = os.lstat(destination)
    except FileNotFoundError:
        return destination, None
    if not stat.S_ISLNK(status.st_mode):
        return destination, status
    try:
        return os.path.realpath(destination), os.stat(destination)
    except FileNotFoundError:
        return os.path.realpath(destination), None


def take_after(old: str, number: int) -> None:
    """Give an open file the owner, the attributes and the permission bits of another one.

    Raises:
        InvalidRequest: the owner cannot be kept.
        OSError: the mode cannot be set.
    """
    wanted, made = os.lstat(old), os.fstat(number)
    try:
        if (wanted.st_uid, wanted.st_gid) != (made.st_uid, made.st_gid):
            os.fchown(number, wanted.st_uid, wanted.st_gid)
        elif wanted.st_uid == _NOBODY:
            # In a sandbox every other user looks like that; only the owner may open a file so.
            os.close(os.open(old, os.O_RDONLY | os.O_NOATIME | os.O_NOFOLLOW | ALWAYS))
    except OSError:
        raise InvalidRequest(
            f"the owner of {printable_path(old)} cannot be kept when it is replaced: it is another "
            "user's or group's; write it in place by fs/writeFile",
            name="permission_denied",
        ) from None
    with suppress(OSError):  # a file system without attributes
        names = os.listxattr(old, follow_symlinks=False)
        if _ACL not in names:
            with suppress(OSError):
                os.removexattr(number, _ACL)  # the folder's, for new files
        for name in names:
            if not name.startswith(_NOT_OURS):
                with suppress(OSError):
                    os.setxattr(number, name, os.getxattr(old, name, follow_symlinks=False))
    # Last, because the calls before it take bits away. Set-id bits go, as after a write to the file.
    os.fchmod(number, stat.S_IMODE(wanted.st_mode) & 0o777)


class CannotNameError(Exception):
    """A file without a name cannot get one here: the file system has no hard links."""


class Replacement:
    """A temporary file that becomes the content of a path.

    Args:
        target: the path behind all links.
        standing: the regular file there; None for nothing.
        named: whether the file has a name from the beginning, as it has to where there are no hard links.
    """

    def __init__(self, target: str, standing: os.stat_result | None, *, named: bool) -> None:
        """Raises:
        OSError: the target must not be written, or its folder takes no new file.
        """
        if standing is not None:
            may_write(target)
        self._target = target
        self._folder = os.path.dirname(target) or "."
        self._name = ""
        self.number = self._open(named)
        """The temporary file, open for reading and writing."""

    def put(self) -> None:
        """Rename it to the target.

        Raises:
            CannotNameError: it takes one that is named.
            OSError: that cannot be done.
        """
        if not self._name:
            if self._link(self._target):
                return
            name = temporary_name(self._folder)
            if not self._link(name):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._name = name
        os.rename(self._name, self._target)
        self._name = ""

    def close(self) -> None:
        """Let go of it; what was not put is removed."""
        os.close(self.number)
        if self._name:
            with suppress(OSError):
                os.unlink(self._name)

    def _open(self, named: bool) -> int:
        try:
            if not named:
                return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
        name = temporary_name(self._folder)
        number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._name = name
        lock_temporary(number)
        return number

    def _link(self, name: str) -> bool:
        """Give the file without a name one; False when that is taken."""
        try:
            # With a descriptor, which an absolute path leaves unused, Python follows the link of /proc.
            os.link(f"/proc/self/fd/{self.number}", name, src_dir_fd=self.number, follow_symlinks=True)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise CannotNameError from error
            raise
        return True


def lock_temporary(number: int) -> None:
    """Mark an open temporary file or folder as one that is in use; the kernel unmarks it at our end."""
    with suppress(OSError):  # a file system without locks, where `sweep` removes nothing
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: str) -> None:
    """Remove temporary files and folders that a killed process has left in a folder. Never raises."""
    with suppress(OSError), os.scandir(folder) as scan:
        left = [entry.path for entry in scan if entry.name.startswith(MARK)]
        for path in left:
            with suppress(OSError, RpcError):
                _remove_if_unused(path)


def _remove_if_unused(path: str) -> None:
    from execserver.filesystem.remove import remove

    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS)
    try:
        status = os.fstat(number)
        # One that was made just now may not be locked yet.
        if status.st_uid == os.geteuid() and time.time() - status.st_ctime > _SURELY_LOCKED_SECONDS:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path, recursive=True, force=True)
    finally:
        os.close(number)


def temporary_name(folder: str) -> str:
    """A free name for a temporary file or folder in a folder."""
    return os.path.join(folder, f"{MARK}{os.urandom(8).hex()}")


def can_be_written_only(error: OSError) -> bool:
    """Whether an error of a replacement leaves a chance to write the file in place."""
    return error.errno in _CANNOT_REPLACE


def install(source: str, destination: str, wanted: Attributes, stop: Stop) -> bool:
    """`fs/install`: move a finished file to its place.

    Args:
        source: a regular file, no link.
        destination: its place; links are followed.
        wanted: what the file gets. Without permission bits it has those of the file that it replaces, else
            keeps its own.
        stop: ends the writing in place half-way; the old content is put back.

    Returns:
        Whether the destination was written in place; then a source that cannot be removed stays.

    Raises:
        InvalidRequest: the source or the destination is there and no regular file, or both are one file.
        OSError: it cannot be done; the destination is as it was.
    """
    number = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS)
    try:
        status = os.fstat(number)
        target, standing = find(destination)
        _require_regular(source, status)
        if standing is not None:
            if stat.S_ISDIR(standing.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _require_regular(destination, standing)
            if os.path.samestat(status, standing):
                raise InvalidRequest("fs/install cannot move a file to itself")
            may_write(target)
        in_place = not _renamed(source, number, target, standing, wanted)
        if in_place:
            overwrite(number, target, wanted, stop)
            with suppress(OSError):  # the content is in its place; the name may have to stay
                os.unlink(source)
        return in_place
    finally:
        os.close(number)


def overwrite(original: int, target: str, wanted: Attributes, stop: Stop) -> None:
    """Write the content of an open file into a regular file that is there, in place.

    Args:
        original: open for reading; its whole content is taken.
        target: the file.
        wanted: permission bits that are set, if it may be, and times.
        stop: ends it half-way.

    Raises:
        OSError: it cannot be written. The old content is there, or is put back where there was room for it.
    """
    size = os.fstat(original).st_size
    number = open_to_write(target, 0o600)
    try:
        old = os.fstat(number)
        kept = _keep_aside(target, old.st_size)
        try:
            if size and old.st_size:
                reserve(number, old.st_size, size)
            os.lseek(original, 0, os.SEEK_SET)
            copy_content(original, number, stop, size or None)
            if stat.S_ISREG(old.st_mode):
                os.ftruncate(number, os.lseek(number, 0, os.SEEK_CUR))
        except BaseException:
            if kept is not None:
                _put_back(kept, number, old.st_size)
            elif not old.st_size:
                with suppress(OSError):
                    os.ftruncate(number, 0)
            raise
        finally:
            if kept is not None:
                os.close(kept)
        if wanted.permissions is not None:
            with suppress(PermissionError):  # of another owner: it keeps its own
                os.fchmod(number, wanted.permissions)
        with suppress(PermissionError):
            wanted.set_times(number)
    finally:
        os.close(number)


def _renamed(
    source: str, number: int, target: str, standing: os.stat_result | None, wanted: Attributes
) -> bool:
    """Whether a finished file could be renamed to its place, with its attributes."""
    try:
        if standing is not None:
            take_after(target, number)
        wanted.set(number)
        os.rename(source, target)
    except InvalidRequest:
        return False
    except OSError as error:
        if standing is None or not can_be_written_only(error):
            raise
        return False
    return True


def _keep_aside(target: str, size: int) -> int | None:
    """A copy of a file's content without a name; None where there is no room, or nothing to keep."""
    if not size:
        return None
    try:
        original = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS)
    except OSError:
        return None  # it may be written, and not read
    try:
        for folder in (os.path.dirname(target) or ".", os.environ.get("TMPDIR") or "/tmp", ""):  # noqa: S108
            if not folder and size > _MOST_IN_MEMORY:
                break
            kept = -1
            try:
                kept = (
                    os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    if folder
                    else os.memfd_create("old content")
                )
                os.lseek(original, 0, os.SEEK_SET)
                copy_content(original, kept, None, size)
            except OSError:
                if kept >= 0:
                    os.close(kept)
                continue
            return kept
        return None
    finally:
        os.close(original)


def _put_back(kept: int, number: int, size: int) -> None:
    with suppress(OSError):
        os.lseek(kept, 0, os.SEEK_SET)
        os.lseek(number, 0, os.SEEK_SET)
        copy_content(kept, number, None, size)
        os.ftruncate(number, size)


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRequest(f"path `{printable_path(path)}` is not a file")

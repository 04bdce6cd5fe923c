"""Replaces a file by a finished one: whole or not at all. Also used by fs workers.

    new content ──▶ temporary file in the target's folder ──▶ attributes ──▶ rename
                                             └─ rename fails ──▶ written in place

Rules kept in this file:

1. The temporary file has no name where the file system allows that (O_TMPFILE), and gets one only for the
   rename. A temporary file with a name is locked. Those that a killed process has left are removed by the
   next process that needs such a name in the folder (`remove_left`).
2. The new file gets the owner, the access list and the extended attributes of the old one, and its permission
   bits unless the request names others. Until then only its owner can read it.
3. A file that cannot be replaced is written in place: a mount point, a file in a read-only folder, a file
   whose owner cannot be kept. Space is reserved first. The old content is saved if there is room, and is
   restored after a failure. Only a kill leaves a part of the new content.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress

from execprotocol.errors import InternalError, InvalidRequest, RpcError
from execprotocol.path_text import printable_path
from execserver.filesystem.content import content_digest, copy_content, reserve
from execserver.filesystem.opening import ALWAYS, may_write, open_to_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.filesystem.cancel import StopFlag

TEMPORARY_PREFIX = ".execserver-copy-"
"""The prefix of names of temporary files and folders; a random word follows."""

_LOCK_DELAY_SECONDS = 60.0
"""No process takes longer between making a temporary file and locking or renaming it."""

_MOST_FOLDERS = 1024

_CANNOT_REPLACE = frozenset(
    {errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.ENOENT}
)
"""Errors of a rename, or of a new name in the folder, after which writing in place may still work. /proc
answers a new name with ENOENT."""

_NO_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS})
"""Errors of a file system or a kernel without O_TMPFILE."""

_NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT, errno.EXDEV})
"""Errors of a link to a file without a name, after which a named file may still work."""

_MAX_IN_MEMORY = 64 << 20
"""Bytes of old content that are saved in memory if no folder has room for them."""

_ACL = "system.posix_acl_access"

_UNMAPPED_USER = 65534
"""The owner that the kernel shows for a user that is not mapped in a user namespace."""

_NOT_INHERITED = ("security.capability", "security.ima", "security.evm", "trusted.")
"""Prefixes of extended attributes that belong to the content, or that only the system sets."""


class Attributes:
    """Permission bits and times to be set; None leaves one as it is."""

    __slots__ = ("accessed", "modified", "permissions")

    def __init__(
        self, permissions: int | None = None, modified: int | None = None, accessed: int | None = None
    ) -> None:
        self.permissions = permissions
        self.modified = modified
        """Nanoseconds since 1970."""
        self.accessed = accessed

    def set(self, path: int | str) -> None:
        """Set them on a file or a directory, following links.

        Raises:
            OSError: the file is missing or has another owner, or the file system cannot store them.
        """
        if self.permissions is not None:
            os.chmod(path, self.permissions)
        self.set_times(path)

    def set_times(self, path: int | str) -> None:
        """Set the times only."""
        if self.modified is None and self.accessed is None:
            return
        found = os.stat(path)
        accessed = found.st_atime_ns if self.accessed is None else self.accessed
        modified = found.st_mtime_ns if self.modified is None else self.modified
        os.utime(path, ns=(accessed, modified))


def resolve_destination(destination: str) -> tuple[str, os.stat_result | None]:
    """Resolve the path to which a file is to be written.

    Returns:
        The path without links at its end, and the status of the file there; None if there is none, as behind
        a dangling link.

    Raises:
        OSError: among others ELOOP.
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


def inherit_attributes(old: str, fd: int) -> None:
    """Give an open file the owner, the extended attributes and the permission bits of an old one.

    Raises:
        InvalidRequest: the owner cannot be kept.
        OSError: the mode cannot be set.
    """
    wanted, made = os.lstat(old), os.fstat(fd)
    try:
        if (wanted.st_uid, wanted.st_gid) != (made.st_uid, made.st_gid):
            os.fchown(fd, wanted.st_uid, wanted.st_gid)
        elif wanted.st_uid == _UNMAPPED_USER:
            # In a sandbox all other users have this number. Only the owner may open a file with O_NOATIME.
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
                os.removexattr(fd, _ACL)  # the folder's, for new files
        for name in names:
            if not name.startswith(_NOT_INHERITED):
                with suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(old, name, follow_symlinks=False))
    # Set last: the calls above clear bits. Set-id bits are dropped, as by a write to the file.
    os.fchmod(fd, stat.S_IMODE(wanted.st_mode) & 0o777)


class CannotNameError(Exception):
    """The file system cannot give a name to a file without one: it has no hard links."""


class Replacement:
    """A temporary file that is to replace the file at a path.

    Args:
        target: the path without links (`resolve_destination`).
        existing: the status of the regular file there; None for a free path.
        named: give the temporary file a name at once, as a file system without hard links requires.
    """

    def __init__(self, target: str, existing: os.stat_result | None, *, named: bool) -> None:
        """Raises:
        OSError: the target may not be written, or its folder accepts no new file.
        """
        if existing is not None:
            may_write(target)
        self._target = target
        self._folder = os.path.dirname(target) or "."
        self._name = ""
        self.fd = self._open(named)
        """The temporary file, open for reading and writing."""

    def commit(self) -> None:
        """Rename it to the target.

        Raises:
            CannotNameError: only a named temporary file can be renamed here.
            OSError: the rename failed.
        """
        if not self._name:
            if self._link(self._target):
                return
            name = self._temporary_name()
            if not self._link(name):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._name = name
        os.rename(self._name, self._target)
        self._name = ""

    def close(self) -> None:
        """Close the temporary file, and remove it if it was not renamed."""
        os.close(self.fd)
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
        name = self._temporary_name()
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._name = name
        lock_temporary(fd)
        return fd

    def _temporary_name(self) -> str:
        _remove_left_once(self._folder)
        return temporary_name(self._folder)

    def _link(self, name: str) -> bool:
        """Give the unnamed file a name; False if the name exists."""
        try:
            # Python follows the link of /proc only if a descriptor is given, which an absolute path ignores.
            os.link(f"/proc/self/fd/{self.fd}", name, src_dir_fd=self.fd, follow_symlinks=True)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise CannotNameError from error
            raise
        return True


def lock_temporary(fd: int) -> None:
    """Lock an open temporary file or folder: it is in use until this process ends."""
    with suppress(OSError):  # a file system without locks, where nothing is swept
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def temporary_name(folder: str) -> str:
    """A new name for a temporary file or folder."""
    return os.path.join(folder, f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}")


def remove_left(folder: str, remove: Callable[[str], None]) -> bool:
    """Remove temporary files and folders that a killed process has left in a folder. Never raises.

    Args:
        folder: where the process was to put what it copied.
        remove: removes one; what it refuses stays.

    Returns:
        Whether there are none that are too new.
    """
    old = True
    with suppress(OSError), os.scandir(folder) as scan:
        left = [entry.path for entry in scan if entry.name.startswith(TEMPORARY_PREFIX)]
        for path in left:
            with suppress(OSError, RpcError):
                old &= _remove_if_unused(path, remove)
    return old


_looked_through: set[str] = set()
"""Folders without temporary files of killed processes."""


def _remove_left_once(folder: str) -> None:
    """Remove temporary files: a process lists a folder once, before it makes its first one there."""
    if folder not in _looked_through and remove_left(folder, os.unlink):
        if len(_looked_through) == _MOST_FOLDERS:
            _looked_through.clear()
        _looked_through.add(folder)


def _remove_if_unused(path: str, remove: Callable[[str], None]) -> bool:
    """Returns False if it may be in use, because it is new."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | ALWAYS)  # NFS locks no file that is open for reading
    except IsADirectoryError:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            return True
        if time.time() - status.st_ctime <= _LOCK_DELAY_SECONDS:
            return False  # it may not be locked yet
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
        return True
    finally:
        os.close(fd)


def can_be_written_only(error: OSError) -> bool:
    """Whether writing in place may work after this error of a replacement."""
    return error.errno in _CANNOT_REPLACE


def install(source: str, destination: str, wanted: Attributes, stop: StopFlag) -> bool:
    """`fs/install`: move a finished file to its destination.

    Args:
        source: a regular file, no link.
        destination: its new path; links are followed.
        wanted: what the file gets. Without permission bits it gets those of the file that it replaces, else
            keeps its own.
        stop: cancels writing in place; the old content is restored.

    Returns:
        Whether the destination was written in place; then a source that cannot be removed stays.

    Raises:
        InvalidRequest: the source or the destination is no regular file, or both are one file.
        OSError: the move failed; the destination is unchanged.
    """
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS)
    try:
        status = os.fstat(fd)
        target, existing = resolve_destination(destination)
        _require_regular(source, status)
        if existing is not None:
            if stat.S_ISDIR(existing.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _require_regular(destination, existing)
            if os.path.samestat(status, existing):
                raise InvalidRequest("fs/install cannot move a file to itself")
            may_write(target)
        in_place = not _renamed(source, fd, target, existing, wanted)
        if in_place:
            overwrite(fd, target, wanted, stop)
            with suppress(OSError):  # the content is moved; the folder may forbid removing the name
                os.unlink(source)
        return in_place
    finally:
        os.close(fd)


def put(
    path: str, content: bytes, sha256: str | None, wanted: Attributes, *, keep_mode: bool, stop: StopFlag
) -> bool:
    """A file of `fs/putFiles`: make it with its content, or replace the content of an existing one.

    Args:
        path: the file; links are followed.
        content: the whole content.
        sha256: the digest that the new file must have before it gets its name; None for any.
        wanted: what the file gets.
        keep_mode: whether an existing file keeps its permission bits.
        stop: cancels writing in place; the old content is restored.

    Returns:
        Whether an existing file was written in place.

    Raises:
        InvalidRequest: another kind of file is there.
        InternalError: the new file differs from the digest.
        OSError: the file cannot be written. It is unchanged.
    """
    target, existing = resolve_destination(path)
    if existing is not None:
        if stat.S_ISDIR(existing.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _require_regular(path, existing)
        if keep_mode:
            wanted = Attributes(None, wanted.modified, wanted.accessed)
    try:
        _put_whole(target, existing, content, sha256, wanted)
    except InvalidRequest:
        pass  # the owner of the existing file cannot be kept
    except OSError as error:
        if existing is None or not can_be_written_only(error):
            raise
    else:
        return False
    fd = os.memfd_create("fs/putFiles")
    try:
        _fill(fd, content, sha256)
        overwrite(fd, target, wanted, stop)
    finally:
        os.close(fd)
    return True


def overwrite(original: int, target: str, wanted: Attributes, stop: StopFlag) -> None:
    """Write the content of an open file into an existing regular file, in place.

    Args:
        original: open for reading; its whole content is copied.
        target: the file.
        wanted: permission bits, which are set if that is allowed, and times.
        stop: cancels the copy.

    Raises:
        OSError: the file cannot be written. Its old content is untouched, or restored if there was room to
            save it.
    """
    size = os.fstat(original).st_size
    fd = open_to_write(target, 0o600)
    try:
        old = os.fstat(fd)
        kept = _save_content(target, old.st_size)
        try:
            if size and old.st_size:
                reserve(fd, old.st_size, size)
            os.lseek(original, 0, os.SEEK_SET)
            copy_content(original, fd, stop, size or None)
            if stat.S_ISREG(old.st_mode):
                os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))
        except BaseException:
            if kept is not None:
                _restore_content(kept, fd, old.st_size)
            elif not old.st_size:
                with suppress(OSError):
                    os.ftruncate(fd, 0)
            raise
        finally:
            if kept is not None:
                os.close(kept)
        if wanted.permissions is not None:
            with suppress(PermissionError):  # a file of another owner keeps its own
                os.fchmod(fd, wanted.permissions)
        with suppress(PermissionError):
            wanted.set_times(fd)
    finally:
        os.close(fd)


def _renamed(source: str, fd: int, target: str, existing: os.stat_result | None, wanted: Attributes) -> bool:
    """Try to rename a finished file to its destination, with its attributes; False if that cannot work."""
    try:
        if existing is not None:
            inherit_attributes(target, fd)
        wanted.set(fd)
        os.rename(source, target)
    except InvalidRequest:
        return False
    except OSError as error:
        if existing is None or not can_be_written_only(error):
            raise
        return False
    return True


def _put_whole(
    target: str, existing: os.stat_result | None, content: bytes, sha256: str | None, wanted: Attributes
) -> None:
    for named in (False, True):
        replacement = Replacement(target, existing, named=named)
        try:
            _fill(replacement.fd, content, sha256)
            if existing is not None:
                inherit_attributes(target, replacement.fd)
            wanted.set(replacement.fd)
            replacement.commit()
        except CannotNameError:
            if named:
                raise
        else:
            return
        finally:
            replacement.close()


def _fill(fd: int, content: bytes, sha256: str | None) -> None:
    """Write a content to an empty file, and compare its digest."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
    if sha256 is not None:
        os.lseek(fd, 0, os.SEEK_SET)
        found, _ = content_digest(fd, None, len(content))
        if found != sha256:
            raise InternalError(f"the written content has the SHA-256 {found}, not {sha256}", name="io_error")


def _save_content(target: str, size: int) -> int | None:
    """Copy a file's content to a file without a name; None if it is empty or there is no room."""
    if not size:
        return None
    try:
        original = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS)
    except OSError:
        return None  # a file that can be written, but not read
    try:
        for folder in (os.path.dirname(target) or ".", os.environ.get("TMPDIR") or "/tmp", ""):  # noqa: S108
            if not folder and size > _MAX_IN_MEMORY:
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


def _restore_content(kept: int, fd: int, size: int) -> None:
    with suppress(OSError):
        os.lseek(kept, 0, os.SEEK_SET)
        os.lseek(fd, 0, os.SEEK_SET)
        copy_content(kept, fd, None, size)
        os.ftruncate(fd, size)


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRequest(f"path `{printable_path(path)}` is not a file")

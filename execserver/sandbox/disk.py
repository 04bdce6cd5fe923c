"""Path resolution that does not trust links which a confined command may have planted.

A sandboxed command can replace everything that it can write to. A link there does not express the user's
will, so no grant follows it.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable

import msgspec

# include/uapi/linux/openat2.h; the number is the same on all architectures.
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS = 0x02, 0x04

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_MOST_LINKS = 40
"""The kernel's limit."""


class ResolvedPath(msgspec.Struct, frozen=True):
    """The target of a path."""

    path: str
    """Without links as far as it exists; missing names are appended unchanged."""

    status: os.stat_result | None
    """None if the target does not exist, or cannot be inspected."""

    missing: str | None
    """The path of the first missing name."""

    links: tuple[tuple[str, str], ...]
    """The links on the way: the path of each, itself without links, and its text."""

    @property
    def exists(self) -> bool:
        """Whether the target exists."""
        return self.status is not None

    @property
    def is_folder(self) -> bool:
        """Whether the target is a directory."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)


def resolve_path(
    path: str,
    replaceable: Callable[[str], bool] = lambda _: False,
    on_link: Callable[[str, bool], None] | None = None,
) -> ResolvedPath | None:
    """Resolve a path, name by name.

    Args:
        path: absolute.
        replaceable: whether a confined command could have made the link with this path.
        on_link: called with the text of each link before it is followed, and whether the link was the last
            name of the path so far.

    Returns:
        None if the path leads through a replaceable link, or through too many links.
    """
    resolved = ""
    names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
    links: list[tuple[str, str]] = []
    status = os.lstat("/")
    while names:
        name = names.pop()
        if name == "..":
            resolved = resolved.rpartition("/")[0]
            continue
        candidate = f"{resolved}/{name}"
        try:
            status = os.lstat(candidate)
        except OSError:
            rest = "/".join([candidate, *reversed(names)])
            return ResolvedPath(os.path.normpath(rest), None, candidate, tuple(links))
        if not stat.S_ISLNK(status.st_mode):
            resolved = candidate
            continue
        if replaceable(candidate) or len(links) == _MOST_LINKS:
            return None
        text = os.readlink(candidate)
        if on_link is not None:
            on_link(text, not names)
        links.append((candidate, text))
        names += [part for part in reversed(text.split("/")) if part not in ("", ".")]
        if text.startswith("/"):
            resolved = ""
    if not resolved or links:
        status = os.lstat(resolved or "/")
    return ResolvedPath(resolved or "/", status, None, tuple(links))


def writable_inside(folder: str) -> bool:
    """Whether a sandboxed process may create and remove names in a folder.

    Such a process runs as this user *without capabilities*. The folder's mode and the mount options of its
    file system decide.
    """
    try:
        status = os.stat(folder)
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError:
        return False
    if read_only:
        return False
    if status.st_uid == os.geteuid():
        # The owner may change the mode, so the mode does not protect the folder.
        return True
    if status.st_gid == os.getegid() or status.st_gid in os.getgroups():
        return bool(status.st_mode & stat.S_IWGRP) or _listed_for_others(folder)
    return bool(status.st_mode & stat.S_IWOTH) or _listed_for_others(folder)


def replaceable_inside(path: str) -> bool:
    """Whether a process as in `writable_inside` may replace the file or folder at a real path."""
    folder = os.path.dirname(path)
    if not writable_inside(folder):
        return False
    try:
        outer, inner = os.stat(folder), os.lstat(path)
    except OSError:
        return True
    # In a sticky folder like /tmp, files of other users cannot be moved or removed.
    return not outer.st_mode & stat.S_ISVTX or os.geteuid() in (outer.st_uid, inner.st_uid)


def _listed_for_others(folder: str) -> bool:
    """Whether an access control list may grant more than the mode shows."""
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except OSError:
        return False


def open_without_links(path: str) -> int:
    """Open a path that has no links (O_PATH, close-on-exec), so that later moves cannot change the target.

    Raises:
        OSError: among others ELOOP: a link has appeared on the way.
    """
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    fd: int = _libc.syscall(
        _OPENAT2, ctypes.c_int(-1), ctypes.c_char_p(os.fsencode(path)), ctypes.byref(how), ctypes.c_size_t(24)
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


def may_be_mount_point(path: str) -> bool:
    """Whether a folder is empty, and so may be the mount point of another command.

    Such a folder disappears with that command, so it has to be acquired like a missing one.
    """
    try:
        with os.scandir(path) as scan:
            return next(scan, None) is None
    except OSError:
        # It was removed meanwhile, so it was a mount point. A folder that cannot be listed is checked later,
        # when it is acquired.
        return True

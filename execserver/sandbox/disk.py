"""Looking at the disk without being led astray by links that a confined command may have planted.

What a sandboxed command can write it can also replace. A link in there says nothing about what its
owner wants, so no grant follows one.
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
"""As many as the kernel follows."""


class ResolvedPath(msgspec.Struct, frozen=True):
    """Where a path leads."""

    path: str
    """Without links, as far as it exists; what is missing is appended as it stands."""

    status: os.stat_result | None
    """None when it does not exist, or cannot be looked at."""

    missing: str | None
    """The first part that does not exist."""

    links: tuple[tuple[str, str], ...]
    """The links on the way: each one's own path, itself without links, and its text."""

    @property
    def exists(self) -> bool:
        """Whether there is something."""
        return self.status is not None

    @property
    def is_folder(self) -> bool:
        """Whether it is a directory."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)


def resolve_path(
    path: str,
    replaceable: Callable[[str], bool] = lambda _: False,
    on_link: Callable[[str, bool], None] | None = None,
) -> ResolvedPath | None:
    """Follow a path, name by name.

    Args:
        path: absolute.
        replaceable: whether a confined command could have put the link with this path where it is.
        on_link: called with the text of each link before it is followed, and whether the link was the last
            name of the path so far.

    Returns:
        None when the path leads through such a link, or through too many.
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
    """Whether a process of our user *without any capability*, as every command in a sandbox is, may
    create and remove names in a folder: by its mode, and by how its file system is mounted.
    """
    try:
        status = os.stat(folder)
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError:
        return False
    if read_only:
        return False
    if status.st_uid == os.geteuid():
        # The owner may change the mode, so it is no protection from him.
        return True
    if status.st_gid == os.getegid() or status.st_gid in os.getgroups():
        return bool(status.st_mode & stat.S_IWGRP) or _listed_for_others(folder)
    return bool(status.st_mode & stat.S_IWOTH) or _listed_for_others(folder)


def replaceable_inside(path: str) -> bool:
    """Whether such a process may put something else in the place of what stands at a real path."""
    folder = os.path.dirname(path)
    if not writable_inside(folder):
        return False
    try:
        outer, inner = os.stat(folder), os.lstat(path)
    except OSError:
        return True
    # In a folder like /tmp, what others own cannot be moved; else anybody could make links in our way.
    return not outer.st_mode & stat.S_ISVTX or os.geteuid() in (outer.st_uid, inner.st_uid)


def _listed_for_others(folder: str) -> bool:
    """Whether an access control list may grant more than the mode shows."""
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except OSError:
        return False


def open_without_links(path: str) -> int:
    """A descriptor (O_PATH) of what a path without links leads to: what was looked at is then what is used,
    whoever moves something meanwhile. It is close-on-exec.

    Raises:
        OSError: among others ELOOP, somebody put a link on the way.
    """
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    fd: int = _libc.syscall(
        _OPENAT2, ctypes.c_int(-1), ctypes.c_char_p(os.fsencode(path)), ctypes.byref(how), ctypes.c_size_t(24)
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd

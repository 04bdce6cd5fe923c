"""Lookups: `fs/getMetadata` and `fs/canonicalize` (`docs/protocol.md`, "File system").

An agent makes dozens of them a turn. They run on the loop's thread where no mount can hang.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execprotocol.filesystem import Metadata

# The file types of `stat` as numbers: `stat.S_ISREG` and the like cost a call each.
_TYPE, _LINK, _DIRECTORY, _REGULAR = 0o170000, 0o120000, 0o040000, 0o100000


def metadata(path: str, *, extended: bool = False) -> Metadata:
    """Describe a path, in one system call unless it is a link.

    Args:
        path: the path.
        extended: with the extension members.

    Raises:
        OSError: the path does not exist, or is a dangling link.
    """
    status = os.lstat(path)
    is_link = is_symlink(status)
    return metadata_of(os.stat(path) if is_link else status, is_link=is_link, extended=extended)


def is_symlink(status: os.stat_result) -> bool:
    """Whether a status of `lstat` is that of a link."""
    return status.st_mode & _TYPE == _LINK


def metadata_of(status: os.stat_result, *, is_link: bool, extended: bool) -> Metadata:
    """The `Metadata` of a status.

    Args:
        status: of the path, or of the target of a link.
        is_link: whether the path is a link.
        extended: with the extension members.
    """
    kind = status.st_mode & _TYPE
    modified = status.st_mtime_ns // 1_000_000
    found: Metadata = {
        "isDirectory": kind == _DIRECTORY,
        "isFile": kind == _REGULAR,
        "isSymlink": is_link,
        "size": status.st_size,
        # `stat` has no such time; 0 stands for unknown.
        "createdAtMs": 0,
        # The protocol counts from 1970; an earlier time is unknown.
        "modifiedAtMs": modified if modified > 0 else 0,
    }
    if extended:
        found["permissions"] = status.st_mode & 0o7777
        found["modifiedAtNs"] = status.st_mtime_ns
        found["accessedAtNs"] = status.st_atime_ns
    return found


def canonicalize(path: str) -> str:
    """Resolve all links of a path that exists.

    The kernel does it in one system call. `os.path.realpath` needs one for each component, and raises a
    RecursionError for a chain of a thousand links.

    Raises:
        OSError: the path does not exist.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        resolved = os.readlink(f"/proc/self/fd/{fd}")
        # If the file was removed meanwhile, the link ends with " (deleted)".
        if not os.path.samestat(os.fstat(fd), os.lstat(resolved)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    finally:
        os.close(fd)
    return resolved

"""What a path is: `fs/getMetadata` and `fs/canonicalize` (`docs/protocol.md`, "File system").

Both are asked dozens of times a turn and answered on the loop's thread where no mount can hang.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execprotocol.filesystem import Metadata

# The file types of `stat`, written out: `stat.S_ISREG` and its like cost a call each.
_TYPE, _LINK, _DIRECTORY, _REGULAR = 0o170000, 0o120000, 0o040000, 0o100000


def metadata(path: str, *, extended: bool = False) -> Metadata:
    """Describe a path, in one system call unless it is a link.

    Args:
        path: which.
        extended: with the extension members.

    Raises:
        OSError: it does not exist, or is a link to nothing.
    """
    status = os.lstat(path)
    is_link = is_symlink(status)
    return metadata_of(os.stat(path) if is_link else status, is_link=is_link, extended=extended)


def is_symlink(status: os.stat_result) -> bool:
    """Whether `lstat` saw a link."""
    return status.st_mode & _TYPE == _LINK


def metadata_of(status: os.stat_result, *, is_link: bool, extended: bool) -> Metadata:
    """What the wire says of a status.

    Args:
        status: of the path, or of what it leads to.
        is_link: whether it leads elsewhere.
        extended: with the extension members.
    """
    kind = status.st_mode & _TYPE
    modified = status.st_mtime_ns // 1_000_000
    found: Metadata = {
        "isDirectory": kind == _DIRECTORY,
        "isFile": kind == _REGULAR,
        "isSymlink": is_link,
        "size": status.st_size,
        # The kernel's stat has no such time, and 0 is the wire's word for that.
        "createdAtMs": 0,
        # The wire counts from 1970; what is older reads as not known.
        "modifiedAtMs": modified if modified > 0 else 0,
    }
    if extended:
        found["permissions"] = status.st_mode & 0o7777
        found["modifiedAtNs"] = status.st_mtime_ns
        found["accessedAtNs"] = status.st_atime_ns
    return found


def canonicalize(path: str) -> str:
    """The path without links, of something that exists.

    The kernel resolves it, in one walk and with its own limits: following links by hand takes a
    system call for each component, and a chain of a thousand links ends in a RecursionError.

    Raises:
        OSError: it does not exist.
    """
    number = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        resolved = os.readlink(f"/proc/self/fd/{number}")
        # The link of a file that was removed meanwhile has a word added to its name.
        if not os.path.samestat(os.fstat(number), os.lstat(resolved)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    finally:
        os.close(number)
    return resolved

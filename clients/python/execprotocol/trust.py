"""Open files that decide who may connect, unless other users could change, replace or read them.

    settings, lists of clients, certificates    no other user may write the file or a folder on the way to it
    tokens, secrets, private keys               nor read the file (`secret=True`)
    Unix sockets, state folders                 no other user may write a folder on the way (`check_way`)

Every such file is opened here, and the checked descriptor is the one that is read. Standard library only.
"""

from __future__ import annotations

import os
import stat

MAX_BYTES = 1 << 20
"""A hundred times the usual size. Without a limit, a device would be read for ever."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_SEARCH = stat.S_IXGRP | stat.S_IXOTH
_MAX_LINKS = 40
"""The kernel's limit."""

_CONTAINER_SECRETS = "/run/secrets/"
"""Where Docker, Podman and Compose mount secrets: readable for all users of a container, which has one."""


class UntrustedError(Exception):
    """Another user could change a file. The text names the path, its owner, its mode and the remedy."""


def owner_name(uid: int) -> str:
    """Name and number of a user, for messages."""
    import pwd  # needed for messages only

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def read_trusted(path: str, *, secret: bool = False, limit: int = MAX_BYTES) -> bytes:
    """Read a file that decides who may connect.

    Args:
        path: relative to the working directory, or absolute; links are followed.
        secret: other users may not read it either.
        limit: in bytes.

    Raises:
        UntrustedError: as `open_trusted`, or the file is larger than `limit`.
        OSError: the file cannot be read.
    """
    descriptor = open_trusted(path, secret=secret)
    try:
        content = b""
        while len(content) <= limit and (part := os.read(descriptor, limit + 1 - len(content))):
            content += part
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise UntrustedError(f"{path} has more than {limit} bytes")
    return content


def open_trusted(path: str, *, secret: bool = False) -> int:
    """Open a file that decides who may connect; arguments as for `read_trusted`. Returns a descriptor.

    Raises:
        UntrustedError: not a regular file, or another user may write it, replace it or, if it is secret,
            read it.
        OSError: the file cannot be opened.
    """
    # O_NONBLOCK: opening a pipe must not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        check_file(path, descriptor, secret=secret)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_file(path: str, descriptor: int, *, secret: bool = False) -> None:
    """Check an open file and the folders on its path; arguments and errors as for `open_trusted`.

    Args:
        path: the file's path.
        descriptor: of the open file.
        secret: other users may not read it either.
    """
    # Not `abspath`, which resolves `link/..` to the folder of the link.
    path = os.path.join(os.getcwd(), path)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedError(f"{path} is no regular file")
    _check(path, status, "file", remedy="600" if secret else "go-w")
    check_way(path)
    if secret and _others_read(path, descriptor, status):
        raise UntrustedError(
            f"file {path} of {owner_name(status.st_uid)} can be read by others "
            f"(mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 {path}, and if others may have read it, "
            "put a new secret into it"
        )


def check_way(path: str) -> None:
    """Check the folders on a path, through links. Missing ones are skipped.

    Args:
        path: absolute.

    Raises:
        UntrustedError: another user could replace the file to which the path leads.
    """
    here, links = "/", 0
    rest = path.split("/")[::-1]
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        child = os.path.join(here, name)
        try:
            folder, status = os.lstat(here), _status(child)
        except OSError:
            return  # not accessible: opening the path gives the error
        # In a sticky folder such as /tmp only the owner of a file can replace it.
        sticky = bool(folder.st_mode & stat.S_ISVTX)
        _check(here, folder, "folder", writable=sticky)
        if (
            sticky
            and folder.st_mode & _OTHERS_WRITE
            and status is not None
            and not _is_trusted(status.st_uid)
        ):
            raise UntrustedError(
                f"{child} belongs to {owner_name(status.st_uid)}, who can replace it in {here} (mode "
                f"{stat.S_IMODE(folder.st_mode):04o}): have it removed, or take another place"
            )
        if status is None:
            return
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return  # as above
            target = os.readlink(child)
            rest += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here
        else:
            here = child


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _check(
    path: str, status: os.stat_result, kind: str, *, writable: bool = False, remedy: str = "go-w"
) -> None:
    mode = stat.S_IMODE(status.st_mode)
    owner = owner_name(status.st_uid)
    if not _is_trusted(status.st_uid):
        raise UntrustedError(
            f"{kind} {path} belongs to {owner} (mode {mode:04o}), neither to us, {owner_name(os.geteuid())}, "
            "nor to root: chown it, or take another place"
        )
    writable = writable or (kind == "folder" and _is_private_group(path, status))
    if mode & _OTHERS_WRITE and not writable:
        raise UntrustedError(
            f"{kind} {path} of {owner} can be written by others (mode {mode:04o}): chmod {remedy} {path}"
        )


def _others_read(path: str, descriptor: int, status: os.stat_result) -> bool:
    """Whether other users can read a file although its owner could prevent it."""
    # Root gives a service access by the file's group, systemd by an access list, which shows in the group's
    # bits.
    is_ours = status.st_uid == os.geteuid()
    readers = stat.S_IROTH | (stat.S_IRGRP if is_ours else 0)
    if not status.st_mode & readers:
        return False
    real = os.path.realpath(path)
    folder = real
    while folder != "/":
        folder = os.path.dirname(folder)
        if not os.stat(folder).st_mode & _OTHERS_SEARCH:
            return False  # other users cannot enter the folder
    return not real.startswith(_CONTAINER_SECRETS) and not _is_mounted_secret(descriptor, status.st_dev)


def _is_mounted_secret(descriptor: int, device: int) -> bool:
    """Whether a file is on a read-only file system in memory, as Kubernetes mounts secrets (mode 0644)."""
    if not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            mounts = [line.split(" ") for line in file]
    except OSError:
        return False
    return any(
        fields[2] == number and fields[fields.index("-") + 1] in ("tmpfs", "ramfs") for fields in mounts
    )


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid()) or uid == _unmapped()


def _unmapped() -> int:
    """The uid of all unmapped users, root among them, in a user namespace of few users; else -1."""
    try:
        with open("/proc/self/uid_map") as file:
            if sum(int(line.split()[2]) for line in file) >= 1 << 16:
                return -1
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):
        return -1


def _is_private_group(path: str, status: os.stat_result) -> bool:
    """Whether the only other writer is the owner's private group, as with umask 002 on some systems."""
    if status.st_mode & _OTHERS_WRITE != stat.S_IWGRP:
        return False
    import grp  # rarely needed
    import pwd

    try:
        account, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
        listed = "system.posix_acl_access" in os.listxattr(path, follow_symlinks=False)
    except (KeyError, OSError):
        return False
    own = account.pw_gid == group.gr_gid and account.pw_name == group.gr_name
    return own and not listed and set(group.gr_mem) <= {account.pw_name}

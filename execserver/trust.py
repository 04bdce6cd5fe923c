"""Who else may write what decides who may connect: a file, and every folder on the way to it.

Who can write a folder can put another file in the place of the one that was looked at. Standard library only.
"""

from __future__ import annotations

import os
import stat

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40
"""As the kernel follows."""


class UntrustedError(Exception):
    """Another user could change it; the text names the place, its owner, its mode and the way out."""


def owner_name(uid: int) -> str:
    """A user for messages: name and number."""
    import pwd  # for messages only

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def check_file(path: str, status: os.stat_result) -> None:
    """Check an open file that is ours or root's, and the way to it.

    Args:
        path: absolute.
        status: of the descriptor: what is checked is what is read.

    Raises:
        UntrustedError: another user may write it, or put another one in its place.
    """
    _check(path, status, "file")
    check_way(path)


def check_way(path: str) -> None:
    """Check the folders that lead to a path, through links. What is missing is not looked at.

    Args:
        path: absolute.

    Raises:
        UntrustedError: another user may put something else in the place of what the path leads to.
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
            return  # cannot be seen: who opens it is told why
        # In a folder such as /tmp only its owner can replace a name.
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


def _check(path: str, status: os.stat_result, kind: str, *, writable: bool = False) -> None:
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
            f"{kind} {path} of {owner} can be written by others (mode {mode:04o}): chmod go-w it"
        )


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid()) or uid == _unmapped()


def _unmapped() -> int:
    """In a user namespace of few users: the number that stands for all others, root among them."""
    try:
        with open("/proc/self/uid_map") as file:
            if sum(int(line.split()[2]) for line in file) >= 1 << 16:
                return -1
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):
        return -1


def _is_private_group(path: str, status: os.stat_result) -> bool:
    """Whether only the group can write it, and that is the owner's own: umask 002 where each user has one."""
    if status.st_mode & _OTHERS_WRITE != stat.S_IWGRP:
        return False
    import grp  # for those few who have such a place
    import pwd

    try:
        account, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
        listed = "system.posix_acl_access" in os.listxattr(path, follow_symlinks=False)
    except (KeyError, OSError):
        return False
    own = account.pw_gid == group.gr_gid and account.pw_name == group.gr_name
    return own and not listed and set(group.gr_mem) <= {account.pw_name}

"""Private folders, which no other user may access, and locks on them."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping

from execprotocol.trust import owner_name

# A lock is held for milliseconds; a program that holds one longer is broken or hostile.
_LOCK_TIMEOUT_S = 5.0

_NAME_ANOTHER = "set XDG_STATE_HOME to a folder that you can write"


class FolderError(Exception):
    """A folder cannot be used; the text is for the user."""


def runtime_folder(environment: Mapping[str, str]) -> str | None:
    """The runtime folder that the service manager has created, or None."""
    # systemd may name several, separated by colons; absolute paths only, as XDG requires.
    runtime = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return runtime if runtime.startswith("/") else None


def state_folder(environment: Mapping[str, str]) -> str:
    """The folder for state that outlives a daemon, without a service manager.

    Raises:
        FolderError: there is no home folder.
    """
    state = environment.get("XDG_STATE_HOME", "")
    if state.startswith("/"):  # the XDG specification: a relative path is invalid and ignored
        return f"{state.rstrip('/')}/execserver"
    home, origin = _home(environment)
    if not os.path.isdir(home):
        # Never created: a home folder is created with the account, with other modes than this program's.
        raise FolderError(f"the home folder {home} ({origin}) is not there; {_NAME_ANOTHER}")
    return f"{home.rstrip('/')}/.local/state/execserver"


def state_reason(environment: Mapping[str, str]) -> str:
    """The reason for the path of `state_folder`."""
    if environment.get("XDG_STATE_HOME", "").startswith("/"):
        return "from XDG_STATE_HOME"
    return f"below the home folder, {_home(environment)[1]}: XDG_STATE_HOME is no absolute path, or not set"


def _home(environment: Mapping[str, str]) -> tuple[str, str]:
    """The home folder and its origin."""
    home = environment.get("HOME", "")
    if home.startswith("/"):
        return home, "from HOME"
    uid = os.geteuid()
    import pwd  # for the few users without HOME

    try:
        return pwd.getpwuid(uid).pw_dir, "of the account"
    except KeyError:
        raise FolderError(f"uid {uid} has no account, and HOME is not set; {_NAME_ANOTHER}") from None


def create(path: str) -> None:
    """Create a folder and its missing parents, each with mode 0700 under any umask."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o700)  # an odd umask may have removed the owner's bits
        except FileExistsError:  # another daemon that starts right now
            continue


def open_folder(path: str) -> int:
    """Open an existing folder.

    Raises:
        FolderError: it cannot be read or is not a folder.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(f"folder {path}: {error.strerror}") from None


def open_private(path: str, forbidden: int = 0o077, uid: int | None = None) -> int:
    """Open a private folder, created if missing.

    Args:
        path: absolute.
        forbidden: mode bits that it may not have.
        uid: its owner; None for the daemon's user.

    Raises:
        FolderError: a symbolic link, not a folder, of another user, or open to others.
    """
    try:
        create(path)
        # The descriptor is checked, not the name, so that the checked folder is the one that is used.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(path):
            raise FolderError(f"folder {path} is a symbolic link; remove it") from None
        raise FolderError(f"folder {path}: {error.strerror}{_obstacle(path)}") from None
    status = os.fstat(folder)
    owner = os.geteuid() if uid is None else uid
    if status.st_uid != owner:
        os.close(folder)
        raise FolderError(
            f"folder {path} belongs to {owner_name(status.st_uid)}, not to us, {owner_name(owner)}; "
            f"have it removed, or chown it if what is in it is yours"
        )
    if status.st_mode & forbidden:
        os.close(folder)
        mode = stat.S_IMODE(status.st_mode)
        raise FolderError(f"folder {path} has mode {mode:04o}, open to others; chmod it to 0700")
    return folder


def _obstacle(path: str) -> str:
    """Owner and mode of the folder in which one could not be created, for an error text."""
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if os.path.lexists(path):
        return ""
    try:
        status = os.stat(parent)
    except OSError:
        return ""
    mode = stat.S_IMODE(status.st_mode)
    return f" in {parent}, which belongs to {owner_name(status.st_uid)} and has mode {mode:04o}"


def lock(descriptor: int) -> bool:
    """Take the exclusive lock if it is free; closing the last copy of the descriptor releases it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def leads_to(name: str, descriptor: int, parent: int | None = None) -> bool:
    """Whether a name (still) belongs to the open file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def lock_folder(descriptor: int, path: str) -> None:
    """Wait for the exclusive lock on an open folder.

    Raises:
        FolderError: another program holds it for more than 5 s.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while not lock(descriptor):
        if time.monotonic() >= deadline:
            raise FolderError(f"folder {path} has been locked by another program for {_LOCK_TIMEOUT_S:.0f} s")
        time.sleep(0.005)  # flock offers no wait with a limit

"""Folders that nobody else may touch, and the lock on them."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping

from execprotocol.trust import owner_name

# A lock is held for milliseconds; somebody who holds one longer is broken or hostile.
_LOCK_TIMEOUT_S = 5.0

_NAME_ANOTHER = "set XDG_STATE_HOME to a folder that you can write"


class FolderError(Exception):
    """A folder is not what it has to be, with a text for the user."""


def runtime_folder(environment: Mapping[str, str]) -> str | None:
    """What the service manager made for us, if it did."""
    # systemd may give several, separated by colons; absolute paths only, as XDG demands.
    runtime = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return runtime if runtime.startswith("/") else None


def state_folder(environment: Mapping[str, str]) -> str:
    """Where our things go that outlive a daemon, when no service manager gave a folder.

    Raises:
        FolderError: there is no home folder.
    """
    state = environment.get("XDG_STATE_HOME", "")
    if state.startswith("/"):  # the XDG specification: a relative path is invalid and ignored
        return f"{state.rstrip('/')}/execserver"
    home, origin = _home(environment)
    if not os.path.isdir(home):
        # Never made: a home folder is made with the account, and not under this program's modes.
        raise FolderError(f"the home folder {home} ({origin}) is not there; {_NAME_ANOTHER}")
    return f"{home.rstrip('/')}/.local/state/execserver"


def state_reason(environment: Mapping[str, str]) -> str:
    """Why `state_folder` is where it is."""
    if environment.get("XDG_STATE_HOME", "").startswith("/"):
        return "from XDG_STATE_HOME"
    return f"below the home folder, {_home(environment)[1]}: XDG_STATE_HOME is no absolute path, or not set"


def _home(environment: Mapping[str, str]) -> tuple[str, str]:
    """The home folder, and where it comes from."""
    home = environment.get("HOME", "")
    if home.startswith("/"):
        return home, "from HOME"
    uid = os.geteuid()
    import pwd  # for those few who have no HOME

    try:
        return pwd.getpwuid(uid).pw_dir, "of the account"
    except KeyError:
        raise FolderError(f"uid {uid} has no account, and HOME is not set; {_NAME_ANOTHER}") from None


def create(path: str) -> None:
    """Create a folder and its missing parents, each with mode 0700 whatever the umask is."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o700)  # an odd umask may have taken our own bits
        except FileExistsError:  # another daemon that starts right now
            continue


def open_folder(path: str) -> int:
    """Open a folder, which must exist.

    Raises:
        FolderError: it cannot be read or is no folder.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(f"folder {path}: {error.strerror}") from None


def open_private(path: str, forbidden: int = 0o077, uid: int | None = None) -> int:
    """Open a folder of our own, created when missing.

    Args:
        path: absolute.
        forbidden: mode bits that it may not have.
        uid: whose it must be; None: ours.

    Raises:
        FolderError: a symbolic link, no folder, of another user, or open to others.
    """
    try:
        create(path)
        # The descriptor is checked, not the name: what was checked is what is used.
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
    """What is known of the folder in which one could not be made."""
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
    """Take the exclusive lock if it is free; closing the last copy of the descriptor gives it back."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_folder(descriptor: int, path: str) -> None:
    """Wait for the exclusive lock on an open folder.

    Raises:
        FolderError: somebody else holds it for more than 5 s.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while not lock(descriptor):
        if time.monotonic() >= deadline:
            raise FolderError(f"folder {path} has been locked by another program for {_LOCK_TIMEOUT_S:.0f} s")
        time.sleep(0.005)  # flock offers no wait with a limit

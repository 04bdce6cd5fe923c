"""The state folder: private state of the daemon's user that outlives a daemon, and the files for masks.

The daemons of one user share it, so that one daemon finds what another left behind. It is private, because
its content decides which files are removed from workspaces, and what a sandbox shows instead of hidden files.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from execserver.private_folder import FolderError, open_private, runtime_folder, state_folder, state_reason

_NAME = "execserver"
"""The name of our folder below a folder that others may read."""
_EMPTY_FILE, _EMPTY_FOLDER = "empty-file", "empty-folder"
# Daemons that start together may each replace the file that the other one has just made.
_ATTEMPTS = 10


class StateFolderError(Exception):
    """There is no private folder for state; the text names the path and the fix."""


def open_state_folder(configured: str | None, environment: Mapping[str, str], uid: int) -> str:
    """Open the private state folder of a user (mode 0700), which is created if missing.

    The first that is set: `configured`, `$RUNTIME_DIRECTORY` (the first of several),
    `$XDG_STATE_HOME/execserver`, `~/.local/state/execserver`. If it is set and cannot be used, that is an
    error: another folder would hold another daemon's state.

    systemd makes a runtime folder with mode 0755 by default. Other users can read but not write it, so it is
    not refused; the state folder is then `execserver` in it, with mode 0700.

    Args:
        configured: the setting `spool_dir`.
        environment: the daemon's environment.
        uid: the owner that the folder must have: the daemon's effective user.

    Returns:
        The absolute path, without symbolic links.

    Raises:
        StateFolderError: the path is a symbolic link or not a folder, belongs to another user, is open to
            others, or cannot be created.
    """
    try:
        if configured is None and (runtime := runtime_folder(environment)) is not None:
            return _runtime_subfolder(runtime, uid)
        path = state_folder(environment) if configured is None else configured
        if not path.startswith("/") or "\0" in path:
            raise FolderError(f"folder {path!r} is no absolute path")
        return _private(path, uid)
    except FolderError as error:
        raise StateFolderError(
            f"no place for state: {error}; or name another folder with --spool-dir, created when missing"
        ) from None


def reason_for(configured: str | None, environment: Mapping[str, str]) -> str:
    """The setting or variable from which `open_state_folder` takes the path."""
    if configured is not None:
        return "from the setting spool_dir"
    if runtime_folder(environment) is not None:
        return "from RUNTIME_DIRECTORY, which the service manager gave"
    return state_reason(environment)


def empty_file(folder: str) -> str:
    """The path of an empty file of mode 000 in a state folder, made or repaired if needed.

    Raises:
        StateFolderError: the file cannot be made.
    """
    path = f"{folder}/{_EMPTY_FILE}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return _empty(path, _is_empty_file, lambda: os.close(os.open(path, flags, 0)))


def empty_folder(folder: str) -> str:
    """The path of an empty folder of mode 000 in a state folder, made or repaired if needed.

    Raises:
        StateFolderError: the folder cannot be made, or is not empty.
    """
    path = f"{folder}/{_EMPTY_FOLDER}"
    return _empty(path, _is_empty_folder, lambda: os.mkdir(path, 0))


def remove_old_folders(folder: str, prefix: str, age: float, closed: Sequence[str] = ()) -> None:
    """Remove temporary folders that killed daemons left behind. Never raises, follows no links.

    Args:
        folder: a state folder.
        prefix: the prefix of the temporary folders' names.
        age: seconds since the folder was last modified; younger ones may be in use.
        closed: names of empty folders of mode 000 in each, which only root can open.
    """
    youngest = time.time() - age
    with suppress(OSError), os.scandir(folder) as found:
        old = [entry.path for entry in found if entry.name.startswith(prefix) and _is_old(entry, youngest)]
        for path in old:
            _remove_folder(path, closed)


def _is_old(entry: os.DirEntry[str], youngest: float) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_mtime < youngest


def _remove_folder(path: str, closed: Sequence[str]) -> None:
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in closed:
                with suppress(OSError):
                    os.rmdir(name, dir_fd=opened)  # does not list the folder, unlike rmtree
        finally:
            os.close(opened)
    import shutil  # slow to load, and rarely needed

    shutil.rmtree(path, ignore_errors=True)


def _runtime_subfolder(runtime: str, uid: int) -> str:
    descriptor = open_private(runtime, forbidden=0o022, uid=uid)
    try:
        readable = os.fstat(descriptor).st_mode & 0o077
    finally:
        os.close(descriptor)
    return _private(f"{runtime}/{_NAME}" if readable else runtime, uid)


def _private(path: str, uid: int) -> str:
    path = path.rstrip("/") or "/"  # with a trailing slash a link would be followed
    descriptor = open_private(path, uid=uid)
    try:
        # Masks need the real path.
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _empty(path: str, is_empty: Callable[[str, os.stat_result], bool], make: Callable[[], None]) -> str:
    for _ in range(_ATTEMPTS):
        try:
            status = os.lstat(path)
            if stat.S_IMODE(status.st_mode) == 0 and status.st_uid == os.geteuid() and is_empty(path, status):
                return path
            # Never recursive: files in the folder are not ours to remove.
            (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            hint = "; remove it: it must be empty" if error.errno == errno.ENOTEMPTY else ""
            raise StateFolderError(f"cannot make {path}: {error.strerror}{hint}") from None
        try:
            make()  # mode 000 is right from the start under every umask
        except FileExistsError:
            continue  # another daemon was faster: check what it made
        except OSError as error:
            raise StateFolderError(f"cannot make {path}: {error.strerror}") from None
    raise StateFolderError(f"another process keeps changing {path}; find and stop it")


def _is_empty_file(_path: str, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _is_empty_folder(path: str, status: os.stat_result) -> bool:
    if not stat.S_ISDIR(status.st_mode):
        return False
    try:
        return not os.listdir(path)
    except PermissionError:
        return True  # we are not root, and mode 000 keeps us from creating files in it

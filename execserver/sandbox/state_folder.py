"""The folder of the daemon's user for what outlives a daemon, and the empty things that masks are made of.

Several daemons of one user share it: what one of them left behind, another one finds. It is private,
because what lies in it decides what is removed from workspaces and what a sandbox shows in the place of
what it hides.
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
"""Of our folder below one that others may read."""
_EMPTY_FILE, _EMPTY_FOLDER = "empty-file", "empty-folder"
# Daemons that start together may each replace what the other one has just made, once.
_ATTEMPTS = 10


class StateFolderError(Exception):
    """There is no private folder for state; the text names the path and the way out."""


def open_state_folder(configured: str | None, environment: Mapping[str, str], uid: int) -> str:
    """The absolute path, free of symbolic links, of a folder that is `uid`'s alone (mode 0700); created
    when missing.

    The first that is given: `configured`, `$RUNTIME_DIRECTORY` (the first of several),
    `$XDG_STATE_HOME/execserver`, `~/.local/state/execserver`. One that is given and cannot be used is an
    error: another place would hold another daemon's state.

    systemd makes a runtime folder with mode 0755 unless the unit says otherwise. That is as good as a home
    folder, nobody else can write it, and so it is no reason to refuse to run: then `execserver` inside of
    it, with 0700, is ours.

    Args:
        configured: the setting `spool_dir`.
        environment: the daemon's own.
        uid: the user to whom the folder must belong: the daemon's effective one.

    Raises:
        StateFolderError: a symbolic link, no folder, of another user, open to others, or not to be made.
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
    """Why `open_state_folder` takes the place that it takes."""
    if configured is not None:
        return "from the setting spool_dir"
    if runtime_folder(environment) is not None:
        return "from RUNTIME_DIRECTORY, which the service manager gave"
    return state_reason(environment)


def empty_file(folder: str) -> str:
    """The path of an empty file of mode 000 in a state folder, made or mended when need be.

    Raises:
        StateFolderError: it cannot be made.
    """
    path = f"{folder}/{_EMPTY_FILE}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return _empty(path, _is_empty_file, lambda: os.close(os.open(path, flags, 0)))


def empty_folder(folder: str) -> str:
    """The path of an empty folder of mode 000 in a state folder, made or mended when need be.

    Raises:
        StateFolderError: it cannot be made, or something is in it.
    """
    path = f"{folder}/{_EMPTY_FOLDER}"
    return _empty(path, _is_empty_folder, lambda: os.mkdir(path, 0))


def remove_old_folders(folder: str, prefix: str, age: float, hollows: Sequence[str] = ()) -> None:
    """Remove what daemons that were killed left of their temporary folders. Never raises, follows no links.

    Args:
        folder: a state folder.
        prefix: of the names of those folders.
        age: seconds since something was last made or removed in one; younger ones may be in use.
        hollows: names of empty folders in each that only root could open (mode 000).
    """
    youngest = time.time() - age
    with suppress(OSError), os.scandir(folder) as found:
        old = [entry.path for entry in found if entry.name.startswith(prefix) and _is_old(entry, youngest)]
        for path in old:
            _remove_folder(path, hollows)


def _is_old(entry: os.DirEntry[str], youngest: float) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_mtime < youngest


def _remove_folder(path: str, hollows: Sequence[str]) -> None:
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in hollows:
                with suppress(OSError):
                    os.rmdir(name, dir_fd=opened)  # needs no right to look into it, unlike rmtree
        finally:
            os.close(opened)
    import shutil  # takes longer to load than all the rest here, for what hardly ever happens

    shutil.rmtree(path, ignore_errors=True)


def _runtime_subfolder(runtime: str, uid: int) -> str:
    descriptor = open_private(runtime, forbidden=0o022, uid=uid)
    try:
        readable = os.fstat(descriptor).st_mode & 0o077
    finally:
        os.close(descriptor)
    return _private(f"{runtime}/{_NAME}" if readable else runtime, uid)


def _private(path: str, uid: int) -> str:
    path = path.rstrip("/") or "/"  # with a slash at its end the name of a link would be followed
    descriptor = open_private(path, uid=uid)
    try:
        # Masks go over the place where it really is.
        return os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _empty(path: str, is_empty: Callable[[str, os.stat_result], bool], make: Callable[[], None]) -> str:
    for _ in range(_ATTEMPTS):
        try:
            status = os.lstat(path)
            if stat.S_IMODE(status.st_mode) == 0 and status.st_uid == os.geteuid() and is_empty(path, status):
                return path
            # Never recursive: what somebody put into a folder is theirs to take away.
            (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            hint = "; remove it: nothing may be in it" if error.errno == errno.ENOTEMPTY else ""
            raise StateFolderError(f"cannot make {path}: {error.strerror}{hint}") from None
        try:
            make()  # no umask adds a bit to mode 000: it is right from the first moment on
        except FileExistsError:
            continue  # another daemon was faster; the next look tells
        except OSError as error:
            raise StateFolderError(f"cannot make {path}: {error.strerror}") from None
    raise StateFolderError(f"{path} is changed by somebody again and again; find out by whom")


def _is_empty_file(_path: str, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _is_empty_folder(path: str, status: os.stat_result) -> bool:
    if not stat.S_ISDIR(status.st_mode):
        return False
    try:
        return not os.listdir(path)
    except PermissionError:
        return True  # not root: then mode 000 keeps us, too, from putting anything in

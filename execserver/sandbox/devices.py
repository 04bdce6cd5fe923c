"""Device nodes for the sandboxes of a root daemon: like those of `/dev`, but with another owner.

Bubblewrap cannot mount a device read-only, and on a writable mount the owner of a node may change its mode:
`chmod 600 /dev/null` in root's sandbox would break the host. So root's sandboxes, and the standard input of
commands in them, use nodes of another owner, which root cannot change without capabilities.

The nodes are made where devices may be opened: in the state folder, or, if that is mounted `nodev` like
`/run`, in `/dev/execserver`, which disappears when the machine restarts. The daemon of an ordinary user needs
none, because it does not own the host's nodes.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from execserver.private_folder import FolderError, lock_folder, open_private

NODES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""Name → major and minor number: what bubblewrap's `--dev` takes from the host."""

OWNER = 65534
"""A user without rights here: only root can enter the folder, so its processes do not reach the nodes."""

_FOLDER = "devices"
ELSEWHERE = "/dev/execserver"
"""The folder of the nodes if the file system of the state folder allows none."""


class Devices:
    """The device nodes, which several daemons share. Blocking; safe to use from several threads.

    Args:
        state_folder: the result of `state_folder.open_state_folder`.
        host: a node of the host, to see whether this user owns the host's nodes.
    """

    def __init__(self, state_folder: str, host: str = os.devnull) -> None:
        self._places: tuple[str, ...] = (f"{state_folder}/{_FOLDER}", ELSEWHERE)
        self._host = host
        self.reason = ""
        """Why there are no nodes although they are needed."""

    def folder(self) -> str | None:
        """The folder of the nodes, which are made or repaired if needed. Takes 15 µs if they are right.

        Returns:
            None if no nodes are needed, or if they cannot be made (`reason`).
        """
        self.reason = ""
        if os.stat(self._host).st_uid != os.geteuid():
            return None
        faults = []
        for place in self._places:
            try:
                if not all(_is_right(f"{place}/{name}", name) for name in NODES):
                    _make(place)
            except (OSError, FolderError) as error:
                faults.append(str(error))
                continue
            self._places = (place,)
            return place
        self.reason = "; ".join(faults)
        return None


def _is_right(path: str, name: str) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return (
        status.st_mode == stat.S_IFCHR | 0o666
        and status.st_uid == OWNER
        and status.st_rdev == os.makedev(*NODES[name])
    )


def _make(place: str) -> None:
    """Make all nodes, each under a temporary name first, so that no unfinished node is ever visible.

    Raises:
        OSError, FolderError: the nodes cannot be made, or cannot be opened there.
    """
    folder = open_private(place)
    try:
        lock_folder(folder, place)
        for name, (major, minor) in NODES.items():
            new = f"{name}.new"
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
            os.mknod(new, stat.S_IFCHR | 0o600, os.makedev(major, minor), dir_fd=folder)
            try:
                if name == "null":
                    os.close(os.open(new, os.O_RDWR | os.O_CLOEXEC, dir_fd=folder))
                os.chown(new, OWNER, OWNER, dir_fd=folder, follow_symlinks=False)
                os.chmod(new, 0o666, dir_fd=folder)  # noqa: S103  only root can enter the folder
                os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(new, dir_fd=folder)
                raise
    except OSError as error:
        raise OSError(error.errno, f"no device nodes in {place}: {error.strerror}") from None
    finally:
        os.close(folder)

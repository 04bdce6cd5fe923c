"""Device nodes for the sandboxes of a root daemon: like those of `/dev`, but of another owner.

Bubblewrap cannot mount a device read-only, and on a writable mount the owner of a node may change its mode:
`chmod 600 /dev/null` in root's sandbox would break the host. So root's sandboxes, and the standard input of
what runs in them, have nodes that belong to somebody else: without capabilities root is then anybody.

They are made where devices may be opened: in the state folder, or, where that is mounted `nodev` as `/run`
is, in `/dev/execserver`, which a restart of the machine removes. An ordinary user's daemon needs none: the
host's nodes are not its own.
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
"""Nobody. Nothing of his can reach them: their folder is root's alone."""

_FOLDER = "devices"
_ELSEWHERE = "/dev/execserver"


class Devices:
    """The nodes of one daemon; several daemons share them. Blocking, and safe to use from several threads.

    Args:
        state_folder: of `state_folder.open_state_folder`.
        host: the node by which it is seen whether the host's are ours to change.
    """

    def __init__(self, state_folder: str, host: str = os.devnull) -> None:
        self._places: tuple[str, ...] = (f"{state_folder}/{_FOLDER}", _ELSEWHERE)
        self._host = host
        self.reason = ""
        """Why there are none although they are needed."""

    def folder(self) -> str | None:
        """Where they are, made or mended when need be; None when none are needed, or (`reason`) cannot be
        had. 15 µs when all is well.
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
    """Make all nodes, each under another name first: nobody finds one that is not finished.

    Raises:
        OSError, FolderError: it is not possible, or they cannot be opened there.
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
                os.chmod(new, 0o666, dir_fd=folder)  # noqa: S103  in a folder that is root's alone
                os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(new, dir_fd=folder)
                raise
    except OSError as error:
        raise OSError(error.errno, f"no device nodes in {place}: {error.strerror}") from None
    finally:
        os.close(folder)

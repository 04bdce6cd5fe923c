"""The relay's state folder: of its user alone, and of one relay at a time."""

from __future__ import annotations

import os
from pathlib import Path

from execprotocol.trust import UntrustedError, check_way
from execserver.private_folder import FolderError, lock, open_private

LOCK_NAME = "relay.lock"


class StateDirError(Exception):
    """The folder cannot be used, with the way out."""


class StateDir:
    """The folder, held for the life of this relay.

    Args:
        path: absolute; made when missing, with mode 0700.

    Raises:
        StateDirError: others may read or replace it, it is another user's, or another relay has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            check_way(str(path))
            self.descriptor = open_private(str(path))
        except (FolderError, UntrustedError) as error:
            raise StateDirError(f"--state-dir: {error}") from None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._lock = os.open(LOCK_NAME, flags, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            os.close(self.descriptor)
            raise StateDirError(f"--state-dir {path}: {LOCK_NAME}: {error.strerror}") from None
        if not lock(self._lock):
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            self.close()
            raise StateDirError(
                f"--state-dir {path} is in use by the relay with process id {holder or '?'}; stop it, "
                "or give this one a folder of its own"
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._lock)
        os.close(self.descriptor)

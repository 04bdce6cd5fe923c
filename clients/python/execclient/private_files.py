"""Files of the user's state that no other user may read or write."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from execprotocol.trust import check_way


def make_state_folder(folder: Path) -> None:
    """Create a folder `$XDG_STATE_HOME/execserver/NAME`, for its owner only, unless it exists.

    A missing home folder is not created: that is an error of the account.
    """
    for each in (*reversed(folder.parents[:3]), folder):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)


def write_private(path: Path, data: bytes) -> None:
    """Create a file, or replace it in one step, with the mode 0600.

    Raises:
        OSError: it cannot be written.
        UntrustedError: another user could replace it.
    """
    check_way(str(path))
    temporary = path.with_suffix(f".{os.urandom(4).hex()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

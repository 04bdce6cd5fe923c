"""`fs/applyEdits` in tests: edits as JSON, a tree to change, and the entries that are left."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from pathlib import Path

from tests.faults.service import Service
from tests.support.wire import PATIENCE, Json, encode, path_uri

MARK = ".execserver-edit-"
"""The prefix of our temporary names. No such file may be left."""

Picture = dict[str, tuple[int, bytes | str | None]]


def write(path: Path | str, text: str | bytes, **members: Json) -> Json:
    """An edit that writes."""
    return {"op": "write", "path": path_uri(path), "dataBase64": encode(text), **members}


def remove(path: Path | str, **members: Json) -> Json:
    """An edit that removes."""
    return {"op": "remove", "path": path_uri(path), **members}


def picture(folder: Path) -> Picture:
    """All files below a folder: permission bits, and the content, the target, or None for a folder.

    Files that are removed meanwhile are left out.
    """
    found: Picture = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            content: bytes | str | None = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            found[str(path.relative_to(folder))] = (stat.S_IMODE(status.st_mode), content)
    return found


class FiveFiles:
    """A tree, and a patch for five of its files: two updates, one of them through a link, two new files, one
    of them in new folders, and a removal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "first").write_text("old first")
        (folder / "first").chmod(0o640)
        (folder / "second").write_text("old second")
        (folder / "link").symlink_to("second")
        (folder / "gone").write_text("old gone")
        (folder / "stays").write_text("stays")
        self.old = picture(folder)

    @property
    def edits(self) -> list[Json]:
        """The patch."""
        return [
            write(self.folder / "first", "new first"),
            write(self.folder / "link", "new second"),
            write(self.folder / "new/deep/file", "new file", createParents=True),
            write(self.folder / "third", "new third"),
            remove(self.folder / "gone"),
        ]

    @property
    def new(self) -> Picture:
        """The tree after the patch."""
        found: Picture = {
            **self.old,
            "first": (0o640, b"new first"),
            "second": (self.old["second"][0], b"new second"),
            "third": (self.old["second"][0], b"new third"),
            "new": (0o755, None),
            "new/deep": (0o755, None),
            "new/deep/file": (self.old["second"][0], b"new file"),
        }
        del found["gone"]
        return found

    def now(self) -> Picture:
        """The tree as it is."""
        return picture(self.folder)


def records(state: Path) -> list[str]:
    """Names of the journal entries in a state folder."""
    with contextlib.suppress(FileNotFoundError):
        return [name for name in os.listdir(state / "edits") if name != "lock"]
    return []


def kill_at_the_point(service: Service) -> None:
    """Wait until the server is stopped at a fault point, kill it, and wait for the next one."""
    wait_stopped(service)
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()


def wait_stopped(service: Service) -> None:
    """Wait until the server is stopped at a fault point."""
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{service.server_pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline, f"the point was not reached: {service.log}"
        time.sleep(0.002)

"""Daemons that use mount points, and checks of what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from execserver.sandbox.mount_points.entry import key

NAMES = (".git", ".agents", ".codex", ".aws")

# A daemon that does what it is told on its standard input.
_DAEMON = """
import json, sys
from execserver.sandbox.mount_points.registry import MountPoints

points = MountPoints(sys.argv[1])
leases = []
for line in sys.stdin:
    verb, *paths = json.loads(line)
    if verb == "acquire":
        leases.append(points.acquire(paths))
        answer = [leases[-1].made, leases[-1].foreign]
    elif verb == "release":
        answer = leases.pop().release()
    else:
        answer = points.sweep()
    print(json.dumps(answer), flush=True)
"""


class Daemon:
    def __init__(self, state: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _DAEMON, str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, verb: str, *paths: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([verb, *paths]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def entries(state: Path) -> list[str]:
    return sorted(set(os.listdir(state / "mount-points")) - {"lock"})


@contextmanager
def kept_inode(path: str) -> Iterator[None]:
    """Keep the inodes of removed files from being reused within this context."""
    descriptor = os.open(path, os.O_PATH)
    yield
    os.close(descriptor)


def descriptors() -> set[int]:
    listed = map(int, os.listdir("/proc/self/fd"))
    # Not the one with which the list was read.
    return {descriptor for descriptor in listed if os.path.exists(f"/proc/self/fd/{descriptor}")}


def seen(path: Path) -> tuple[int, int, int]:
    """The status of a file without its access time, which our own reads change."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_mtime_ns


def takes_marks(folder: Path) -> bool:
    """Whether the file system has extended attributes for marks."""
    try:
        os.setxattr(folder, "user.execserver.test", b"1")
        os.removexattr(folder, "user.execserver.test")
    except OSError:
        return False
    return True


def write_entry(state: Path, path: Path, *lines: dict[str, Any], torn: str = "") -> Path:
    (state / "mount-points").mkdir(parents=True, mode=0o700, exist_ok=True)
    state.chmod(0o700)
    file = state / "mount-points" / key(str(path))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    return file

"""A container as engines make one, of namespaces: process 1 on a root file system of its own."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

from tests.support.wire import PATIENCE

_ENTER = """
set -e
root=$1 new=$2 mode=$3 volumes=$4; shift 4
mount --rbind "$root" "$new"
mount -t proc proc "$new/proc"
[ "$root" = / ] || mount --rbind /dev "$new/dev"
[ "$mode" = rw ] || mount -o remount,bind,ro "$new"
printf '%s' "$volumes" | while read -r source target; do mount --bind "$source" "$new$target"; done
cd "$new"
pivot_root . .
umount -l .
exec "$@"
"""
"""A shell script: the arguments after the fourth become process 1."""


class NoNamespacesError(Exception):
    """This machine makes no container; the text says what it refuses."""


class Container:
    """A running container; for root. `close` ends it.

    Args:
        root: the root file system; `/` for that of the host.
        command: process 1, with all that it takes to be its user and to have its variables.
        as_user: a command that runs another one as the same user, for `run`.
        volumes: target in the container → folder on the host.
        read_only: whether everything but the volumes, `/proc` and `/dev` is read-only.
        enter: a command that runs another one in the namespaces to start from.
        log: the file for standard error, for a container that writes much; None: a pipe.

    Raises:
        NoNamespacesError: the namespaces and mounts are refused here.
    """

    def __init__(
        self,
        root: Path,
        command: Sequence[str],
        as_user: Sequence[str],
        volumes: Mapping[str, Path],
        *,
        read_only: bool = False,
        enter: Sequence[str] = (),
        log: IO[bytes] | None = None,
    ) -> None:
        self._as_user = as_user
        self._new = Path(tempfile.mkdtemp(prefix="container-"))
        lines = "".join(f"{source} {target}\n" for target, source in volumes.items())
        mode = "ro" if read_only else "rw"
        begin = ["sh", "-c", _ENTER, "enter", str(root), str(self._new), mode, lines, *command]
        namespaces = ["unshare", "--pid", "--mount", "--uts", "--ipc", "--propagation", "private"]
        self._outer = subprocess.Popen(
            [*enter, *namespaces, "--fork", *begin],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log or subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._outer.stdout is not None
        self.said = self._outer.stdout.readline().strip()
        """The first line of process 1."""
        if not self.said:
            _, errors = self._outer.communicate()
            self._new.rmdir()
            raise NoNamespacesError(f"no container can be made of namespaces here: {(errors or '').strip()}")
        (self.first,) = psutil.Process(self._outer.pid).children()

    def run(self, *command: str, as_root: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `podman exec` does."""
        namespaces = ["--pid", "--mount", "--uts", "--ipc", "--net"]
        inside = ["nsenter", "--target", str(self.first.pid), *namespaces, "--wd=/"]
        return subprocess.run(
            [*inside, *([] if as_root else self._as_user), *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def zombies(self) -> list[int]:
        """The ended processes that process 1 has not reaped."""
        states = {child.pid: child.status() for child in self.first.children(recursive=True)}
        return [pid for pid, state in states.items() if state == psutil.STATUS_ZOMBIE]

    def stop(self, signal_number: int) -> tuple[int, float]:
        """Send a signal to process 1; returns its exit status, and after how many seconds it ended."""
        began = time.monotonic()
        self.first.send_signal(signal_number)
        return self.wait(PATIENCE), time.monotonic() - began

    def wait(self, seconds: float) -> int:
        """Wait for the end of process 1; returns its exit status."""
        return self._outer.wait(seconds)

    def close(self) -> None:
        """Kill what still runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.first.kill()  # and so the kernel kills all others
        self._outer.communicate(timeout=PATIENCE)
        self._new.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

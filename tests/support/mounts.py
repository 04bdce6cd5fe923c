"""Mounts of our own that vanish with the test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.wire import PATIENCE

# Mounts in a namespace of its own, and stays alive until its standard input ends.
_MOUNT = """
import ctypes, os, sys
kind, target, options = sys.argv[1:4]
if kind == "fuse":
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"test", target.encode(), kind.encode(), 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
if kind == "fuse" and sys.argv[4:]:
    import runpy
    runpy.run_path(sys.argv[4], {"device": device})
sys.stdin.read()
"""

_SLOW = str(Path(__file__).with_name("slow_disk.py"))

Mount = Callable[..., Path]

NO_FUSE = "a mount that hangs needs the right to open /dev/fuse"


def can_hang() -> bool:
    """Whether `mount("fuse")` is possible."""
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


def mounting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """The body of a fixture that mounts file systems: `mount("tmpfs", "size=64k")` gives the folder. A mount
    of the kind `fuse` never answers; with `slow` it has a `file` of 4 bytes, which takes 20 ms to look up.

    The mount belongs to a process in namespaces of its own, so that no rights are needed and
    nothing is left behind; the folder is seen through that process.
    """
    with ExitStack() as stack:

        def do_mount(kind: str, options: str = "") -> Path:
            target = tmp_path_factory.mktemp(kind)
            server = [_SLOW] if kind == "fuse" and options == "slow" else []
            keeper = stack.enter_context(
                subprocess.Popen(
                    ["unshare", "-rm", sys.executable, "-c", _MOUNT, kind, str(target), options, *server],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            stack.callback(keeper.stdin.close)
            assert keeper.stdout.readline() == b"mounted\n"
            return Path(f"/proc/{keeper.pid}/root{target}")

        yield do_mount


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A new folder with a disk of one MiB, for root."""
    if os.geteuid() != 0:
        pytest.skip("a mount in this namespace needs root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        # The server may still be at work on requests whose client is gone.
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(["umount", folder], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"{folder} stays in use"
            time.sleep(0.02)

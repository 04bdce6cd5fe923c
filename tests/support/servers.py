"""The processes of a daemon, the files that they have open, and ports for servers."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from pathlib import Path

import psutil

_FORKED_ONLY = 0x40  # PF_FORKNOEXEC, include/linux/sched.h


def free_ports(count: int) -> list[int]:
    """Free TCP ports for servers that bind them later, or again: below those that the kernel assigns."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1000):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def open_files(pid: int) -> list[str]:
    """Where the descriptors of a process lead, but for those that it closes meanwhile.

    Raises:
        FileNotFoundError: there is no such process.
    """
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def searching(pid: int) -> list[psutil.Process]:
    """The living programs that search, below a daemon, but for launchers of their sandboxes."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "rg" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def server_of(supervisor: int, within: float) -> int:
    """The server below a supervisor, which has commands beside it once another server died. Over stdio the
    first request may be answered before there is one.

    Raises:
        AssertionError: there is none in time.
    """
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
            with contextlib.suppress(OSError):
                if is_server(pid, supervisor):
                    return pid
        time.sleep(0.002)
    raise AssertionError(f"no server below {supervisor}")


def is_server(pid: int, supervisor: int) -> bool:
    """Whether a child of a supervisor is a server, and no orphan of a command: the first server may be a copy
    of the supervisor, others are programs of their own.

    Raises:
        OSError: there is no such process (any more).
    """
    same = Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{supervisor}/cmdline").read_bytes()
    return same or is_spawned(pid)


def is_spawned(pid: int) -> bool:
    """Whether it is a server that is a program of its own. A child of a server has its command line until it
    executes another program, and is an orphan below the supervisor if the server is killed before that.

    Raises:
        OSError: there is no such process (any more).
    """
    flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    return not flags & _FORKED_ONLY and b"execserver.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()

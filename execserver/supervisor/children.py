"""Children of the supervisor: orphans and processes of dead servers are reaped, or looked at and left.

A *kept* process stays a zombie until a server confirmed its end: until then its pid must not become
somebody else's. `waitid(P_ALL)` shows one ended child at a time, and always the same one while that is
not reaped; behind a kept one the others are looked at one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from time import monotonic

from execserver import descendants

_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def reap(is_kept: Callable[[int, int], bool]) -> None:
    """Take the end of every child that ended.

    Args:
        is_kept: called with pid and status (as `os.waitpid` gives it); true leaves the child a zombie.
    """
    while ended := _look(os.P_ALL, 0):
        if is_kept(ended.si_pid, _status(ended)):
            break
        _reap_one(ended.si_pid)
    else:
        return
    for pid in _own_children():
        ended = _look(os.P_PID, pid)
        if ended and not is_kept(pid, _status(ended)):
            _reap_one(pid)


def kill_all(instance: int, exclude: Collection[int], timeout: float) -> list[int]:
    """Kill members and whatever else is below us, until two scans in a row are empty.

    Args:
        instance: the service instance.
        exclude: children that are not the service's.
        timeout: seconds.

    Returns:
        The pids of those that live on.
    """
    roots = [os.getpid()]
    deadline = monotonic() + timeout
    empty_scans = 0
    while True:
        left = descendants.find_descendants(instance, exclude=exclude, roots=roots)
        empty_scans = 0 if left else empty_scans + 1
        remaining = deadline - monotonic()
        if empty_scans == 2 or remaining <= 0:
            return sorted(left)
        if left:
            survivors = descendants.kill_descendants(
                instance, exclude=exclude, roots=roots, timeout=remaining
            )
            if survivors:
                return survivors
        reap(lambda _pid, _status: False)


def status_of_zombie(pid: int) -> int | None:
    """How a process ended whose parent has not reaped it, whoever that is; None while it lives."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command, field 2, may contain anything; what follows the last parenthesis is plain.
            state, *fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # Fields 20 and 52: a leader whose threads go on has not ended.
    return int(fields[48]) if state == b"Z" and int(fields[16]) <= 1 else None


def _look(kind: int, pid: int) -> os.waitid_result | None:
    try:
        return os.waitid(kind, pid, _LOOK)
    except ChildProcessError:
        return None


def _status(ended: os.waitid_result) -> int:
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status << 8
    return ended.si_status | (0x80 if ended.si_code == os.CLD_DUMPED else 0)


def _reap_one(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # by whoever was asked about it


def _own_children() -> list[int]:
    pid = os.getpid()
    try:
        with open(f"/proc/self/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN; who is no child is found out by asking
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]

"""Children of the supervisor: reaps orphans and processes of dead servers.

The process of an fd store entry stays a zombie until a server has confirmed its end, so that its pid is not
reused. `waitid(P_ALL)` returns the same ended child until it is reaped; if that child must not be reaped, the
other children are checked one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from time import monotonic

from execserver import descendants

_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def reap(must_not_reap: Callable[[int, int], bool]) -> None:
    """Reap all ended children.

    Args:
        must_not_reap: called with pid and status (as from `os.waitpid`); true leaves the child a zombie.
    """
    while ended := _look(os.P_ALL, 0):
        if must_not_reap(ended.si_pid, _status(ended)):
            break
        _reap_one(ended.si_pid)
    else:
        return
    for pid in _own_children():
        ended = _look(os.P_PID, pid)
        if ended and not must_not_reap(pid, _status(ended)):
            _reap_one(pid)


def kill_all(instance: int, exclude: Collection[int], timeout: float) -> list[int]:
    """Kill all descendants of the instance and of this process, until two scans in a row are empty.

    Args:
        instance: the service instance.
        exclude: children that do not belong to the service.
        timeout: seconds.

    Returns:
        The pids of the processes that are still alive.
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
    """The wait status of a zombie, of any parent; None while the process lives."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Field 2, the command, may contain any byte; the fields after the last parenthesis do not.
            state, *fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # Fields 20 and 52: while other threads run, the process has not ended.
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
        return  # the callback has reaped it


def _own_children() -> list[int]:
    pid = os.getpid()
    try:
        with open(f"/proc/self/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN; `waitid` ignores processes that are no children
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]

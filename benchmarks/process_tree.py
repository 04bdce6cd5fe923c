"""What the kernel says about a server and the processes below it."""

import re
from pathlib import Path
from typing import NamedTuple

import psutil


class Memory(NamedTuple):
    """Memory of one or more processes, in MiB."""

    resident: float
    anonymous: float


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below `pid`, without it; empty when it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def server_processes(pid: int) -> list[psutil.Process]:
    """The process and those below it that run the same executable.

    That is a server with its supervisor and workers, and not the commands it runs for its clients.
    """
    root = psutil.Process(pid)
    executable = root.exe()
    found = [root]
    for process in descendants(pid):
        try:
            if process.exe() == executable:
                found.append(process)
        except psutil.Error:
            continue
    return found


def memory(pid: int) -> Memory:
    """Resident and anonymous memory of `server_processes(pid)`, from smaps_rollup (statm is too coarse)."""
    resident = anonymous = 0
    for process in server_processes(pid):
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        resident += _kibibytes("Rss", text)
        anonymous += _kibibytes("Anonymous", text)
    return Memory(resident / 1024, anonymous / 1024)


def _kibibytes(name: str, text: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) if match else 0


def cpu_seconds(pid: int) -> float:
    """User and system time of `server_processes(pid)` so far."""
    total = 0.0
    for process in server_processes(pid):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL those that still live; psutil compares start times, so a reused number is left alone."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue

"""What a server and its supervisor hold, seen from outside."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import process_tree

POLL_SECONDS = 0.1
# asyncio's default pool starts threads as they are needed, up to this many, and keeps them. One not full
# yet is no leak; a thread kept by each command or session is beyond it at once.
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)


@dataclass(frozen=True)
class Held:
    """Descriptors and threads of each process of the service, and every other process below it."""

    descriptors: dict[int, tuple[str, ...]]
    threads: dict[int, int]
    children: tuple[str, ...]

    def beyond(self, earlier: "Held") -> list[str]:
        """What is held now and was not held then, in words; empty when nothing is."""
        found = []
        if set(self.descriptors) != set(earlier.descriptors):
            found.append(f"processes were {sorted(earlier.descriptors)}, are {sorted(self.descriptors)}")
        for pid, now in self.descriptors.items():
            then = earlier.descriptors.get(pid, ())
            if len(now) > len(then):
                found.append(f"{pid}: {len(then)} descriptors became {len(now)}: {_tail(now)}")
        for pid, threads in self.threads.items():
            if threads > earlier.threads.get(pid, 0) + POOL_THREADS:
                found.append(f"{pid}: {earlier.threads.get(pid, 0)} threads became {threads}")
        if len(self.children) > len(earlier.children):
            found.append(f"{len(self.children)} processes left: {_tail(self.children)}")
        return found


def _tail(items: tuple[str, ...]) -> str:
    return ", ".join(items[-20:])


def held(pid: int) -> Held:
    """What the service started as `pid` holds now."""
    service = process_tree.server_processes(pid)
    own = {process.pid for process in service}
    children = [process for process in process_tree.descendants(pid) if process.pid not in own]
    return Held(
        {number: _descriptors(number) for number in own},
        {number: _threads(number) for number in own},
        tuple(_described(process) for process in children),
    )


def _descriptors(pid: int) -> tuple[str, ...]:
    found = []
    for entry in sorted(_entries(pid, "fd"), key=lambda path: int(path.name)):
        try:
            found.append(f"{entry.name}→{entry.readlink()}")
        except OSError:
            continue
    return tuple(found)


def _threads(pid: int) -> int:
    return len(_entries(pid, "task"))


def _entries(pid: int, kind: str) -> list[Path]:
    """None of a process that ended since it was found, as a worker that idles does."""
    try:
        return list(Path(f"/proc/{pid}/{kind}").iterdir())
    except FileNotFoundError:
        return []


def _described(process: psutil.Process) -> str:
    """Pid, state (a zombie says so) and name."""
    try:
        return f"{process.pid} {process.status()} {process.name()}"
    except psutil.Error:
        return f"{process.pid} gone"


def settled(pid: int, *, quiet_seconds: float, within: float) -> Held:
    """What is held once nothing has changed for `quiet_seconds` and no command is left.

    Raises:
        AssertionError: it did not settle in time; says what was left.
    """
    end = time.monotonic() + within
    last, since = held(pid), time.monotonic()
    while time.monotonic() - since < quiet_seconds or last.children:
        assert time.monotonic() < end, f"did not settle: {last}"
        time.sleep(POLL_SECONDS)
        now = held(pid)
        if now != last:
            last, since = now, time.monotonic()
    return last


def back_to(pid: int, earlier: Held, *, within: float) -> list[str]:
    """Wait until no more is held than earlier; returns what still is after `within` seconds."""
    end = time.monotonic() + within
    while (more := held(pid).beyond(earlier)) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    return more

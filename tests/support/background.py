"""Commands that leave something running in the background, in every way in which it can go its own way.

What they leave is found by a word of its command line, as a process of the host: what is in a sandbox has
another number there.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.wire import PATIENCE, alive

IN_BACKGROUND = "{sleep} >/dev/null 2>&1 </dev/null & echo left"

DAEMON = """
import os, signal, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
null = os.open(os.devnull, os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
os.execve(sys.argv[1], sys.argv[1:], {})
"""
"""Forks twice, leads a session of its own, has no environment, and ignores what can be ignored."""


class Left:
    """Something that is left running, known by its command line.

    Attributes:
        argv: what runs.
        sleep: the same as words of a shell.
    """

    def __init__(self) -> None:
        # A time that nothing else on this machine sleeps.
        number = uuid.uuid4().int % 10**9
        self.argv = ["/bin/sleep", f"4343.{number:09}"]
        self.sleep = " ".join(self.argv)

    @property
    def pids(self) -> list[int]:
        """The processes that there are of it now."""
        return [pid for pid in _all_pids() if _command_line(pid) == self.argv and alive(pid)]

    def wait_running(self, count: int = 1) -> list[int]:
        """Wait until so many run; their pids."""
        return self._wait(lambda pids: len(pids) >= count, f"{count} should run")

    def wait_gone(self) -> None:
        """Wait until none of it runs."""
        self._wait(lambda pids: not pids, "none should run")

    def _wait(self, done: Callable[[list[int]], bool], wanted: str) -> list[int]:
        deadline = time.monotonic() + PATIENCE
        while not done(pids := self.pids):
            assert time.monotonic() < deadline, f"{wanted}, not {pids}"
            time.sleep(0.01)
        return pids

    def kill(self) -> None:
        """For the end of a test that failed."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []

"""What systemd does for a service, played: a notify socket, and listening sockets passed by exec."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 20.0

_LAUNCHER = """
import os, sys
descriptors, pid, names = sys.argv[1].split(), sys.argv[2], sys.argv[3]
# First out of the way, then down to 3: one may be where another one has to go.
high = [os.dup2(int(each), 100 + index) for index, each in enumerate(descriptors)]
for index, each in enumerate(high):
    os.dup2(each, 3 + index)
    os.close(each)
os.environ["LISTEN_PID"] = pid or str(os.getpid())
os.environ["LISTEN_FDS"] = str(len(descriptors))
if names:
    os.environ["LISTEN_FDNAMES"] = names
os.execvp(sys.argv[4], sys.argv[4:])
"""


def passing(descriptors: Sequence[int], *, pid: str = "", names: str = "") -> list[str]:
    """A command to put before another one, which then finds `descriptors` at 3 and up.

    Args:
        descriptors: that the launcher inherits (`pass_fds`).
        pid: `LISTEN_PID`, when it is not the command's.
        names: `LISTEN_FDNAMES`.
    """
    return [sys.executable, "-I", "-c", _LAUNCHER, " ".join(map(str, descriptors)), pid, names]


class ServiceManager:
    """A notify socket at a path, or at an abstract name (`@…`)."""

    def __init__(self, address: str | Path) -> None:
        self.address = str(address)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)

    @property
    def environment(self) -> dict[str, str]:
        """What the service gets."""
        return {"NOTIFY_SOCKET": self.address}

    def message(self, patience: float = PATIENCE) -> dict[str, str]:
        """The next message as its assignments.

        Raises:
            TimeoutError: none came.
        """
        self.socket.settimeout(patience)
        lines = self.socket.recv(65536).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def until(self, name: str) -> dict[str, str]:
        """The next message that assigns `name`; others are dropped."""
        while name not in (message := self.message()):
            pass
        return message

    def rest(self) -> list[dict[str, str]]:
        """What is there now."""
        messages = []
        while True:
            try:
                messages.append(self.message(0))
            except BlockingIOError:
                return messages

    def wait_quiet(self, seconds: float) -> None:
        """Read until nothing came for a while.

        Raises:
            AssertionError: it never ends.
        """
        for _ in range(1000):
            try:
                self.message(seconds)
            except TimeoutError:
                return
        raise AssertionError("the service goes on talking")

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def only_child(pid: int) -> int:
    """The one child of a process: a supervisor's server while no command was orphaned."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)

"""The service manager's protocol (sd_notify(3)): datagrams to $NOTIFY_SOCKET, and its watchdog."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

# A limit of microseconds must not make the server's loop do nothing but beat.
_SHORTEST_BEAT_S = 0.01


def notify(environment: Mapping[str, str], *states: str, status: str | None = None) -> None:
    """Send `states` (`READY=1`, `STOPPING=1`) if the service manager asked for it.

    A manager that cannot be reached is its own affair: nothing is raised.

    Args:
        environment: for `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
        states: assignments, sent together.
        status: what `systemctl status` is to say.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    lines = list(states)
    if status is not None:
        # A path may hold a newline, which would begin another assignment.
        lines.append("STATUS=" + " ".join(status.splitlines()))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto("\n".join(lines).encode(errors="replace"), socket.MSG_DONTWAIT, address)
    except OSError:  # nobody listens, or a table of descriptors is full: the service goes on
        return


def beat_seconds(environment: Mapping[str, str]) -> float | None:
    """How often the service manager is to get a sign of life: twice within its limit. None for never."""
    limit = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # meant for somebody above us
    if not (limit.isascii() and limit.isdigit() and int(limit)):
        return None
    return max(int(limit) / 2_000_000, _SHORTEST_BEAT_S)


class ServiceManager:
    """What the service manager has been told so far: every `RELOADING=1` gets its `READY=1`.

    Args:
        environment: for `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.beat_seconds = beat_seconds(environment)
        self.is_stopping = False
        self._was_ready = self._is_ready = False
        self._unanswered = 0
        self._serving = ""

    def ready(self, status: str) -> None:
        """A server answers requests. It may still owe answers to reloads."""
        self._serving = status
        first, self._was_ready, self._is_ready = not self._was_ready, True, True
        if first or not self._unanswered:
            self._tell_ready(status)

    def beat(self) -> None:
        """A sign of life."""
        notify(self._environment, "WATCHDOG=1")

    def reloading(self, answers: int) -> None:
        """A reload begins. Before the first `ready` it is part of the start.

        Args:
            answers: how many the server owes for it; 0 when its successor's `ready` is the answer.
        """
        self._unanswered += answers
        if self._was_ready:
            # The time tells the service manager that this answers its request, not an earlier one.
            now = f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
            notify(self._environment, "RELOADING=1", now, status="Reloading")

    def reloaded(self, error: object) -> None:
        """The server answered a reload. Of several the last one's answer ends the wait of the manager."""
        self._unanswered -= 1
        if self._is_ready and not self.is_stopping and self._unanswered <= 0:
            self._tell_ready(self._serving if error is None else f"Reload failed: {error}")

    def server_lost(self, status: str) -> None:
        """There is no server; what the dead one owed is answered by the next one's `ready`."""
        self._is_ready = False
        self._unanswered = 0
        # The next server has the whole limit for its start.
        notify(self._environment, *(["WATCHDOG=1"] if self.beat_seconds else []), status=status)

    def stopping(self) -> None:
        """The service ends (idempotent)."""
        if not self.is_stopping:
            self.is_stopping = True
            notify(self._environment, "STOPPING=1", status="Stopping")

    def _tell_ready(self, status: str) -> None:
        # The process id is for a service that was started through a shell.
        notify(self._environment, "READY=1", f"MAINPID={os.getpid()}", status=status)

"""The service manager's protocol (sd_notify(3)): datagrams to $NOTIFY_SOCKET, and its watchdog."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

# A limit of microseconds must not keep the server's loop busy with pings.
_SHORTEST_BEAT_S = 0.01


def notify(environment: Mapping[str, str], *states: str, status: str | None = None) -> None:
    """Send `states` (`READY=1`, `STOPPING=1`) if the service manager asked for it.

    Never raises if the service manager cannot be reached.

    Args:
        environment: for `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
        states: assignments, sent together.
        status: the text for `systemctl status`.
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
    except OSError:  # no listener, or a full descriptor table: the service continues
        return


def beat_seconds(environment: Mapping[str, str]) -> float | None:
    """The interval of watchdog pings, half the service manager's limit; None without a watchdog."""
    limit = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # meant for a parent process
    if not (limit.isascii() and limit.isdigit() and int(limit)):
        return None
    return max(int(limit) / 2_000_000, _SHORTEST_BEAT_S)


class ServiceManager:
    """The state reported to the service manager: every `RELOADING=1` is followed by a `READY=1`.

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
        """A server answers requests. Replies to reloads may still be outstanding."""
        self._serving = status
        if self.is_stopping:
            return  # a new server of a service that drains before its end
        first, self._was_ready, self._is_ready = not self._was_ready, True, True
        if first or not self._unanswered:
            self._tell_ready(status)

    def beat(self) -> None:
        """Ping the watchdog."""
        notify(self._environment, "WATCHDOG=1")

    def reloading(self, answers: int) -> None:
        """A reload begins. Before the first `ready` it is part of the start.

        Args:
            answers: the number of replies that the server will send; 0 if the new server's `ready` is the
            reply.
        """
        self._unanswered += answers
        if self._was_ready:
            # By the time the service manager knows that this answers its request, and not an earlier one.
            now = f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
            notify(self._environment, "RELOADING=1", now, status="Reloading")

    def reloaded(self, error: object) -> None:
        """The server replied to a reload. Of several, the last reply ends the service manager's wait."""
        self._unanswered -= 1
        if self._is_ready and not self.is_stopping and self._unanswered <= 0:
            self._tell_ready(self._serving if error is None else f"Reload failed: {error}")

    def server_lost(self, status: str) -> None:
        """The server is dead; the new server's `ready` replaces its outstanding replies."""
        self._is_ready = False
        self._unanswered = 0
        # The new server gets the whole watchdog limit for its start.
        notify(self._environment, *(["WATCHDOG=1"] if self.beat_seconds else []), status=status)

    def stopping(self, seconds: float | None = None) -> None:
        """The service ends (idempotent).

        Args:
            seconds: how long that may take, beyond the service manager's own limit; None: not longer.
        """
        if not self.is_stopping:
            self.is_stopping = True
            extended = [] if seconds is None else [f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}"]
            notify(self._environment, "STOPPING=1", *extended, status="Stopping")

    def _tell_ready(self, status: str) -> None:
        # The process id matters for a service that was started by a shell.
        notify(self._environment, "READY=1", f"MAINPID={os.getpid()}", status=status)

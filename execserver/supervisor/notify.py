"""The service manager's protocol (sd_notify(3)): datagrams to $NOTIFY_SOCKET, and its watchdog."""

from __future__ import annotations

import os
import socket
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto("\n".join(lines).encode(errors="replace"), socket.MSG_DONTWAIT, address)
        except OSError:
            return


def beat_seconds(environment: Mapping[str, str]) -> float | None:
    """How often the service manager is to get a sign of life: twice within its limit. None for never."""
    limit = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # meant for somebody above us
    if not (limit.isascii() and limit.isdigit() and int(limit)):
        return None
    return max(int(limit) / 2_000_000, _SHORTEST_BEAT_S)

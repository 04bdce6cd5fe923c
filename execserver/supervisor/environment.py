"""The environment that the service was started with. Loaded before everything else."""

from __future__ import annotations

import os

SERVICE_MANAGER_PREFIXES = (b"LISTEN_", b"WATCHDOG_", b"NOTIFY_SOCKET")
"""sd_listen_fds(3), sd_watchdog_enabled(3), sd_notify(3): what only the supervisor answers."""


def initial_environment() -> dict[bytes, bytes]:
    """The environment as the launcher gave it: Python itself may have added LC_CTYPE since.

    Without what a service manager told this process: only the supervisor answers it.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:  # hidden, for instance after a change of user
        entries = [name + b"=" + value for name, value in os.environb.items()]
    environment: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if name and equals and not name.startswith(SERVICE_MANAGER_PREFIXES):
            environment.setdefault(name, value)  # of duplicates getenv(3) takes the first
    return environment

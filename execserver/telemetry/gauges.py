"""What the daemon holds at this moment, for whoever watches it: the metrics page and `server/health`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec


class Gauges(msgspec.Struct, frozen=True):
    """Live values, each a cheap call on the loop's thread."""

    stopping: Callable[[], bool]
    """Whether the service has begun to end."""
    sessions: Callable[[], int]
    """Sessions, attached or waiting for their client."""
    connections: Callable[[], int]
    processes: Callable[[], int]
    """Processes that are not closed."""
    retained_output_bytes: Callable[[], int]
    """Output kept in memory for all processes."""
    retained_output_limit_bytes: int
    """What that may grow to before the oldest output is dropped."""
    queued_input_bytes: Callable[[], int]
    """Input accepted for processes that have not read it yet."""
    started: float = msgspec.field(default_factory=time.monotonic)
    """When the server began, on the monotonic clock."""

    @property
    def uptime_seconds(self) -> float:
        """How long the server has run."""
        return time.monotonic() - self.started


def filesystem_threads() -> int:
    """Threads for calls that may block. One is added only when all others are busy, so this is the
    largest number of calls that were ever at work at once.
    """
    return sum(thread.name.startswith("filesystem") for thread in threading.enumerate())

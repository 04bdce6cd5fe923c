"""What a command and all its descendants may use together."""

from __future__ import annotations

from dataclasses import dataclass

from execclient import arguments
from execprotocol.limits import (
    MAX_CPU_PERCENT,
    MAX_IO_WEIGHT,
    MAX_MEMORY_LIMIT,
    MAX_PIDS_LIMIT,
    MIN_MEMORY_LIMIT,
)

_BOUNDS = {
    "memory_bytes": (MIN_MEMORY_LIMIT, MAX_MEMORY_LIMIT),
    "pids": (1, MAX_PIDS_LIMIT),
    "cpu_percent": (1, MAX_CPU_PERCENT),
    "io_weight": (1, MAX_IO_WEIGHT),
}
"""The least and the greatest value of each limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Limits of a command with all its descendants, enforced by control groups at the daemon, which refuses
    what it cannot enforce. The names of systemd are in parentheses.

    Raises:
        TypeError, ValueError: a value is no whole number, or out of its range; the message names it.
    """

    memory_bytes: int | None = None
    """Memory, at least 1 MiB (`MemoryMax`, with no swap). When it is exhausted, all of them are killed, and
    the `cause` is `limit`."""
    pids: int | None = None
    """Processes and threads at a time (`TasksMax`). Above it, `fork` fails."""
    cpu_percent: int | None = None
    """Processor time, 100 for one processor (`CPUQuota`). Above it they wait."""
    io_weight: int | None = None
    """The share of busy block devices, 1 to 10000 and 100 by default (`IOWeight`)."""
    wall: float | None = None
    """Seconds from the start until all of them are killed (`RuntimeMaxSec`); the `cause` is then `limit`."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} is a whole number, not {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} is {least} to {most}, not {value}")
        arguments.limit(self.wall, "wall")

    def wire(self) -> dict[str, int]:
        """The form of the wire (`docs/protocol.md`, P40); empty without limits."""
        members = {
            "memoryBytes": self.memory_bytes,
            "pids": self.pids,
            "cpuPercent": self.cpu_percent,
            "ioWeight": self.io_weight,
            "wallMs": None if self.wall is None else max(1, round(self.wall * 1000)),
        }
        return {name: value for name, value in members.items() if value is not None}

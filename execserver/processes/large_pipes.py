"""Pipes of floods, which hold more than others, and how many there may be."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from execserver.spool.system_calls import enlarge_pipe

FLOOD_PIPE_BYTES: Final = 256 << 10
"""What the pipe of a stream holds that was found full once: two takes, so that the child fills one while the
other is recorded and sent."""

MOST_LARGE_PIPES: Final = 64
"""How many pipes are so large at a time: a quarter of what an ordinary user may have. Beyond that share the
system makes pipes of 8 KiB, also for what the commands start themselves."""


class LargePipes:
    """Those of one daemon."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def enlarge(self, pipe: int) -> bool:
        """Make one larger; False where that cannot be. To be followed by `closed` some day if it was."""
        if self._count >= MOST_LARGE_PIPES:
            return False
        with suppress(OSError):
            enlarge_pipe(pipe, FLOOD_PIPE_BYTES)
            self._count += 1
            return True
        return False

    def closed(self) -> None:
        """One of them is no longer open."""
        self._count -= 1

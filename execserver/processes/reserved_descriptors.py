"""Descriptors kept for what must work when the table is full: finding processes and killing them, and
taking the output of those that run.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SPARE_DESCRIPTORS = 64
"""A scan of the processes needs one, each process that is killed another; they are killed in turns
when there are more."""


class ReservedDescriptors:
    """The descriptors that are held. Safe to use from several threads."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock = threading.Lock()
        # Not so many that a small table is full because of them.
        self._wanted = min(_SPARE_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.take()

    def take(self) -> None:
        """Hold as many as there are to be had, up to the number wanted."""
        with self._lock, suppress(OSError):
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give them up for as long as this lasts."""
        self.release()
        try:
            yield
        finally:
            self.take()

    def release(self) -> None:
        """Give them up, for a moment."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())

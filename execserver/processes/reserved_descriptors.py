"""Descriptors in reserve for what must work when the table is full: finding and killing processes, and taking
the output of those that run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

_RESERVED_DESCRIPTORS = 64
"""A scan of the processes needs one, and each process that is killed another; more processes are killed in
turns."""


class ReservedDescriptors:
    """Descriptors that are held open. Safe to use from several threads, except for `run`."""

    def __init__(self) -> None:
        self.uses = 0
        """Calls of `run` that use the reserve now: nothing else should take a descriptor."""
        self._held: list[int] = []
        self._lock = threading.Lock()
        # Not so many that they fill a small table.
        self._wanted = min(_RESERVED_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.reserve()

    def reserve(self) -> None:
        """Hold as many as are available, up to the number wanted."""
        with self._lock, suppress(OSError):
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Close all; `reserve` takes them back."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the descriptors for the body of a `with` statement."""
        self.release()
        try:
            yield
        finally:
            self.reserve()

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread. When the table is full, run it again with the reserve.

        Raises:
            OSError: the table is full all the same.
        """
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            return await loop.run_in_executor(None, work)
        # Only now: while the reserve is in use no connection is accepted. Waiting ones would take it first.
        self.uses += 1
        try:
            self.release()
            return await loop.run_in_executor(None, work)
        finally:
            self.reserve()
            self.uses -= 1

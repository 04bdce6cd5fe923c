"""How long closed processes stay readable, and which of them keep descriptors for their output."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import OrderedDict
from collections.abc import Callable

from execserver.processes.process import ManagedProcess

_SHARE_OF_CLOSED = 4
"""One part in so many of the table of descriptors is for the output of closed processes."""


class Retention:
    """The closed processes of the daemon, oldest first.

    Args:
        ttl: seconds that a closed process is kept.
        drop_data: called with the number of a process whose output was dropped.
    """

    def __init__(self, ttl: float, drop_data: Callable[[int], None]) -> None:
        self.ttl = ttl
        self._drop_data = drop_data
        self._retained: OrderedDict[int, tuple[float, Callable[[], None]]] = OrderedDict()
        """By number: when, and how, each is forgotten."""
        self._with_files: OrderedDict[int, ManagedProcess] = OrderedDict()
        """Those whose output takes descriptors."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def with_files(self) -> int:
        """How many processes keep descriptors for their output."""
        return len(self._with_files)

    def retain(self, process: ManagedProcess, forget: Callable[[], None], since: float | None = None) -> None:
        """Call `forget` when the time that a closed process is kept is over.

        Args:
            process: a closed one.
            forget: forgets it.
            since: when it was closed (CLOCK_MONOTONIC, seconds), for the processes of a previous server,
                oldest first; None for now.
        """
        now = time.monotonic()
        until = (now if since is None else since) + self.ttl
        self._retained[process.number] = (until, forget)
        self._retained.move_to_end(process.number)
        if process.log.has_files:
            self._with_files[process.number] = process
            self._limit_descriptors()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, until - now), self._expire)

    def forget(self, number: int) -> None:
        """The process is forgotten."""
        self._retained.pop(number, None)
        self._with_files.pop(number, None)

    def close(self) -> None:
        """Let nothing expire any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _limit_descriptors(self) -> None:
        """Drop the oldest output above a share of the table, so that old output never prevents a start."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_CLOSED
        while len(self._with_files) > most:
            number, process = self._with_files.popitem(last=False)
            process.log.empty()
            self._drop_data(number)

    def _expire(self) -> None:
        now = time.monotonic()
        self._timer = None
        while self._retained:
            deadline, forget = next(iter(self._retained.values()))
            if deadline > now:
                self._timer = asyncio.get_running_loop().call_later(deadline - now, self._expire)
                return
            self._retained.popitem(last=False)
            forget()

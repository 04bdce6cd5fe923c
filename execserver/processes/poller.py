"""Readiness of the children's descriptors: one epoll of our own, polled by the event loop.

A short command needs three descriptors watched for a millisecond. Registering each with the
event loop costs more than reading it; registering with an epoll costs one system call. The
loop watches the epoll itself, which is a pollable descriptor.

A descriptor has one owner, which stops watching before it closes the descriptor.

A watch can be delayed for less than a timer of the loop can measure (`output_batching.py`): the epoll
reports nothing of it until one timer for all delayed watches ends, or the owner wants other events. The
descriptor stays registered: registering it again could fail, and leave a stream unwatched.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

from execserver.processes.output_batching import DELAY_SECONDS
from execserver.spool.system_calls import DescriptorTimer

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HANGUP = select.EPOLLHUP
"""Reported whether it is wanted or not; without `READABLE` for a pipe that is empty."""

_TIMER_BYTES = 8
"""Reading a timer gives the number of times it ended."""

_EVENTS_A_TURN = 64
"""Events handled before the loop serves its connections again."""


class DescriptorPoller:
    """Calls back, on the loop's thread, when descriptors are ready (level-triggered)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}
        self._delayed: list[Watch] = []
        self._timer: DescriptorTimer | None = None
        loop.add_reader(self._epoll.fileno(), self._run)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> Watch:
        """Call `callback(events)` whenever `fd` is ready; an end or an error counts as ready.

        Raises:
            OSError: the kernel cannot watch it.
        """
        watch = Watch(self._epoll, self._watches, fd, callback)
        watch.set(events)
        return watch

    def delay(self, watch: Watch) -> None:
        """Report nothing of a descriptor for `DELAY_SECONDS`, or less when others are delayed already. Does
        nothing if there is no descriptor for a timer.
        """
        if watch.delayed or not watch.events:
            return
        if not self._delayed:
            if self._timer is None:
                self._timer = self._new_timer()
            if self._timer is None:
                return
            self._timer.start()
        watch.delay()
        self._delayed.append(watch)

    def close(self) -> None:
        """Stop."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watches.clear()
        self._delayed.clear()
        if self._timer is not None:
            os.close(self._timer.fd)
            self._timer = None

    def _new_timer(self) -> DescriptorTimer | None:
        try:
            timer = DescriptorTimer(DELAY_SECONDS)
        except OSError:
            return None
        try:
            self.watch(timer.fd, READABLE, self._on_timer)
        except OSError:
            os.close(timer.fd)
            return None
        return timer

    def _on_timer(self, _events: int) -> None:
        assert self._timer is not None
        os.read(self._timer.fd, _TIMER_BYTES)
        delayed, self._delayed = self._delayed, []
        for watch in delayed:
            watch.end_delay()

    def _run(self) -> None:
        watches = self._watches
        # The kernel reports an end whatever is wanted. For a delayed watch it is ignored, also if the delay
        # ends in this very turn: there may be output before the end.
        delayed = {watch.fd for watch in self._delayed if watch.delayed} if self._delayed else ()
        for fd, events in self._epoll.poll(0, _EVENTS_A_TURN):
            # An earlier callback of this turn may have stopped this one.
            watch = watches.get(fd)
            if watch is not None and fd not in delayed:
                watch.callback(events)


class Watch:
    """The interest in one descriptor. Without events it is not registered at all: the kernel would keep
    reporting an end of file that the owner does not want to read.
    """

    __slots__ = ("_epoll", "_watches", "callback", "delayed", "events", "fd")

    def __init__(
        self, epoll: select.epoll, watches: dict[int, Watch], fd: int, callback: Callable[[int], None]
    ) -> None:
        self._epoll = epoll
        self._watches = watches
        self.fd = fd
        self.callback = callback
        self.events = 0
        self.delayed = False

    def set(self, events: int) -> None:
        """Watch for exactly these events."""
        if events == self.events:
            return
        self.delayed = False
        if not self.events:
            self._epoll.register(self.fd, events)
            self._watches[self.fd] = self
        elif events:
            self._epoll.modify(self.fd, events)
        else:
            del self._watches[self.fd]
            self._epoll.unregister(self.fd)
        self.events = events

    def want(self, events: int, wanted: bool) -> None:
        """Add or remove events."""
        self.set(self.events | events if wanted else self.events & ~events)

    def close(self) -> None:
        """Stop watching, and close the descriptor."""
        self.set(0)
        self.callback = _ignore
        os.close(self.fd)

    # -- for the poller

    def delay(self) -> None:
        """Report nothing until `end_delay`, or until other events are wanted."""
        self.delayed = True
        self._epoll.modify(self.fd, 0)

    def end_delay(self) -> None:
        """End a delay, if it is not over yet."""
        if self.delayed:
            self.delayed = False
            self._epoll.modify(self.fd, self.events)


def _ignore(_events: int) -> None:
    """Nothing."""

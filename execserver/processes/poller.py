"""Readiness of the children's descriptors: one epoll of our own, polled by the event loop.

A short command needs three descriptors watched for a millisecond. Registering each with the
event loop costs more than reading it; registering with an epoll costs one system call. The
loop watches the epoll itself, which is a pollable descriptor.

One owner a descriptor: whoever watches it stops before closing it.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HANGUP = select.EPOLLHUP
"""Reported whether it is wanted or not; of a pipe without `READABLE` when everything was read."""

_EVENTS_A_TURN = 64
"""Events handled before the loop serves its connections again."""


class DescriptorPoller:
    """Calls back, on the loop's thread, when descriptors are ready (level-triggered)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}
        loop.add_reader(self._epoll.fileno(), self._run)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> Watch:
        """Call `callback(events)` whenever `fd` is ready; an end or an error counts as ready.

        Raises:
            OSError: the kernel cannot watch it.
        """
        watch = Watch(self._epoll, self._watches, fd, callback)
        watch.set(events)
        return watch

    def close(self) -> None:
        """Stop."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watches.clear()

    def _run(self) -> None:
        watches = self._watches
        for fd, events in self._epoll.poll(0, _EVENTS_A_TURN):
            # An earlier callback of this turn may have stopped this one.
            watch = watches.get(fd)
            if watch is not None:
                watch.callback(events)


class Watch:
    """The interest in one descriptor. With no events set it is not watched at all: the kernel
    would go on reporting an end of file to whoever does not want to read.
    """

    __slots__ = ("_epoll", "_watches", "callback", "events", "fd")

    def __init__(
        self, epoll: select.epoll, watches: dict[int, Watch], fd: int, callback: Callable[[int], None]
    ) -> None:
        self._epoll = epoll
        self._watches = watches
        self.fd = fd
        self.callback = callback
        self.events = 0

    def set(self, events: int) -> None:
        """Be interested in exactly these events."""
        if events == self.events:
            return
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
        """Add or take away an interest."""
        self.set(self.events | events if wanted else self.events & ~events)

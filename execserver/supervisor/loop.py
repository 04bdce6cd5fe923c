"""The supervisor's loop: descriptors, timers and signals, in one thread.

A callback may watch and forget any descriptor: a forgotten one is not called in the same turn.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator

Callback = Callable[[], None]


class Loop:
    """Calls back when descriptors are ready (level-triggered) and when timers are due."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[Callback, float] = {}

    def watch(self, descriptor: int, readable: Callback | None, writable: Callback | None = None) -> None:
        """Call these while the descriptor is ready; they replace earlier callbacks for it."""
        self.forget(descriptor)
        events = (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
        if events:
            self._selector.register(descriptor, events, (readable, writable))

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor, before it is closed (idempotent)."""
        try:
            self._selector.unregister(descriptor)
        except KeyError:
            return

    def call_in(self, seconds: float, callback: Callback) -> None:
        """Call once after a delay, which replaces an earlier one for the same callback."""
        self._timers[callback] = time.monotonic() + seconds

    def cancel(self, callback: Callback) -> None:
        """Cancel a delayed call (idempotent)."""
        self._timers.pop(callback, None)

    def turn(self) -> None:
        """Wait until a descriptor is ready or a timer is due, and call back."""
        wait = None
        if self._timers:
            wait = max(0.0, min(self._timers.values()) - time.monotonic())
        for key, events in self._selector.select(wait):
            for event, callback in zip((selectors.EVENT_READ, selectors.EVENT_WRITE), key.data, strict=True):
                if events & event and callback and self._selector.get_map().get(key.fd) is key:
                    callback()
        now = time.monotonic()
        for callback in [callback for callback, due in self._timers.items() if due <= now]:
            if self._timers.pop(callback, None) is not None:
                callback()


class Signals:
    """Signals that arrived. Each one wakes the loop; its handler does nothing else.

    Args:
        loop: the loop to wake.
        numbers: the signals to handle from now on.
    """

    def __init__(self, loop: Loop, numbers: Collection[int]) -> None:
        self._arrived: list[int] = []
        self._wakeups, writable = socket.socketpair()
        self._wakeups.setblocking(False)
        writable.setblocking(False)
        signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda received, _frame: self._arrived.append(received))
        loop.watch(self._wakeups.fileno(), self._read_wakeups)

    def take(self) -> Iterator[int]:
        """The signals that arrived since the last call, also during this one."""
        while self._arrived:
            yield self._arrived.pop(0)

    def _read_wakeups(self) -> None:
        try:
            while self._wakeups.recv(4096):
                pass
        except BlockingIOError:
            return

"""The supervisor's loop: descriptors and timers, in one thread.

A callback may watch and forget whatever it likes: what it forgets is not called in the same turn.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Loop:
    """Calls back when descriptors are ready (level-triggered) and when times have come."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[Callback, float] = {}

    def watch(self, descriptor: int, readable: Callback | None, writable: Callback | None = None) -> None:
        """Call these while the descriptor is ready, in the place of what was watched on it."""
        self.forget(descriptor)
        events = (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
        if events:
            self._selector.register(descriptor, events, (readable, writable))

    def forget(self, descriptor: int) -> None:
        """Watch it no longer (before it is closed); idempotent."""
        try:
            self._selector.unregister(descriptor)
        except KeyError:
            return

    def call_in(self, seconds: float, callback: Callback) -> None:
        """Call once, in the place of an earlier time for the same callback."""
        self._timers[callback] = time.monotonic() + seconds

    def cancel(self, callback: Callback) -> None:
        """Forget its time; idempotent."""
        self._timers.pop(callback, None)

    def turn(self) -> None:
        """Wait until something is due, and do it."""
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

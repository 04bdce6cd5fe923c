"""How late this machine is by itself: what a latency that was measured here has to be judged by."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STEP_SECONDS = 0.001
_FACTOR = 3
"""The worst of a few thousand samples of one process says little of the worst of another's."""


class Noise:
    """The worst delay that this process had for no reason of its own."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._over = threading.Event()

    def watch(self) -> None:
        """Sleep shortly, again and again, until `stop`."""
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(_STEP_SECONDS)
            self._worst = max(self._worst, time.monotonic() - began - _STEP_SECONDS)

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    @property
    def allowance(self) -> float:
        """Seconds to be added to any limit on a latency that was measured meanwhile: a few
        milliseconds on a quiet machine.
        """
        return _FACTOR * self._worst


@contextmanager
def noise_watched() -> Iterator[Noise]:
    """Watch the machine while something is measured."""
    noise = Noise()
    thread = threading.Thread(target=noise.watch, daemon=True)
    thread.start()
    try:
        yield noise
    finally:
        noise.stop()
        thread.join()

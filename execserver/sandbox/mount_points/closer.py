"""Closing the descriptors of removed files in a thread: some disks make that slow."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

# Releases whose descriptors are still to be closed: some dozens of descriptors.
_MAX_CLOSING = 8


class Closer:
    """One thread, started when it is needed first. For one caller at a time."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self, descriptors: list[int]) -> None:
        """Close them soon, or at once when the disk does not keep up."""
        if self._queue.qsize() >= _MAX_CLOSING or not self._runs():
            _close_all(descriptors)
        else:
            self._queue.put(descriptors)

    def finish(self) -> None:
        """Wait until all are closed, and end the thread; the next `close` starts another one."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _runs(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="mount points", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (descriptors := self._queue.get()) is not None:
            _close_all(descriptors)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

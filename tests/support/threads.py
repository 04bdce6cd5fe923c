"""Threads of this process that come and go."""

from __future__ import annotations

import threading
import time

PATIENCE = 10.0


def settled(expected: set[threading.Thread]) -> set[threading.Thread]:
    """The threads that are there, once those of a child's reaping had time to end.

    asyncio reaps each child in a thread of its own, which tells the event loop and ends after that: when
    the loop is closed already, such a thread may still be about to end.
    """
    deadline = time.monotonic() + PATIENCE
    while (there := set(threading.enumerate())) - expected and time.monotonic() < deadline:
        time.sleep(0.005)
    return there

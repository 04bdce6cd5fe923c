"""Room for descriptors before they are needed.

The kernel makes a process's table of descriptors larger when it is full, and where threads share the table it
first waits until no processor looks at the old one: 10 to 20 ms in which the loop stands still, at the 65th
descriptor, the 257th and so on. While there is a single thread it costs nothing.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

ENTRIES = 4096
"""What the table of a daemon has room for from its start: some thousand processes. An entry takes 9 bytes."""


def widen(entries: int = ENTRIES) -> None:
    """Let the table have room for so many descriptors, or for as many as are allowed. Before any thread is
    started. Never fails: a smaller table is slower and nothing else.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    last = (entries if soft == resource.RLIM_INFINITY else min(entries, soft)) - 1
    with suppress(OSError):
        # Never in the place of one that is open: those of a process that has just begun are low.
        os.fstat(last)
        return
    with suppress(OSError):
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.dup2(null, last, inheritable=False)
            os.close(last)
        finally:
            os.close(null)

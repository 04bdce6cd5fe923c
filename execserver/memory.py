"""How the daemon holds memory: buffers of the C library, cycles, and the table of descriptors.

Left alone, the C library maps and unmaps every buffer of a megabyte anew, with a page fault for each 4 KiB of
a large file, and keeps what was freed below the top of its heap: ten idle megabytes after a burst of
commands. Objects in cycles wait for a collector that the daemon runs rarely, because its own heap does not
change.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from contextlib import suppress

# Parameters of glibc's mallopt(3). musl has neither mallopt nor malloc_trim: there nothing is set.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_REUSED_BELOW_BYTES = 4 << 20
"""Smaller buffers come from the heap, so pieces of large files and 1 MiB pipes are reused with their pages:
140 page faults for 32 MiB instead of 9,000."""

_KEPT_BYTES = 16 << 20
"""How much free memory the heap may keep at its top."""

_ARENAS = 2
"""Heaps: one for the loop and one for all threads, instead of one for each thread."""

DESCRIPTOR_TABLE_ENTRIES = 4096
"""The size of a daemon's descriptor table from its start: enough for a thousand processes, 9 bytes an
entry."""


def reuse_buffers() -> None:
    """Set up the C library for a daemon that moves large pieces. Call it before any thread is started."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _REUSED_BELOW_BYTES)
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Collect cycles and return free pages to the system. Takes a few milliseconds."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def widen_descriptor_table(entries: int = DESCRIPTOR_TABLE_ENTRIES) -> None:
    """Let the kernel make the descriptor table large now, while there is a single thread.

    Later, the kernel enlarges a full table only when no processor looks at the old one. With several threads
    the loop would stand still for 10 to 20 ms at the 65th descriptor, the 257th and so on. Never fails: a
    smaller table is only slower.

    Args:
        entries: the size; the limit on open files bounds it.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    last = (entries if soft == resource.RLIM_INFINITY else min(entries, soft)) - 1
    with suppress(OSError):
        os.fstat(last)  # open already: the table is large enough, and that descriptor must stay
        return
    with suppress(OSError):
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.dup2(null, last, inheritable=False)
            os.close(last)
        finally:
            os.close(null)

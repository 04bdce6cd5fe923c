"""How the C library holds memory, and giving it back once the work that needed it is over.

By itself it maps and unmaps every buffer of a megabyte anew, which costs a page fault for each
four kilobytes of a large file; and it keeps what was freed below the top of its heap, which after
a burst of commands is ten megabytes of nothing. What was thrown away in cycles waits for a
collector that the daemon runs rarely, because its own heap never changes.
"""

from __future__ import annotations

import ctypes
import gc

# Parameters of glibc's mallopt(3); musl has neither it nor malloc_trim, and then nothing is set.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_REUSED_BELOW_BYTES = 4 << 20
"""Buffers below this come from the heap: pieces of large files and pipes of a megabyte are reused
with their pages. 9,000 page faults for 32 MiB become 140."""

_KEPT_BYTES = 16 << 20
"""How much free memory the heap may have at its top."""

_ARENAS = 2
"""Heaps: one for the loop and one for all threads, instead of one for each."""


def reuse_buffers() -> None:
    """Set the C library up for a daemon that moves large pieces. Before any thread is started."""
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

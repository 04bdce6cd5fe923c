"""The log of a watch: its newest changes as JSON, numbered from 1. No I/O."""

from __future__ import annotations

from collections import deque
from itertools import islice

from execprotocol.limits import MAX_WATCH_LOG_BYTES, MAX_WATCH_LOG_CHANGES

_OVERHEAD_BYTES = 64
"""Of a kept change, beside its text."""


class ChangeLog:
    """At most `MAX_WATCH_LOG_CHANGES` changes of at most `MAX_WATCH_LOG_BYTES`; the oldest are dropped.

    Args:
        gap: the JSON of a gap for the root, which stands for dropped changes.
    """

    def __init__(self, gap: bytes) -> None:
        self._gap = gap
        self._changes: deque[bytes] = deque()
        self._bytes = 0
        self.next_seq = 1
        """The number of the next change."""

    @property
    def first_kept(self) -> int:
        """The number of the oldest change that is kept; `next_seq` if there is none."""
        return self.next_seq - len(self._changes)

    def append(self, change: bytes) -> None:
        """Add the newest change, as JSON."""
        self._changes.append(change)
        self._bytes += len(change) + _OVERHEAD_BYTES
        self.next_seq += 1
        while len(self._changes) > MAX_WATCH_LOG_CHANGES or self._bytes > MAX_WATCH_LOG_BYTES:
            self._bytes -= len(self._changes.popleft()) + _OVERHEAD_BYTES

    def read(self, after_seq: int, max_changes: int, max_bytes: int) -> tuple[int, list[bytes]]:
        """The changes after a cursor: the number of the first one, and their JSON, at least one if any.

        If changes were dropped, a gap for the root with the number of the last one of them comes first.
        """
        seq = after_seq + 1
        page: list[bytes] = []
        size = 0
        if seq < self.first_kept:
            seq = self.first_kept - 1
            page.append(self._gap)
        skipped = max(0, seq - self.first_kept) if not page else 0
        for change in islice(self._changes, skipped, None):
            size += len(change) + 1
            if page and (len(page) >= max_changes or size > max_bytes):
                break
            page.append(change)
        return seq, page

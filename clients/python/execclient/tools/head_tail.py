"""The output of one process, as much of it as is kept: its beginning and its end.

Rules kept in this file:

1. Memory is bounded by the limit, however much is pushed and in however small pieces.
2. What is dropped comes from the middle, and is counted exactly.
3. Bytes only: what a character is, and what a reader is told of a gap, is known elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from execclient.run import KeptEnds

OUTPUT_LIMIT_BYTES = 1 << 20
"""More than any model is shown of a call, and little enough for 64 sessions at once."""

_BATCH_BYTES = 1 << 12
"""Smaller pieces are put together: a million single bytes, kept one by one, would be 50 MB of objects."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was kept of some output."""

    head: bytes
    """All of it, if nothing was dropped."""
    tail: bytes
    """The end, if something was dropped; otherwise empty."""
    omitted_bytes: int
    """How many bytes between the two are gone."""

    @property
    def total_bytes(self) -> int:
        """Bytes that were produced, kept or not."""
        return len(self.head) + self.omitted_bytes + len(self.tail)

    def chunks(self) -> tuple[bytes, ...]:
        """Head, then tail; neither when it is empty."""
        return tuple(part for part in (self.head, self.tail) if part)

    def data(self, marker: str = "") -> bytes:
        """What was kept, with the marker where something was dropped."""
        return self.head + (marker.encode() if self.omitted_bytes else b"") + self.tail

    def text(self, marker: str = "") -> str:
        """The same as text: UTF-8, with U+FFFD for bytes that are none, such as half a character at a gap."""
        return self.data(marker).decode("utf-8", "replace")


class HeadTailBuffer:
    """Takes the output of a process, and keeps half a limit of its beginning and half a limit of its end.

    Args:
        limit: bytes that are kept, 1 MiB by default. Of an odd limit the head has the odd byte.

    Raises:
        ValueError: a negative limit.
    """

    def __init__(self, limit: int = OUTPUT_LIMIT_BYTES) -> None:
        if limit < 0:
            raise ValueError(f"limit is {limit}: it is a number of bytes, 0 or more")
        self.limit = limit
        self._begin()

    def push(self, data: bytes) -> None:
        """More output."""
        self._total += len(data)
        self._batch += data
        if len(self._batch) >= _BATCH_BYTES:
            self._hand_over()

    @property
    def total_bytes(self) -> int:
        """Bytes that were pushed since the start or the last `drain`."""
        return self._total

    @property
    def omitted_bytes(self) -> int:
        """How many of them are no longer there."""
        return max(0, self._total - self.limit)

    def snapshot(self) -> Snapshot:
        """What is kept now; the buffer goes on."""
        self._hand_over()
        data, omitted = self._ends.ends()
        cut = self.limit - self.limit // 2 if omitted else len(data)
        return Snapshot(data[:cut], data[cut:], omitted)

    def drain(self) -> Snapshot:
        """What is kept; the buffer is empty afterwards and counts from 0."""
        snapshot = self.snapshot()
        self._begin()
        return snapshot

    def text(self, marker: str = "") -> str:
        """What is kept now, as `Snapshot.text` has it."""
        return self.snapshot().text(marker)

    def _begin(self) -> None:
        self._ends = KeptEnds(self.limit)
        self._batch = bytearray()
        self._total = 0

    def _hand_over(self) -> None:
        if self._batch:
            self._ends.add(bytes(self._batch))
            self._batch.clear()

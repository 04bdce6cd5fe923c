"""Limits the text for a model, in tokens or in bytes, and the output that is kept of a process.

Rules kept in this file:

1. A token is four bytes of UTF-8, rounded up. Nothing is tokenized.
2. A text that is too long loses its middle. Each side gets half of the budget, the end also the odd byte; a
   character that does not fit into its half is left out.
3. The memory of a `HeadTailBuffer` is bounded by its limit, also for many small pieces. Output is dropped
   from the middle and counted exactly.
4. This module returns numbers and pieces; `exec_text` has the text between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from execclient.run_output import KeptEnds

Unit = Literal["tokens", "bytes"]

BYTES_PER_TOKEN = 4
"""A coarse mean for English text and source code, used for all counts in answers."""

DEFAULT_MAX_OUTPUT_TOKENS = 10_000
"""The default of `max_output_tokens`: 40 KB, a long file or a noisy build."""


def count_tokens(byte_count: int) -> int:
    """The number of tokens for a number of bytes."""
    return -(-byte_count // BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of one text.

    The unit is also the unit in which a cut is reported: tokens, or characters for a budget of bytes.

    Raises:
        ValueError: the amount is negative.
    """

    amount: int
    unit: Unit

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError(f"a budget of {self.amount} {self.unit}: it is 0 or more")

    @property
    def bytes(self) -> int:
        """The budget in bytes of UTF-8."""
        return self.amount * BYTES_PER_TOKEN if self.unit == "tokens" else self.amount

    def at_most(self, max_output_tokens: int | None) -> Budget:
        """The smaller of this budget and the one that a call asks for.

        Args:
            max_output_tokens: the argument of the call; None for 10,000.

        Raises:
            ValueError: it is negative.
        """
        asked = Budget(
            DEFAULT_MAX_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens, "tokens"
        )
        return asked if asked.bytes < self.bytes else self


DEFAULT_BUDGET = Budget(10_000, "bytes")
"""For an unknown model; small enough for any context window."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A text without its middle."""

    head: str
    tail: str
    removed: int
    """The size of the removed part: in characters with a budget of bytes, in tokens with one of tokens."""
    unit: Literal["chars", "tokens"]


def truncate(text: str, budget: Budget) -> Truncated | None:
    """Cut the middle out of a text; None if the text is within the budget."""
    data = text.encode("utf-8", "replace")
    if len(data) <= budget.bytes:
        return None
    start = _boundary_at_or_before(data, budget.bytes // 2)
    end = _boundary_at_or_after(data, len(data) - (budget.bytes - budget.bytes // 2))
    head, middle, tail = data[:start].decode(), data[start:end].decode(), data[end:].decode()
    if budget.unit == "tokens":
        return Truncated(head, tail, count_tokens(len(data) - budget.bytes), "tokens")
    return Truncated(head, tail, len(middle), "chars")


def count_lines(text: str) -> int:
    """The number of lines; the last one may lack its newline. A lone carriage return ends no line."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def _boundary_at_or_before(data: bytes, index: int) -> int:
    while 0 < index < len(data) and _continues(data[index]):
        index -= 1
    return index


def _boundary_at_or_after(data: bytes, index: int) -> int:
    while index < len(data) and _continues(data[index]):
        index += 1
    return index


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


OUTPUT_LIMIT_BYTES = 1 << 20
"""More than any model is shown of a call, and small enough for 64 sessions."""

_BATCH_BYTES = 1 << 12
"""Smaller pieces are joined: a million single bytes as objects would take 50 MB."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The kept part of some output."""

    head: bytes
    """The beginning; all output if nothing was dropped."""
    tail: bytes
    """The end if something was dropped; else empty."""
    omitted_bytes: int
    """The number of bytes that were dropped between head and tail."""

    @property
    def total_bytes(self) -> int:
        """The number of bytes that were produced."""
        return len(self.head) + self.omitted_bytes + len(self.tail)

    def chunks(self) -> tuple[bytes, ...]:
        """Head and tail, without empty ones."""
        return tuple(part for part in (self.head, self.tail) if part)

    def data(self, marker: str = "") -> bytes:
        """The kept bytes, with the marker in the place of dropped ones."""
        return self.head + (marker.encode() if self.omitted_bytes else b"") + self.tail

    def text(self, marker: str = "") -> str:
        """The kept text: UTF-8, with U+FFFD for invalid bytes, such as half a character at a gap."""
        return self.data(marker).decode("utf-8", "replace")


class HeadTailBuffer:
    """Keeps the beginning and the end of the output of a process, each up to half of the limit.

    Args:
        limit: the limit in bytes, 1 MiB by default. The head gets the odd byte.

    Raises:
        ValueError: the limit is negative.
    """

    def __init__(self, limit: int = OUTPUT_LIMIT_BYTES) -> None:
        if limit < 0:
            raise ValueError(f"limit is {limit}: it is a number of bytes, 0 or more")
        self.limit = limit
        self._begin()

    def push(self, data: bytes) -> None:
        """Add output."""
        self._total += len(data)
        self._batch += data
        if len(self._batch) >= _BATCH_BYTES:
            self._hand_over()

    @property
    def total_bytes(self) -> int:
        """The number of bytes since the start or the last `drain`."""
        return self._total

    @property
    def omitted_bytes(self) -> int:
        """The number of dropped bytes among them."""
        return max(0, self._total - self.limit)

    def snapshot(self) -> Snapshot:
        """The kept output; the buffer keeps it, too."""
        self._hand_over()
        data, omitted = self._ends.ends()
        cut = self.limit - self.limit // 2 if omitted else len(data)
        return Snapshot(data[:cut], data[cut:], omitted)

    def drain(self) -> Snapshot:
        """The kept output; empties the buffer and resets its counts."""
        snapshot = self.snapshot()
        self._begin()
        return snapshot

    def text(self, marker: str = "") -> str:
        """The kept output as text; see `Snapshot.text`."""
        return self.snapshot().text(marker)

    def _begin(self) -> None:
        self._ends = KeptEnds(self.limit)
        self._batch = bytearray()
        self._total = 0

    def _hand_over(self) -> None:
        if self._batch:
            self._ends.add(bytes(self._batch))
            self._batch.clear()

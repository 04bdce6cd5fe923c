"""How much of a text a model is given, in tokens or in bytes, and where the text is cut for that.

Rules kept in this file:

1. A token is four bytes of UTF-8, always rounded up. Nothing is tokenized.
2. A text that is too long loses its middle. Half of the budget is for each side, the odd byte for the
   end, and a character that does not fit whole into its half is left out.
3. Numbers and pieces only: the words in between are in `exec_text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from execclient.run import KeptEnds

Unit = Literal["tokens", "bytes"]

BYTES_PER_TOKEN = 4
"""A coarse mean over English text and source code; models are told counts made with it."""

DEFAULT_MAX_OUTPUT_TOKENS = 10_000
"""What a call gets whose `max_output_tokens` is absent: 40 KB, a long file or a noisy build."""


def count_tokens(byte_count: int) -> int:
    """How many tokens so many bytes are taken for."""
    return -(-byte_count // BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a model is given of one text.

    The unit says how a cut is told of, too: in tokens, or in characters for a budget of bytes.

    Raises:
        ValueError: a negative amount.
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
        """The smaller one of this budget, the model's, and of what a call asks for.

        Args:
            max_output_tokens: of the call; None for 10,000.

        Raises:
            ValueError: it is negative.
        """
        asked = Budget(
            DEFAULT_MAX_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens, "tokens"
        )
        return asked if asked.bytes < self.bytes else self


DEFAULT_BUDGET = Budget(10_000, "bytes")
"""For a model of which nothing is known; small enough for any context window."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A text without its middle."""

    head: str
    tail: str
    removed: int
    """How much is gone: characters under a budget of bytes, tokens under one of tokens."""
    unit: Literal["chars", "tokens"]


def truncate(text: str, budget: Budget) -> Truncated | None:
    """Cut the middle out of a text; None if it keeps within the budget."""
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
    """Lines, the last one also without its newline; a carriage return alone ends none."""
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

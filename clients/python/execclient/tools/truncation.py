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

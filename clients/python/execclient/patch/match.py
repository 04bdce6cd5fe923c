"""Finds lines in a file, in four passes. Each pass is more lenient and searches the whole rest of the file.

For speed, every line of the file becomes one character: each line of the patch has its own, all other lines
share one. A search is then `str.find`, which takes linear time (two-way search) for repetitive text, too. A
patch with very many chunks that are not found in a large file is still expensive; such searches are counted
and limited.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from execclient.patch.errors import PatchTooComplex
from execclient.patch.parse import WHITESPACE

_FOLDED = {
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-"),
    **dict.fromkeys(range(0x2018, 0x201C), "'"),
    **dict.fromkeys(range(0x201C, 0x2020), '"'),
    **dict.fromkeys([0xA0, *range(0x2002, 0x200B), 0x202F, 0x205F, 0x3000], " "),
}

MAX_SCANNED_LINES = 400_000_000
"""The limit for all searches in one file: about a second, or 400 unsuccessful searches of a million lines."""

_OTHER = "\0"
"""Stands for every line of the file that is not in the patch."""


def exact(line: str) -> str:
    """The line itself."""
    return line


def right_trimmed(line: str) -> str:
    """The line without trailing blanks."""
    return line.rstrip(WHITESPACE)


def trimmed(line: str) -> str:
    """The line without blanks around it."""
    return line.strip(WHITESPACE)


def folded(line: str) -> str:
    """The line without blanks around it, with ASCII for typographic dashes, quotes and spaces."""
    bare = line.strip(WHITESPACE)
    return bare if bare.isascii() else bare.translate(_FOLDED)


PASSES: tuple[Callable[[str], str], ...] = (exact, right_trimmed, trimmed, folded)


class LineSearch:
    """Searches the lines of one file.

    Args:
        lines: the lines, without their ends.
        wanted: all lines of all patterns.
    """

    def __init__(self, lines: Sequence[str], wanted: Iterable[str]) -> None:
        self._lines = lines
        self._wanted = frozenset(wanted)
        self._passes: list[_Pass] = []
        self._scanned = 0

    def find(self, pattern: Sequence[str], start: int, *, at_end: bool = False) -> int | None:
        """The first place from `start` on where all lines of a pattern match in the same pass.

        Args:
            pattern: wanted lines; an empty pattern is found at `start`.
            start: the first line to search, from 0.
            at_end: whether to match only at the end of the file.

        Raises:
            PatchTooComplex: all searches together would take too long.
        """
        if not pattern:
            return start
        last = len(self._lines) - len(pattern)
        if last < start:
            return None
        begin = last if at_end else start
        for index in range(len(PASSES)):
            found, scanned = self._pass(index).find(pattern, begin)
            self._scanned += scanned
            if self._scanned > MAX_SCANNED_LINES:
                raise PatchTooComplex(
                    f"finding the places of the patch takes more than {MAX_SCANNED_LINES} comparisons: "
                    "split the patch, or give its chunks lines that are rare in the file"
                )
            if found is not None:
                return found
        return None

    def _pass(self, index: int) -> _Pass:
        if index == len(self._passes):
            self._passes.append(_Pass(PASSES[index], self._lines, self._wanted))
        return self._passes[index]


class _Pass:
    """The file with one character for each line, by one way of comparing lines."""

    def __init__(self, key: Callable[[str], str], lines: Sequence[str], wanted: frozenset[str]) -> None:
        keys = {key(line) for line in wanted}
        if len(keys) > sys.maxunicode:
            raise PatchTooComplex(f"the patch has more than {sys.maxunicode} different lines: split it")
        self._key = key
        self._letters = {each: chr(number) for number, each in enumerate(keys, 1)}
        letter = self._letters.get
        self._text = "".join([letter(key(line), _OTHER) for line in lines])
        self._present = frozenset(self._text)
        self._failed: dict[str, int] = {}
        """Patterns that were not found, with the start of the search; a later start fails, too."""

    def find(self, pattern: Sequence[str], start: int) -> tuple[int | None, int]:
        """The place of the pattern, and the number of lines that were scanned."""
        needle = "".join([self._letters[self._key(line)] for line in pattern])
        if not self._present.issuperset(needle) or self._failed.get(needle, start + 1) <= start:
            return None, 0
        found = self._text.find(needle, start)
        if found >= 0:
            return found, found - start
        self._failed[needle] = start
        return None, len(self._text) - start

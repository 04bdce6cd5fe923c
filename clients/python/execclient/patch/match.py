"""Where lines are in a file: four passes, each more lenient, each over all of the rest before the next.

To be fast without being fooled, every line of the file becomes one character: those of the patch have
one each, all others share one. Looking for some lines is then `str.find`, which runs in C and takes
linear time (two-way search) also for text that repeats itself. What remains is a patch with very many
chunks that are each searched for in vain in a large file; that is counted, and given up on.
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
"""Of all searches in one file together: about a second. Four hundred useless searches of a million lines."""

_OTHER = "\0"
"""Every line of the file that the patch does not have."""


def exact(line: str) -> str:
    """The line itself."""
    return line


def right_trimmed(line: str) -> str:
    """Without the blanks at its end."""
    return line.rstrip(WHITESPACE)


def trimmed(line: str) -> str:
    """Without the blanks around it."""
    return line.strip(WHITESPACE)


def folded(line: str) -> str:
    """Without the blanks around it, and typographic dashes, quotes and spaces as those of ASCII."""
    bare = line.strip(WHITESPACE)
    return bare if bare.isascii() else bare.translate(_FOLDED)


PASSES: tuple[Callable[[str], str], ...] = (exact, right_trimmed, trimmed, folded)


class LineSearch:
    """The lines of one file, to be searched.

    Args:
        lines: those of the file, without their ends.
        wanted: every line that will be looked for, in any pattern.
    """

    def __init__(self, lines: Sequence[str], wanted: Iterable[str]) -> None:
        self._lines = lines
        self._wanted = frozenset(wanted)
        self._passes: list[_Pass] = []
        self._scanned = 0

    def find(self, pattern: Sequence[str], start: int, *, at_end: bool = False) -> int | None:
        """The first place from `start` on where the lines of the pattern are, all of one pass.

        Args:
            pattern: of the wanted lines; an empty one is found at `start`.
            start: from 0.
            at_end: only where the last line of the pattern is the last of the file.

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
    """The file as one character a line, by one way of comparing."""

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
        """What was not found, and from where on: further down it is not there either."""

    def find(self, pattern: Sequence[str], start: int) -> tuple[int | None, int]:
        """Where the pattern is, and over how many lines that was looked for."""
        needle = "".join([self._letters[self._key(line)] for line in pattern])
        if not self._present.issuperset(needle) or self._failed.get(needle, start + 1) <= start:
            return None, 0
        found = self._text.find(needle, start)
        if found >= 0:
            return found, found - start
        self._failed[needle] = start
        return None, len(self._text) - start

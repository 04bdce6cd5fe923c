"""Computes the new text of one file from its old text and the chunks of an update.

Rules kept in this file:

1. An unchanged line keeps every byte: its line end, or the lack of one, and its text even if the patch writes
   it with other blanks. A line that the patch replaces by itself is unchanged.
2. A replacement gets the line end of the line that it replaces. An added line gets the line end of the line
   before it, else of the line after it. A file without a final line end stays without one, unless its last
   line is empty afterwards: without a line end, an empty line would vanish.
3. A byte order mark belongs to the file and not to the first line, unless the patch contains it.
4. Line ends are LF and CRLF. A lone CR is a line end in a file without LF. In other files it is text, unless
   the patch fits only if it is a line end.

The reference adds a final line end, and gives new lines the first line end of the file (`as_reference`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from execclient.patch.errors import PatchMismatch, PatchTooComplex
from execclient.patch.line_diff import changed_blocks
from execclient.patch.match import LineSearch
from execclient.patch.model import Repair, Wanted
from execclient.patch.parse import MARK, Chunk
from execclient.patch.repair import nearest

_LONE_CR = re.compile(r"\r(?!\n)")
_LINE = re.compile(r"([^\n]*?)(\r?\n|\Z)")
_LINE_OR_CR = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


class LineReplacement(NamedTuple):
    """Lines of the file and the new lines in their place; either may be empty."""

    start: int
    length: int
    lines: tuple[str, ...]


class SourceText:
    """The text of a file, split into lines.

    Args:
        text: the text without the byte order mark.
        mark: the byte order mark, or an empty string.
        splits_at_cr: whether a lone CR ends a line.
    """

    def __init__(self, text: str, mark: str = "", *, splits_at_cr: bool = True) -> None:
        found: list[tuple[str, str]] = (_LINE_OR_CR if splits_at_cr else _LINE).findall(text)
        found.pop()  # the empty match at the end
        self.lines = [line for line, _ in found]
        self._ends = [end for _, end in found]
        self._mark = mark
        # New lines get a lone CR only if the file has no other line ends.
        self._new_ends = ("\n", "\r\n") if "\n" in text else ("\r",)

    def with_replacements(self, replacements: Sequence[LineReplacement]) -> str:
        """The text with lines replaced; `replacements` are in order and do not overlap."""
        is_unended = bool(self._ends) and not self._ends[-1]
        end = next((each for each in self._ends if each in self._new_ends), "\n")
        pieces: list[str] = []
        """Texts and line ends, alternating."""
        done = 0
        for start, length, lines in replacements:
            pieces += self._kept(done, start)
            end = next((each for each in reversed(self._ends[done:start]) if each in self._new_ends), end)
            done = start + length
            if lines and pieces and not pieces[-1]:
                pieces[-1] = end
            for line, own_end in zip_longest(lines, self._ends[start : start + min(length, len(lines))]):
                end = own_end if own_end in self._new_ends else end
                pieces += [line if pieces else line.removeprefix(self._mark), own_end or end]
            if is_unended and done == len(self.lines) and lines and lines[-1]:
                pieces[-1] = ""
        return self._mark + "".join(pieces + self._kept(done, len(self.lines)))

    def as_reference(self, replacements: Sequence[LineReplacement]) -> str:
        """Like `with_replacements`, with the line ends of the reference."""
        first = next(iter(self._ends), "") or "\n"
        pieces: list[str] = []
        done = 0
        for start, length, lines in replacements:
            pieces += self._kept(done, start, missing=first)
            pieces += [line + first for line in lines]
            done = start + length
        return "".join(pieces + self._kept(done, len(self.lines), missing=first))

    def _kept(self, start: int, stop: int, missing: str = "") -> list[str]:
        """Unchanged lines as texts and line ends, alternating."""
        pieces = zip(self.lines[start:stop], self._ends[start:stop], strict=True)
        return [piece for line, end in pieces for piece in (line, end or missing)]


def readings(text: str) -> list[SourceText]:
    """The ways to split the text of a file into lines, the most likely first."""
    marked = [(text.removeprefix(MARK), MARK), (text, "")] if text.startswith(MARK) else [(text, "")]
    splits = [False, True] if "\n" in text else [True, False]
    if not _LONE_CR.search(text):
        splits = [False]
    return [SourceText(body, mark, splits_at_cr=split) for body, mark in marked for split in splits]


class UpdateName(NamedTuple):
    """The name of an update in errors."""

    path: str
    """Absolute."""
    hunk: int
    """In the patch, from 1."""


def rewrite(text: str, chunks: Sequence[Chunk], name: UpdateName, *, as_reference: bool = False) -> str:
    """The text with all chunks applied.

    Args:
        text: the text of the file.
        chunks: the chunks of the update.
        name: the name of the update, for errors.
        as_reference: whether to split and end lines as the reference does.

    Raises:
        PatchMismatch: a chunk does not fit.
        PatchTooComplex: matching would take too long.
    """
    if as_reference:
        source = SourceText(text)
        replacements = _all_replacements(source, chunks, name)
        return source.as_reference(replacements) if replacements else text
    first: PatchMismatch | None = None
    for source in readings(text):
        try:
            return source.with_replacements(_all_replacements(source, chunks, name))
        except PatchMismatch as error:
            first = first or error
    assert first is not None
    raise first


def _all_replacements(source: SourceText, chunks: Sequence[Chunk], name: UpdateName) -> list[LineReplacement]:
    """The replacements of all chunks, in the order of the file. Raises as `rewrite` does."""
    wanted = {line for chunk in chunks for line in chunk.old_lines}
    wanted.update(chunk.context for chunk in chunks if chunk.context is not None)
    search = LineSearch(source.lines, wanted)
    replacements: list[LineReplacement] = []
    start = 0
    for number, chunk in enumerate(chunks, 1):
        if chunk.context is not None:
            found = search.find((chunk.context,), start)
            if found is None:
                raise _mismatch(source.lines, chunk, number, start, "context", name)
            start = found + 1
        old, new = chunk.old_lines, chunk.new_lines
        if not old:
            # At the end of the file, even after a context line: models have learned it from the reference.
            replacements.append(LineReplacement(len(source.lines), 0, new))
            continue
        found = search.find(old, start, at_end=chunk.at_end)
        if found is None and not old[-1]:
            # The empty last line stands for the final line end, which is no line of the file.
            old = old[:-1]
            new = new[:-1] if new and not new[-1] else new
            found = search.find(old, start, at_end=chunk.at_end)
        if found is None:
            raise _mismatch(source.lines, chunk, number, start, "lines", name)
        replacements += _replacements(chunk, found, old, new)
        start = found + len(old)
    replacements.sort(key=lambda replacement: replacement.start)
    return replacements


def is_rewritten(text: str, chunks: Sequence[Chunk]) -> bool:
    """Whether an update that does not fit was made before.

    The new lines of every chunk must be in the file, in order and at one place only; added lines must match
    exactly. A chunk that only removes lines must have lines before and after them. A line that is a bracket
    or blank proves nothing.
    """
    try:
        return any(_is_rewritten(source.lines, chunks) for source in readings(text))
    except PatchTooComplex:
        return False


def _is_rewritten(lines: Sequence[str], chunks: Sequence[Chunk]) -> bool:
    wanted = {line for chunk in chunks for line in chunk.new_lines}
    wanted.update(chunk.context for chunk in chunks if chunk.context is not None)
    search = LineSearch(lines, wanted)
    start = 0
    for chunk in chunks:
        if chunk.context is not None:
            context = search.find((chunk.context,), start)
            if context is None:
                return False
            start = context + 1
        found = _result_place(search, lines, chunk, start)
        if found is None:
            return False
        start = found + len(chunk.new_lines)
    return True


def _result_place(search: LineSearch, lines: Sequence[str], chunk: Chunk, start: int) -> int | None:
    new = chunk.new_lines
    marks = chunk.marks
    added = [(offset, new[offset]) for offset, mark in enumerate(marks.replace("-", "")) if mark == "+"]
    telling = [line for _, line in added] or (new if marks[0] == marks[-1] == " " else ())
    if not any(letter.isalnum() for line in telling for letter in line):
        return None
    found = search.find(new, start, at_end=chunk.at_end or not chunk.old_lines)
    if found is None or any(lines[found + offset] != line for offset, line in added):
        return None
    return found if search.find(new, found + 1) is None else None


def _replacements(
    chunk: Chunk, start: int, old: tuple[str, ...], new: tuple[str, ...]
) -> list[LineReplacement]:
    """The replacements of a chunk that was found at `start`, between its unchanged lines."""
    result: list[LineReplacement] = []
    old_done = new_done = old_at = new_at = 0
    for mark in chunk.marks:
        if mark == " ":
            if old_at >= len(old) or new_at >= len(new):
                break
            result += _changed(start + old_done, old[old_done:old_at], new[new_done:new_at])
            old_done, new_done = old_at + 1, new_at + 1
        old_at += mark != "+"
        new_at += mark != "-"
    return result + _changed(start + old_done, old[old_done:], new[new_done:])


def _changed(start: int, old: tuple[str, ...], new: tuple[str, ...]) -> list[LineReplacement]:
    """The differences between old lines and the new lines in their place."""
    return [
        LineReplacement(start + block.start, block.end - block.start, new[block.new_start : block.new_end])
        for block in changed_blocks(old, new)
    ]


def _mismatch(
    lines: Sequence[str], chunk: Chunk, number: int, start: int, wanted: Wanted, name: UpdateName
) -> PatchMismatch:
    expected = (chunk.context,) if wanted == "context" and chunk.context is not None else chunk.old_lines
    repair = Repair(
        path=name.path,
        hunk=name.hunk,
        chunk=number,
        patch_line=chunk.line,
        wanted=wanted,
        expected=expected,
        searched_from=start + 1,
        candidates=nearest(lines, expected, start),
        already_applied=is_rewritten("\n".join(lines), (chunk._replace(context=None),)),
    )
    if wanted == "context":
        return PatchMismatch(f"Failed to find context '{chunk.context}' in {name.path}", repair)
    return PatchMismatch("\n".join([f"Failed to find expected lines in {name.path}:", *expected]), repair)

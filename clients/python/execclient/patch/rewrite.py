"""The new text of one file, from its old text and the chunks of an update.

Lines keep their own ends (LF, CRLF or a lone CR), also between two changes, and lines that stay keep the
file's own text even where the patch has them with other blanks. New lines get the first line end of the
file, and so does a last line that has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from execclient.patch.errors import PatchMismatch, PatchTooComplex
from execclient.patch.match import LineSearch
from execclient.patch.parse import Chunk
from execclient.patch.repair import Repair, Wanted, nearest

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Replacement(NamedTuple):
    """Lines of the file that give way to others; none of either is possible."""

    start: int
    length: int
    lines: tuple[str, ...]


class SourceText:
    """The text of a file, in lines."""

    def __init__(self, text: str) -> None:
        self._pieces: list[str] = _LINE.findall(text)
        self.lines = [piece.rstrip("\r\n") for piece in self._pieces]
        self._ending = "\n"
        if self._pieces:
            self._ending = self._pieces[0][len(self.lines[0]) :] or "\n"

    def with_replacements(self, replacements: Sequence[Replacement]) -> str:
        """The text with lines replaced; `replacements` are in order and do not overlap."""
        pieces: list[str] = []
        done = 0
        old = self._pieces
        if old and old[-1] == self.lines[-1]:
            old = [*old[:-1], old[-1] + self._ending]
        for replacement in replacements:
            pieces += old[done : replacement.start]
            pieces += [line + self._ending for line in replacement.lines]
            done = replacement.start + replacement.length
        pieces += old[done:]
        return "".join(pieces)


class UpdateName(NamedTuple):
    """What an error says about an update."""

    path: str
    """Absolute."""
    hunk: int
    """In the patch, from 1."""


def rewrite(text: str, chunks: Sequence[Chunk], name: UpdateName) -> str:
    """The text with all chunks applied.

    Raises:
        PatchMismatch: one fits nowhere.
        PatchTooComplex: it would take too long to find that out.
    """
    source = SourceText(text)
    wanted = {line for chunk in chunks for line in chunk.old_lines}
    wanted.update(chunk.context for chunk in chunks if chunk.context is not None)
    search = LineSearch(source.lines, wanted)
    replacements: list[Replacement] = []
    start = 0
    for number, chunk in enumerate(chunks, 1):
        if chunk.context is not None:
            found = search.find((chunk.context,), start)
            if found is None:
                raise _mismatch(source.lines, chunk, number, start, "context", name)
            start = found + 1
        old, new = chunk.old_lines, chunk.new_lines
        if not old:
            # Also after a context: what the reference does, and so what models have learned.
            replacements.append(Replacement(len(source.lines), 0, new))
            continue
        found = search.find(old, start, at_end=chunk.at_end)
        if found is None and not old[-1]:
            # The last line is meant as the end of the line before it, which a file has no line for.
            old = old[:-1]
            new = new[:-1] if new and not new[-1] else new
            found = search.find(old, start, at_end=chunk.at_end)
        if found is None:
            raise _mismatch(source.lines, chunk, number, start, "lines", name)
        replacements += _replacements(chunk, found, len(old), new)
        start = found + len(old)
    replacements.sort(key=lambda replacement: replacement.start)
    return source.with_replacements(replacements)


def is_rewritten(text: str, chunks: Sequence[Chunk]) -> bool:
    """Whether an update that fits nowhere was made before: its result is there, and tells so.

    Every chunk must have its new lines in the file, in order and at one place only, those that it
    adds letter by letter. One that only removes lines must say what is before and after them. A line
    that is a bracket or blank proves nothing.
    """
    try:
        return _is_rewritten(SourceText(text).lines, chunks)
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


def _replacements(chunk: Chunk, start: int, length: int, new: tuple[str, ...]) -> list[Replacement]:
    """Those of a chunk that was found: what lies between the lines that stay."""
    result: list[Replacement] = []
    old_done = new_done = old_at = new_at = 0
    for mark in chunk.marks:
        if mark == " ":
            if old_at >= length or new_at >= len(new):
                break
            if old_done != old_at or new_done != new_at:
                result.append(Replacement(start + old_done, old_at - old_done, new[new_done:new_at]))
            old_done, new_done = old_at + 1, new_at + 1
        old_at += mark != "+"
        new_at += mark != "-"
    if old_done != length or new_done != len(new):
        result.append(Replacement(start + old_done, length - old_done, new[new_done:]))
    return result


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

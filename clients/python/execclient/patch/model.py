"""The data of a patch: the edit of a file, and the repair of a chunk that fits nowhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

EditKind = Literal["add", "update", "delete", "move"]
Wanted = Literal["context", "lines"]
Reason = Literal["blanks", "text", "missing"]

NO_FILE = "No such file or directory (os error 2)"


def digest_of(content: bytes | None) -> str | None:
    """The SHA-256 of a content as 64 hexadecimal digits; None for None."""
    return None if content is None else hashlib.sha256(content).hexdigest()


class FileChange(NamedTuple):
    """The content of one path before and after a change; None if there is no file."""

    path: str
    """Absolute."""
    before: bytes | None
    after: bytes | None
    moved_from: str | None = None
    """The absolute path that the content was moved from."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The edit of one file by a patch."""

    kind: EditKind
    path: str
    """Absolute."""
    shown: str
    """The path as the patch writes it; the new path of a move."""
    before: bytes | None
    """The old content; None if there is no file."""
    after: bytes | None
    """The new content, of a move at the new path; None if the file is removed."""
    move_to: str | None = None
    """The new path of a move, absolute."""
    replaced: bytes | None = None
    """The content that a move replaces at the new path."""
    is_known: bool = True
    """Whether the content that is overwritten (`before`, or `replaced`) could be read. If not, it is not
    compared before the write."""

    @property
    def target(self) -> str:
        """The path of the new content."""
        return self.path if self.move_to is None else self.move_to

    @property
    def before_digest(self) -> str | None:
        """The SHA-256 of the old content at `path`; None if there is no file."""
        return digest_of(self.before)

    @property
    def after_digest(self) -> str | None:
        """The SHA-256 of the new content at `target`; None if there is no file."""
        return digest_of(self.after)

    def changes(self) -> tuple[FileChange, ...]:
        """The edit as changes of single paths, for a diff."""
        if self.move_to is None:
            return (FileChange(self.path, self.before, self.after),)
        return (
            FileChange(self.move_to, self.replaced, self.after, moved_from=self.path),
            FileChange(self.path, self.before, None),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of a candidate that differs from the chunk."""

    line: int
    """In the file, from 1."""
    expected: str
    found: str | None
    """None after the end of the file."""
    reason: Reason
    """`blanks` includes dashes, quotes and spaces that look alike."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place in the file that is similar to the chunk."""

    line: int
    """The number of its first line in the file, from 1."""
    matching: int
    """How many lines match, except for blanks and typography."""
    lines: tuple[str, ...]
    """The lines of the file, as many as the chunk has."""
    differences: tuple[Difference, ...]
    too_early: bool
    """Whether it is before the start of the search: chunks must be in the order of the file."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A chunk that does not fit, and the places that are most similar to it."""

    path: str
    hunk: int
    """In the patch, from 1."""
    chunk: int
    """In the hunk, from 1."""
    patch_line: int
    """Where the chunk begins in the patch, from 1."""
    wanted: Wanted
    """What was not found: the context line after `@@`, or the old lines of the chunk."""
    expected: tuple[str, ...]
    searched_from: int
    """The first line of the search, from 1: the lines before it belong to earlier chunks."""
    candidates: tuple[Candidate, ...]
    """The nearest first, three at most."""
    already_applied: bool
    """Whether the new lines of the chunk are in the file."""

    def describe(self) -> str:
        """Lines of text that help to repair the patch."""
        chunk = f"Chunk {self.chunk} of {self.path} (line {self.patch_line} of the patch)"
        text = [f"{chunk} fits nowhere from line {self.searched_from} on."]
        if self.already_applied:
            text.append("What it is to bring about is in the file already.")
        for candidate in self.candidates:
            where = ", before the place of an earlier chunk" if candidate.too_early else ""
            text.append(
                f"Line {candidate.line}{where}: {candidate.matching} of {len(self.expected)} lines match"
            )
            text += [_describe_difference(difference) for difference in candidate.differences]
        if not self.candidates:
            text.append("No line of it is in the file.")
        return "\n".join(text)


def _describe_difference(difference: Difference) -> str:
    if difference.found is None:
        return f"  {difference.line}: expected {difference.expected!r}, but the file ends before"
    return f"  {difference.line}: expected {difference.expected!r}, found {difference.found!r}"

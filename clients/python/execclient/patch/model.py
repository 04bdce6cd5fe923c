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
    """The SHA-256 of a content as 64 hexadecimal digits; None of what is not there."""
    return None if content is None else hashlib.sha256(content).hexdigest()


class FileChange(NamedTuple):
    """The content of one path before and after; None where there is no file."""

    path: str
    """Absolute."""
    before: bytes | None
    after: bytes | None
    moved_from: str | None = None
    """The absolute path that the content comes from."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What a patch does to one file."""

    kind: EditKind
    path: str
    """Absolute."""
    shown: str
    """The path as the patch has it; of a move, the new one."""
    before: bytes | None
    """None when nothing is there."""
    after: bytes | None
    """None when nothing will be there; of a move, the content at the new path."""
    move_to: str | None = None
    """Absolute; of a move only."""
    replaced: bytes | None = None
    """What a move replaces at the new path."""
    is_known: bool = True
    """Whether what is written over (`before`, or `replaced`) could be read; where not, it is not compared
    before it is written."""

    @property
    def target(self) -> str:
        """Where the content goes."""
        return self.path if self.move_to is None else self.move_to

    @property
    def before_digest(self) -> str | None:
        """The SHA-256 of what is at `path`; None when nothing is there."""
        return digest_of(self.before)

    @property
    def after_digest(self) -> str | None:
        """The SHA-256 of what will be at `target`; None when nothing will."""
        return digest_of(self.after)

    def changes(self) -> tuple[FileChange, ...]:
        """The same as changes of single paths, for a diff."""
        if self.move_to is None:
            return (FileChange(self.path, self.before, self.after),)
        return (
            FileChange(self.move_to, self.replaced, self.after, moved_from=self.path),
            FileChange(self.path, self.before, None),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of a candidate that is not as the chunk has it."""

    line: int
    """In the file, from 1."""
    expected: str
    found: str | None
    """None beyond the end of the file."""
    reason: Reason
    """`blanks` includes dashes, quotes and spaces that look alike."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place that comes near."""

    line: int
    """Of its first line in the file, from 1."""
    matching: int
    """How many lines are as expected, blanks and typography aside."""
    lines: tuple[str, ...]
    """What is there, as many lines as expected."""
    differences: tuple[Difference, ...]
    too_early: bool
    """It lies before the place where the search began: chunks are to be in the order of the file."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Which chunk of which file fits nowhere, and where it nearly does."""

    path: str
    hunk: int
    """In the patch, from 1."""
    chunk: int
    """In the hunk, from 1."""
    patch_line: int
    """Where the chunk begins in the patch, from 1."""
    wanted: Wanted
    """What was not found: the line after `@@`, or the lines to be changed."""
    expected: tuple[str, ...]
    searched_from: int
    """The first line of the file that was looked at, from 1: the ones before belong to earlier chunks."""
    candidates: tuple[Candidate, ...]
    """The nearest first, three at most."""
    already_applied: bool
    """What the chunk is to bring about is in the file."""

    def describe(self) -> str:
        """Some lines for whoever is to repair the patch."""
        chunk = f"Chunk {self.chunk} of {self.path} (line {self.patch_line} of the patch)"
        text = [f"{chunk} fits nowhere from line {self.searched_from} on."]
        if self.already_applied:
            text.append("What it is to bring about is in the file already.")
        for candidate in self.candidates:
            where = ", before the place of an earlier chunk" if candidate.too_early else ""
            text.append(
                f"Line {candidate.line}{where}: {candidate.matching} of {len(self.expected)} lines match"
            )
            text += [_told(difference) for difference in candidate.differences]
        if not self.candidates:
            text.append("No line of it is in the file.")
        return "\n".join(text)


def _told(difference: Difference) -> str:
    if difference.found is None:
        return f"  {difference.line}: expected {difference.expected!r}, but the file ends before"
    return f"  {difference.line}: expected {difference.expected!r}, found {difference.found!r}"

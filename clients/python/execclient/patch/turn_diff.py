"""What a turn of the model changed, all its patches together.

Kept are the content that a path had before the first change and the one after the last, so that a change
that was taken back is none, and a file that was moved twice was moved once.
"""

from __future__ import annotations

from collections.abc import Iterable

from execclient.patch.diff import FileChange, merged_changes, unified_diff
from execclient.patch.plan import Edit, digest_of


class TurnDiff:
    """The accumulated diff of a turn.

    Args:
        root: the absolute directory that paths are shown relative to.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._changes: list[FileChange] = []

    def add(self, edits: Iterable[Edit]) -> None:
        """Take in what was done, in the order in which it was: `Applied.edits`, or those of an error."""
        changes = [change for edit in edits for change in edit.changes()]
        self._changes = merged_changes([*self._changes, *changes])

    @property
    def text(self) -> str:
        """The unified diff from the begin of the turn until now; empty when nothing is different."""
        return unified_diff(self._changes, root=self._root)

    @property
    def digests(self) -> dict[str, str | None]:
        """The SHA-256 of every file that is different now, by absolute path; None of one that is gone."""
        return {
            change.path: digest_of(change.after) for change in self._changes if change.before != change.after
        }

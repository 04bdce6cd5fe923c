"""The changes of one batch, coalesced so that no final state is lost.

`modified` after `created` or `modified` of the same path is left out. `removed` takes the place of `created`
and `modified`; it is never left out, because the path may have existed before. The removal and the rename of
a directory change the meaning of the paths below it, so nothing is coalesced over them.
"""

from __future__ import annotations

MAX_CHANGES = 4096
"""In one frame; then it is sent before its time."""

Change = tuple[str, bool, str, str]
"""The letter (`frames.KINDS`), whether it is a directory, the path below the root, and the earlier one."""


class Place:
    """The place of a path that was moved away, until it is known whether it was renamed."""

    change: Change | None = None


class Batch:
    """The changes since the last frame."""

    def __init__(self) -> None:
        self._changes: list[Change | Place | None] = []
        self._latest: dict[str, int] = {}
        """The latest change of each path that may be coalesced."""

    def __len__(self) -> int:
        return len(self._changes)

    def created(self, path: str, is_directory: bool) -> None:
        """The path exists now."""
        if not self._is_latest(path, "c", is_directory):
            self._append(("c", is_directory, path, ""))

    def modified(self, path: str, is_directory: bool) -> None:
        """Content or metadata changed."""
        if not self._is_latest(path, "cm", is_directory):
            self._append(("m", is_directory, path, ""))

    def removed(self, path: str, is_directory: bool) -> None:
        """The path does not exist any more."""
        index = self._latest.get(path)
        if index is not None:
            earlier = self._changes[index]
            if isinstance(earlier, tuple) and earlier[0] in "cm":
                self._changes[index] = None
        if is_directory:
            self._latest.clear()
        self._append(("r", is_directory, path, ""))

    def gap(self, path: str) -> None:
        """Changes at and below a directory were lost."""
        if not path:  # the root: it includes all earlier changes
            self.clear()
        if not self._is_latest(path, "g", True):
            self._append(("g", True, path, ""))

    def reserve(self, path: str, is_directory: bool) -> Place:
        """The place in the order for `settle`."""
        if is_directory:
            self._latest.clear()
        else:
            self._latest.pop(path, None)
        place = Place()
        self._changes.append(place)
        return place

    def settle(self, place: Place, path: str, is_directory: bool, new: str | None) -> None:
        """Fill a place: the path was renamed to `new`, or is gone if that is None."""
        if new is None:
            place.change = ("r", is_directory, path, "")
            return
        place.change = ("n", is_directory, new, path)
        if is_directory:
            self._latest.clear()
        else:
            self._latest.pop(new, None)

    def clear(self) -> None:
        """Forget all changes; a gap takes their place."""
        self._changes.clear()
        self._latest.clear()

    def take(self) -> list[Change]:
        """The changes, oldest first; the batch is empty then."""
        settled = (each.change if isinstance(each, Place) else each for each in self._changes)
        taken = [change for change in settled if change is not None]
        self.clear()
        return taken

    def _is_latest(self, path: str, letters: str, is_directory: bool) -> bool:
        index = self._latest.get(path)
        latest = None if index is None else self._changes[index]
        return isinstance(latest, tuple) and latest[0] in letters and latest[1] == is_directory

    def _append(self, change: Change) -> None:
        self._latest[change[2]] = len(self._changes)
        self._changes.append(change)

"""One look at the paths of an `fs/watchMissing`, from the root down.

Each directory on the way is watched *before* its next name is looked up: what happens after the
look is an event, what happened before it is seen. So there is no gap, and a directory that is
renamed away and comes back is noticed too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import msgspec

from execserver import inotify
from execserver.filesystem.descriptors import Descriptor

APPEARED = inotify.CREATE | inotify.MOVED_TO
LEFT = inotify.DELETE | inotify.MOVED_FROM
_MASK = APPEARED | LEFT | inotify.ONLY_DIRECTORY


class Survey(msgspec.Struct):
    """What was there, and which events say that it changed."""

    absent: dict[str, str] = msgspec.field(default_factory=dict)
    """Missing path → the first part of it that is missing."""

    found: bool = False
    """One of the missing paths is there."""

    unclear: bool = False
    """One of the paths could not be looked at."""

    present_left: bool = False
    """The present path is not there."""

    covered: bool = True
    """inotify tells of every change; else somebody has to look again."""

    appearing: set[tuple[int, str]] = msgspec.field(default_factory=set)
    """Watch and name: its appearance fires, its leaving makes the watches below it stale."""

    leaving: set[tuple[int, str]] = msgspec.field(default_factory=set)
    """Watch and name: its leaving fires."""

    @property
    def stands(self) -> bool:
        """Whether a watch can begin from here."""
        return not (self.found or self.unclear or self.present_left)

    def shows_change_since(self, earlier: Survey) -> bool:
        """Whether this is what the watch waits for, even if no event told of it."""
        if self.found or self.present_left:
            return True
        # The first missing part moves down when a directory appeared, up when one vanished.
        return any(len(part) > len(earlier.absent.get(path, path)) for path, part in self.absent.items())


def survey(missing: Sequence[str], present: str | None, descriptor: Descriptor | None) -> Survey:
    """Look at all paths, watching the directories on the way.

    Args:
        missing: native paths that should not be there.
        present: one that should.
        descriptor: an inotify instance, or None to look only.
    """
    surveyor = _Surveyor(descriptor)
    for path in missing:
        surveyor.look_for_missing(path)
    if present is not None:
        surveyor.look_for_present(present)
    return surveyor.seen


class _Surveyor:
    def __init__(self, descriptor: Descriptor | None) -> None:
        self.seen = Survey(covered=descriptor is not None)
        self._descriptor = descriptor
        self._watches: dict[str, int | None] = {}

    def look_for_missing(self, path: str) -> None:
        part = self._descend(path, self.seen.appearing)
        if part is None:
            return
        if part == "":
            self.seen.found = True
        else:
            self.seen.absent[path] = part

    def look_for_present(self, path: str) -> None:
        part = self._descend(path, self.seen.leaving)
        if part:
            self.seen.present_left = True

    def _descend(self, path: str, keys: set[tuple[int, str]]) -> str | None:
        """The first missing part of a path, "" when all of it is there, None when it cannot be told."""
        directory = ""
        for name in path.split("/")[1:] if path != "/" else []:
            watch = self._watch(directory or "/")
            if watch is not None:
                keys.add((watch, name))
            directory = f"{directory}/{name}"
            try:
                status = os.lstat(directory)
            except FileNotFoundError:
                return directory
            except OSError:
                self.seen.unclear = True
                self.seen.covered = False
                return None
            if stat.S_ISLNK(status.st_mode):
                # Its target may change where no watch is.
                self.seen.covered = False
        return ""

    def _watch(self, directory: str) -> int | None:
        if self._descriptor is None:
            return None
        if directory not in self._watches:
            try:
                with self._descriptor.borrow() as number:
                    self._watches[directory] = inotify.add_watch(number, directory, _MASK)
            except OSError:
                # Gone again, not readable, no directory, or the user's watches are used up.
                self._watches[directory] = None
                self.seen.covered = False
        return self._watches[directory]

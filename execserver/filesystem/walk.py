"""`fs/walk`: look at a tree, breadth first, within limits (`docs/protocol.md`, "Walk")."""

from __future__ import annotations

import heapq
import os
import stat
from collections import deque

from execserver.filesystem.directories import entry_kind
from execserver.filesystem.giving_up import give_up_if
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.limits import MAX_WALK_DEPTH, MAX_WALK_DIRECTORIES, MAX_WALK_ENTRIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.filesystem.giving_up import Stop

    Seen = tuple[str | int, str]
    """`("file", path)`, `("directory", path)`; the number of an error and the directory that could not
    be read for it; `(TRUNCATED, "")` when a limit cut the walk."""

TRUNCATED = "truncated"

_MOST_NAMES = 2 * MAX_WALK_ENTRIES
"""Names of one directory that are held in memory, the first in order. Twice what a walk may look
at, for the links to nothing that do not count."""

MOST_PATH_BYTES = 32 << 20
"""Of all paths in a reply. 50,000 of the longest paths would be 600 MB, and no client takes a
message above 64 MiB."""


class WalkLimits:
    """How far a walk goes: the wire's `WalkOptions`."""

    __slots__ = ("follow_links", "max_depth", "max_directories", "max_entries", "prune_hidden")

    def __init__(
        self, max_depth: int, max_directories: int, max_entries: int, follow_links: bool, prune_hidden: bool
    ) -> None:
        self.max_depth = max_depth
        self.max_directories = max_directories
        self.max_entries = max_entries
        self.follow_links = follow_links
        self.prune_hidden = prune_hidden

    def check(self) -> None:
        """Refuse what the wire does not allow.

        Raises:
            InvalidRequest: a limit is zero or above its maximum.
        """
        if not self.max_directories or not self.max_entries:
            raise InvalidRequest("filesystem walk limits must be greater than zero")
        if (
            self.max_depth > MAX_WALK_DEPTH
            or self.max_directories > MAX_WALK_DIRECTORIES
            or self.max_entries > MAX_WALK_ENTRIES
        ):
            raise InvalidRequest(
                f"filesystem walk limits exceed maximums: depth={MAX_WALK_DEPTH}, "
                f"directories={MAX_WALK_DIRECTORIES}, entries={MAX_WALK_ENTRIES}"
            )


def visit(path: str, limits: WalkLimits, stop: Stop) -> Iterator[Seen]:
    """Look at a tree, and tell of each thing as it is seen.

    Raises:
        OSError: the root does not exist.
    """
    return _Walk(limits, stop).run(path)


class _Walk:
    """A walk on its way."""

    def __init__(self, limits: WalkLimits, stop: Stop) -> None:
        self._limits = limits
        self._stop = stop
        self._looked_at = 0
        self._path_length = 0
        self._cut = False
        self._directories: deque[tuple[str, int]] = deque()
        self._directory_count = 0
        self._entered: set[tuple[int, int]] = set()

    def run(self, root: str) -> Iterator[Seen]:
        """Walk from a root that exists."""
        status = os.stat(root) if self._limits.follow_links else os.lstat(root)
        if not stat.S_ISDIR(status.st_mode):
            return
        yield from self._enter(root, 0)
        while self._directories:
            give_up_if(self._stop)
            directory, depth = self._directories.popleft()
            try:
                found = self._sorted_entries(directory)
            except OSError as error:
                yield error.errno or 0, directory
                continue
            prefix = directory.rstrip("/") + "/"
            for entry in found:
                yield from self._look_at(entry, prefix, depth)
                if self._cut:
                    yield TRUNCATED, ""
                    return

    def _sorted_entries(self, directory: str) -> list[os.DirEntry[str]]:
        with os.scandir(directory) as scan:
            return heapq.nsmallest(_MOST_NAMES, self._until_stopped(scan), key=_name_bytes)

    def _until_stopped(self, scan: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in scan:
            give_up_if(self._stop)
            yield entry

    def _look_at(self, entry: os.DirEntry[str], prefix: str, depth: int) -> Iterator[Seen]:
        """Tell of a name if it is to be listed, unless a limit cuts the walk before it."""
        kind = entry_kind(entry)
        if kind is None:
            return
        if self._looked_at == self._limits.max_entries:
            self._cut = True
            return
        self._looked_at += 1
        if entry.is_symlink() and not (self._limits.follow_links and kind == stat.S_IFDIR):
            return
        if kind not in (stat.S_IFDIR, stat.S_IFREG):
            return
        path = prefix + entry.name
        # As a URI it is not shorter, so what is cut here would be cut by whoever writes the reply.
        self._path_length += len(path)
        if self._path_length > MOST_PATH_BYTES:
            self._cut = True
            return
        yield "directory" if kind == stat.S_IFDIR else "file", path
        hidden = entry.name.startswith(".") and self._limits.prune_hidden
        if kind == stat.S_IFDIR and depth < self._limits.max_depth and not hidden:
            yield from self._enter(path, depth + 1)

    def _enter(self, path: str, depth: int) -> Iterator[Seen]:
        """Note a directory to be read later, unless it has been already or there were too many."""
        if self._limits.follow_links:
            try:
                status = os.stat(path)
            except OSError as error:
                yield error.errno or 0, path
                return
            if (status.st_dev, status.st_ino) in self._entered:
                return
            self._entered.add((status.st_dev, status.st_ino))
        if self._directory_count == self._limits.max_directories:
            yield TRUNCATED, ""
            return
        self._directory_count += 1
        self._directories.append((path, depth))


def _name_bytes(entry: os.DirEntry[str]) -> bytes:
    return os.fsencode(entry.name)

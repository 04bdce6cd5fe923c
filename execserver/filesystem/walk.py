"""`fs/walk`: list a tree, breadth first, within limits (`docs/protocol.md`, "Walk")."""

from __future__ import annotations

import os
import stat
from collections import deque
from itertools import islice
from operator import attrgetter

from execprotocol.errors import InvalidRequest
from execprotocol.limits import MAX_WALK_DEPTH, MAX_WALK_DIRECTORIES, MAX_WALK_ENTRIES
from execserver.filesystem.cancel import raise_if_cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final, Literal

    from execserver.filesystem.cancel import StopFlag

    Seen = tuple[Literal["file", "directory", "truncated"] | int, str]
    """`("file", path)` or `("directory", path)`; an error number and the directory that could not be read;
    `(TRUNCATED, "")` when a limit ended the walk."""

TRUNCATED: Final = "truncated"

_MAX_NAMES = 2 * MAX_WALK_ENTRIES
"""Names of one directory that are kept, the first in order. Twice the limit of a walk: dangling links do not
count."""

_NAMES_AT_ONCE = 1000
"""Names of a directory between two checks for cancellation."""

MAX_PATH_BYTES = 32 << 20
"""Of all paths in a reply. 50,000 of the longest paths would be 600 MB, and no client accepts a message above
64 MiB."""


class WalkLimits:
    """How far a walk goes: the `WalkOptions` of the protocol."""

    __slots__ = ("follow_links", "max_depth", "max_directories", "max_entries", "prune_hidden")

    def __init__(
        self, max_depth: int, max_directories: int, max_entries: int, follow_links: bool, prune_hidden: bool
    ) -> None:
        self.max_depth = max_depth
        self.max_directories = max_directories
        self.max_entries = max_entries
        self.follow_links = follow_links
        self.prune_hidden = prune_hidden


def check_limits(max_depth: int, max_directories: int, max_entries: int) -> None:
    """Refuse limits that the protocol does not allow.

    Raises:
        InvalidRequest: a limit is zero or above its maximum.
    """
    if not max_directories or not max_entries:
        raise InvalidRequest("filesystem walk limits must be greater than zero")
    if max_depth > MAX_WALK_DEPTH or max_directories > MAX_WALK_DIRECTORIES or max_entries > MAX_WALK_ENTRIES:
        raise InvalidRequest(
            f"filesystem walk limits exceed maximums: depth={MAX_WALK_DEPTH}, "
            f"directories={MAX_WALK_DIRECTORIES}, entries={MAX_WALK_ENTRIES}"
        )


def visit(path: str, limits: WalkLimits, stop: StopFlag) -> Iterator[Seen]:
    """List a tree, item by item.

    Raises:
        OSError: the root does not exist.
        RequestCancelled: `stop` is set.
    """
    return _Walk(limits, stop).run(path)


class _Walk:
    """The state of one walk."""

    def __init__(self, limits: WalkLimits, stop: StopFlag) -> None:
        self._limits = limits
        self._stop = stop
        self._listed_count = 0
        self._path_length = 0
        self._truncated = False
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
            raise_if_cancelled(self._stop)
            directory, depth = self._directories.popleft()
            try:
                found = self._sorted_entries(directory)
            except OSError as error:
                yield error.errno or 0, directory
                continue
            yield from self._listed(found, directory.rstrip("/") + "/", depth)
            if self._truncated:
                yield TRUNCATED, ""
                return

    def _sorted_entries(self, directory: str) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        with os.scandir(directory) as scan:
            while names := list(islice(scan, _NAMES_AT_ONCE)):
                raise_if_cancelled(self._stop)
                found += names
                if len(found) > _MAX_NAMES * 5 // 4:
                    _keep_first(found)
        _keep_first(found)
        return found

    def _listed(self, found: list[os.DirEntry[str]], prefix: str, depth: int) -> Iterator[Seen]:
        """List the names of a directory, until a limit ends the walk."""
        limits = self._limits
        for index, entry in enumerate(found):
            if index % _NAMES_AT_ONCE == 0:
                raise_if_cancelled(self._stop)
            kind = self._kind(entry)
            if kind is None:
                continue
            if self._listed_count == limits.max_entries:
                self._truncated = True
                return
            self._listed_count += 1
            if not kind:
                continue
            name = entry.name
            path = prefix + name
            # A URI is not shorter than its path, so the limit of the reply would be exceeded too.
            self._path_length += len(path)
            if self._path_length > MAX_PATH_BYTES:
                self._truncated = True
                return
            yield kind, path
            hidden = limits.prune_hidden and name.startswith(".")
            if kind == "directory" and depth < limits.max_depth and not hidden:
                yield from self._enter(path, depth + 1)

    def _kind(self, entry: os.DirEntry[str]) -> Literal["file", "directory", ""] | None:
        """The kind of an entry. An empty string for one that is not listed, such as a link that is not
        followed; None for a dangling link, which does not count.
        """
        try:
            if entry.is_file(follow_symlinks=False):
                return "file"
            if entry.is_dir(follow_symlinks=False):
                return "directory"
            raise_if_cancelled(self._stop)
            is_directory = stat.S_ISDIR(entry.stat().st_mode)
        except OSError:
            return None
        return "directory" if is_directory and self._limits.follow_links else ""

    def _enter(self, path: str, depth: int) -> Iterator[Seen]:
        """Queue a directory, unless it was queued before or the limit is reached."""
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


def _keep_first(found: list[os.DirEntry[str]]) -> None:
    """Keep the first names in byte order, which equals character order if all are ASCII."""
    plain = all(entry.name.isascii() for entry in found)
    found.sort(key=attrgetter("name") if plain else _name_bytes)
    del found[_MAX_NAMES:]


def _name_bytes(entry: os.DirEntry[str]) -> bytes:
    return os.fsencode(entry.name)

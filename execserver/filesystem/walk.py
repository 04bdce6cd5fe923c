"""`fs/walk`: list a tree, breadth first, within limits (`docs/protocol.md`, "Walk")."""

from __future__ import annotations

import heapq
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator

from execserver.filesystem.blocking import give_up_if
from execserver.filesystem.directories import encode_array, entry_kind
from execserver.protocol.errors import InvalidRequest, os_error_text
from execserver.protocol.filesystem import WalkEntry, WalkFailure, WalkOptions
from execserver.protocol.limits import MAX_WALK_DEPTH, MAX_WALK_DIRECTORIES, MAX_WALK_ENTRIES
from execserver.protocol.path_uri import path_to_uri

_MOST_NAMES = 2 * MAX_WALK_ENTRIES
"""Names of one directory that are held in memory, the first in order. Twice what a walk may look
at, for the links to nothing that do not count."""

_MOST_PATH_BYTES = 32 << 20
"""Of all paths in a reply. 50,000 of the longest paths would be 600 MB, and no client takes a
message above 64 MiB."""


def walk(path: str, options: WalkOptions, stop: threading.Event) -> bytes:
    """Walk a tree.

    Returns:
        The JSON of a `WalkResult`.

    Raises:
        InvalidRequest: a limit is zero or above its maximum.
        OSError: the root does not exist.
    """
    _check_limits(options)
    outcome = _Walk(options, stop)
    outcome.run(path)
    return b'{"entries":%b,"errors":%b,"truncated":%b}' % (
        encode_array(outcome.entries),
        encode_array(outcome.errors),
        b"true" if outcome.truncated else b"false",
    )


class _Walk:
    """A walk on its way, and what it has found."""

    def __init__(self, options: WalkOptions, stop: threading.Event) -> None:
        self.entries: list[WalkEntry] = []
        self.errors: list[WalkFailure] = []
        self.truncated = False
        self._options = options
        self._stop = stop
        self._looked_at = 0
        self._path_bytes = 0
        self._directories: deque[tuple[str, int]] = deque()
        self._directory_count = 0
        self._entered: set[tuple[int, int]] = set()

    def run(self, root: str) -> None:
        """Walk from a root that exists."""
        status = os.stat(root) if self._options.follow_directory_symlinks else os.lstat(root)
        if not stat.S_ISDIR(status.st_mode):
            return
        self._enter(root, 0)
        while self._directories:
            give_up_if(self._stop)
            directory, depth = self._directories.popleft()
            try:
                entries = self._sorted_entries(directory)
            except OSError as error:
                self._fail(directory, error)
                continue
            prefix = directory.rstrip("/") + "/"
            for entry in entries:
                if not self._look_at(entry, prefix, depth):
                    self.truncated = True
                    return

    def _sorted_entries(self, directory: str) -> list[os.DirEntry[str]]:
        with os.scandir(directory) as scan:
            return heapq.nsmallest(_MOST_NAMES, self._until_stopped(scan), key=_name_bytes)

    def _until_stopped(self, scan: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in scan:
            give_up_if(self._stop)
            yield entry

    def _look_at(self, entry: os.DirEntry[str], prefix: str, depth: int) -> bool:
        """List a name if it is to be listed; False when a limit ends the walk before it."""
        kind = entry_kind(entry)
        if kind is None:
            return True
        if self._looked_at == self._options.max_entries:
            return False
        self._looked_at += 1
        if entry.is_symlink() and not (self._options.follow_directory_symlinks and kind == stat.S_IFDIR):
            return True
        if kind not in (stat.S_IFDIR, stat.S_IFREG):
            return True
        path = prefix + entry.name
        uri = path_to_uri(path)
        self._path_bytes += len(uri)
        if self._path_bytes > _MOST_PATH_BYTES:
            return False
        self.entries.append({"path": uri, "kind": "directory" if kind == stat.S_IFDIR else "file"})
        hidden = entry.name.startswith(".") and self._options.prune_hidden_directories
        if kind == stat.S_IFDIR and depth < self._options.max_depth and not hidden:
            self._enter(path, depth + 1)
        return True

    def _enter(self, path: str, depth: int) -> None:
        """Note a directory to be read later, unless it has been already or there were too many."""
        if self._options.follow_directory_symlinks:
            try:
                status = os.stat(path)
            except OSError as error:
                self._fail(path, error)
                return
            if (status.st_dev, status.st_ino) in self._entered:
                return
            self._entered.add((status.st_dev, status.st_ino))
        if self._directory_count == self._options.max_directories:
            self.truncated = True
            return
        self._directory_count += 1
        self._directories.append((path, depth))

    def _fail(self, directory: str, error: OSError) -> None:
        self.errors.append({"path": path_to_uri(directory), "message": os_error_text(error)})


def _name_bytes(entry: os.DirEntry[str]) -> bytes:
    return os.fsencode(entry.name)


def _check_limits(options: WalkOptions) -> None:
    if not options.max_directories or not options.max_entries:
        raise InvalidRequest("filesystem walk limits must be greater than zero")
    if (
        options.max_depth > MAX_WALK_DEPTH
        or options.max_directories > MAX_WALK_DIRECTORIES
        or options.max_entries > MAX_WALK_ENTRIES
    ):
        raise InvalidRequest(
            f"filesystem walk limits exceed maximums: depth={MAX_WALK_DEPTH}, "
            f"directories={MAX_WALK_DIRECTORIES}, entries={MAX_WALK_ENTRIES}"
        )

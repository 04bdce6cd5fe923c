"""The files that a login shell reads, and those that they name: when one of them changes, so may the state.

The files are not run here, so the names are found by their looks: every word that looks like a path, with
variables replaced by their values. A named file of text is searched, too, because it is perhaps sourced. A
path that does not exist counts as well: `if [ -d ~/bin ]` makes a difference once it does.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from execserver.processes.login_state import UnfitError

MAX_PATHS = 4096
"""How many paths are watched. To look at all of them takes 5 ms."""

MAX_TEXT_BYTES = 4 << 20
"""How much text is searched, over all files."""

MAX_LISTED = 20_000
"""How many entries of folders are compared with patterns, which the profile may have written by a command."""

_MAX_FILE_BYTES = 512 << 10
"""A larger file is watched and not searched."""

_MAX_PATH, _MAX_VARIABLES = 4096, 16
"""Bytes of a path, and variables in it. What has more is no path, but could take all memory."""

_CLOCK_NS = 10_000_000
"""How much the clock that stamps files may lag behind."""

_WORD = re.compile(rb"(?:~|\$\w+|\$\{\w+\}|\.{1,2})?/[\w.,:@%+*?/${}~-]*")
_VARIABLE = re.compile(rb"\$\{?(\w+)\}?")

Seen = tuple[int, ...] | None
"""What is seen of a path; None if there is nothing."""


def look(path: str, volatile: frozenset[str]) -> Seen:
    """What is seen of a path now; of a folder its entries count, unless it is one of `volatile`."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode):
        return (
            status.st_dev,
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
    if stat.S_ISDIR(status.st_mode) and path not in volatile:
        return status.st_dev, status.st_ino, status.st_mode, status.st_mtime_ns
    return status.st_dev, status.st_ino, status.st_mode


class StartupFiles:
    """The files behind one state. All methods may block.

    Args:
        first: the files that the shell reads by itself; a pattern of `glob` stands for several.
        variables: the values of variables in their text.
        cwd: relative paths are below it.
    """

    def __init__(self, first: Iterable[str], variables: Mapping[str, str], cwd: str) -> None:
        home = variables.get("HOME", "/")
        self._volatile = frozenset({"/", "/tmp", "/dev", "/proc", home, cwd, variables.get("TMPDIR", "/tmp")})  # noqa: S108
        self._variables = {
            os.fsencode(name): os.fsencode(value)
            for name, value in variables.items()
            if len(value) <= _MAX_PATH
        }
        self._cwd = cwd
        self._left = MAX_TEXT_BYTES
        self._entries_left = MAX_LISTED
        self._seen: dict[str, Seen] = {}
        self._add_all(first)

    def unchanged(self) -> bool:
        """Whether everything still looks as it did."""
        return all(look(path, self._volatile) == seen for path, seen in self._seen.items())

    def changed_since(self, time_ns: int) -> bool:
        """Whether a file has changed since a time (`time.time_ns`), or a moment before."""
        since = time_ns - _CLOCK_NS
        return any(seen is not None and max(seen[3:], default=0) >= since for seen in self._seen.values())

    def _add_all(self, first: Iterable[str]) -> None:
        pending = [*first]
        while pending:
            path = os.path.normpath(os.path.join(self._cwd, pending.pop()))
            if path in self._seen:
                continue
            if len(self._seen) >= MAX_PATHS:
                raise UnfitError(f"its files name more than {MAX_PATHS} paths")
            seen = self._seen[path] = look(path, self._volatile)
            if "*" in path or "?" in path:
                pending += self._matching(path)
            elif seen is None:
                continue
            elif stat.S_ISDIR(seen[2]):
                pending += _listed(path) if path.endswith(".d") else ()
            elif stat.S_ISREG(seen[2]) and seen[3] <= _MAX_FILE_BYTES:
                pending += self._named(path)

    def _named(self, path: str) -> list[str]:
        """The paths in a file's text; none if it is no text."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                text = file.read(_MAX_FILE_BYTES)
        except OSError:
            return []
        if b"\0" in text[:512]:
            return []
        self._left -= len(text)
        if self._left < 0:
            raise UnfitError(f"its files have more than {MAX_TEXT_BYTES >> 20} MiB of text")
        home = self._variables.get(b"HOME", b"/")
        found: set[bytes] = set()
        for word in _WORD.findall(text):
            if len(word) > _MAX_PATH or word.count(b"$") > _MAX_VARIABLES:
                continue
            for part in word.split(b":"):
                whole = home + part[1:] if part.startswith(b"~") else part
                whole = _VARIABLE.sub(lambda name: self._variables.get(name[1], b"$"), whole)
                if b"/" in whole and b"$" not in whole and len(whole) <= _MAX_PATH:
                    found.add(whole.rstrip(b".,"))
        return [os.fsdecode(each) for each in sorted(found)]

    def _matching(self, pattern: str) -> list[str]:
        """The paths that match a pattern of a shell."""
        found = [""]
        for part in pattern.split("/")[1:]:
            if "*" in part or "?" in part:
                found = [
                    f"{folder}/{name}"
                    for folder in found
                    for name in self._names(folder or "/")
                    if fnmatchcase(name, part) and name.startswith(".") <= part.startswith(".")
                ]
            else:
                found = [f"{folder}/{part}" for folder in found]
        return found

    def _names(self, folder: str) -> Iterator[str]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entries_left -= 1
                    if self._entries_left < 0:
                        raise UnfitError(f"its patterns are for more than {MAX_LISTED} entries of folders")
                    yield entry.name
        except OSError:
            return


def _listed(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return []

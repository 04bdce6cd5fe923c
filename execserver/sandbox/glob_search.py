"""The search for what glob patterns match on the disk.

A pattern is expanded when a sandbox is made; files that appear later are not covered (`docs/protocol.md`,
"Sandbox context"). A denial follows links, also out of the folder of the pattern; a grant does not.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from execprotocol.errors import InvalidRequest
from execserver.sandbox.disk import ResolvedPath, resolve_path
from execserver.sandbox.glob_patterns import PatternNames, States, folder_of, shown, too_much
from execserver.sandbox.policy import is_below

MAX_MATCHES = 256
"""Files and folders that patterns may match: each is a separate mount in every sandbox."""

MAX_SCANNED = 200_000
"""Names that the search may examine."""

MAX_LEVELS = 128
"""Depth of nested folders. A command can make thousands of levels, and matching a pattern with several `**`
would take minutes for each path."""

_FREE_NAMES = 100
"""Names in the texts of a chain of links that the budget does not count. Ordinary links have fewer; a chain
may have 80,000."""

_KERNEL_FOLDERS = ("/proc", "/sys")
"""Folders without names that a user chose."""

_SAME_FOR_ALL = ("/proc/self", "/proc/thread-self")
"""Links in `/proc` on the way to `/proc/self/root`, which is the root for commands too."""


def expand(
    pattern: str, folders: Iterable[str], depth: int | None, budget: Budget, *, denies: bool = False
) -> Iterator[str]:
    """The paths that match, below the pattern's own folder.

    Args:
        pattern: an absolute pattern.
        folders: the folders to search if the pattern has no folder of its own (`/**/.env`).
        depth: levels of folders to search, counted from the folder; None for all.
        budget: shared by all patterns of a policy.
        denies: whether the pattern denies. Then links are followed, and a folder that cannot be listed counts
            as a match if a command could make it listable.

    Raises:
        InvalidRequest: there are too many names to examine, or too many matches.
        OSError: an existing folder cannot be read.
    """
    own = folder_of(pattern)
    budget.pattern = pattern
    search = _Search(PatternNames(pattern), depth, budget, denies)
    for folder in [own] if own != "/" else sorted(set(folders)):
        yield from search.below(folder)


class Budget:
    """The limits of a search: names examined, and matches."""

    def __init__(self) -> None:
        self._scanned = 0
        self._matched = 0
        self.pattern = ""
        """The pattern of the search, for errors."""
        self.link: str | None = None
        """The link behind which the search is now, for errors."""

    def scanned(self, names: int = 1) -> None:
        """Count examined names."""
        self._scanned += names
        if self._scanned > MAX_SCANNED:
            raise self.exceeded(f"look at more than {MAX_SCANNED} names", "set glob_scan_max_depth")

    def matched(self) -> None:
        """Count a match."""
        self._matched += 1
        if self._matched > MAX_MATCHES:
            raise self.exceeded(f"match more than {MAX_MATCHES} paths", "name their folder instead")

    def exceeded(self, problem: str, fix: str) -> InvalidRequest:
        """The error of a search that exceeds a limit, with its pattern and link."""
        if self.link is not None:
            fix = f"{fix}, or remove the symbolic link {self.link}"
        return too_much(problem, f"{fix} (the pattern is {shown(self.pattern)})")


class _Folder(NamedTuple):
    """A folder to search."""

    path: str
    """The path by which it was reached, perhaps through links."""
    real: str
    states: States
    level: int
    link: str | None
    """The last link in the path."""


class _Search:
    """The search for the matches of one pattern.

    A link stands for its target, and matches by its own name or by a name on the way to its target: a file
    that is denied as `.env` is also denied behind a link `notes`. Folders behind links are searched too, each
    once for the same states of the pattern, so that circular links end.
    """

    def __init__(self, names: PatternNames, depth: int | None, budget: Budget, denies: bool) -> None:
        self._names = names
        self._depth = depth
        self._budget = budget
        self._denies = denies
        self._searched: dict[str, list[_Folder]] = {}
        self._behind_links: set[str] = set()
        """Targets of links that matched."""

    def below(self, folder: str) -> Iterator[str]:
        states = self._names.of_folder(folder)
        pending = deque([_Folder(folder, os.path.realpath(folder), states, 1, None)] if states else [])
        behind_links: deque[_Folder] = deque()
        while pending or behind_links:
            # Links last: most lead to folders that are searched anyway.
            current = pending.popleft() if pending else behind_links.popleft()
            if self._is_searched(current):
                continue
            self._budget.link = current.link
            try:
                scan = os.scandir(current.path)
            except OSError as error:
                if _may_hide_matches(current.path, error) and self._denies:
                    # Its content is unknown, so the whole folder counts as a match.
                    self._budget.matched()
                    yield current.path
                continue
            matches = self._names.matching(current.states)
            with scan:
                for entry in scan:
                    self._budget.scanned()
                    if matches(entry.name):
                        self._budget.matched()
                        yield entry.path
                    elif entry.is_dir(follow_symlinks=False):
                        self._add(pending, current, entry)
                    elif self._denies and entry.is_symlink() and self._add_link(behind_links, current, entry):
                        yield entry.path

    def _is_searched(self, folder: _Folder) -> bool:
        """Whether a folder was already searched for everything that could match; marks it as searched."""
        before = self._searched.setdefault(folder.real, [])
        if any(
            folder.states <= each.states and (self._depth is None or each.level <= folder.level)
            for each in before
        ):
            return True
        before.append(folder)
        return False

    def _add(self, pending: deque[_Folder], current: _Folder, entry: os.DirEntry[str]) -> None:
        states = self._names.behind(current.states, entry.name)
        real = f"{current.real.rstrip('/')}/{entry.name}"
        if states and real not in _KERNEL_FOLDERS and self._may_go_into(current.level):
            pending.append(_Folder(entry.path, real, states, current.level + 1, current.link))

    def _add_link(self, pending: deque[_Folder], current: _Folder, entry: os.DirEntry[str]) -> bool:
        """Add the folder that a link leads to, unless the link matches; returns whether it matches."""
        self._budget.link = entry.path
        followed = _follow(entry.path, self._budget)
        self._budget.link = current.link
        if followed is None:
            return False
        place, names_behind = followed
        names = [entry.name, *names_behind, os.path.basename(place.path)]
        if any(map(self._names.matching(current.states), names)):
            if place.path not in self._behind_links:  # one mount, even if several links lead there
                self._behind_links.add(place.path)
                self._budget.matched()
            return True
        states = frozenset().union(*(self._names.behind(current.states, name) for name in names))
        if place.is_folder and states and self._may_go_into(current.level):
            pending.append(_Folder(entry.path, place.path, states, current.level + 1, entry.path))
        return False

    def _may_go_into(self, level: int) -> bool:
        if self._depth is not None and level >= self._depth:
            return False
        if level >= MAX_LEVELS:
            raise self._budget.exceeded(
                f"look into more than {MAX_LEVELS} folders in each other", "set glob_scan_max_depth"
            )
        return True


def _follow(link: str, budget: Budget) -> tuple[ResolvedPath, list[str]] | None:
    """The target of a link, and the last names in the texts of the links on the way.

    Returns:
        None when it leads nowhere now, to the kernel's files, or for each process to a different target.

    Raises:
        InvalidRequest: it takes too long to follow.
    """
    left = _FREE_NAMES
    names: list[str] = []

    def on_link(text: str, is_last: bool) -> None:
        nonlocal left
        count = text.count("/") + 1
        left -= count
        if left < 0:
            budget.scanned(count)
        last = [name for name in text.split("/") if name not in ("", ".")][-1:] if is_last else []
        names.extend(name for name in last if name != "..")

    try:
        place = resolve_path(link, on_link=on_link)
    except OSError:
        return None  # removed meanwhile, or in the /proc of another user's process
    if place is None or not place.exists or any(is_below(place.path, each) for each in _KERNEL_FOLDERS):
        return None
    of_proc = (path for path, _ in place.links if is_below(path, "/proc"))
    if not all(path in _SAME_FOR_ALL or path.endswith("/root") for path in of_proc):
        return None
    return place, names


def _may_hide_matches(directory: str, error: OSError) -> bool:
    """Whether a command may find matches in a folder that cannot be listed.

    Raises:
        InvalidRequest: its path is too long.
        OSError: the error does not answer the question.
    """
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return False
    if error.errno == errno.EACCES:
        # The owner can change the mode; processes of other users in the sandbox have no more rights than we.
        return os.stat(directory).st_uid == os.geteuid()
    if error.errno == errno.ENAMETOOLONG:
        raise too_much("look into folders whose paths are too long", "remove these folders")
    raise error

"""Glob entries of a policy: to patterns, and to what matches on the disk.

`*` and `?` stay within a name, `**` as a whole component crosses folders, `[…]` is one of some
characters, `{a,b}` one of some texts. Case counts; hidden and ignored names match like others. A pattern
is expanded when a sandbox is made: what appears later is not covered (`docs/protocol.md`, "Sandbox context").
A denial follows links, also out of the folder of the pattern; a grant does not.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from execprotocol.errors import InvalidRequest, file_error
from execserver.sandbox.disk import Place, locate
from execserver.sandbox.policy import is_below
from execserver.sandbox.refusal import refused

MAX_MATCHES = 256
"""Files and folders that patterns may match: each is a mount of its own in every sandbox."""

MAX_SCANNED = 200_000
"""Names looked at to find them."""

MAX_LEVELS = 128
"""Folders in each other. A command may make thousands, and a pattern with several `**` would take minutes
for each of the paths."""

MAX_ALTERNATIVES = 256
"""Patterns of a policy, those that braces stand for one by one."""

MAX_CHARACTERS = 8192
"""Of all patterns of a policy, with braces written out: the time to compile and match grows with them."""

_MAGIC = frozenset("*?[{\\")
_STAR, _FOLDERS, _REST = _STARS = "*", "**/", "**"
"""Atoms of no fixed length; `_REST` stands at the end only. All others are expressions for one character."""

_SET = "(?!/)["
"""How the expression of a set begins."""

_PATH_MAX = 4096
_MOST_LINKS = 40
"""As many as the kernel follows."""
_FREE_NAMES = 100
"""Names in the texts of the links to one target. Ordinary ones have fewer; a chain may have 80,000."""
_MOST_SHOWN = 200
"""Characters of a pattern that an error names."""

_KERNEL_FOLDERS = ("/proc", "/sys")
"""What is in them has no names that a user gave."""

_SAME_FOR_ALL = ("/proc/self", "/proc/thread-self")
"""Links in `/proc` on the way to `/proc/self/root`, which is the root for commands too."""

_WHOLE = r"\Z"
_WITHIN = r"(?:\Z|(?<=[^/])(?=/))"
"""The end of the path, or of a folder that it lies in."""


@lru_cache(maxsize=256)
def matcher(pattern: str) -> re.Pattern[str]:
    """The paths that a pattern matches, as a regular expression for the whole path.

    Raises:
        InvalidRequest: a brace or a bracket is not closed, or the pattern is too large.
    """
    return re.compile(_parsed(pattern).expression(_WHOLE), re.DOTALL)


def matches(patterns: tuple[str, ...], path: str) -> bool:
    """Whether one of the patterns matches an absolute path, or a folder that it lies in."""
    return bool(patterns) and _covering(patterns).match(path) is not None


def refuse_denied(patterns: tuple[str, ...], path: str) -> None:
    """Refuse a path that denying patterns match, or a folder that it lies in.

    Raises:
        InvalidRequest: it is denied, or longer than the kernel takes: matching it would take its time.
    """
    if patterns and len(path) >= _PATH_MAX:
        raise file_error(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
    if matches(patterns, path):
        raise file_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


@lru_cache(maxsize=64)
def _covering(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_parsed(pattern).covering for pattern in patterns), re.DOTALL)


@lru_cache(maxsize=64)
def require_few(patterns: tuple[str, ...]) -> None:
    """Refuse patterns that are too large together.

    Raises:
        InvalidRequest: they are, or one of them cannot be read.
    """
    number = size = 0
    for pattern in patterns:
        parsed = _parsed(pattern)
        number += len(parsed.alternatives)
        size += parsed.size
        if number > MAX_ALTERNATIVES:
            raise _too_much(f"are more than {MAX_ALTERNATIVES} with their braces written out", "use fewer")
        if size > MAX_CHARACTERS:
            raise _too_much(
                f"have more than {MAX_CHARACTERS} characters with their braces written out",
                "use fewer or shorter ones",
            )


def folder_of(pattern: str) -> str:
    """The deepest folder that all matches lie in: what stands before the first special character."""
    literal = []
    for component in pattern.split("/")[1:-1]:
        if _MAGIC.isdisjoint(component):
            literal.append(component)
        elif (name := _only_match(component)) is not None:
            literal.append(name)
        else:
            break
    return "/" + "/".join(literal)


def expand(
    pattern: str, folders: Iterable[str], depth: int | None, budget: Budget, *, denies: bool = False
) -> Iterator[str]:
    """The paths that match, below the pattern's own folder.

    Args:
        pattern: an absolute one.
        folders: where to look when the pattern has no folder of its own (`/**/.env`).
        depth: levels of folders to search, counted from the folder; None for all.
        budget: shared by all patterns of a policy.
        denies: whether what matches is to be kept from commands. Then links are followed, and a folder
            counts as a match when what is in it cannot be seen now and a command could change that.

    Raises:
        InvalidRequest: there is too much to look at, or too many matches.
        OSError: something went wrong with a folder that is there.
    """
    own = folder_of(pattern)
    budget.pattern = pattern
    search = _Search(_Names(pattern), depth, budget, denies)
    for folder in [own] if own != "/" else sorted(set(folders)):
        yield from search.below(folder)


class Budget:
    """How much more may be looked at, and may match."""

    def __init__(self) -> None:
        self._scanned = 0
        self._matched = 0
        self.pattern = ""
        """The pattern that is searched, for errors."""
        self.link: str | None = None
        """The link behind which it is searched, if it is one."""

    def scanned(self, names: int = 1) -> None:
        """So many names more were looked at."""
        self._scanned += names
        if self._scanned > MAX_SCANNED:
            raise self.exceeded(f"look at more than {MAX_SCANNED} names", "set glob_scan_max_depth")

    def matched(self) -> None:
        """One name more matches."""
        self._matched += 1
        if self._matched > MAX_MATCHES:
            raise self.exceeded(f"match more than {MAX_MATCHES} paths", "name their folder instead")

    def exceeded(self, what: str, fix: str) -> InvalidRequest:
        """The error of a search that has no end in sight, with the pattern and the link that it is about."""
        if self.link is not None:
            fix = f"{fix}, or remove the symbolic link {self.link}"
        return _too_much(what, f"{fix} (the pattern is {_shown(self.pattern)})")


def _too_much(what: str, fix: str) -> InvalidRequest:
    return refused(f"the glob patterns {what}; {fix}", "sandbox.permissions.file_system.entries")


_States = frozenset[tuple[int, int]]
"""How much of a pattern the names of a folder's path have used up: alternatives, and names in each."""


class _Names:
    """A pattern name by name, so that a folder can be reached by several paths and is searched once.

    Of a path the search needs only which parts of the pattern may come next (`_States`). From folders with
    the same states the same names match.
    """

    def __init__(self, pattern: str) -> None:
        parsed = _parsed(pattern)
        self._alternatives = [_by_name(parsed.prefix + atoms) for atoms in parsed.alternatives]
        self._matching: dict[_States, Callable[[str], object]] = {}

    def of_folder(self, folder: str) -> _States:
        """The states behind an absolute path; empty if nothing in it can match."""
        states = self._closed((each, 0) for each in range(len(self._alternatives)))
        for name in folder.split("/"):
            states = self.behind(states, name) if name else states
        return states

    def behind(self, states: _States, name: str) -> _States:
        """The states of a folder with this name, in a folder with those states."""
        found = []
        for alternative, index in states:
            part = self._alternatives[alternative][index]
            if part in (_FOLDERS, _REST):
                found.append((alternative, index))
            elif index + 1 < len(self._alternatives[alternative]) and _is_name(part, name):
                found.append((alternative, index + 1))
        return self._closed(found)

    def matching(self, states: _States) -> Callable[[str], object]:
        """What says whether a name, in a folder with those states, makes a path that matches."""
        found = self._matching.get(states)
        if found is None:
            last = {
                parts[i]
                for parts, i in ((self._alternatives[a], i) for a, i in states)
                if i + 1 == len(parts)
            }
            expression = ".*" if _REST in last else "|".join(sorted(last - {_FOLDERS})) or "(?!)"
            found = self._matching[states] = _compiled(expression).match
        return found

    def _closed(self, states: Iterable[tuple[int, int]]) -> _States:
        found = set()
        for alternative, index in states:
            parts = self._alternatives[alternative]
            found.add((alternative, index))
            while parts[index] == _FOLDERS and index + 1 < len(parts):
                index += 1
                found.add((alternative, index))
        return frozenset(found)


def _by_name(atoms: list[str]) -> list[str]:
    """The parts of an alternative: expressions for a name, `_FOLDERS`, and `_REST` at the end."""
    parts = []
    for block in _split(atoms, "/")[1:]:  # a pattern begins with a slash
        *folders, rest = _split(block, _FOLDERS)
        parts += [_FOLDERS] * len(folders)
        parts.append(_REST if rest == [_REST] else f"{_name(*_split(rest, _STAR))}{_WHOLE}")
    return parts


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL)


def _is_name(expression: str, name: str) -> bool:
    return expression != _FOLDERS and _compiled(expression).match(name) is not None


class _Folder(NamedTuple):
    """One to be searched."""

    path: str
    """By which it is reached, perhaps through links."""
    real: str
    states: _States
    level: int
    link: str | None
    """The last link on the way."""


class _Search:
    """What matches one pattern.

    A link counts as what it leads to, both by its own name and by the name that it leads to: what is denied
    as `.env` is denied behind a link `notes` too. Folders that links lead to are searched like others, each
    once for the same states of the pattern, so that links in a circle end.
    """

    def __init__(self, names: _Names, depth: int | None, budget: Budget, denies: bool) -> None:
        self._names = names
        self._depth = depth
        self._budget = budget
        self._denies = denies
        self._searched: dict[str, list[_Folder]] = {}
        self._behind_links: set[str] = set()
        """What links lead to that counts as a match."""

    def below(self, folder: str) -> Iterator[str]:
        states = self._names.of_folder(folder)
        pending = deque([_Folder(folder, os.path.realpath(folder), states, 1, None)] if states else [])
        behind_links: deque[_Folder] = deque()
        while pending or behind_links:
            # Links last: most lead to what is searched anyway.
            current = pending.popleft() if pending else behind_links.popleft()
            if self._is_searched(current):
                continue
            self._budget.link = current.link
            try:
                scan = os.scandir(current.path)
            except OSError as error:
                if _may_hide_matches(current.path, error) and self._denies:
                    # Nobody can see what is in it, so all of it is taken for a match.
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
        """Whether a folder was searched for all that could match in it now; else it is noted as searched."""
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
        """Add the folder that a link leads to; True: it matches by a name that it leads to."""
        self._budget.link = entry.path
        place = _followed(entry.path, self._budget)
        self._budget.link = current.link
        if place is None:
            return False
        names = [entry.name, *_names_behind(entry.path), os.path.basename(place.path)]
        if any(map(self._names.matching(current.states), names)):
            if place.path not in self._behind_links:  # one mount, however many links lead there
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


def _followed(link: str, budget: Budget) -> Place | None:
    """Where a link leads; None: nowhere now, to the kernel's files, or for each process to another thing.

    Raises:
        InvalidRequest: it takes too long to follow.
    """
    left = _FREE_NAMES

    def count(path: str) -> bool:
        nonlocal left
        names = os.readlink(path).count("/") + 1
        left -= names
        if left < 0:
            budget.scanned(names)
        return False

    try:
        place = locate(link, count)
    except OSError:
        return None  # removed just now, or in the /proc of another user's process
    if place is None or not place.exists or any(is_below(place.path, each) for each in _KERNEL_FOLDERS):
        return None
    of_proc = (path for path, _ in place.links if is_below(path, "/proc"))
    return place if all(path in _SAME_FOR_ALL or path.endswith("/root") for path in of_proc) else None


def _names_behind(link: str) -> Iterator[str]:
    """The last names of what a link leads to, and the links behind it."""
    for _ in range(_MOST_LINKS):
        try:
            link = os.path.join(os.path.dirname(link), os.readlink(link))
        except OSError:
            return
        if (name := os.path.basename(link.rstrip("/"))) not in ("", ".", ".."):
            yield name


def _may_hide_matches(directory: str, error: OSError) -> bool:
    """Whether a command may find something in a folder that cannot be listed.

    Raises:
        InvalidRequest: its path has become too long to be named.
        OSError: that cannot be told.
    """
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return False
    if error.errno == errno.EACCES:
        # Its owner has only to change the mode; nobody else inside has more rights than we have.
        return os.stat(directory).st_uid == os.geteuid()
    if error.errno == errno.ENAMETOOLONG:
        raise _too_much("look into folders whose paths are too long", "remove these folders")
    raise error


# -- parsing, and translation to regular expressions


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A pattern with its braces written out: one of the alternatives follows what all begin with."""

    prefix: list[str]
    alternatives: list[list[str]]

    size: int
    """Characters; a set counts for as many as its expression has."""

    @property
    def covering(self) -> str:
        """What matches a path that matches, or that lies in a folder that does."""
        for atoms in self.alternatives:
            if [atom for atom in self.prefix + atoms if atom not in _STARS] == ["/"]:
                return "/"  # The root matches, and all lies in it.
        return self.expression(_WITHIN)

    def expression(self, end: str) -> str:
        alternatives = "|".join(_expression(atoms, end) for atoms in self.alternatives)
        return f"{''.join(self.prefix)}(?:{alternatives})"


def _expression(atoms: list[str], end: str) -> str:
    """A regular expression that matches in one way at most, and never tries another one.

    A run of atoms between stars has a fixed length, and a block between `**` a fixed number of names: the
    earliest match leaves the most for what follows, and no later one can do better. So groups are atomic.
    """
    if atoms[-1:] == [_REST]:
        atoms, end = atoms[:-1], ".*+"
    first, *blocks = _split(atoms, _FOLDERS)
    if not blocks:
        return _block(first) + end
    *middle, last = blocks
    found = [f"(?>(?:[^/]*+/)*?{block})" for block in (*map(_block, middle), _block(last) + end)]
    return _block(first) + "".join(found)


def _block(atoms: list[str]) -> str:
    return "/".join(_name(*_split(name, _STAR)) for name in _split(atoms, "/"))


def _name(first: list[str], *runs: list[str]) -> str:
    """What matches the rest of a name: runs that come one after the other, the last one at its end."""
    if not runs:
        return "".join(first)
    *middle, last = runs
    found = "".join(f"(?>[^/]*?{''.join(run)})" for run in middle if run)
    if last:  # It begins behind the runs before it, and so much must be left.
        return f"{''.join(first)}{found}(?=[^/]{{{len(last)}}})[^/]*+(?<={''.join(last)})"
    return f"{''.join(first)}{found}[^/]*+"


def _split(atoms: list[str], separator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for atom in atoms:
        if atom == separator:
            parts.append([])
        else:
            parts[-1].append(atom)
    return parts


class _Braces:
    """Writes braces out while a pattern is read, and keeps count of what that makes."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._prefix: list[str] = []
        self._in_prefix = True
        self._current: list[list[str]] = [[]]
        self._size = 0
        self._complete: list[list[str]] = []
        """Alternatives of the brace that is open, those before the last comma."""

        self._complete_size = 0
        self._outer: list[tuple[list[list[str]], int, list[list[str]], int]] = []

    @property
    def are_open(self) -> bool:
        return bool(self._outer)

    def add(self, atom: str) -> None:
        self._in_prefix = self._in_prefix and atom not in _STARS
        if self._in_prefix:
            self._prefix.append(atom)
            return
        self._grow_to(self._size + _size(atom) * len(self._current))
        for atoms in self._current:
            atoms.append(atom)

    def open(self) -> None:
        self._in_prefix = False
        self._outer.append((self._current, self._size, self._complete, self._complete_size))
        self._current, self._size, self._complete, self._complete_size = [[]], 0, [], 0

    def next(self) -> None:
        self._complete += self._current
        self._complete_size += self._size
        self._current, self._size = [[]], 0

    def close(self) -> None:
        self.next()
        inner, inner_size = self._complete, self._complete_size
        before, size, self._complete, self._complete_size = self._outer.pop()
        if len(before) * len(inner) > MAX_ALTERNATIVES:
            raise self._too_large(f"its braces stand for more than {MAX_ALTERNATIVES} patterns")
        self._grow_to(size * len(inner) + inner_size * len(before))
        if before == [[]] or inner == [[]]:  # Thousands of braces may say nothing, and would take their time.
            self._current = inner if before == [[]] else before
        else:
            self._current = [[*begin, *end] for begin in before for end in inner]

    def parsed(self) -> _Parsed:
        size = self._size + sum(map(_size, self._prefix))
        return _Parsed(self._prefix, self._current, size)

    def _grow_to(self, size: int) -> None:
        if self._complete_size + size > MAX_CHARACTERS:
            raise self._too_large(f"with its braces written out it has more than {MAX_CHARACTERS} characters")
        self._size = size

    def _too_large(self, why: str) -> InvalidRequest:
        return _malformed(self._pattern, f"{why}; use fewer braces, or `*` instead")


def _size(atom: str) -> int:
    return len(atom) if atom.startswith(_SET) else 1


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> _Parsed:
    if len(pattern) > MAX_CHARACTERS:
        raise _malformed(pattern, f"it has more than {MAX_CHARACTERS} characters; use a shorter one")
    braces = _Braces(pattern)
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            atom, position = _star(pattern, position)
            braces.add(atom)
        elif char == "?":
            braces.add("[^/]")
        elif char == "[":
            atom, position = _set(pattern, position)
            braces.add(atom)
        elif char == "{":
            braces.open()
        elif char == "}" and braces.are_open:
            braces.close()
        elif char == "," and braces.are_open:
            braces.next()
        elif char == "\\" and position < len(pattern):
            braces.add(re.escape(pattern[position]))
            position += 1
        else:
            braces.add(re.escape(char))
    if braces.are_open:
        raise _malformed(pattern, "a brace is not closed")
    return braces.parsed()


def _star(pattern: str, position: int) -> tuple[str, int]:
    """What a star stands for, the one before `position`."""
    if pattern[position : position + 1] != "*":
        return _STAR, position
    position += 1
    begins = position < 3 or pattern[position - 3] == "/"
    if begins and pattern[position : position + 1] == "/":
        position += 1
        while pattern.startswith("**/", position):
            position += 3  # Says nothing new, and would take its time.
        return _FOLDERS, position
    return (_REST if begins and position == len(pattern) else _STAR), position


def _set(pattern: str, position: int) -> tuple[str, int]:
    """A set of characters, its bracket before `position`."""
    end = pattern.find("]", position + 1 + (pattern[position : position + 1] in "!^"))
    if end < 0:
        raise _malformed(pattern, "a bracket is not closed")
    content = pattern[position:end]
    negated = content[:1] in ("!", "^")
    try:
        members = _members(content[negated:])
    except ValueError as error:
        raise _malformed(pattern, f"a set of characters is none: {error}") from None
    return f"{_SET}{'^' if negated else ''}{members}]", end + 1


def _members(content: str) -> str:
    """What stands in a set: single characters, and ranges of them.

    Raises:
        ValueError: a range ends before it begins.
    """
    result = []
    position = 0
    while position < len(content):
        if content[position + 1 : position + 2] == "-" and position + 2 < len(content):
            first, last = content[position], content[position + 2]
            if first > last:
                raise ValueError(f"bad character range {first}-{last}")
            result.append(f"{re.escape(first)}-{re.escape(last)}")
            position += 3
        else:
            result.append(re.escape(content[position]))
            position += 1
    return "".join(result)


def _only_match(component: str) -> str | None:
    """The one name that a component matches, when its sets have one character each; else None."""
    name = re.sub(r"\[([^\]!^])\]", lambda found: "\0" + found[1], component)
    literal = re.sub("\0.", "", name, flags=re.DOTALL)
    return None if not _MAGIC.isdisjoint(literal) else name.replace("\0", "")


def _malformed(pattern: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"glob pattern {_shown(pattern)}: {why}",
        name="sandbox_refused",
        field="sandbox.permissions.file_system.entries",
    )


def _shown(pattern: str) -> str:
    return repr(pattern) if len(pattern) <= _MOST_SHOWN else f"{pattern[:_MOST_SHOWN]!r}…"

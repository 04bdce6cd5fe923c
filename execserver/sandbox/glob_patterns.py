"""Glob patterns of a policy: their syntax, and the paths that they match. Pure.

`*` and `?` stay within a name, `**` as a whole component crosses folders, `[…]` is one of some
characters, `{a,b}` one of some texts. Case counts; hidden and ignored names match like others. The search
for matches is in `glob_search.py`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from execprotocol.errors import InvalidRequest, file_error
from execserver.sandbox import ENTRIES_FIELD, refused

MAX_ALTERNATIVES = 256
"""Patterns of a policy, after the expansion of braces. Each takes time to compile and to match."""

MAX_CHARACTERS = 8192
"""Of all patterns of a policy, after the expansion of braces."""

_MAGIC = frozenset("*?[{\\")
_STAR, _FOLDERS, _REST = _STARS = "*", "**/", "**"
"""Atoms of variable length; `_REST` occurs only at the end. All others are expressions for one character."""

_SET = "(?!/)["
"""The start of the expression of a set."""

_PATH_MAX = 4096
_MOST_SHOWN = 200
"""Characters of a pattern that an error names."""

_WHOLE = r"\Z"
_WITHIN = r"(?:\Z|(?<=[^/])(?=/))"
"""The end of the path, or of a folder above it."""


@lru_cache(maxsize=256)
def matcher(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression for the whole path.

    Raises:
        InvalidRequest: a brace or a bracket is not closed, or the pattern is too large.
    """
    return re.compile(_parsed(pattern).expression(_WHOLE), re.DOTALL)


def matches(patterns: tuple[str, ...], path: str) -> bool:
    """Whether a pattern matches an absolute path, or a folder above it."""
    return bool(patterns) and _covering(patterns).match(path) is not None


def refuse_denied(patterns: tuple[str, ...], path: str) -> None:
    """Refuse a path if a denying pattern matches it or a folder above it.

    Raises:
        InvalidRequest: the path is denied, or is longer than the kernel accepts.
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
    """Check the number and the total size of a policy's patterns.

    Raises:
        InvalidRequest: they are too many or too large, or a pattern is malformed.
    """
    number = size = 0
    for pattern in patterns:
        parsed = _parsed(pattern)
        number += len(parsed.alternatives)
        size += parsed.size
        if number > MAX_ALTERNATIVES:
            raise too_much(f"are more than {MAX_ALTERNATIVES} with their braces written out", "use fewer")
        if size > MAX_CHARACTERS:
            raise too_much(
                f"have more than {MAX_CHARACTERS} characters with their braces written out",
                "use fewer or shorter ones",
            )


def folder_of(pattern: str) -> str:
    """The deepest folder that contains all matches: the part before the first special character."""
    literal = []
    for component in pattern.split("/")[1:-1]:
        if _MAGIC.isdisjoint(component):
            literal.append(component)
        elif (name := _only_match(component)) is not None:
            literal.append(name)
        else:
            break
    return "/" + "/".join(literal)


def too_much(problem: str, fix: str) -> InvalidRequest:
    """The error for patterns that are too large or match too much."""
    return refused(f"the glob patterns {problem}; {fix}")


def shown(pattern: str) -> str:
    """A pattern for an error text: a long one is cut."""
    return repr(pattern) if len(pattern) <= _MOST_SHOWN else f"{pattern[:_MOST_SHOWN]!r}…"


States = frozenset[tuple[int, int]]
"""The possible positions in a pattern behind a folder's path: an alternative, and a part of it."""


class PatternNames:
    """Matches a pattern name by name, so that a folder reached by several paths is searched once.

    The search needs only the positions in the pattern (`States`): in folders with the same states the same
    names match.
    """

    def __init__(self, pattern: str) -> None:
        parsed = _parsed(pattern)
        self._alternatives = [_by_name(parsed.prefix + atoms) for atoms in parsed.alternatives]
        self._matching: dict[States, Callable[[str], object]] = {}

    def of_folder(self, folder: str) -> States:
        """The states of a folder with an absolute path; empty if nothing in it can match."""
        states = self._closed((each, 0) for each in range(len(self._alternatives)))
        for name in folder.split("/"):
            states = self.behind(states, name) if name else states
        return states

    def behind(self, states: States, name: str) -> States:
        """The states of a folder with this name in a folder with these states."""
        found = []
        for alternative, index in states:
            part = self._alternatives[alternative][index]
            if part in (_FOLDERS, _REST):
                found.append((alternative, index))
            elif index + 1 < len(self._alternatives[alternative]) and _is_name(part, name):
                found.append((alternative, index + 1))
        return self._closed(found)

    def matching(self, states: States) -> Callable[[str], object]:
        """A predicate for names in a folder with these states: whether the path matches the pattern."""
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

    def _closed(self, states: Iterable[tuple[int, int]]) -> States:
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


# -- parsing, and translation to regular expressions


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A pattern after the expansion of braces: a common prefix and the alternatives that may follow it."""

    prefix: list[str]
    alternatives: list[list[str]]

    size: int
    """Characters; a set counts with the length of its expression."""

    @property
    def covering(self) -> str:
        """An expression for the paths that match and the paths below them."""
        for atoms in self.alternatives:
            if [atom for atom in self.prefix + atoms if atom not in _STARS] == ["/"]:
                return "/"  # the root matches, and every path is below it
        return self.expression(_WITHIN)

    def expression(self, end: str) -> str:
        alternatives = "|".join(_expression(atoms, end) for atoms in self.alternatives)
        return f"{''.join(self.prefix)}(?:{alternatives})"


def _expression(atoms: list[str], end: str) -> str:
    """A regular expression without backtracking.

    A run of atoms between stars has a fixed length, and a block between `**` a fixed number of names. The
    earliest match leaves the most text for the rest, so no later match can succeed where the earliest fails:
    groups are atomic.
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
    """An expression for a name: runs in this order, the last one at the end of the name."""
    if not runs:
        return "".join(first)
    *middle, last = runs
    found = "".join(f"(?>[^/]*?{''.join(run)})" for run in middle if run)
    if last:  # it begins after the other runs, so that many characters must be left
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
    """Expands braces while a pattern is parsed, and limits the number and size of the alternatives."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._prefix: list[str] = []
        self._in_prefix = True
        self._current: list[list[str]] = [[]]
        self._size = 0
        self._complete: list[list[str]] = []
        """Alternatives of the open brace before the last comma."""

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
        if before == [[]] or inner == [[]]:  # thousands of empty braces would take long otherwise
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
    """The atom of the star before `position`, and the position after it."""
    if pattern[position : position + 1] != "*":
        return _STAR, position
    position += 1
    begins = position < 3 or pattern[position - 3] == "/"
    if begins and pattern[position : position + 1] == "/":
        position += 1
        while pattern.startswith("**/", position):
            position += 3  # a repetition matches nothing more
        return _FOLDERS, position
    return (_REST if begins and position == len(pattern) else _STAR), position


def _set(pattern: str, position: int) -> tuple[str, int]:
    """The atom of the set whose bracket is before `position`, and the position after it."""
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
    """The content of a set for a regular expression: characters and ranges.

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
    """The only name that a component matches, if all its sets have one character; else None."""
    name = re.sub(r"\[([^\]!^])\]", lambda found: "\0" + found[1], component)
    literal = re.sub("\0.", "", name, flags=re.DOTALL)
    return None if not _MAGIC.isdisjoint(literal) else name.replace("\0", "")


def _malformed(pattern: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"glob pattern {shown(pattern)}: {why}", name="sandbox_refused", field=ENTRIES_FIELD
    )

"""Glob entries of a policy: to patterns, and to what matches on the disk.

`*` and `?` stay within a name, `**` as a whole component crosses folders, `[…]` is one of some
characters, `{a,b}` one of some texts. Case counts; hidden and ignored names match like others. A pattern
is expanded when a sandbox is made: what appears later is not covered (`docs/protocol.md`, "Sandbox context").
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from execserver.protocol.errors import InvalidRequest
from execserver.sandbox.refusal import refused

MAX_MATCHES = 256
"""Files and folders that patterns may match: each is a mount of its own in every sandbox."""

MAX_SCANNED = 200_000
"""Names looked at to find them."""

MAX_LEVELS = 128
"""Folders in each other. A command may make thousands, and a pattern with several `**` would take minutes
for each of the paths."""

_MAGIC = frozenset("*?[{\\")


@lru_cache(maxsize=256)
def matcher(pattern: str) -> re.Pattern[str]:
    """The paths that a pattern matches, as a regular expression for the whole path.

    Raises:
        InvalidRequest: a brace or a bracket is not closed.
    """
    return re.compile(_translated(pattern), re.DOTALL)


def matches(pattern: str, path: str) -> bool:
    """Whether a path, or a folder that it lies in, matches."""
    compiled = matcher(pattern)
    while True:
        if compiled.fullmatch(path):
            return True
        if path in ("/", ""):
            return False
        path = os.path.dirname(path)


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
    pattern: str, folders: Iterable[str], depth: int | None, budget: Budget, *, unlistable: bool = False
) -> Iterator[str]:
    """The paths that match, below the pattern's own folder.

    Args:
        pattern: an absolute one.
        folders: where to look when the pattern has no folder of its own.
        depth: levels of folders to search, counted from the folder; None for all.
        budget: shared by all patterns of a policy.
        unlistable: whether a folder counts as a match when what is in it cannot be seen now, and a command
            could change that. For denials.

    Raises:
        InvalidRequest: there is too much to look at, or too many matches.
        OSError: something went wrong with a folder that is there.
    """
    own = folder_of(pattern)
    search = _Search(matcher(pattern), _most_slashes(pattern), depth, budget, unlistable)
    for folder in [own] if own != "/" else sorted(set(folders)):
        yield from search.below(folder)


class Budget:
    """How much more may be looked at, and may match."""

    def __init__(self) -> None:
        self._scanned = 0
        self._matched = 0

    def scanned(self) -> None:
        """One name more was looked at."""
        self._scanned += 1
        if self._scanned > MAX_SCANNED:
            raise _too_much(f"look at more than {MAX_SCANNED} names", "set glob_scan_max_depth")

    def matched(self) -> None:
        """One name more matches."""
        self._matched += 1
        if self._matched > MAX_MATCHES:
            raise _too_much(f"match more than {MAX_MATCHES} paths", "name their folder instead")


def _too_much(what: str, fix: str) -> InvalidRequest:
    return refused(f"the glob patterns {what}; {fix}", "sandbox.permissions.file_system.entries")


class _Search:
    """What matches one pattern."""

    def __init__(
        self,
        compiled: re.Pattern[str],
        most_slashes: int | None,
        depth: int | None,
        budget: Budget,
        unlistable: bool,
    ) -> None:
        self._compiled = compiled
        self._most_slashes = most_slashes
        self._depth = depth
        self._budget = budget
        self._unlistable = unlistable

    def below(self, folder: str) -> Iterator[str]:
        pending = [(folder, 1)]
        while pending:
            directory, level = pending.pop()
            try:
                scan = os.scandir(directory)
            except OSError as error:
                if _may_hide_matches(directory, error) and self._unlistable:
                    # Nobody can see what is in it, so all of it is taken for a match.
                    self._budget.matched()
                    yield directory
                continue
            with scan:
                for entry in scan:
                    self._budget.scanned()
                    if self._compiled.fullmatch(entry.path):
                        self._budget.matched()
                        yield entry.path
                    elif entry.is_dir(follow_symlinks=False) and self._may_go_into(entry.path, level):
                        pending.append((entry.path, level + 1))

    def _may_go_into(self, path: str, level: int) -> bool:
        if self._most_slashes is not None and path.count("/") >= self._most_slashes:
            return False
        if self._depth is not None and level >= self._depth:
            return False
        if level >= MAX_LEVELS:
            raise _too_much(
                f"look into more than {MAX_LEVELS} folders in each other", "set glob_scan_max_depth"
            )
        return True


def _most_slashes(pattern: str) -> int | None:
    """How many slashes a path that matches can have; None when there is no such number."""
    return None if "**" in pattern else pattern.count("/")


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
        return os.lstat(directory).st_uid == os.geteuid()
    if error.errno == errno.ENAMETOOLONG:
        raise _too_much("look into folders whose paths are too long", "remove these folders")
    raise error


# -- translation


def _translated(pattern: str) -> str:
    result = []
    position = 0
    braces = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            text, position = _star(pattern, position)
            result.append(text)
        elif char == "?":
            result.append("[^/]")
        elif char == "[":
            text, position = _set(pattern, position)
            result.append(text)
        elif char == "{":
            braces += 1
            result.append("(?:")
        elif char == "}" and braces:
            braces -= 1
            result.append(")")
        elif char == "," and braces:
            result.append("|")
        elif char == "\\" and position < len(pattern):
            result.append(re.escape(pattern[position]))
            position += 1
        else:
            result.append(re.escape(char))
    if braces:
        raise _malformed(pattern, "a brace is not closed")
    return "".join(result)


def _star(pattern: str, position: int) -> tuple[str, int]:
    """What a star stands for, the one before `position`."""
    if pattern[position : position + 1] != "*":
        return "[^/]*", position
    position += 1
    begins = position < 3 or pattern[position - 3] == "/"
    if begins and pattern[position : position + 1] == "/":
        position += 1
        while pattern.startswith("**/", position):
            position += 3  # Says nothing new, and would take its time.
        return "(?:.*/)?", position
    return (".*" if begins and position == len(pattern) else "[^/]*"), position


def _set(pattern: str, position: int) -> tuple[str, int]:
    """A set of characters, its bracket before `position`."""
    end = pattern.find("]", position + 1 + (pattern[position : position + 1] in "!^"))
    if end < 0:
        raise _malformed(pattern, "a bracket is not closed")
    content = pattern[position:end]
    negated = content[:1] in ("!", "^")
    expression = f"(?!/)[{'^' if negated else ''}{_members(content[negated:])}]"
    try:
        re.compile(expression)
    except re.error as error:
        raise _malformed(pattern, f"a set of characters is none: {error}") from None
    return expression, end + 1


def _members(content: str) -> str:
    """What stands in a set: single characters, and ranges of them."""
    result = []
    position = 0
    while position < len(content):
        if content[position + 1 : position + 2] == "-" and position + 2 < len(content):
            result.append(f"{re.escape(content[position])}-{re.escape(content[position + 2])}")
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
        f"glob pattern {pattern!r}: {why}",
        name="sandbox_refused",
        field="sandbox.permissions.file_system.entries",
    )

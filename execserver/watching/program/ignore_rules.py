"""What of a tree is watched: its scope, and the ignore rules in it, read with the rights of the program.

The rules of a deeper folder win over those above it; in one folder the later file of `RULE_FILES` wins.
Patterns are matched by `pathspec`, which is loaded when the first rule file is found.

A tree may be hostile: its patterns are limited in number, and in the time that a verdict takes, because the
expressions of `pathspec` can take hours for one name. Rules beyond a limit do not count, so that more changes
are reported, never fewer.
"""

from __future__ import annotations

import os
import stat

from execserver.watching.program.folders import Folder, Opener, Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RULE_FILES = (".gitignore", ".ignore", ".rgignore")

_EXCLUDE = ".git/info/exclude"
_MAX_FILE_BYTES = 1 << 20
_MAX_ABOVE = 64
MAX_PATTERNS = 10_000
"""Lines of all rule files that count: each takes 0.2 ms to compile, and 1 KiB."""

_MAX_KEPT = 20_000
"""Verdicts that are kept, for trees in which the same files change again and again."""


class IgnoreRules:
    """The rules of a whole tree.

    Args:
        enabled: whether rule files count.
        excluded: names of directories that are always left out.
    """

    def __init__(self, enabled: bool, excluded: list[str]) -> None:
        self.enabled = enabled
        self._excluded = frozenset(excluded)
        self._above: list[tuple[str, Rules]] = []
        """The rules of the folders above the root, nearest first, each with the root's path below it."""
        self.apply = False
        """Whether there are any rules."""
        self._kept: dict[tuple[Folder, str, bool], bool] = {}
        self._patterns_left = MAX_PATTERNS

    def read_above(self, root: str) -> None:
        """Read the rules above the root, up to the folder of its repository, if there is one."""
        if not self.enabled or os.path.lexists(f"{root}/.git"):
            return
        found: list[tuple[str, Rules]] = []
        folder, below = root, ""
        for _ in range(_MAX_ABOVE):
            if folder == "/":
                return
            folder, _, name = folder.rpartition("/")
            folder, below = folder or "/", f"{name}/{below}"
            rules = self._read(folder)
            if rules is not None:
                found.append((below, rules))
            if os.path.lexists(f"{folder}/.git"):
                self._above, self.apply = found, bool(found)
                return

    def load(self, folder: Folder, path: str, names: set[str]) -> None:
        """Read the rules of a folder of the tree.

        Args:
            folder: gets the rules.
            path: by which it can be opened.
            names: those in it.
        """
        present = self.enabled and (".git" in names or not names.isdisjoint(RULE_FILES))
        rules = self._read(path) if present else None
        if rules is not None or folder.rules is not None:
            folder.rules = rules
            self.apply = True
            self._kept.clear()

    def ignores(self, folder: Folder, name: str, is_directory: bool) -> bool:
        """Whether a name in a folder, which is not ignored itself, is left out."""
        if is_directory and name in self._excluded:
            return True
        if not self.apply or name in RULE_FILES:
            return False
        key = (folder, name, is_directory)
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._judge(folder, name + "/" if is_directory else name)
        return kept

    def of(self, folder: Folder) -> list[Rules]:
        """The rules that count below a folder, nearest first."""
        found = [each.rules for each in folder.upwards() if each.rules is not None]
        return found + [rules for _, rules in self._above]

    def mean_other_paths(self, before: list[Rules], after: list[Rules]) -> bool:
        """Whether a renamed folder may have other ignored entries: by the rules before and after."""
        return before != after or any(rules.has_paths for rules in after)

    def forget_verdicts(self) -> None:
        """A folder was renamed, so that patterns may match other paths."""
        self._kept.clear()

    def _judge(self, folder: Folder, path: str) -> bool:
        at: Folder | None = folder
        while at is not None:
            verdict = None if at.rules is None else at.rules.verdict(path)
            if verdict is not None:
                return verdict
            if at.parent is not None:
                path = f"{at.name}/{path}"
            at = at.parent
        for below, rules in self._above:
            verdict = rules.verdict(below + path)
            if verdict is not None:
                return verdict
        return False

    def _read(self, folder: str) -> Rules | None:
        text = "\n".join(_read_text(f"{folder}/{name}") for name in (_EXCLUDE, *RULE_FILES))
        patterns = sum(1 for line in text.splitlines() if line)
        if not text.strip() or patterns > self._patterns_left:
            return None
        rules = Rules(text)
        self._patterns_left -= patterns
        # `Rules` has loaded this module.
        from weakref import finalize

        finalize(rules, self._give_back, patterns)
        return rules

    def _give_back(self, patterns: int) -> None:
        self._patterns_left += patterns


class Scope:
    """What is watched.

    Args:
        root_fd: the open root, or the folder of the root if that is a file.
        only: the name of a root that is a file; None for a directory.
        recursive: whether folders below the root are watched.
        rules: which paths are left out.
        alive: called for each folder of a walk.
    """

    def __init__(
        self, root_fd: int, only: str | None, recursive: bool, rules: IgnoreRules, alive: Callable[[], None]
    ) -> None:
        self.opener = Opener(root_fd)
        self.only = only
        self.recursive = recursive and only is None
        self.rules = rules
        self.alive = alive

    def has(self, folder: Folder, name: str, is_directory: bool) -> bool:
        """Whether a name in a folder is watched."""
        return self.only in (None, name) and not self.rules.ignores(folder, name, is_directory)


def _read_text(path: str) -> str:
    """A rule file; empty if it is missing, not readable, no regular file, or too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
            return ""
        return os.read(fd, _MAX_FILE_BYTES).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(fd)

"""Unified diffs in the format of `git diff` and `git apply`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from execclient.patch.line_diff import Block, changed_blocks
from execclient.patch.model import Edit, FileChange, digest_of

CONTEXT_LINES = 3
"""As in every other tool."""

_NO_OBJECT = "0" * 40
_MODE = "100644"
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def unified_diff(changes: Iterable[FileChange], *, root: str) -> str:
    """The diff of some files; empty if nothing changed.

    A file with a `moved_from` is shown as renamed if another change removes that path.

    Args:
        changes: the changes, in order; a path may occur several times.
        root: an absolute directory. Paths below it are shown relative to it, others in full.
    """
    merged = merged_changes(changes)
    removed = {change.path: change.before for change in merged if change.after is None}
    renames: dict[str, str] = {}
    """From old to new paths; a file is renamed only once."""
    for change in merged:
        if change.before is None and change.moved_from in removed:
            renames.setdefault(change.moved_from, change.path)
    texts: list[str] = []
    for change in merged:
        source, before = change.path, change.before
        if change.moved_from is not None and renames.get(change.moved_from) == change.path:
            source, before = change.moved_from, removed[change.moved_from]
        if change.path not in renames:
            texts.append(_file_diff(source, change.path, before, change.after, root))
    return "".join(texts)


def merged_changes(changes: Iterable[FileChange]) -> list[FileChange]:
    """One change for each path, from its first to its last content."""
    merged: dict[str, FileChange] = {}
    for change in changes:
        known = merged.get(change.path)
        origin = change.moved_from
        if origin is not None and (way := merged.get(origin)) is not None and way.before is None:
            origin = way.moved_from
        if known is not None:
            if origin is None and known.after is not None:
                origin = known.moved_from
            change = change._replace(before=known.before)
        merged[change.path] = change._replace(moved_from=None if origin == change.path else origin)
    return [change for change in merged.values() if (change.before, change.after) != (None, None)]


def _file_diff(source: str, path: str, before: bytes | None, after: bytes | None, root: str) -> str:
    if before == after and source == path:
        return ""
    old_name, new_name = _shown("a/", source, root), _shown("b/", path, root)
    lines = [f"diff --git {old_name} {new_name}"]
    if before is None:
        lines.append(f"new file mode {_MODE}")
    elif after is None:
        lines.append(f"deleted file mode {_MODE}")
    elif source != path:
        lines.append(f"similarity index {_similarity(before, after)}%")
        lines.append(f"rename from {_shown('', source, root)}")
        lines.append(f"rename to {_shown('', path, root)}")
    header = "\n".join(lines) + "\n"
    if before == after:
        return header
    mode = f" {_MODE}" if None not in (before, after) else ""
    header += f"index {_object(before)}..{_object(after)}{mode}\n"
    try:
        old, new = (before or b"").decode(), (after or b"").decode()
    except UnicodeDecodeError:
        old = new = "\0"
    old_name = "/dev/null" if before is None else old_name
    new_name = "/dev/null" if after is None else new_name
    if "\0" in old or "\0" in new:
        return f"{header}Binary files {old_name} and {new_name} differ\n"
    body = "".join(_hunks(_lines(old), _lines(new)))
    return f"{header}--- {old_name}\n+++ {new_name}\n{body}" if body else header


def _shown(prefix: str, path: str, root: str) -> str:
    base = root.rstrip("/") + "/"
    name = prefix + (path[len(base) :] if path.startswith(base) else path.lstrip("/"))
    if not any(letter < " " or letter in '"\\\x7f' for letter in name):
        return name
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    quoted = (
        escapes.get(letter) or (f"\\{ord(letter):03o}" if letter < " " or letter == "\x7f" else letter)
        for letter in name
    )
    return '"' + "".join(quoted) + '"'


def _object(content: bytes | None) -> str:
    if content is None:
        return _NO_OBJECT
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def _similarity(before: bytes, after: bytes) -> int:
    if before == after:
        return 100
    old, new = before.splitlines(), after.splitlines()
    common = (Counter(old) & Counter(new)).total()
    return min(99, 200 * common // max(len(old) + len(new), 1))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    ends = [f"{line}\n" for line in lines[:-1]]
    return [*ends, lines[-1]] if lines[-1] else ends


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for group in _grouped(changed_blocks(old, new)):
        start = max(group[0].start - CONTEXT_LINES, 0)
        end = min(group[-1].end + CONTEXT_LINES, len(old))
        new_start = group[0].new_start - (group[0].start - start)
        new_end = group[-1].new_end + (end - group[-1].end)
        lines = [f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n"]
        at = start
        for block in group:
            lines += [_marked(" ", line) for line in old[at : block.start]]
            lines += [_marked("-", line) for line in old[block.start : block.end]]
            lines += [_marked("+", line) for line in new[block.new_start : block.new_end]]
            at = block.end
        lines += [_marked(" ", line) for line in old[at:end]]
        yield "".join(lines)


def _grouped(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    group: list[Block] = []
    for block in blocks:
        if group and block.start - group[-1].end > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, end: int) -> str:
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"


def _marked(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else mark + line + _NO_NEWLINE


class TurnDiff:
    """The diff of all patches of a model's turn together.

    For each path only the first and the last content are kept: a change that was taken back is none, and a
    file that was moved twice was moved once.

    Args:
        root: the absolute directory that paths in the diff are relative to.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._changes: list[FileChange] = []

    def add(self, edits: Iterable[Edit]) -> None:
        """Add edits that were made, in order: those of `Applied` or of a `PatchError`."""
        changes = [change for edit in edits for change in edit.changes()]
        self._changes = merged_changes([*self._changes, *changes])

    @property
    def text(self) -> str:
        """The unified diff from the beginning of the turn until now; empty if nothing differs."""
        return unified_diff(self._changes, root=self._root)

    @property
    def digests(self) -> dict[str, str | None]:
        """The SHA-256 of every changed file by absolute path; None for a removed file."""
        return {
            change.path: digest_of(change.after) for change in self._changes if change.before != change.after
        }

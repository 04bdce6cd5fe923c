"""Plans a patch: computes the old and the new content of every file, and changes nothing.

All files are read before any is written, so that a patch that does not fit changes nothing. Paths are text:
relative paths are joined with `cwd`, and `.` and `..` are resolved textually, as the daemon does. The sandbox
and the approval decide which paths may be written, not this module.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from execclient.patch.diff import unified_diff
from execclient.patch.errors import (
    CannotRead,
    EmptyPatch,
    PatchError,
    PatchFileError,
    PatchMismatch,
    PatchSyntaxError,
)
from execclient.patch.model import NO_FILE, Edit, EditKind
from execclient.patch.parse import AddFile, DeleteFile, Hunk, Patch, UpdateFile
from execclient.patch.rewrite import UpdateName, is_rewritten, rewrite

Read = Callable[[str], bytes | None]
"""Returns the content of an absolute path, None if nothing is there; raises `CannotRead` if it is no file."""

Resolve = Callable[[str], str]
"""Returns an absolute path with links resolved."""

EntryPoint = Literal["tool", "command", "applet"]
"""The rules of a patch. With `tool`, for calls of models, a path may occur once, and a deleted file must be
text. `command` and `applet` process the files one after the other; `applet` also treats line ends as the
stand-alone command of the reference does, which adds a missing final line end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The edits of a patch, in order."""

    edits: tuple[Edit, ...]
    cwd: str
    already_applied: bool = False
    """Whether the patch was applied before; then there are no edits."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every absolute path that is written or removed, each once: the subject of an approval."""
        return tuple(
            dict.fromkeys(
                path for edit in self.edits for path in (edit.path, edit.move_to) if path is not None
            )
        )

    @property
    def text(self) -> str:
        """The text for the model after success: a line for each added, modified and deleted file."""
        if self.already_applied:
            return "No files were modified: the patch has been applied already.\n"
        return success_text(self.edits)

    def diff(self, root: str | None = None) -> str:
        """The changes as a unified diff.

        Args:
            root: the directory that paths in the diff are relative to; by default `cwd`.
        """
        return unified_diff(
            [change for edit in self.edits for change in edit.changes()], root=root or self.cwd
        )


def success_text(edits: Iterable[Edit]) -> str:
    """The text of the contract for edits that were made."""
    letters: dict[EditKind, str] = {"add": "A", "update": "M", "move": "M", "delete": "D"}
    lines = [(letters[edit.kind], edit.shown) for edit in edits]
    lines.sort(key=lambda line: "AMD".index(line[0]))
    return "Success. Updated the following files:\n" + "".join(f"{letter} {path}\n" for letter, path in lines)


def absolute(path: str, cwd: str) -> str:
    """A path of a patch as an absolute path, as reads and error texts use it."""
    return "/" + posixpath.normpath(posixpath.join(cwd, path)).lstrip("/")


def touched_paths(patch: Patch, cwd: str) -> tuple[str, ...]:
    """Every absolute path that planning reads, each once."""
    paths: dict[str, None] = {}
    for hunk in patch.hunks:
        paths[absolute(hunk.path, cwd)] = None
        if isinstance(hunk, UpdateFile) and hunk.move_to is not None:
            paths[absolute(hunk.move_to, cwd)] = None
    return tuple(paths)


def plan(
    patch: Patch, read: Read, *, cwd: str, entry: EntryPoint = "tool", resolve: Resolve | None = None
) -> Plan:
    """Compute the edits of a patch.

    Args:
        patch: the patch.
        read: reads a file.
        cwd: the base of relative paths, absolute.
        entry: the rules to apply.
        resolve: resolves links, to detect a move of a file onto itself by another name.

    Raises:
        EmptyPatch: the patch touches no file.
        PatchSyntaxError: the patch touches a path twice; with `tool` only.
        PatchMismatch: the patch does not fit; has the nearest places.
        PatchFileError: a file does not exist, cannot be read, or is not text.
        PatchTooComplex: matching would take too long.
    """
    if not os.path.isabs(cwd):
        raise ValueError(f"cwd: {cwd!r} is no absolute path")
    if not patch.hunks:
        raise EmptyPatch
    if entry == "tool":
        _refuse_repetition(patch, cwd)
    planner = _Planner(read, cwd, entry, resolve)
    try:
        for number, hunk in enumerate(patch.hunks, 1):
            planner.add(hunk, number)
    except PatchError as error:
        if isinstance(error, PatchMismatch | PatchFileError) and _is_applied(patch, read, cwd):
            return Plan((), cwd, already_applied=True)
        error.edits = tuple(planner.edits)
        raise
    return Plan(tuple(planner.edits), cwd)


def _refuse_repetition(patch: Patch, cwd: str) -> None:
    seen: set[str] = set()
    for hunk in patch.hunks:
        path = absolute(hunk.path, cwd)
        if path in seen:
            raise PatchSyntaxError(f"multiple operations target {path}")
        seen.add(path)


class _Planner:
    """Computes one edit for each hunk, in order; each hunk sees the effects of those before it."""

    def __init__(self, read: Read, cwd: str, entry: EntryPoint, resolve: Resolve | None) -> None:
        self.edits: list[Edit] = []
        self._read_file = read
        self._cwd = cwd
        self._entry = entry
        self._resolve = resolve
        self._written: dict[str, bytes | None] = {}

    def add(self, hunk: Hunk, number: int) -> None:
        path = absolute(hunk.path, self._cwd)
        if isinstance(hunk, AddFile):
            edit = self._addition(hunk, path)
        elif isinstance(hunk, DeleteFile):
            edit = self._deletion(hunk, path)
        else:
            edit = self._update(hunk, UpdateName(path, number))
        self._written[edit.path] = None
        self._written[edit.target] = edit.after
        self.edits.append(edit)

    def _addition(self, hunk: AddFile, path: str) -> Edit:
        before, is_known = self._replaced(path)
        return Edit("add", path, hunk.path, before, hunk.content.encode(), is_known=is_known)

    def _deletion(self, hunk: DeleteFile, path: str) -> Edit:
        context = f"Failed to read {path}"
        if self._entry == "tool":
            before = self._read_text(path, context)[0]
        else:
            try:
                before = self._read(path, context)
            except PatchFileError:
                raise PatchFileError(f"Failed to delete file {path}", path) from None
        return Edit("delete", path, hunk.path, before, None)

    def _update(self, hunk: UpdateFile, name: UpdateName) -> Edit:
        before, text = self._read_text(name.path, f"Failed to read file to update {name.path}")
        after = rewrite(text, hunk.chunks, name, as_reference=self._entry == "applet").encode()
        if hunk.move_to is None:
            return Edit("update", name.path, hunk.path, before, after)
        move_to = absolute(hunk.move_to, self._cwd)
        if self._is_same(name.path, move_to):
            # The reference writes the file and then removes it.
            return Edit("update", name.path, hunk.move_to, before, after)
        replaced, is_known = self._replaced(move_to)
        return Edit("move", name.path, hunk.move_to, before, after, move_to, replaced, is_known)

    def _is_same(self, path: str, other: str) -> bool:
        if path == other:
            return True
        return self._resolve is not None and self._resolve(path) == self._resolve(other)

    def _replaced(self, path: str) -> tuple[bytes | None, bool]:
        try:
            return self._content(path), True
        except CannotRead:
            # A file that cannot be read may still be writable; if not, the write reports it.
            return None, False

    def _read_text(self, path: str, context: str) -> tuple[bytes, str]:
        content = self._read(path, context)
        try:
            return content, content.decode()
        except UnicodeDecodeError as error:
            raise PatchFileError(f"{context}: {_decoding_error(error)}", path) from None

    def _read(self, path: str, context: str) -> bytes:
        try:
            content = self._content(path)
        except CannotRead as error:
            raise PatchFileError(f"{context}: {error.reason}", path) from None
        if content is None:
            raise PatchFileError(f"{context}: {NO_FILE}", path)
        return content

    def _content(self, path: str) -> bytes | None:
        if path in self._written:
            return self._written[path]
        return self._read_file(path)


def _decoding_error(error: UnicodeDecodeError) -> str:
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"


def _is_applied(patch: Patch, read: Read, cwd: str) -> bool:
    """Whether every file has its new content, and at least one of them shows that the patch was applied."""
    try:
        found = [_has_result(hunk, read, cwd) for hunk in patch.hunks]
    except (CannotRead, UnicodeDecodeError):
        return False
    return all(found) and not all(isinstance(hunk, DeleteFile) for hunk in patch.hunks)


def _has_result(hunk: Hunk, read: Read, cwd: str) -> bool:
    path = absolute(hunk.path, cwd)
    if isinstance(hunk, AddFile):
        return read(path) == hunk.content.encode()
    if isinstance(hunk, DeleteFile):
        return read(path) is None
    target = absolute(hunk.move_to or hunk.path, cwd)
    content = read(target)
    is_moved = target == path or read(path) is None
    return is_moved and content is not None and is_rewritten(content.decode(), hunk.chunks)

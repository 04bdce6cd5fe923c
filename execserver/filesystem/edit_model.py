"""The data of `fs/applyEdits`: in this process, in requests to an fs worker, and in the journal.

In JSON a path is text with one character for each byte: the reader may have another locale.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

Identity = tuple[int, int]
"""Device and inode of a file."""

Json = list[object]


class Inspection(NamedTuple):
    """The state of an edit's path."""

    target: str
    """The absolute path that the edit writes or removes, without links."""

    read: str
    """The path, without links, of the file whose digest was computed; empty for none."""

    names: tuple[str, ...]
    """The links that the path leads through, and the target. Each as device and inode of the deepest existing
    folder, and the rest of the path: two spellings of one path give equal names."""

    missing: int
    """How many folders above the target are missing."""

    identity: Identity | None
    """Of the target; None if there is none."""

    size: int
    changed: int
    """The time of the last change of the content, in nanoseconds."""

    sha256: str | None
    """The digest of the content, if it was requested and the target is a regular file."""

    mode: int | None
    """The permission bits of `modeFrom`, if it was given."""

    def to_json(self) -> Json:
        """As an fs worker sends it."""
        names = [path_to_json(name) for name in self.names]
        return [path_to_json(self.target), path_to_json(self.read), names, *self[3:]]

    @classmethod
    def from_json(cls, found: Json) -> Inspection:
        """Raises:
        ValueError: the JSON has another form.
        TypeError: the JSON has another form.
        """
        target, read, names, missing, identity, size, changed, sha256, mode = found
        return cls(
            path_from_json(target),
            path_from_json(read),
            tuple(path_from_json(name) for name in _list(names)),
            _int(missing),
            None if identity is None else _identity(identity),
            _int(size),
            _int(changed),
            None if sha256 is None else str(sha256),
            None if mode is None else _int(mode),
        )


class TargetState(NamedTuple):
    """The state of a target when it was inspected, which it must still have when the steps are done."""

    target: str
    identity: Identity | None
    """Of the target; None if there is none."""

    size: int
    changed: int
    """The time of the last change of the content, in nanoseconds."""

    def to_json(self) -> Json:
        """As it is sent to an fs worker."""
        return [path_to_json(self.target), *self[1:]]

    @classmethod
    def from_json(cls, found: Json) -> TargetState:
        """See `Inspection.from_json`."""
        target, identity, size, changed = found
        known = None if identity is None else _identity(identity)
        return cls(path_from_json(target), known, _int(size), _int(changed))


class Staging(NamedTuple):
    """A new file that is to be made next to its target."""

    before: TargetState
    """The target."""

    staged: str
    """The path of the new file."""

    backup: str
    """The path of the second name, or the copy, of the old file; empty if there is no old file."""

    folders: tuple[str, ...]
    """Temporary folders above the new file, outermost first; made if missing."""

    mode: int | None
    """The permission bits, if there is no old file; None for the default."""

    def to_json(self) -> Json:
        """As it is sent to an fs worker."""
        folders = [path_to_json(folder) for folder in self.folders]
        return [
            self.before.to_json(),
            path_to_json(self.staged),
            path_to_json(self.backup),
            folders,
            self.mode,
        ]

    @classmethod
    def from_json(cls, found: Json) -> Staging:
        """See `Inspection.from_json`."""
        before, staged, backup, folders, mode = found
        return cls(
            TargetState.from_json(_list(before)),
            path_from_json(staged),
            path_from_json(backup),
            tuple(path_from_json(folder) for folder in _list(folders)),
            None if mode is None else _int(mode),
        )


class Staged(NamedTuple):
    """The files that were made for a `Staging`."""

    identity: Identity
    """The new file."""

    old: Identity | None
    """The old one."""

    folder: Identity | None
    """The outermost of the folders."""

    def to_json(self) -> Json:
        """As an fs worker sends it."""
        return list(self)

    @classmethod
    def from_json(cls, found: Json) -> Staged:
        """See `Inspection.from_json`."""
        identity, old, folder = found
        return cls(
            _identity(identity),
            None if old is None else _identity(old),
            None if folder is None else _identity(folder),
        )


class Step(NamedTuple):
    """One change to the user's tree, which can be done and undone any number of times."""

    kind: Literal["replace", "make", "remove"]
    """Rename a new file over an old one, rename a new file or folder to a free path, remove a name."""

    target: str
    staged: str
    """The path that is renamed to the target; empty for `remove`."""

    backup: str
    """The path of the old file while the step can be undone; empty for `make`."""

    identity: Identity | None
    """Of the file that is renamed to the target; None for `remove`."""

    old: Identity | None
    """Of the old file; None for `make`."""

    changed: int = 0
    """For `remove`: the time of the last change of the target, in nanoseconds. Its inode is not held open,
    and may be reused for another program's file."""

    def to_json(self) -> Json:
        """As it is sent to an fs worker, and stored in the journal."""
        paths = [path_to_json(path) for path in (self.target, self.staged, self.backup)]
        return [self.kind, *paths, *self[4:]]

    @classmethod
    def from_json(cls, found: Json) -> Step:
        """See `Inspection.from_json`."""
        kind, target, staged, backup, identity, old, changed = found
        if kind not in ("replace", "make", "remove"):
            raise ValueError(f"no kind of step: {kind!r}")
        return cls(
            kind,
            path_from_json(target),
            path_from_json(staged),
            path_from_json(backup),
            None if identity is None else _identity(identity),
            None if old is None else _identity(old),
            _int(changed),
        )


def path_to_json(path: str) -> str:
    """A path as text in JSON."""
    return os.fsencode(path).decode("latin-1")


def path_from_json(text: object) -> str:
    """The path of a text in JSON.

    Raises:
        ValueError: the value is no path.
    """
    if not isinstance(text, str):
        raise ValueError(f"no path: {text!r}")
    return os.fsdecode(text.encode("latin-1"))


def _list(value: object) -> Json:
    if not isinstance(value, list):
        raise ValueError(f"no list: {value!r}")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"no number: {value!r}")
    return value


def _identity(value: object) -> Identity:
    device, inode = _list(value)
    return _int(device), _int(inode)

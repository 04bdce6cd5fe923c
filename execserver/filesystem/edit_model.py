"""What the parts of `fs/applyEdits` tell each other: in this process, to and from an fs worker, in records.

As JSON a path is text with a character for each of its bytes: a record may be read under another locale, and
an fs worker may have another one.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

Identity = tuple[int, int]
"""Device and inode of a file."""

Json = list[object]


class Look(NamedTuple):
    """What an edit's path is at present."""

    target: str
    """The absolute path that would be written or removed, without links."""

    read: str
    """The path, without any links, of what the digest is of; empty when it was not asked for."""

    names: tuple[str, ...]
    """All that the path went by, links and then the target: device and inode of the deepest folder that
    exists, and the rest of the path. Equal ones are one place, however it is spelled."""

    missing: int
    """How many folders above the target do not exist."""

    identity: Identity | None
    """Of what stands there; None for nothing."""

    size: int
    changed: int
    """When its content last changed, in nanoseconds."""

    sha256: str | None
    """Of its content, if that was asked for and there is a regular file."""

    mode: int | None
    """The permission bits of `modeFrom`, if there was one."""

    def to_json(self) -> Json:
        """For the way from an fs worker."""
        names = [packed(name) for name in self.names]
        return [packed(self.target), packed(self.read), names, *self[3:]]

    @classmethod
    def from_json(cls, found: Json) -> Look:
        """Raises:
        ValueError: it is none.
        TypeError: it is none.
        """
        target, read, names, missing, identity, size, changed, sha256, mode = found
        return cls(
            unpacked(target),
            unpacked(read),
            tuple(unpacked(name) for name in _list(names)),
            _int(missing),
            None if identity is None else _identity(identity),
            _int(size),
            _int(changed),
            None if sha256 is None else str(sha256),
            None if mode is None else _int(mode),
        )


class Watched(NamedTuple):
    """How a target was when it was looked at, and has to be still when the edits are carried out."""

    target: str
    identity: Identity | None
    """Of what stands there; None for nothing."""

    size: int
    changed: int
    """When its content last changed, in nanoseconds."""

    def to_json(self) -> Json:
        """For the way to an fs worker."""
        return [packed(self.target), *self[1:]]

    @classmethod
    def from_json(cls, found: Json) -> Watched:
        """See `Look.from_json`."""
        target, identity, size, changed = found
        known = None if identity is None else _identity(identity)
        return cls(unpacked(target), known, _int(size), _int(changed))


class Staging(NamedTuple):
    """A new file that is to be made beside its target."""

    before: Watched
    """The target, as it was looked at."""

    staged: str
    """The path of the new file."""

    backup: str
    """Where the old file gets a second name, or a copy; empty when there is no old file."""

    folders: tuple[str, ...]
    """Folders of ours that the new file lies in, outermost first, to be made unless they are there."""

    mode: int | None
    """The permission bits of a file that has no old one; None for the usual ones."""

    def to_json(self) -> Json:
        """For the way to an fs worker."""
        folders = [packed(folder) for folder in self.folders]
        return [self.before.to_json(), packed(self.staged), packed(self.backup), folders, self.mode]

    @classmethod
    def from_json(cls, found: Json) -> Staging:
        """See `Look.from_json`."""
        before, staged, backup, folders, mode = found
        return cls(
            Watched.from_json(_list(before)),
            unpacked(staged),
            unpacked(backup),
            tuple(unpacked(folder) for folder in _list(folders)),
            None if mode is None else _int(mode),
        )


class Staged(NamedTuple):
    """What was made for a `Staging`."""

    identity: Identity
    """The new file."""

    old: Identity | None
    """The old one."""

    folder: Identity | None
    """The outermost of the folders."""

    def to_json(self) -> Json:
        """For the way from an fs worker."""
        return list(self)

    @classmethod
    def from_json(cls, found: Json) -> Staged:
        """See `Look.from_json`."""
        identity, old, folder = found
        return cls(
            _identity(identity),
            None if old is None else _identity(old),
            None if folder is None else _identity(folder),
        )


class Step(NamedTuple):
    """One of the changes by which all edits happen; it can be done and undone any number of times."""

    kind: Literal["replace", "make", "remove"]
    """Put a new file over an old one, put a new file or folder where nothing is, take a name away."""

    target: str
    staged: str
    """What is renamed to the target; empty for `remove`."""

    backup: str
    """Where the old file is found as long as this may be undone; empty for `make`."""

    identity: Identity | None
    """Of what is renamed to the target; None for `remove`."""

    old: Identity | None
    """Of what the target was; None for `make`."""

    changed: int = 0
    """For `remove`: when the target last changed, in nanoseconds. Nothing holds its inode, which may be given
    to what somebody else puts there."""

    def to_json(self) -> Json:
        """For the way to an fs worker, and for records."""
        paths = [packed(path) for path in (self.target, self.staged, self.backup)]
        return [self.kind, *paths, *self[4:]]

    @classmethod
    def from_json(cls, found: Json) -> Step:
        """See `Look.from_json`."""
        kind, target, staged, backup, identity, old, changed = found
        if kind not in ("replace", "make", "remove"):
            raise ValueError(f"no kind of step: {kind!r}")
        return cls(
            kind,
            unpacked(target),
            unpacked(staged),
            unpacked(backup),
            None if identity is None else _identity(identity),
            None if old is None else _identity(old),
            _int(changed),
        )


def packed(path: str) -> str:
    """A path as it stands in JSON."""
    return os.fsencode(path).decode("latin-1")


def unpacked(text: object) -> str:
    """The path that stands in JSON.

    Raises:
        ValueError: it is none.
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

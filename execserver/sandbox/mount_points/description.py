"""The description of a sandbox that a server stores, for the new server that takes over if it dies.

Rules of this module:

1. A description is JSON: numbers, lists, objects and UTF-8 text. A path may not be UTF-8, so each byte of a
   path is encoded as one character.
2. The reader may be another version of the program. A description that is not exactly of this form is
   refused; a change of the form, or of its meaning, needs a new `VERSION`.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from execserver.sandbox.policy import Policy

VERSION: Literal[2] = 2


class MountPoint(msgspec.Struct, frozen=True):
    """A mount point in a workspace: a folder made for the purpose, or a foreign one (`held.py`)."""

    path: str
    identity: tuple[int, int, int]
    """Device, inode and owner."""

    has_folder: bool
    """Whether a descriptor of the folder is stored. It comes before that of the entry."""

    has_entry: bool
    """Whether a descriptor of its entry in the registry is stored."""


class Folder(msgspec.Struct, frozen=True):
    """A folder on the host."""

    path: str
    device: int
    inode: int


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recovery state of a sandbox."""

    version: Literal[1, 2]
    backend: str
    namespaces: bool
    cwd: str
    policy: Policy
    mount_points: tuple[MountPoint, ...]
    watched: tuple[Folder, ...] | None = None
    """The folders that the command could turn into repositories (`bare_roots.py`). None in version 1."""


def serialize(description: Description) -> dict[str, object]:
    """A description as JSON values."""
    plain: dict[str, object] = _mapped(msgspec.to_builtins(description), _as_characters)
    return plain


def parse(plain: object) -> Description:
    """The inverse of `serialize`.

    Raises:
        ValueError: not a description, or one of another version.
    """
    try:
        return msgspec.convert(_mapped(plain, _as_path), Description)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in value.items()}
    return value


def _as_characters(path: str) -> str:
    return os.fsencode(path).decode("latin-1")


def _as_path(characters: str) -> str:
    return os.fsdecode(characters.encode("latin-1"))

"""What a server writes down of a sandbox, for the one that takes over should it die.

Rules kept in this file:

1. A description goes through JSON: numbers, lists, objects, and texts of valid UTF-8. A path may be none, so
   each byte of it stands as a character of its own.
2. Who reads it may be another version of the program. What is not exactly of this form is refused; a change
   of the form, or of what it means, is another `VERSION`.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from execserver.sandbox.policy import Policy

VERSION: Literal[1] = 1

Backend = Literal["bubblewrap", "landlock", "seccomp", "seatbelt"]


class MountPoint(msgspec.Struct, frozen=True):
    """A folder in a workspace that exists only to be mounted over, or a guest (`held.py`)."""

    path: str
    identity: tuple[int, int, int]
    """Device, inode and owner."""

    has_folder: bool
    """Whether a descriptor of the folder is kept. If so it comes before that of the entry."""

    has_entry: bool
    """Whether one of its entry in the registry is kept."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sandbox."""

    version: Literal[1]
    backend: Backend
    namespaces: bool
    cwd: str
    policy: Policy
    mount_points: tuple[MountPoint, ...]


def written(description: Description) -> dict[str, object]:
    """As it can be encoded in JSON."""
    plain: dict[str, object] = _mapped(msgspec.to_builtins(description), _as_characters)
    return plain


def understood(plain: object) -> Description:
    """What `written` was given.

    Raises:
        ValueError: it is of another version, or no such description.
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

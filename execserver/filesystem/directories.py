"""Making and listing directories: `fs/createDirectory` and `fs/readDirectory`."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from execserver.filesystem.blocking import give_up_if
from execserver.protocol.filesystem import DirectoryEntry
from execserver.protocol.path_uri import printable_path

_ENCODED_AT_ONCE = 500
"""The encoder holds the interpreter's lock; this many items take it for well under a millisecond."""


def create_directory(path: str, *, recursive: bool) -> None:
    """Make a directory; with `recursive` also its parents, and one that is there is no error.

    Raises:
        OSError: among others EEXIST, and ENOENT for a missing parent without `recursive`.
    """
    if not recursive:
        os.mkdir(path)
        return
    missing = []
    while not _made_or_there(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        if not _made_or_there(path):
            os.mkdir(path)  # Somebody removes what we make; say so.


def _made_or_there(path: str) -> bool:
    """Make one directory; False when its parent is missing."""
    try:
        os.mkdir(path)
    except FileNotFoundError:
        if path == "/":
            raise
        return False
    except OSError:
        if not os.path.isdir(path):
            raise
    return True


def read_directory(path: str, stop: threading.Event) -> bytes:
    """List a directory, as the JSON array of its `DirectoryEntry`, in no order.

    Kinds are those of links' targets; links to nothing are left out.

    Raises:
        OSError: it cannot be opened or read.
    """
    return encode_array(list(_entries(path, stop)))


def _entries(path: str, stop: threading.Event) -> Iterator[DirectoryEntry]:
    with os.scandir(path) as scan:
        for entry in scan:
            give_up_if(stop)
            kind = entry_kind(entry)
            if kind is not None:
                name = entry.name
                yield {
                    "fileName": name if name.isascii() else printable_path(name),
                    "isDirectory": stat.S_ISDIR(kind),
                    "isFile": stat.S_ISREG(kind),
                }


def entry_kind(entry: os.DirEntry[str]) -> int | None:
    """The type bits of a name's target; None when it is a link to nothing, or gone."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return stat.S_IFDIR
        if entry.is_file(follow_symlinks=False):
            return stat.S_IFREG
        return stat.S_IFMT(entry.stat().st_mode)
    except OSError:
        return None


def encode_array(items: Sequence[Mapping[str, Any]]) -> bytes:
    """A JSON array, made in pieces between which other threads run."""
    pieces = [
        msgspec.json.encode(items[start : start + _ENCODED_AT_ONCE])[1:-1]
        for start in range(0, len(items), _ENCODED_AT_ONCE)
    ]
    return b"[%b]" % b",".join(pieces)

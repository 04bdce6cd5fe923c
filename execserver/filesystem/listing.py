"""The JSON of lists: `fs/readDirectory` and `fs/walk`.

The items come from a function of this process or from an fs worker; the JSON is the same.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from execprotocol.errors import os_error_text
from execprotocol.path_text import printable_path
from execprotocol.path_uri import path_to_uri
from execserver.filesystem.walk import MAX_PATH_BYTES, TRUNCATED

if TYPE_CHECKING:
    from execprotocol.filesystem import DirectoryEntry, WalkEntry, WalkFailure
    from execserver.filesystem.walk import Seen

_ENCODED_AT_ONCE = 500
"""The encoder holds the interpreter's lock: well under a millisecond for this many items."""


def entries_json(found: Iterable[tuple[str, int]]) -> bytes:
    """A JSON array of `DirectoryEntry`, of names with their type bits."""
    return encode_array(list(_directory_entries(found)))


def _directory_entries(found: Iterable[tuple[str, int]]) -> Iterator[DirectoryEntry]:
    for name, kind in found:
        yield {
            "fileName": name if name.isascii() else printable_path(name),
            "isDirectory": stat.S_ISDIR(kind),
            "isFile": stat.S_ISREG(kind),
        }


def walk_json(found: Iterable[Seen]) -> bytes:
    """The JSON of a `WalkResult`. The list is truncated when its paths are too long in total."""
    listed: list[WalkEntry] = []
    failures: list[WalkFailure] = []
    truncated = False
    path_bytes = 0
    for kind, path in found:
        if kind == "file" or kind == "directory":
            uri = path_to_uri(path)
            path_bytes += len(uri)
            if path_bytes > MAX_PATH_BYTES:
                truncated = True
                break
            listed.append({"path": uri, "kind": kind})
        elif kind == TRUNCATED:
            truncated = True
        else:
            failures.append({"path": path_to_uri(path), "message": os_error_text(OSError(kind, ""))})
    return b'{"entries":%b,"errors":%b,"truncated":%b}' % (
        encode_array(listed),
        encode_array(failures),
        b"true" if truncated else b"false",
    )


def encode_array(items: Sequence[Mapping[str, Any]]) -> bytes:
    """A JSON array, encoded in pieces between which other threads can run."""
    pieces = [
        msgspec.json.encode(items[start : start + _ENCODED_AT_ONCE])[1:-1]
        for start in range(0, len(items), _ENCODED_AT_ONCE)
    ]
    return b"[%b]" % b",".join(pieces)

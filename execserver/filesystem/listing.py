"""What lists give, as JSON: `fs/readDirectory` and `fs/walk`.

Both work on a sequence of what was seen, which comes from a function of this process or from a
worker: a reply is the same, byte for byte, whoever looked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from execprotocol.errors import os_error_text
from execprotocol.path_text import printable_path
from execprotocol.path_uri import path_to_uri
from execserver.filesystem.directories import entries
from execserver.filesystem.walk import MOST_PATH_BYTES, TRUNCATED, WalkLimits, visit

if TYPE_CHECKING:
    from execprotocol.filesystem import DirectoryEntry, WalkEntry, WalkFailure
    from execserver.filesystem.cancel import Stop
    from execserver.filesystem.walk import Seen

_ENCODED_AT_ONCE = 500
"""The encoder holds the interpreter's lock; this many items take it for well under a millisecond."""


def read_directory(path: str, stop: Stop) -> bytes:
    """List a directory, as the JSON array of its `DirectoryEntry`, in no order.

    Raises:
        OSError: it cannot be opened or read.
    """
    return entries_json(entries(path, stop))


def walk(path: str, limits: WalkLimits, stop: Stop) -> bytes:
    """Walk a tree.

    Returns:
        The JSON of a `WalkResult`.

    Raises:
        InvalidRequest: a limit is zero or above its maximum.
        OSError: the root does not exist.
    """
    limits.check()
    return walk_json(visit(path, limits, stop))


def entries_json(found: Iterable[tuple[str, int]]) -> bytes:
    """The JSON array of the `DirectoryEntry` of some names with their type bits."""
    return encode_array(list(_directory_entries(found)))


def _directory_entries(found: Iterable[tuple[str, int]]) -> Iterator[DirectoryEntry]:
    for name, kind in found:
        yield {
            "fileName": name if name.isascii() else printable_path(name),
            "isDirectory": stat.S_ISDIR(kind),
            "isFile": stat.S_ISREG(kind),
        }


def walk_json(found: Iterable[Seen]) -> bytes:
    """The JSON of a `WalkResult`, of what a walk saw. It ends early when the paths become too long."""
    listed: list[WalkEntry] = []
    failures: list[WalkFailure] = []
    truncated = False
    path_bytes = 0
    for what, path in found:
        if what == "file" or what == "directory":
            uri = path_to_uri(path)
            path_bytes += len(uri)
            if path_bytes > MOST_PATH_BYTES:
                truncated = True
                break
            listed.append({"path": uri, "kind": what})
        elif what == TRUNCATED:
            truncated = True
        else:
            failures.append({"path": path_to_uri(path), "message": os_error_text(OSError(what, ""))})
    return b'{"entries":%b,"errors":%b,"truncated":%b}' % (
        encode_array(listed),
        encode_array(failures),
        b"true" if truncated else b"false",
    )


def encode_array(items: Sequence[Mapping[str, Any]]) -> bytes:
    """A JSON array, made in pieces between which other threads run."""
    pieces = [
        msgspec.json.encode(items[start : start + _ENCODED_AT_ONCE])[1:-1]
        for start in range(0, len(items), _ENCODED_AT_ONCE)
    ]
    return b"[%b]" % b",".join(pieces)


# -- as a worker writes them: names and paths end with a NUL, which none can hold


def entries_of(body: bytes) -> Iterator[tuple[str, int]]:
    """What `fsworker` wrote of a directory: for each name `d`, `f` or `o`, then the name.

    Raises:
        ValueError: that is not what this is.
    """
    for item in body.split(b"\0")[:-1]:
        yield os.fsdecode(item[1:]), _KINDS[item[:1]]


def seen_of(body: bytes) -> Iterator[Seen]:
    """What `fsworker` wrote of a walk: for each path `d`, `f` or the number of an error, then the path;
    `t` alone for that it was truncated.

    Raises:
        ValueError: that is not what this is.
    """
    for item in body.split(b"\0")[:-1]:
        what, slash, rest = item.partition(b"/")
        path = os.fsdecode(slash + rest)
        if what == b"d":
            yield "directory", path
        elif what == b"f":
            yield "file", path
        elif what == b"t":
            yield TRUNCATED, ""
        else:
            yield int(what), path


_KINDS = {b"d": stat.S_IFDIR, b"f": stat.S_IFREG, b"o": 0}

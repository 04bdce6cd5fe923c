"""The protocol between the daemon and the program of a watch, on a stream socket.

    daemon → program   once: length (4 bytes), then a `marshal` of a tuple of that length (`Order`)
    program → daemon   kind (1 byte), length (4 bytes), then a body of that length

The program ends when the daemon closes the socket. The daemon does not trust it: frames are parsed as data.
Numbers are little-endian. The members of a body are separated by NULs; paths are bytes.
"""

from __future__ import annotations

ALIVE = 0
"""The first walk is not complete yet. No body."""

READY = 1
"""Every folder is watched. Body: `inotify` or `polling`, and the root without links."""

CHANGES = 2
"""Three members for each change: its letter and `d` for a directory or `f`, its path below the root, and its
earlier path if it was renamed."""

ENDED = 3
"""The last frame. Body: the reason (`EndReason`), the number of a system error or nothing, and a text."""

REFUSED = 4
"""The last frame, instead of `READY`. Body as of `ENDED`."""

HEAD_BYTES = 5
MAX_BODY_BYTES = 16 << 20

KINDS = {"c": "created", "m": "modified", "r": "removed", "n": "renamed", "g": "gap"}
"""The letters of changes."""

Order = tuple[bytes, bool, bool, list[str], list[int], int]
"""The root, whether recursive, whether ignore rules count, excluded names, the devices that are polled, and
the maximum of polled entries."""


def frame(kind: int, members: list[bytes]) -> bytes:
    """One frame of the program."""
    body = b"\0".join(members)
    return bytes((kind,)) + len(body).to_bytes(4, "little") + body

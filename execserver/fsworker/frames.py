"""The protocol between the daemon and an fs worker, on a stream socket. One request at a time.

    daemon → worker   length (4 bytes), then a `marshal` of that length: [name, arguments...];
                      a length of 0 cancels the running request
    worker → daemon   status (1 byte), length (8 bytes), then a body of that length;
                      an open file is passed as a descriptor with the first byte

Numbers are little-endian. Paths are sent as bytes: the two sides may have different locales. Content is sent
as bytes in a tuple. The worker trusts the daemon, but not the reverse: replies are parsed as data, never as
code. When the worker has started, it sends one reply without a request.
"""

from __future__ import annotations

DONE = 0
"""The body is the result."""

REFUSED = 1
"""The body is an error for the client: code, name, field (or nothing) and message, separated by NULs."""

BROKEN = 2
"""The body describes a fault of the worker."""

REPLY_HEAD_BYTES = 9
REQUEST_HEAD_BYTES = 4

MAX_BODY_BYTES = 256 << 20
"""Enough for a folder of ten million names. A worker that announces more is faulty."""


def request_frame(payload: bytes) -> bytes:
    """Frame a request."""
    return len(payload).to_bytes(REQUEST_HEAD_BYTES, "little") + payload


CANCEL = request_frame(b"")


def reply_head(status: int, body_bytes: int) -> bytes:
    """The bytes before the body of a reply."""
    return bytes((status,)) + body_bytes.to_bytes(8, "little")

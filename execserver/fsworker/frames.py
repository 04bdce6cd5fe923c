"""What passes between the daemon and an fs worker, on a stream socket. One request at a time.

    daemon → worker   length (4 bytes), then that much `marshal`: (operation, arguments...);
                      a length of 0 is the wish that the request in work be given up
    worker → daemon   status (1 byte), length (8 bytes), then that much body;
                      an opened file comes as a descriptor with the first byte

Numbers are little-endian. Paths travel as bytes: the two sides may have different locales. The worker
trusts the daemon, and not the other way round: what it sends is data of fixed forms, never code.
When it can work, it sends one reply that nobody asked for.
"""

from __future__ import annotations

DONE = 0
"""The body is the operation's own."""

REFUSED = 1
"""The body is the wire's error: code, name, field (or nothing), message, with NULs between them."""

BROKEN = 2
"""The body says what went wrong with the worker's own work."""

REPLY_HEAD_BYTES = 9
REQUEST_HEAD_BYTES = 4

MAX_BODY_BYTES = 256 << 20
"""The longest list is a folder of ten million names; what claims to be more is no worker of ours."""


def request_frame(payload: bytes) -> bytes:
    """A request as it is sent."""
    return len(payload).to_bytes(REQUEST_HEAD_BYTES, "little") + payload


CANCEL = request_frame(b"")


def reply_head(status: int, body_bytes: int) -> bytes:
    """What comes before the body of a reply."""
    return bytes((status,)) + body_bytes.to_bytes(8, "little")

"""Paths as text, for people and in URIs, without what decoding URIs needs: it is loaded by fs workers, and by
a server before everything else.
"""

from __future__ import annotations

import os

# Characters a path may hold unescaped in a URI.
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~/!$&'()*+,;=:@[]|")
# `urllib.parse` would do it, too, but takes longer to load than all of the protocol that a start needs.
_ESCAPED = [chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in range(256)]


def printable_path(path: str) -> str:
    """The path as text fit for a message: bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def escaped_uri(path: str) -> str:
    """As `path_uri.path_to_uri`, which is quicker for what needs no escapes."""
    return "file://" + "".join(_ESCAPED[byte] for byte in os.fsencode(path))

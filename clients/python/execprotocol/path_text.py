"""Format paths for messages and URIs. Imports only the standard library: fs workers load this module."""

from __future__ import annotations

import os

# Characters a path may hold unescaped in a URI.
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~/!$&'()*+,;=:@[]|")
# `urllib.parse` takes longer to load than the rest of the protocol that a start needs.
_ESCAPED = [chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in range(256)]


def printable_path(path: str) -> str:
    """A path for messages: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def escaped_uri(path: str) -> str:
    """The URI of a path, with escapes. `path_uri.path_to_uri` is faster for paths without escapes."""
    return "file://" + "".join(_ESCAPED[byte] for byte in os.fsencode(path))

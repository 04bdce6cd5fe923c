"""Paths in messages for people. Apart from the URIs, so that the fs worker need not load those."""

from __future__ import annotations

import os


def printable_path(path: str) -> str:
    """The path as text fit for a message: bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")

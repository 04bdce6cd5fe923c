"""Names that nobody else gives."""

from __future__ import annotations

import os

_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567" * 8
"""The 32 of base32, for each value of a byte: no name has a 0, 1, 8 or 9 that reads as a letter."""


def new_id() -> str:
    """A name of 8 letters and digits, short enough to be typed.

    Of a million living names a new one meets another with a chance of one in a million (40 bits).
    """
    return os.urandom(8).translate(_LETTERS).decode()

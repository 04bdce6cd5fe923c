"""Texts of others within texts for a model, quoted in the reference's way."""

from __future__ import annotations

import unicodedata

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}

_EXTENDING = ("Mn", "Me")
"""Categories of characters that would change the one before them: a quote, at worst."""


def quoted(text: str) -> str:
    """A string literal as Rust's debug format writes it, which is what models see in error texts.

    What cannot be printed is written as its code, in hexadecimal digits between braces.
    """
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if escape := _ESCAPES.get(character):
        return escape
    if character.isprintable() and unicodedata.category(character) not in _EXTENDING:
        return character
    return f"\\u{{{ord(character):x}}}"

"""Somebody else's text, made fit for our errors and logs."""

from __future__ import annotations


def printable(text: str, most: int) -> str:
    """What can be printed of the first `most` characters: no control codes, no line ends."""
    return "".join(character for character in text[:most] if character.isprintable())

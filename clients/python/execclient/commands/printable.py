"""Text of others, for a terminal: nothing in it is obeyed."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with every character that cannot be seen written as its number.

    Args:
        text: anything.
        keep: what stays as it is all the same, such as line ends.
    """
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)

"""Text of the other side, for a terminal: no control character of it is obeyed.

Everything that commands print goes through here, `complain` and the tables among them. Only the output of a
process is written as it is: `run`, `attach` and `logs` stand for that process.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with every character that cannot be seen written as its number, such as `\\x1b`.

    Those are control characters, marks for the direction of writing, separators other than the blank, and
    lone surrogates.

    Args:
        text: anything.
        keep: what stays as it is all the same, such as line ends.
    """
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)

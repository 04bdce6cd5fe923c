"""Unified diffs for people: a color for each kind of line, and nothing that a terminal would obey.

A line's kind is told by where it stands, not by its first letters alone: below a `@@` line, `--- x` is the
removed line `-- x`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from execclient.commands.printable import printable

When = Literal["auto", "always", "never"]

_IN_HUNK = {"+": "green", "-": "red", "@": "cyan", "\\": "dim", " ": ""}
"""By the mark in front of a line: what a reader of git's diffs is used to."""

_FILE_HEADER = "bold"
_OBJECT_NAMES = "dim"
"""For programs, and in the way of whoever looks for the name of the file."""


def is_colored(when: When) -> bool:
    """Whether stdout gets colors: by default on a terminal that has them, unless `NO_COLOR` is set."""
    if when == "auto":
        return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return when == "always"


def is_for_people(when: When) -> bool:
    """Whether what is printed is looked at, and not handed to another program."""
    return os.isatty(1) or is_colored(when)


def visible(text: str) -> str:
    """The text with every character that cannot be seen by its number, but for line ends and tabs."""
    return printable(text, keep="\n\t")


def shown(diff: str, when: When) -> str:
    """A diff as it is printed: for other programs as it is, byte for byte."""
    if not is_for_people(when):
        return diff
    diff = visible(diff)
    return _colored(diff) if is_colored(when) else diff


def _colored(diff: str) -> str:
    # Slow to load, and needed for people alone.
    from rich.color import ColorSystem
    from rich.style import Style

    # Only the styles: a console would wrap lines, and replace tabs.
    return "".join(
        Style.parse(style).render(line, color_system=ColorSystem.STANDARD) + "\n"
        for line, style in _styles(diff)
    )


def _styles(diff: str) -> Iterator[tuple[str, str]]:
    in_hunk = False
    for line in diff.removesuffix("\n").split("\n") if diff else []:
        mark = line[:1]
        in_hunk = mark in _IN_HUNK if in_hunk else line.startswith("@@ ")
        if in_hunk:
            yield line, _IN_HUNK[mark]
        else:
            yield line, _OBJECT_NAMES if line.startswith("index ") else _FILE_HEADER

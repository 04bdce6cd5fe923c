"""Checks the arguments of programs that only read by default.

A guard gets the arguments of a program and tells whether they are harmless. It refuses unknown forms:
abbreviations of long options, options in clusters (`-nz`), operands that are written to. The sandbox decides
which files may be read. Programs that git runs by the settings of a repository are up to the user who trusts
the repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

ArgumentGuard = Callable[[Sequence[str]], bool]


def anything(_: Sequence[str]) -> bool:
    """A guard for programs that are harmless with any arguments."""
    return True


def without(*long_options: str, letters: str = "", valued: str = "") -> ArgumentGuard:
    """A guard that refuses some options, in all their spellings.

    Args:
        long_options: options such as `--output`; abbreviations and `--output=…` are refused, too.
        letters: letters of short options that are refused, anywhere in a cluster.
        valued: letters of short options with a value: the rest of a cluster is then their value.
    """

    def is_harmless(arguments: Sequence[str]) -> bool:
        return not any(
            _is_long(word, long_options) or not set(letters).isdisjoint(_cluster(word, valued))
            for word in arguments
        )

    return is_harmless


def only(pattern: str) -> ArgumentGuard:
    """A guard that allows only words that match a pattern as a whole."""
    compiled = re.compile(pattern)
    return lambda arguments: all(compiled.fullmatch(word) for word in arguments)


def find(arguments: Sequence[str]) -> bool:
    """Whether `find` runs, removes and writes nothing."""
    return not any(word.startswith(("-exec", "-ok", "-delete", "-fls", "-fprint")) for word in arguments)


def uniq(arguments: Sequence[str]) -> bool:
    """Whether `uniq` has at most one operand: it writes to the second."""
    operands = 0
    words = iter(arguments)
    for word in words:
        if word == "--":
            operands += len(list(words))
        elif word in ("-f", "-s", "-w"):
            next(words, None)
        else:
            operands += not word.startswith("-") or word == "-"
    return operands <= 1


def sed(arguments: Sequence[str]) -> bool:
    """Whether the arguments of `sed` are exactly `-n N[,M]p [FILE]`."""
    return (
        len(arguments) in (2, 3)
        and arguments[0] == "-n"
        and re.fullmatch(r"[0-9]+(,[0-9]+)?p", arguments[1]) is not None
        and not any(word.startswith("-") for word in arguments[2:])
    )


def date(arguments: Sequence[str]) -> bool:
    """Whether `date` prints a time and sets none."""
    words = iter(arguments)
    for word in words:
        if word in ("-d", "-r", "--date", "--reference"):
            next(words, None)
        elif not _DATE_WORD.fullmatch(word):
            return False
    return True


_DATE_WORD = re.compile(
    r"\+.*|-u|-R|-I\w*|--(utc|universal|rfc-email)|--(iso-8601|rfc-3339|date|reference)(=.*)?", re.DOTALL
)


rg = without("--pre", "--hostname-bin", "--search-zip", letters="z", valued="ABCEMTdefgjmrt")

fd = without("--exec", "--exec-batch", "--list-details", letters="xXl")

base64 = without("--output", letters="o")


def _is_long(word: str, options: Sequence[str]) -> bool:
    name = word.partition("=")[0]
    return len(name) > 2 and any(option.startswith(name) for option in options)


def _cluster(word: str, valued: str) -> str:
    """The letters of short options in a word."""
    if not word.startswith("-") or word.startswith("--"):
        return ""
    for position, letter in enumerate(word[1:], 1):
        if letter in valued:
            return word[1 : position + 1]
    return word[1:]

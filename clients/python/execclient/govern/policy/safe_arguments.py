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

LISTING_BRANCHES = frozenset(
    {"--list", "-l", "--show-current", "-a", "--all", "-r", "--remotes", "-v", "-vv", "--verbose"}
)
"""The safe options of `git branch`, besides `--format=…`."""

GIT_SUBCOMMANDS = frozenset({"status", "log", "diff", "show", "branch"})


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


EXPLICIT_REPOSITORIES = ("safe.bareRepository", "explicit")
"""A setting of git. Without it, a folder that looks like a bare repository can make git run programs."""


def git(arguments: Sequence[str]) -> bool:
    """Whether git has a subcommand that only reads, behind harmless options."""
    for position, word in enumerate(arguments):
        if word in _GIT_OPTIONS or (word == "-c" and is_explicit(arguments[position:])):
            continue
        if position and arguments[position - 1] == "-c":
            continue
        return word in GIT_SUBCOMMANDS and GIT_GUARDS[word](arguments[position + 1 :])
    return False


def is_explicit(arguments: Sequence[str]) -> bool:
    """Whether `-c safe.bareRepository=explicit` begins the options of git."""
    return tuple(arguments[:2]) == ("-c", "=".join(EXPLICIT_REPOSITORIES))


def git_unfollowed(arguments: Sequence[str]) -> bool:
    """Like `git`, and does not enter submodules, whose settings may be anything."""
    subcommand = next((word for word in arguments if word in GIT_SUBCOMMANDS), None)
    descends = subcommand in ("status", "diff") and "--ignore-submodules=all" not in arguments
    shows = any(re.match(r"--sub|--recurse", word) and word != "--submodule=short" for word in arguments)
    return git(arguments) and not descends and not shows


_GIT_OPTIONS = frozenset(
    {"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--no-lazy-fetch"}
    | {"--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs"}
)

_git_options = without(
    "--output",
    "--ext-diff",
    "--textconv",
    "--exec",
    "--show-signature",
    "--remerge-diff",
    letters="o",
    valued="SGLOUnMCBlX",
)


_SIGNATURE = re.compile("%[-+ ]?G")
"""In a format; the sign before the letter only controls the treatment of an empty value."""


_DIFF_OF_MERGES = re.compile(
    r"--diff-merges=(off|none|on|m|1|c|cc|first-parent|separate|combined|dense-combined)"
)


def _git_reading(arguments: Sequence[str]) -> bool:
    """Whether a subcommand only reads. Checking signatures runs a program, and remerging writes objects."""
    return _git_options(arguments) and not any(
        _SIGNATURE.search(word)
        or "signature" in word
        or (word.startswith("--diff-m") and not _DIFF_OF_MERGES.fullmatch(word))
        for word in arguments
    )


def _git_branch(arguments: Sequence[str]) -> bool:
    return all(
        word in LISTING_BRANCHES or (word.startswith("--format=") and "signature" not in word)
        for word in arguments
    )


def _git_tag(arguments: Sequence[str]) -> bool:
    """Whether `git tag` only lists: else an operand is a new tag."""
    lists = any(re.fullmatch(r"-l|--list|-n\d*", word) for word in arguments)
    options = re.compile(r"-l|--list|-n\d*|--(sort|format|column)=.*", re.DOTALL)
    return not any("signature" in word for word in arguments) and all(
        options.fullmatch(word) or (lists and not word.startswith("-")) for word in arguments
    )


GIT_GUARDS: dict[str, ArgumentGuard] = {
    "status": _git_reading,
    "log": _git_reading,
    "diff": _git_reading,
    "show": _git_reading,
    "blame": _git_reading,
    "branch": _git_branch,
    "tag": _git_tag,
}

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

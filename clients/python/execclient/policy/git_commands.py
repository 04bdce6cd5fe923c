"""What git runs: its subcommand behind its own options, aliases, and programs that it is told to run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Words = tuple[str | None, ...]


class GitRuns(NamedTuple):
    """What a command line of git runs."""

    commands: tuple[Words, ...]
    """The same without git's own options, and behind `bisect run`."""
    scripts: tuple[str, ...]
    """For a shell."""
    unreadable: bool
    """Something that is told to be run is not literal."""


_VALUED = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--super-prefix"}
    | {"--config-env", "--attr-source"}
)
"""Options of git itself that take the next word as their value."""

_RUN_SETTINGS = re.compile(
    r"^(alias\..*|.*(pager|command|editor|fsmonitor|askpass|textconv|external|program|\.cmd|driver|process|helper))$",
    re.IGNORECASE,
)
"""Settings whose values are run."""

_SCRIPT_OPTIONS = {
    "rebase": re.compile(r"-x|--exec"),
    "difftool": re.compile(r"-x|--extcmd"),
    "filter-branch": re.compile(r"--[a-z]+-filter"),
    "fetch": re.compile(r"--upload-pack"),
    "clone": re.compile(r"-u|--upload-pack"),
    "pull": re.compile(r"--upload-pack"),
    "push": re.compile(r"--receive-pack|--exec"),
    "grep": re.compile(r"-O|--open-files-in-pager"),
}
"""Options of subcommands whose value is a command line."""


def git_runs(rest: Sequence[str | None]) -> GitRuns:
    """What follows from the words behind `git`."""
    start = next(_behind_options(rest))
    subcommand, behind = rest[start : start + 1], tuple(rest[start + 1 :])
    commands: list[Words] = []
    scripts: list[str | None] = []
    if 0 < start < len(rest):
        commands.append(("git", *subcommand, *behind))
    for key, value in _settings(rest[:start]):
        alias = key.lower().startswith("alias.") and not value.startswith("!")
        if alias:
            commands.append(("git", *value.split(), *behind))
        elif _RUN_SETTINGS.match(key):
            scripts.append(value.removeprefix("!"))
    match (*subcommand, *behind[:1]):
        case ("bisect", "run"):
            commands.append(behind[1:])
        case ("submodule", _, *_):
            words = [word for word in behind if word is None or not word.startswith("-")]
            if words[:1] == ["foreach"]:
                known = [word for word in words[1:] if word is not None]
                scripts.append(" ".join(known) if len(known) == len(words) - 1 else None)
        case (str(name), *_) if name in _SCRIPT_OPTIONS:
            scripts += _values(behind, _SCRIPT_OPTIONS[name])
    return GitRuns(
        tuple(command for command in commands if command),
        tuple(script for script in scripts if script),
        None in scripts or _has_unknown_setting(rest[:start]),
    )


def _behind_options(rest: Sequence[str | None]) -> Iterator[int]:
    """Where the subcommand stands: one place, the end if there is none."""
    is_value = False
    for position, word in enumerate(rest):
        if is_value:
            is_value = False
        elif word is None or not word.startswith("-"):
            yield position
            return
        else:
            is_value = word in _VALUED
    yield len(rest)


def _settings(options: Sequence[str | None]) -> Iterator[tuple[str, str]]:
    for word, following in itertools.zip_longest(options, options[1:]):
        if word is not None and word.startswith("-c"):
            key, equals, value = (word[2:] or following or "").partition("=")
            if equals and value:
                yield key, value


def _has_unknown_setting(options: Sequence[str | None]) -> bool:
    return any(
        word is None and before in (None, "-c") for before, word in itertools.pairwise((None, *options))
    )


def _values(words: Sequence[str | None], option: re.Pattern[str]) -> Iterator[str | None]:
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word is None:
            continue
        name, equals, value = word.partition("=")
        if option.fullmatch(name):
            yield value if equals else following
        elif not word.startswith("--") and option.fullmatch(word[:2]) and len(word) > 2:
            yield word[2:]

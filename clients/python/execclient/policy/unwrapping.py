"""What a command runs in its turn: `sudo cat x` runs `cat x`, `bash -c 'cat x'` runs a script.

A word is None where it is not literal. Programs are known by their base names, and the tables say how each
of them is told what to run. Whether an option takes the next word as its value is not in them: both readings
are given, since a command that is listed needlessly costs a question, and one that is missed costs the rule.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from execclient.policy.git_commands import Words, git_runs
from execclient.policy.wrappers import (
    ANY_SUFFIX,
    APPENDS,
    BEHIND_SUBCOMMAND,
    FLAGS,
    FOLLOWED_BY_COMMAND,
    JOINED,
    OPERANDS_BEFORE,
    OTHER_SHELLS,
    QUERIES,
    SCRIPT_OPTIONS,
    SETTING_OPTIONS,
    SHELLS,
)


class Inner(NamedTuple):
    """What a command runs."""

    commands: tuple[Words, ...] = ()
    scripts: tuple[str, ...] = ()
    """For a shell."""
    unreadable: bool = False
    """Something more, which only a running shell knows."""
    reads_script: bool = False
    """A shell that takes its script from its standard input, or from a file that is made on the way."""


NOTHING = Inner()

RUN_FROM_ENVIRONMENT = re.compile(
    r"(PAGER|EDITOR|VISUAL|BROWSER|ASKPASS|COMMAND|SSH|RSH|DIFF|LESSOPEN|LESSCLOSE)$"
)
"""Names of variables whose values other programs run."""

_SHELL_QUERIES = frozenset({"--version", "--help"})
_SHELL_FILES = frozenset({"--rcfile", "--init-file"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=", re.ASCII)
_STANDARD_INPUT = re.compile(r"-|/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")
_LOADER = re.compile(r"ld(-linux.*|-musl.*|\d*)?\.so(\.\d+)?")
"""The dynamic linker, which runs the program that it is given."""
_PLACEHOLDER = "{}"
_NAMES_PLACEHOLDER = ("-I", "-J")

MAX_READINGS = 64
"""Ways of taking one command line apart. Real ones have two or three."""


def program(word: str) -> str:
    """The base name of a program."""
    return word.rpartition("/")[2]


def inner(words: Words) -> Inner:
    """What a command runs, one layer deep."""
    if not words or words[0] is None:
        return NOTHING
    name, rest = program(words[0]), words[1:]
    if name in SHELLS:
        return _shell(rest)
    if name.lower().removesuffix(".exe") in OTHER_SHELLS:
        return Inner(unreadable=True)
    if _LOADER.fullmatch(name):
        return Inner(tuple(rest[start:] for start in itertools.islice(_every_start(rest), MAX_READINGS)))
    match name:
        case "eval":
            return _joined(rest)
        case "trap":
            operands = rest[1:] if rest[:1] == ("--",) else rest
            return _joined(operands[:1]) if len(operands) > 1 else NOTHING
        case "source" | ".":
            return Inner(reads_script=bool(rest) and _is_made_on_the_way(rest[0]))
        case "git":
            return Inner(*git_runs(rest))
        case "alias":
            # It holds for what comes later, which says nothing of it.
            values = tuple(word.partition("=")[2] for word in rest if word is not None and "=" in word)
            return Inner(scripts=values, unreadable=bool(values) or None in rest)
        case "hash":
            known = rest[1:2] if rest[:1] == ("-p",) else ()
            return Inner(tuple((each, None) for each in known), unreadable=known == (None,))
        case "at" | "batch":
            return Inner(reads_script=True)
        case "crontab":
            return Inner(unreadable="-l" not in rest)
    commands = list(_following(name, rest))
    scripts = [*_option_values(name, rest, SCRIPT_OPTIONS), *_setting_values(name, rest)]
    subcommand = BEHIND_SUBCOMMAND.get(name)
    if subcommand in rest and subcommand is not None:
        operands = rest[rest.index(subcommand) + 1 :]
        commands += [operands[start:] for start in itertools.islice(_every_start(operands), MAX_READINGS + 1)]
    named = commands[:1] if subcommand is not None else commands
    unreadable = None in scripts or any(command[0] is None for command in named)
    if name in OPERANDS_BEFORE and not _only_asks(name, rest):
        behind = _behind_options(name, rest)
        commands += behind
        if name in JOINED:
            scripts += [" ".join(word for word in each if word is not None) for each in behind]
        # What is not literal may be an option's value, except that the last one is none.
        certain = behind[:1] if name in ANY_SUFFIX else behind[-1:]
        unreadable = unreadable or any(each[0] is None for each in certain)
    if name in ("env", "genv", "sudo", "doas"):
        scripts += [value for word in rest if word is not None and (value := run_from_environment(word))]
    return Inner(
        tuple(commands[:MAX_READINGS]),
        tuple(script for script in scripts[:MAX_READINGS] if script is not None),
        unreadable or len(commands) > MAX_READINGS or len(scripts) > MAX_READINGS,
    )


def run_from_environment(assignment: str) -> str | None:
    """The value of `NAME=VALUE` if NAME is one whose value is run."""
    name, equals, value = assignment.partition("=")
    return value if equals and RUN_FROM_ENVIRONMENT.search(name) else None


def _behind_options(name: str, rest: Words) -> list[Words]:
    """The commands that may begin behind a program's options, one more than are looked at at most."""
    if name in APPENDS:
        rest = (*_without_placeholders(name, rest), None)
    starts = _every_start(rest) if name in ANY_SUFFIX else _starts(name, rest)
    behind = [rest[start:] for start in itertools.islice(starts, MAX_READINGS + 1)]
    # Nothing but what is appended: without a command of its own, `xargs` only prints.
    return [each for each in behind if name not in APPENDS or each != (None,)]


def _every_start(rest: Words) -> Iterator[int]:
    return (start for start, word in enumerate(rest) if word is None or not word.startswith("-"))


def _starts(name: str, rest: Words) -> Iterator[int]:
    """Where a command may begin, up to where it has begun for certain."""
    operands, flags = OPERANDS_BEFORE[name], FLAGS.get(name, frozenset())
    may_be_value = False
    seen = certain = 0
    for start, word in enumerate(rest):
        if word is not None and word.startswith("-") and word != "-":
            # A value that is no word stands behind its letter, as in `-n1` and `-I{}`.
            has_value = "=" in word or (len(word) > 2 and word[1] != "-" and not word[2:].isalpha())
            may_be_value = word != "--" and not has_value and not flags.issuperset(word[1:])
            continue
        if word is not None and _ASSIGNMENT.match(word):
            may_be_value = False
            continue
        seen += 1
        certain += not may_be_value
        may_be_value = False
        if seen > operands:
            yield start
        if certain > operands:
            return


def _without_placeholders(name: str, rest: Words) -> Iterator[str | None]:
    """Words that are replaced by what is read are not literal."""
    placeholders = {_PLACEHOLDER} if name == "parallel" or {"-i", "--replace"} & set(rest) else set()
    for word, following in _with_next(rest):
        if word in _NAMES_PLACEHOLDER and following:
            placeholders.add(following)
        elif word is not None and word.startswith(("-I", "-i", "--replace=")):
            placeholders.add(word.removeprefix("--replace=") if word[1] == "-" else word[2:])
    placeholders.discard("")
    before: str | None = None
    for word in rest:
        is_fixed = word is None or word.startswith("-") or before in _NAMES_PLACEHOLDER
        is_replaced = word is not None and not is_fixed and any(each in word for each in placeholders)
        yield None if is_replaced else word
        before = word


def _following(name: str, rest: Words) -> Iterator[Words]:
    markers = FOLLOWED_BY_COMMAND.get(name, frozenset())
    starts = (start for start, word in enumerate(rest, 1) if word in markers)
    for start in itertools.islice(starts, MAX_READINGS + 1):
        words = itertools.takewhile(lambda word: word not in (";", "+"), rest[start:])
        command = tuple(None if word is not None and _PLACEHOLDER in word else word for word in words)
        if command:
            yield command


def _setting_values(name: str, rest: Words) -> Iterator[str | None]:
    """The values of settings that are options: of `-o ProxyCommand=CMD` what is behind the equals sign."""
    for value in _option_values(name, rest, SETTING_OPTIONS):
        yield None if value is None else re.split(r"[=\s]", value, maxsplit=1)[-1]


def _option_values(name: str, rest: Words, takers: Mapping[str, tuple[str, ...]]) -> Iterator[str | None]:
    """The values of options that take command lines; None for one that is not literal."""
    options = takers.get(name, ())
    for word, following in _with_next(rest, ""):
        if word is None or not word.startswith("-"):
            continue
        for option in options:
            if option.startswith("--"):
                given, equals, value = word.partition("=")
                if len(given) > 2 and option.startswith(given):
                    yield value if equals else following
            elif not word.startswith("--") and option[1] in word:
                yield word.partition(option[1])[2] or following


def _with_next(rest: Words, last: str | None = None) -> Iterator[tuple[str | None, str | None]]:
    return itertools.zip_longest(rest, rest[1:], fillvalue=last)


def _only_asks(name: str, rest: Words) -> bool:
    first = rest[0] if rest else None
    return (
        first is not None
        and first.startswith("-")
        and not QUERIES.get(name, frozenset()).isdisjoint(first[1:])
    )


def _joined(words: Sequence[str | None]) -> Inner:
    known = [word for word in words if word is not None]
    return Inner(scripts=(" ".join(known),) if known else (), unreadable=len(known) < len(words))


def _shell(rest: Words) -> Inner:
    if not _SHELL_QUERIES.isdisjoint(rest):
        return NOTHING
    takes_script = reads = may_be_value = False
    scripts: list[str] = []
    for word in rest:
        if word is not None and word[:1] in ("-", "+") and len(word) > 1:
            if takes_script:  # not every shell has options behind `-c`
                scripts.append(word)
            letters = "" if word[:2] == "--" else word[1:]
            takes_script = takes_script or "c" in letters
            reads = reads or "s" in letters
            may_be_value = "o" in letters or "O" in letters or word in _SHELL_FILES
            continue
        if takes_script and word is not None:
            scripts.append(word)
        if not may_be_value:
            if takes_script:
                return Inner(scripts=tuple(scripts), unreadable=word is None)
            return Inner(reads_script=reads or _is_made_on_the_way(word))
        may_be_value = False
    return Inner(scripts=tuple(scripts), reads_script=not takes_script)


def _is_made_on_the_way(file: str | None) -> bool:
    return file is None or _STANDARD_INPUT.fullmatch(file) is not None

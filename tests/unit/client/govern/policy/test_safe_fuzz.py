"""Generated scripts: what cannot be safe is never called so, and no text makes the reading of it fail."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from execclient.govern.policy import (
    co_safe,
    dangerous,
    known_safe,
    literal_commands,
    lower,
    plain_commands,
    unreadable,
)

bounded = settings(
    max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

SAFE_COMMANDS = [
    "ls",
    "ls -la",
    "pwd",
    "cat x",
    "echo 'a b'",
    'grep "a b" x',
    "git status --ignore-submodules=all",
    "head -n 1 x",
    "wc -l",
]
OPERATORS = [" && ", " || ", " | ", "; ", "\n"]

DANGEROUS_WORDS = [
    "$(touch y)",
    "`touch y`",
    "${X}",
    "$X",
    "$((1))",
    '"$(touch y)"',
    '"`touch y`"',
    '"$X"',
    "<(touch y)",
    ">(touch y)",
    "> y",
    ">> y",
    "2> y",
    "&> y",
    "< y",
    "<<< y",
    "*",
    "{a,b}",
    "~",
    "$'a'",
    "a\\b",
    "x\\\ny",
]
"""At the end of a command."""

DANGEROUS_COMMANDS = [
    "touch y",
    "$X",
    "X=1 ls",
    "(ls)",
    "{ ls; }",
    "! ls",
    "ls &",
    "./ls",
    "find . -delete",
    "sudo ls",
    "f() { ls; }",
    "if ls; then pwd; fi",
    "while ls; do pwd; done",
    "cat <<E\nx\nE",
]

safe_scripts = st.lists(st.sampled_from(SAFE_COMMANDS), min_size=1, max_size=5)
operators = st.lists(st.sampled_from(OPERATORS), min_size=6, max_size=6)
pieces = st.one_of(
    st.text(max_size=3),
    st.sampled_from(SAFE_COMMANDS + OPERATORS + DANGEROUS_WORDS + DANGEROUS_COMMANDS),
    st.sampled_from(
        [*"'\"\\`$(){}[]<>|&;#!~*?=\0\r\n\t", "\ud800", "\udc80", "\u200b", "\u00a0", "<<", "sudo ", "xargs "]
    ),
)
any_text = st.lists(pieces, max_size=12).map("".join)


def joined(commands: list[str], between: list[str]) -> str:
    return commands[0] + "".join(
        operator + command for operator, command in zip(between, commands[1:], strict=False)
    )


@bounded
@given(safe_scripts, operators)
def test_safe_commands_stay_safe_however_they_are_joined(commands: list[str], between: list[str]) -> None:
    assert known_safe(["bash", "-lc", joined(commands, between)], explicit_repositories=True)


@bounded
@given(safe_scripts, operators, st.sampled_from(DANGEROUS_WORDS), st.data())
def test_one_word_that_substitutes_or_redirects_makes_any_script_unsafe(
    commands: list[str], between: list[str], word: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(commands) - 1))
    commands = [*commands[:place], f"{commands[place]} {word}", *commands[place + 1 :]]

    script = joined(commands, between)

    assert not known_safe(["bash", "-lc", script], explicit_repositories=True)
    assert not co_safe(script)


@bounded
@given(safe_scripts, operators, st.sampled_from(DANGEROUS_COMMANDS), st.data())
def test_one_command_that_is_not_plain_or_not_safe_makes_any_script_unsafe(
    commands: list[str], between: list[str], command: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(commands)))

    script = joined([*commands[:place], command, *commands[place:]], between)

    assert not known_safe(["bash", "-lc", script], explicit_repositories=True)
    assert not co_safe(script)


@bounded
@given(any_text)
def test_any_text_can_be_read_and_what_is_lowered_is_found_as_well(script: str) -> None:
    argv = ["bash", "-lc", script]

    found = literal_commands(argv)

    assert set(lower(argv).commands) <= set(found)
    assert plain_commands(script) is not None or not known_safe(argv)
    assert unreadable(argv) or found
    assert dangerous(argv, strict=False) is None or dangerous(argv) is not None


@bounded
@given(st.lists(any_text, max_size=4))
def test_any_argv_can_be_judged_and_no_path_makes_it_safe(argv: list[str]) -> None:
    assert not known_safe(argv) or argv[0].rpartition("/")[0] in {"", "/bin", "/usr/bin"}
    assert literal_commands(argv)[:1] == ([tuple(argv)] if argv else [])

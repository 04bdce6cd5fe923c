"""How commands are read and classified, beside what the reference makes of them."""

from __future__ import annotations

import pytest

from execclient.govern.policy import co_safe, co_safe_prefix, dangerous, known_safe, lower, plain_commands
from tests.support.wire import Json
from tests.vectors.cases import load

VECTORS = load("commands")

Cases = tuple[Json, ...]


def argv(case: Json) -> list[str]:
    return ["bash", "-lc", case["cmd"]]


def each(cases: Cases) -> pytest.MarkDecorator:
    ids = [f"{VECTORS.stem}::{case['cmd']!r}" for case in cases]
    return pytest.mark.parametrize("case", cases, ids=ids)


DANGEROUS = tuple(case for case in VECTORS.cases if case["dangerous"] is not None)
KNOWN_SAFE = tuple(case for case in VECTORS.cases if case["known_safe_legacy"])
NOT_KNOWN_SAFE = tuple(case for case in VECTORS.cases if not case["known_safe_legacy"])
NO_SAFE_PREFIX = tuple(case for case in VECTORS.cases if not case["co_safe_prefix"])


@each(VECTORS.cases)
def test_a_script_is_lowered_to_the_commands_the_reference_sees(case: Json) -> None:
    commands = plain_commands(case["cmd"])

    expected = case["plain_commands"]
    assert (commands if commands is None else [list(command) for command in commands]) == expected
    assert [list(command) for command in lower(argv(case)).commands] == (expected or [argv(case)])
    assert lower(argv(case)).plain is bool(expected)


@each(VECTORS.cases)
def test_exact_lowering_only_refuses_more(case: Json) -> None:
    exact = plain_commands(case["cmd"], exact=True)

    assert exact is None or exact == plain_commands(case["cmd"])


@each(VECTORS.cases)
def test_a_dangerous_command_is_what_the_reference_calls_one(case: Json) -> None:
    assert dangerous(argv(case), strict=False) == case["dangerous"]


@each(DANGEROUS)
def test_the_strict_search_for_dangers_only_finds_more(case: Json) -> None:
    assert dangerous(argv(case)) == case["dangerous"]


@each(VECTORS.cases)
def test_safe_commands_are_those_of_the_older_list(case: Json) -> None:
    assert known_safe(argv(case), parity=True) is case["known_safe_legacy"]


@each(NOT_KNOWN_SAFE)
def test_a_command_is_safe_by_default_only_if_it_was_on_the_older_list(case: Json) -> None:
    assert not known_safe(argv(case), explicit_repositories=True)


@each(VECTORS.cases)
def test_a_safe_prefix_is_told_by_its_characters(case: Json) -> None:
    assert co_safe_prefix(case["cmd"]) is case["co_safe_prefix"]


@each(NO_SAFE_PREFIX)
def test_arguments_can_only_make_a_safe_prefix_unsafe(case: Json) -> None:
    assert not co_safe(case["cmd"])


def test_nearly_all_that_was_known_to_be_safe_still_is() -> None:
    kept = [case for case in KNOWN_SAFE if known_safe(argv(case), explicit_repositories=True)]
    lost = [case["cmd"] for case in KNOWN_SAFE if case not in kept]

    assert lost == [
        "uniq /etc/hostname out.txt",
        "git status",
        "git status --porcelain -uall",
        "git diff",
        "git diff --no-ext-diff",
        "git diff -o x",
        "git --no-pager diff",
        "git --literal-pathspecs status",
        "git --no-optional-locks status",
        "git -- status",
        "/usr/bin/git status",
        "./git status",
        "rg -nz foo",
        "echo a\\\nb",
        "ls\r\npwd",
    ]

"""Where lines are found: which pass wins, and that no input makes it slow."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.patch import match
from execclient.patch.errors import PatchTooComplex
from execclient.patch.match import PASSES, LineSearch, folded


def find(lines: list[str], pattern: list[str], start: int = 0, *, at_end: bool = False) -> int | None:
    return LineSearch(lines, pattern).find(pattern, start, at_end=at_end)


def test_a_stricter_pass_wins_over_an_earlier_place() -> None:
    assert find(["  a", "a  ", "a"], ["a"]) == 2
    assert find(["  a", "a  "], ["a"]) == 1
    assert find(["“a”", "  a"], ["a"]) == 1


def test_all_lines_of_a_place_are_found_by_one_pass() -> None:
    assert find(["a ", " b"], ["a", "b"]) == 0, "trimmed, both"
    assert find(["a", "x", "a ", "b"], ["a", "b"]) == 2


@pytest.mark.parametrize(
    ("typographic", "plain"),
    [
        *((chr(code), "-") for code in (*range(0x2010, 0x2016), 0x2212)),
        *((chr(code), "'") for code in range(0x2018, 0x201C)),
        *((chr(code), '"') for code in range(0x201C, 0x2020)),
        *((chr(code), " ") for code in (0xA0, *range(0x2002, 0x200B), 0x202F, 0x205F, 0x3000)),
    ],
)
def test_typography_is_folded_in_the_last_pass(typographic: str, plain: str) -> None:
    assert find([f"x{typographic}y"], [f"x{plain}y"]) == 0


@pytest.mark.parametrize("letter", "…\u2016\u2017\u2000\u2001\u200bé")
def test_nothing_else_is_folded(letter: str) -> None:
    assert folded(f"x{letter}y") == f"x{letter}y"


def test_at_the_end_only_the_last_place_is_tried() -> None:
    assert find(["a", "b", "a"], ["a"], at_end=True) == 2
    assert find(["a", "b"], ["a"], at_end=True) is None
    assert find(["x", " a"], ["a"], at_end=True) == 1


def test_the_end_is_not_taken_twice() -> None:
    assert find(["a", "b"], ["b"], 2, at_end=True) is None
    assert find(["a"], ["a", "b"]) is None


def test_what_failed_once_may_be_found_from_an_earlier_place() -> None:
    search = LineSearch(["a", "b", "a", "c"], ["a", "b"])

    assert search.find(["a", "b"], 1) is None
    assert search.find(["a", "b"], 0) == 0
    assert search.find(["a", "b"], 1) is None


LINES = st.lists(st.sampled_from(["a", "b", " a", "a ", "\u2013", "-", ""]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    LINES, st.lists(st.sampled_from(["a", "b", " a", "-", ""]), min_size=1, max_size=4), st.integers(0, 12)
)
def test_the_search_is_the_plain_definition(lines: list[str], pattern: list[str], start: int) -> None:
    def plain() -> int | None:
        for key in PASSES:
            wanted = [key(line) for line in pattern]
            for at in range(start, len(lines) - len(pattern) + 1):
                if [key(line) for line in lines[at : at + len(pattern)]] == wanted:
                    return at
        return None

    assert find(lines, pattern, start) == plain()


def test_a_file_that_repeats_itself_is_searched_in_linear_time() -> None:
    lines = [*["x"] * 300_000, "y"]
    pattern = [*["x"] * 100_000, "y", "x"]
    begin = time.process_time()

    assert find(lines, pattern) is None
    assert time.process_time() - begin < 2


def test_endless_useless_searches_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "MAX_SCANNED_LINES", 1_000_000)
    chance = random.Random(1)
    lines = [chance.choice("abcd") for _ in range(20_000)]
    patterns = [[chance.choice("abcd") for _ in range(40)] for _ in range(200)]
    search = LineSearch(lines, "abcd")

    def search_all() -> None:
        for pattern in patterns:
            search.find(pattern, 0)

    with pytest.raises(PatchTooComplex, match="split the patch"):
        search_all()


def test_the_same_useless_search_costs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "MAX_SCANNED_LINES", 1_000_000)
    search = LineSearch(["a", "b"] * 100_000, ["a"])

    assert [search.find(["a", "a"], start) for start in range(1000)] == [None] * 1000

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execclient.tools.truncation import (
    DEFAULT_BUDGET,
    Budget,
    Truncated,
    Unit,
    count_lines,
    count_tokens,
    truncate,
)


@pytest.mark.parametrize(("size", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (588_895, 147_224)])
def test_a_token_is_four_bytes_rounded_up(size: int, tokens: int) -> None:
    assert count_tokens(size) == tokens


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2), ("a\r\nb\r\n", 2), ("a\rb", 1)],
)
def test_lines_are_counted_by_newlines_and_a_rest(text: str, lines: int) -> None:
    assert count_lines(text) == lines


@pytest.mark.parametrize("budget", [Budget(8, "bytes"), Budget(2, "tokens"), Budget(9, "bytes")])
def test_a_text_of_exactly_its_budget_is_left_alone(budget: Budget) -> None:
    assert truncate("12345678", budget) is None


def test_one_byte_too_many_cuts() -> None:
    assert truncate("123456789", Budget(8, "bytes")) == Truncated("1234", "6789", 1, "chars")
    assert truncate("123456789", Budget(2, "tokens")) == Truncated("1234", "6789", 1, "tokens")


def test_the_odd_byte_of_a_budget_is_for_the_end() -> None:
    assert truncate("abcdefgh", Budget(5, "bytes")) == Truncated("ab", "fgh", 3, "chars")


@pytest.mark.parametrize(
    ("budget", "cut"),
    [
        (Budget(0, "bytes"), Truncated("", "", 3, "chars")),
        (Budget(0, "tokens"), Truncated("", "", 2, "tokens")),
        (Budget(1, "bytes"), Truncated("", "c", 2, "chars")),
    ],
)
def test_the_smallest_budgets_leave_next_to_nothing(budget: Budget, cut: Truncated) -> None:
    assert truncate("a§§c" if budget.unit == "tokens" else "abc", budget) == cut


def test_nothing_fits_even_into_a_budget_of_nothing() -> None:
    assert truncate("", Budget(0, "tokens")) is None


def test_a_character_that_fits_only_half_is_left_out_on_either_side() -> None:
    cut = truncate("語" * 10, Budget(10, "bytes"))

    assert cut == Truncated("語", "語", 8, "chars")


def test_tokens_are_counted_by_the_budget_and_not_by_what_the_halves_took_of_it() -> None:
    cut = truncate("語" * 10, Budget(2, "tokens"))

    assert cut == Truncated("語", "語", 6, "tokens")


def test_a_pair_of_carriage_return_and_newline_may_be_cut() -> None:
    assert truncate("a\r\nb\r\n", Budget(4, "bytes")) == Truncated("a\r", "\r\n", 2, "chars")


def test_a_budget_is_the_smaller_one_of_the_models_and_the_calls() -> None:
    assert DEFAULT_BUDGET.at_most(None) == Budget(10_000, "bytes")
    assert DEFAULT_BUDGET.at_most(100) == Budget(100, "tokens")
    assert DEFAULT_BUDGET.at_most(100_000) == Budget(10_000, "bytes")
    assert Budget(20_000, "tokens").at_most(None) == Budget(10_000, "tokens")
    assert Budget(5_000, "tokens").at_most(None) == Budget(5_000, "tokens")


def test_of_two_equal_budgets_the_models_unit_is_told() -> None:
    assert DEFAULT_BUDGET.at_most(2_500) == Budget(10_000, "bytes")


@pytest.mark.parametrize("make", [lambda: Budget(-1, "bytes"), lambda: DEFAULT_BUDGET.at_most(-1)])
def test_a_negative_budget_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="a budget of -1"):
        make()


@given(st.text(max_size=60), st.integers(0, 80), st.sampled_from(["tokens", "bytes"]))
def test_what_is_left_keeps_within_the_budget_and_is_of_the_text(text: str, amount: int, unit: Unit) -> None:
    budget = Budget(amount, unit)
    cut = truncate(text, budget)

    if cut is None:
        assert len(text.encode()) <= budget.bytes
    else:
        assert len((cut.head + cut.tail).encode()) <= budget.bytes < len(text.encode())
        assert text.startswith(cut.head)
        assert text.endswith(cut.tail)
        assert len(cut.head) + len(cut.tail) < len(text)
        if unit == "bytes":
            assert len(cut.head) + cut.removed + len(cut.tail) == len(text)

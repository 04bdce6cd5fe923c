from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from execclient.commands.values import count, duration, kill_arguments


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("8h", 28800),
        ("2d", 172800),
        ("0.5", 0.5),
        (".5m", 30),
        ("1e3", 1000),
    ],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "8 h", "8H", "-1", "1h30m", "nan", "inf", "0", "0.0001", "eight", "3650d", "9" * 400]
)
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no duration"):
        duration(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "²", "x"])
def test_a_count_is_a_whole_number(text: str) -> None:
    assert count("0") == 0
    with pytest.raises(ArgumentTypeError, match="no whole number"):
        count(text)


def test_a_signal_may_be_an_option_of_kill_and_other_words_stay() -> None:
    given = ["-9", "-KILL", "-RTMIN+2", "-s", "USR1", "--json", "a-9", "-", "--", "-9"]

    assert kill_arguments(given) == [
        *("--signal=9", "--signal=KILL", "--signal=RTMIN+2"),
        *("-s", "USR1", "--json", "a-9", "-", "--", "-9"),
    ]

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execclient.tools.result import PREVIEW_BYTES, PREVIEW_LINES, TRUNCATION_NOTICE, preview


@pytest.mark.parametrize("text", ["", "a", "a\n", "x" * 2048, "line\n" * 50, "\n" * 49 + "x", "§" * 1024])
def test_what_fits_is_shown_as_it_is(text: str) -> None:
    assert preview(text) == text


@pytest.mark.parametrize("text", ["x" * 2049, "line\n" * 51, "\n" * 50 + "x", "§" * 1025, "語" * 5000])
def test_what_does_not_fit_ends_with_the_notice_and_keeps_within_both_limits(text: str) -> None:
    shown = preview(text)

    assert shown.endswith("\n" + TRUNCATION_NOTICE)
    assert text.startswith(shown.removesuffix("\n" + TRUNCATION_NOTICE))
    assert len(shown.encode()) <= PREVIEW_BYTES
    assert len(shown.split("\n")) <= PREVIEW_LINES


def test_as_much_as_possible_is_kept() -> None:
    assert preview("line\n" * 51) == "line\n" * 49 + TRUNCATION_NOTICE
    assert len(preview("x" * 3000).encode()) == PREVIEW_BYTES


@given(st.text(st.sampled_from("a§語\n😀"), max_size=4000))
def test_no_text_breaks_the_limits(text: str) -> None:
    shown = preview(text)

    assert len(shown.encode()) <= PREVIEW_BYTES
    assert len(shown.removesuffix("\n").split("\n")) <= PREVIEW_LINES
    assert (TRUNCATION_NOTICE in shown) == (shown != text)

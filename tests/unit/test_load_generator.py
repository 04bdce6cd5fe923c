"""The load generator counts what comes, however it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.wire import LONG_LINE_BYTES, SAMPLED_NEWLINES, count_newlines

LINES = st.sampled_from([0, 1, 100, LONG_LINE_BYTES - 1, LONG_LINE_BYTES, 3 * LONG_LINE_BYTES])


@given(st.lists(LINES, max_size=4 * SAMPLED_NEWLINES), st.booleans())
def test_newlines_are_counted_among_short_and_long_lines(sizes: list[int], cut: bool) -> None:
    data = b"\n".join(b"x" * size for size in sizes) + (b"" if cut else b"\n")

    assert count_newlines(data) == data.count(b"\n")

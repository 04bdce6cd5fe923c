"""The newline framer: whatever the cuts, the same lines."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execprotocol.limits import MAX_LINE_BYTES
from execserver.rpc.framing import LineFramer, Lines, LineTooLongError

STREAMS = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"\t", b"{}", b"{\xff}", b"long" * 9, b"a", b"\x0b"])
).map(b"".join)


def lines_of(pieces: list[bytes], limit: int = MAX_LINE_BYTES) -> tuple[Lines, bool]:
    """What a stream in pieces yields, and whether it ended in a line that is too long."""
    framer = LineFramer(limit)
    lines: Lines = []
    try:
        for piece in pieces:
            lines += framer.feed(piece)
    except LineTooLongError as error:
        return lines + error.messages, True
    return lines, False


def expected(stream: bytes) -> list[bytes]:
    whole = [line.removesuffix(b"\r") for line in stream.split(b"\n")[:-1]]
    return [line for line in whole if line.strip()]


@given(STREAMS, st.lists(st.integers(0, 400)), st.sampled_from([4, 20, 1000]))
def test_how_a_stream_is_cut_never_shows(stream: bytes, cuts: list[int], limit: int) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]

    assert lines_of(pieces, limit) == lines_of([stream], limit)
    assert lines_of(pieces) == (expected(stream), False)


def test_both_line_ends_are_accepted_and_blank_lines_skipped() -> None:
    assert LineFramer().feed(b"{}\r\n\n \t \r\n[1]\n\r\n") == [b"{}", b"[1]"]


def test_a_carriage_return_before_the_cut_belongs_to_the_line_end() -> None:
    framer = LineFramer()

    assert framer.feed(b"{}\r") == []
    assert framer.feed(b"\n{") == [b"{}"]


def test_a_line_of_exactly_the_limit_is_served_and_one_byte_more_is_not() -> None:
    assert lines_of([b"x" * 8, b"\n"], limit=8) == ([b"x" * 8], False)
    assert lines_of([b"x" * 8 + b"\n"], limit=8) == ([b"x" * 8], False)
    assert lines_of([b"x" * 8, b"x\n"], limit=8) == ([], True)
    assert lines_of([b"a\n" + b"x" * 9 + b"\nb\n"], limit=8) == ([b"a"], True)


def test_a_line_above_the_limit_is_refused_before_its_end_comes() -> None:
    framer = LineFramer(limit=8)
    framer.feed(b"a\nxxxx")

    with pytest.raises(LineTooLongError):
        framer.feed(b"xxxxx")


def test_64_mib_in_small_pieces_take_no_quadratic_time() -> None:
    framer = LineFramer()
    piece = b"x" * 1024
    began = time.perf_counter()

    for _ in range(MAX_LINE_BYTES // len(piece)):
        assert framer.feed(piece) == []
    (line,) = framer.feed(b"\n")

    assert len(line) == MAX_LINE_BYTES
    assert time.perf_counter() - began < 3  # quadratic would be a quarter of an hour

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execclient.tools.truncation import OUTPUT_LIMIT_BYTES, HeadTailBuffer, Snapshot


def buffer_of(*pieces: bytes, limit: int = 10) -> HeadTailBuffer:
    buffer = HeadTailBuffer(limit)
    for piece in pieces:
        buffer.push(piece)
    return buffer


def test_output_within_the_limit_is_all_there_and_is_all_head() -> None:
    assert buffer_of(b"01234", b"56789").snapshot() == Snapshot(b"0123456789", b"", 0)


def test_one_byte_more_than_the_limit_drops_one_byte_of_the_middle() -> None:
    snapshot = buffer_of(b"01234", b"56789", b"a").snapshot()

    assert snapshot == Snapshot(b"01234", b"6789a", 1)
    assert snapshot.chunks() == (b"01234", b"6789a")
    assert snapshot.total_bytes == 11


def test_a_marker_stands_where_something_was_dropped_and_nowhere_else() -> None:
    assert buffer_of(b"0123456789ab").snapshot().data("|") == b"01234|789ab"
    assert buffer_of(b"0123456789").text("|") == "0123456789"


def test_without_output_there_are_no_chunks() -> None:
    assert buffer_of().snapshot().chunks() == ()


def test_a_character_that_the_gap_cut_in_two_becomes_two_replacements() -> None:
    assert buffer_of("ab§xxxx§cd".encode(), limit=6).text("|") == "ab\ufffd|\ufffdcd"


def test_three_mebibytes_of_counting_keep_first_and_last_line_and_count_the_rest() -> None:
    buffer = HeadTailBuffer()
    lines = b"".join(b"%d\n" % number for number in range(450_000))
    for start in range(0, len(lines), 65_536):
        buffer.push(lines[start : start + 65_536])

    snapshot = buffer.snapshot()

    assert len(lines) > 3 * OUTPUT_LIMIT_BYTES - (1 << 18)
    assert snapshot.head == lines[: 1 << 19]
    assert snapshot.tail == lines[-(1 << 19) :]
    assert snapshot.omitted_bytes == buffer.omitted_bytes == len(lines) - (1 << 20)
    assert snapshot.head.startswith(b"0\n1\n")
    assert snapshot.tail.endswith(b"449999\n")


@pytest.mark.parametrize(("limit", "kept"), [(0, b""), (1, b"a"), (2, b"ac"), (3, b"abc")])
def test_the_smallest_limits_hold(limit: int, kept: bytes) -> None:
    snapshot = buffer_of(b"abc", limit=limit).snapshot()

    assert snapshot.data() == kept
    assert snapshot.omitted_bytes == 3 - limit


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit is -1"):
        HeadTailBuffer(-1)


def test_what_is_drained_is_not_given_again_and_the_count_begins_anew() -> None:
    buffer = buffer_of(b"0123456789ab")

    assert buffer.drain() == Snapshot(b"01234", b"789ab", 2)
    assert buffer.drain() == Snapshot(b"", b"", 0)
    buffer.push(b"xyz")
    assert (buffer.total_bytes, buffer.omitted_bytes) == (3, 0)
    assert buffer.drain() == Snapshot(b"xyz", b"", 0)


def test_a_snapshot_takes_nothing_away() -> None:
    buffer = buffer_of(b"abc")

    assert buffer.snapshot() == buffer.snapshot() == Snapshot(b"abc", b"", 0)


def test_output_in_tiny_pieces_costs_no_more_memory_than_its_bytes() -> None:
    buffer = HeadTailBuffer(1 << 17)
    tracemalloc.start()
    for number in range(60_000):
        buffer.push(b"%03d" % (number % 1000))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert buffer.total_bytes == 180_000
    assert used < (1 << 17) + 64_000


@given(st.lists(st.binary(max_size=9000), max_size=12), st.integers(0, 20_000))
def test_whatever_the_pieces_the_ends_are_exact(pieces: list[bytes], limit: int) -> None:
    whole = b"".join(pieces)

    snapshot = buffer_of(*pieces, limit=limit).snapshot()

    omitted = max(0, len(whole) - limit)
    head = limit - limit // 2 if omitted else len(whole)
    assert snapshot.head == whole[:head]
    assert snapshot.tail == (whole[len(whole) - limit // 2 :] if omitted and limit > 1 else b"")
    assert (snapshot.omitted_bytes, snapshot.total_bytes) == (omitted, len(whole))

from __future__ import annotations

import pytest

from execclient import Chunk, OutputGap, RunResult
from execclient.run_output import RunOutput


def result(*pieces: tuple[str, bytes], limit: int | None = None) -> RunResult:
    output = RunOutput(limit)
    for stream, data in pieces:
        output.add(Chunk(stream, data))
    return output.result(0, 0.1)


def test_streams_are_apart_and_together_in_the_order_of_arrival() -> None:
    made = result(("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c"))

    assert (made.stdout, made.stderr, made.aggregated) == (b"ac", b"b", b"abc")
    assert (made.stdout_truncated, made.stderr_truncated, made.aggregated_truncated) == (0, 0, 0)


def test_a_command_that_is_silent_has_empty_output() -> None:
    made = result()

    assert (made.stdout, made.stderr, made.aggregated) == (b"", b"", b"")


@pytest.mark.parametrize("limit", range(12))
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_of_too_much_output_both_ends_are_kept_and_the_rest_is_counted(limit: int, size: int) -> None:
    whole = b"0123456789"
    made = result(*(("stdout", whole[n : n + size]) for n in range(0, 10, size)), limit=limit)

    kept = min(limit, 10)
    head, tail = limit - limit // 2, limit // 2
    assert made.stdout == (whole if limit >= 10 else whole[:head] + whole[10 - tail :])
    assert made.stdout_truncated == 10 - kept
    assert (made.aggregated, made.aggregated_truncated) == (made.stdout, made.stdout_truncated)


def test_each_stream_and_both_together_have_the_whole_limit() -> None:
    made = result(("stdout", b"abcdef"), ("stderr", b"123456"), ("stdout", b"ghijkl"), limit=4)

    assert (made.stdout, made.stdout_truncated) == (b"abkl", 8)
    assert (made.stderr, made.stderr_truncated) == (b"1256", 2)
    assert (made.aggregated, made.aggregated_truncated) == (b"abkl", 14)


def test_what_the_second_stream_says_goes_behind_what_the_first_has_said() -> None:
    made = result(("stdout", b"abcdef"), ("stderr", b"1"), limit=4)

    assert (made.aggregated, made.aggregated_truncated) == (b"abf1", 3)


def test_many_small_pieces_behind_a_large_one_cost_no_copies_of_it() -> None:
    output = RunOutput(8 << 20)
    output.add(Chunk("stdout", bytes(16 << 20)))
    for _ in range(100_000):
        output.add(Chunk("stdout", b"x"))

    made = output.result(0, 0.1)
    assert made.stdout.endswith(b"\0" + b"x" * 100_000)
    assert len(made.stdout) == 8 << 20


def test_a_result_with_gaps_comes_with_the_gaps() -> None:
    output = RunOutput(None)
    for piece in (OutputGap(3), Chunk("stdout", b"x"), OutputGap(4)):
        output.add(piece)

    with pytest.raises(OutputGap) as raised:
        output.result(3, 0.1)

    assert raised.value.lost_bytes == 7
    assert raised.value.result is not None
    assert (raised.value.result.exit_code, raised.value.result.stdout) == (3, b"x")


def test_a_gap_of_unknown_size_makes_the_sum_unknown() -> None:
    output = RunOutput(None)
    output.add(OutputGap(3))
    output.add(OutputGap(None))

    with pytest.raises(OutputGap) as raised:
        output.result(0, 0.1)

    assert raised.value.lost_bytes is None

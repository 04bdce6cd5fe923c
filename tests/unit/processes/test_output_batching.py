"""A flood of small pieces is batched, and nothing else is; so many pipes of floods are made larger."""

from __future__ import annotations

import fcntl
import os

from execserver.processes.output_batching import (
    FLOOD_PIPE_BYTES,
    LEAST_BYTES,
    MOST_LARGE_PIPES,
    LargePipes,
    OutputBatching,
)
from execserver.spool.spool import CHUNK_BYTES

PIECE = 8 << 10


class Stream:
    """A stream that is taken from at a steady pace."""

    def __init__(self, pace: float = 0.00002) -> None:
        self.batching = OutputBatching()
        self.pace = pace
        self.now = 100.0

    def take(self, size: int, times: int = 1) -> list[bool]:
        """Whether there was a rest after each of some takes."""
        rests = []
        for _ in range(times):
            self.now += self.pace
            rests.append(self.batching.delays_after(size, self.now))
        return rests


def flooding() -> Stream:
    stream = Stream()
    assert stream.take(PIECE, 17)[-1]
    return stream


def test_a_flood_of_small_pieces_rests_and_goes_on_to() -> None:
    stream = Stream()
    rests = stream.take(PIECE, 17)
    assert rests[-1]
    assert not any(rests[:15])
    assert all(stream.take(PIECE * 5, 1000))


def test_there_is_no_rest_where_a_chunk_was_filled_and_there_is_one_after_the_next_small_piece() -> None:
    stream = flooding()
    for full in (CHUNK_BYTES, 2 * CHUNK_BYTES):
        assert stream.take(PIECE * 5) == [True]
        assert stream.take(full) == [False]
        assert stream.take(PIECE) == [True]


def test_output_that_takes_its_time_does_not_rest() -> None:
    assert not any(Stream(pace=0.001).take(PIECE, 1000))


def test_lines_do_not_rest() -> None:
    assert not any(Stream().take(LEAST_BYTES - 1, 1000))


def test_a_line_in_between_ends_a_flood() -> None:
    stream = flooding()
    assert stream.take(100) == [False]
    assert not any(stream.take(PIECE, 15))


def test_large_pieces_do_not_rest() -> None:
    assert not any(Stream().take(CHUNK_BYTES - PIECE, 1000))


def test_a_pause_ends_a_flood() -> None:
    stream = flooding()
    stream.now += 1
    assert not any(stream.take(PIECE, 15))


def test_who_answers_one_that_waits_rests_seldom() -> None:
    # It says as much after a rest as without one: it was waiting, too.
    rests = Stream().take(PIECE, 10_000)
    assert 0 < sum(rests) <= 200
    longest = max(len(run) for run in "".join(".#"[rest] for rest in rests).split("."))
    assert longest <= 4


def test_a_rest_in_vain_now_and_then_is_none() -> None:
    stream = flooding()
    for _ in range(100):
        assert stream.take(PIECE * 5) == [True]
        assert stream.take(PIECE, 2) == [True, True]


def size(pipe: int) -> int:
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def test_so_many_pipes_are_large_at_a_time_and_no_more() -> None:
    large = LargePipes()
    pipes = [os.pipe() for _ in range(MOST_LARGE_PIPES + 1)]
    assert [large.enlarge(read) for read, _ in pipes] == [True] * MOST_LARGE_PIPES + [False]
    assert [size(read) for read, _ in pipes] == [FLOOD_PIPE_BYTES] * MOST_LARGE_PIPES + [65_536]
    large.closed()
    assert large.enlarge(pipes[-1][0])
    assert size(pipes[-1][0]) == FLOOD_PIPE_BYTES
    for ends in pipes:
        for end in ends:
            os.close(end)


def test_what_is_no_pipe_is_left_alone_and_not_counted() -> None:
    large = LargePipes()
    with open(os.devnull, "rb") as other:
        assert not any(large.enlarge(other.fileno()) for _ in range(2 * MOST_LARGE_PIPES))
    read, write = os.pipe()
    assert large.enlarge(read)
    os.close(read)
    os.close(write)

"""A flood of small pieces is left to gather, and nothing else is."""

from __future__ import annotations

from execserver.processes.output_batching import LEAST_BYTES, Gathering
from execserver.spool.spool import CHUNK_BYTES

PIECE = 8 << 10


class Stream:
    """A stream that is taken from at a steady pace."""

    def __init__(self, pace: float = 0.00002) -> None:
        self.gathering = Gathering()
        self.pace = pace
        self.now = 100.0

    def take(self, size: int, times: int = 1) -> list[bool]:
        """Whether there was a rest after each of some takes."""
        rests = []
        for _ in range(times):
            self.now += self.pace
            rests.append(self.gathering.rests_after(size, self.now))
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

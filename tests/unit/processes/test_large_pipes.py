"""How many pipes a daemon makes larger."""

from __future__ import annotations

import fcntl
import os

from execserver.processes.large_pipes import FLOOD_PIPE_BYTES, MOST_LARGE_PIPES, LargePipes


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

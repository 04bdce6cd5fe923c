"""The outgoing side: one write a turn, order, counting, waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from execserver.transports.write_buffer import (
    EARLY_BYTES,
    JOINED_BELOW_BYTES,
    LOW_WATER_BYTES,
    WriteBuffer,
    drop_front,
    join_small,
)

SIZES = st.lists(
    st.sampled_from([0, 1, 7, JOINED_BELOW_BYTES - 1, JOINED_BELOW_BYTES, 3 * JOINED_BELOW_BYTES])
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes apart
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


def write_buffer(fd: int) -> WriteBuffer:
    def failed(error: OSError) -> None:
        raise AssertionError(error)

    return WriteBuffer(fd, lambda: None, failed, asyncio.get_running_loop())


def test_what_is_put_in_one_turn_leaves_in_one_write(
    runner: asyncio.Runner, ends: tuple[socket.socket, socket.socket]
) -> None:
    async def scene() -> None:
        box = write_buffer(ends[0].fileno())
        box.put((b"a", b"\n"), 2)
        box.put((b"b", b"\n"), 2)
        assert box.unsent == 4
        await asyncio.sleep(0)
        assert box.unsent == 0
        box.put((b"x" * JOINED_BELOW_BYTES, b"\n"), JOINED_BELOW_BYTES + 1)
        await asyncio.sleep(0)

    runner.run(scene())

    assert ends[1].recv(100) == b"a\nb\n"
    assert len(ends[1].recv(1 << 20)) == JOINED_BELOW_BYTES + 1


def test_while_corked_nothing_leaves(
    runner: asyncio.Runner, ends: tuple[socket.socket, socket.socket]
) -> None:
    async def scene() -> None:
        box = write_buffer(ends[0].fileno())
        box.cork()
        box.put((b"a",), 1)
        await asyncio.sleep(0)
        assert box.unsent == 1
        box.put((b"b",), 1)
        box.uncork()
        assert box.unsent == 0

    runner.run(scene())

    assert ends[1].recv(100) == b"ab"


def test_the_first_of_many_answers_leave_while_the_others_are_made(
    runner: asyncio.Runner, ends: tuple[socket.socket, socket.socket]
) -> None:
    answer = b"x" * 1023 + b"\n"

    async def scene() -> list[int]:
        box = write_buffer(ends[0].fileno())
        box.cork()
        unsent = []
        for _ in range(16):
            box.put((answer,), len(answer))
            unsent.append(box.unsent)
        box.uncork()
        assert box.unsent == 0
        assert box.progress == 16 * len(answer)
        return unsent

    unsent = runner.run(scene())

    # 4 KiB, then 8, and the rest at the end: few calls, however many answers.
    assert [number for number, size in enumerate(unsent, 1) if size == 0] == [4, 12]
    assert [len(ends[1].recv(1 << 20)) for _ in range(3)] == [EARLY_BYTES, 2 * EARLY_BYTES, 4 * len(answer)]


def test_a_peer_that_is_gone_is_found_when_the_read_is_served_and_not_under_an_answer(
    runner: asyncio.Runner,
) -> None:
    async def scene() -> None:
        errors: list[OSError] = []
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.close(reading)
        box = WriteBuffer(writing, lambda: None, errors.append, asyncio.get_running_loop())
        box.cork()
        box.put((b"x" * EARLY_BYTES,), EARLY_BYTES)
        assert not errors
        box.uncork()
        assert [type(error) for error in errors] == [BrokenPipeError]
        os.close(writing)

    runner.run(scene())


def test_answers_that_the_peer_has_no_room_for_keep_their_order(runner: asyncio.Runner) -> None:
    parts = [bytes((97 + number % 26,)) * 1500 for number in range(60)]

    async def scene() -> bytes:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        got = b""
        os.write(writing, b"y" * 60_000)  # one early write fits in part, the next ones do not
        box = write_buffer(writing)
        box.cork()
        for part in parts:
            box.put((part,), len(part))
        box.uncork()
        while box.unsent:
            got += os.read(reading, 1 << 20)
            await asyncio.sleep(0)
        box.close()
        with contextlib.suppress(BlockingIOError):
            got += os.read(reading, 1 << 20)
        os.close(reading)
        os.close(writing)
        return got

    assert runner.run(scene()) == b"y" * 60_000 + b"".join(parts)


def test_a_closed_buffer_wakes_all_waiters_and_takes_no_more(runner: asyncio.Runner) -> None:
    async def scene() -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        box = write_buffer(writing)
        box.put((bytes(1 << 20),), 1 << 20)
        waiting = asyncio.ensure_future(box.below(LOW_WATER_BYTES))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        box.close()
        box.close()
        box.put((b"x",), 1)
        assert box.unsent == 0
        with pytest.raises(ConnectionResetError):
            await waiting
        with pytest.raises(ConnectionResetError):
            await box.below(1)
        os.close(reading)
        os.close(writing)

    runner.run(scene())


def test_a_descriptor_without_a_reader_fails_once(runner: asyncio.Runner) -> None:
    async def scene() -> None:
        errors: list[OSError] = []
        reading, writing = os.pipe()
        os.close(reading)
        box = WriteBuffer(writing, lambda: None, errors.append, asyncio.get_running_loop())
        box.put((b"x",), 1)
        await asyncio.sleep(0)
        box.put((b"x",), 1)
        await asyncio.sleep(0)
        assert [type(error) for error in errors] == [BrokenPipeError]
        os.close(writing)

    runner.run(scene())


@given(SIZES)
def test_joining_changes_no_byte_and_copies_nothing_large(sizes: list[int]) -> None:
    pieces = [bytes((number % 256,)) * size for number, size in enumerate(sizes)]

    joined = join_small(pieces)

    assert b"".join(joined) == b"".join(pieces)
    untouched = {id(piece) for piece in joined}
    assert all(id(piece) in untouched for piece in pieces if len(piece) >= JOINED_BELOW_BYTES)
    assert all(joined)


@given(SIZES.map(lambda sizes: [size for size in sizes if size]), st.data())
def test_dropping_the_front_leaves_the_rest(sizes: list[int], data: st.DataObject) -> None:
    pieces = [bytes((number % 256,)) * size for number, size in enumerate(sizes)]
    count = data.draw(st.integers(0, sum(sizes)))
    buffers: deque[bytes | memoryview] = deque(pieces)

    drop_front(buffers, count)

    assert b"".join(buffers) == b"".join(pieces)[count:]

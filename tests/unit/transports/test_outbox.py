"""The outgoing side: one write a turn, order, counting, waiting."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from execserver.transports.outbox import JOINED_BELOW_BYTES, LOW_WATER_BYTES, Outbox, drop_front, join_small

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


def outbox(fd: int) -> Outbox:
    def failed(error: OSError) -> None:
        raise AssertionError(error)

    return Outbox(fd, lambda: None, failed, asyncio.get_running_loop())


def test_what_is_put_in_one_turn_leaves_in_one_write(
    runner: asyncio.Runner, ends: tuple[socket.socket, socket.socket]
) -> None:
    async def scene() -> None:
        box = outbox(ends[0].fileno())
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
        box = outbox(ends[0].fileno())
        box.cork()
        box.put((b"a",), 1)
        await asyncio.sleep(0)
        assert box.unsent == 1
        box.put((b"b",), 1)
        box.uncork()
        assert box.unsent == 0

    runner.run(scene())

    assert ends[1].recv(100) == b"ab"


def test_a_closed_outbox_wakes_who_waits_and_takes_no_more(runner: asyncio.Runner) -> None:
    async def scene() -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        box = outbox(writing)
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


def test_a_descriptor_that_nobody_reads_fails_once(runner: asyncio.Runner) -> None:
    async def scene() -> None:
        errors: list[OSError] = []
        reading, writing = os.pipe()
        os.close(reading)
        box = Outbox(writing, lambda: None, errors.append, asyncio.get_running_loop())
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

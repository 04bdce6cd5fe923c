"""Descriptors are reported when they are ready, and not while they are delayed."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from execserver.processes.output_batching import DELAY_SECONDS
from execserver.processes.poller import READABLE, DescriptorPoller, Watch

SECONDS = 10.0
"""More than anything here takes on the slowest machine."""


class Pipe:
    """A pipe that is watched, and what was reported of it."""

    def __init__(self, poller: DescriptorPoller) -> None:
        self.read, self.write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.reported: list[float] = []
        self.watch: Watch = poller.watch(self.read, READABLE, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        self.reported.append(time.monotonic())
        os.read(self.read, 1 << 16)

    async def next(self) -> float:
        """When it is reported once more."""
        before = len(self.reported)
        deadline = time.monotonic() + SECONDS
        while len(self.reported) == before:
            assert time.monotonic() < deadline, "nothing is reported"
            await asyncio.sleep(0)
        return self.reported[-1]

    def close(self) -> None:
        """As an owner does it."""
        if self.read >= 0:
            self.watch.set(0)
            os.close(self.read)
            os.close(self.write)
            self.read = -1


@pytest.fixture
async def poller() -> AsyncIterator[DescriptorPoller]:
    poller = DescriptorPoller(asyncio.get_running_loop())
    yield poller
    poller.close()


@pytest.fixture
def pipe(poller: DescriptorPoller) -> Iterator[Pipe]:
    pipe = Pipe(poller)
    yield pipe
    pipe.close()


async def rested() -> None:
    """Long after the end of any delay."""
    await asyncio.sleep(20 * DELAY_SECONDS)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_comes_during_a_rest_is_reported_when_it_is_over(
    poller: DescriptorPoller, pipe: Pipe
) -> None:
    for _ in range(100):
        began = time.monotonic()
        poller.delay(pipe.watch)
        os.write(pipe.write, b"x")
        assert await pipe.next() - began >= DELAY_SECONDS


async def test_who_rests_already_is_reported_once_after_it(poller: DescriptorPoller, pipe: Pipe) -> None:
    os.write(pipe.write, b"x")
    for _ in range(3):
        poller.delay(pipe.watch)
    await rested()
    assert len(pipe.reported) == 1


async def test_the_others_are_reported_meanwhile(poller: DescriptorPoller, pipe: Pipe) -> None:
    other = Pipe(poller)
    try:
        # By hand: no timer ends this delay.
        pipe.watch.delay()
        os.write(pipe.write, b"x")
        os.write(other.write, b"x")
        await other.next()
        await rested()
        assert not pipe.reported
        pipe.watch.end_delay()
        await pipe.next()
    finally:
        other.close()


async def test_an_end_during_a_rest_is_reported_together_with_what_came_before_it(
    poller: DescriptorPoller,
) -> None:
    # Alone it would say that there is nothing left to read.
    events: list[int] = []
    for _ in range(200):
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        watch = poller.watch(read, READABLE, events.append)
        poller.delay(watch)
        os.write(write, b"x")
        os.close(write)
        while not events:
            await asyncio.sleep(0)
        watch.set(0)
        os.close(read)
        assert events[0] & READABLE
        events.clear()


async def test_what_is_not_wanted_any_more_after_a_rest_is_not_reported(
    poller: DescriptorPoller, pipe: Pipe
) -> None:
    poller.delay(pipe.watch)
    os.write(pipe.write, b"x")
    pipe.watch.want(READABLE, False)
    await rested()
    assert not pipe.reported
    pipe.watch.want(READABLE, True)
    await pipe.next()


async def test_what_is_wanted_again_during_a_rest_is_reported(poller: DescriptorPoller, pipe: Pipe) -> None:
    poller.delay(pipe.watch)
    pipe.watch.want(READABLE, False)
    pipe.watch.want(READABLE, True)
    os.write(pipe.write, b"x")
    await pipe.next()


async def test_a_descriptor_that_is_closed_during_its_rest_is_forgotten(poller: DescriptorPoller) -> None:
    pipe = Pipe(poller)
    poller.delay(pipe.watch)
    number = pipe.read
    pipe.close()
    other = Pipe(poller)
    try:
        assert number in (other.read, other.write)
        os.write(other.write, b"x")
        await rested()
        assert len(other.reported) == 1
        assert not pipe.reported
    finally:
        other.close()


async def test_what_is_not_watched_does_not_rest(poller: DescriptorPoller, pipe: Pipe) -> None:
    pipe.watch.set(0)
    poller.delay(pipe.watch)
    os.write(pipe.write, b"x")
    await rested()
    assert not pipe.reported


async def test_without_a_descriptor_for_the_timer_there_is_no_rest(
    poller: DescriptorPoller, pipe: Pipe
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(pipe.read)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        poller.delay(pipe.watch)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not pipe.watch.delayed
    os.write(pipe.write, b"x")
    await pipe.next()


async def test_a_poller_that_ends_leaves_no_descriptor(poller: DescriptorPoller) -> None:
    before = len(os.listdir("/proc/self/fd"))
    other = DescriptorPoller(asyncio.get_running_loop())
    pipe = Pipe(other)
    other.delay(pipe.watch)
    other.close()
    os.close(pipe.read)
    os.close(pipe.write)
    assert len(os.listdir("/proc/self/fd")) == before

"""After which answers to long polls the loop stays awake, and until when."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from time import perf_counter

import pytest

from execserver import busy_poll
from execserver.busy_poll import LONG_POLL_WAIT_SECONDS, LongPollWait


@pytest.fixture(autouse=True)
def several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "SINGLE_PROCESSOR", False)


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on a little each time somebody looks: a busy machine ends no moment early."""
    looks = count()
    monkeypatch.setattr(busy_poll, "perf_counter", lambda: next(looks) * LONG_POLL_WAIT_SECONDS / 100)


class Client:
    """A client of which one hears now and then; `turns` counts those of the loop that did not sleep."""

    def __init__(self) -> None:
        self.heard = 0
        self.turns = 0
        self.asks_after = 0
        """Which look finds its next poll; 0 for none."""
        self.wait = LongPollWait(self._read, lambda: self.heard)

    def _read(self) -> None:
        self.turns += 1
        if self.turns == self.asks_after:
            self.heard += 1

    async def answer(self) -> bool:
        """Answer a poll; whether the loop stayed awake for the next one."""
        self.turns = 0
        self.wait.answered()
        await asyncio.sleep(0)
        awake = self.turns > 0
        before = -1
        while before != self.turns:
            before = self.turns
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return awake


async def test_the_loop_stays_awake_for_a_moment() -> None:
    client = Client()
    began = perf_counter()
    assert await client.answer()
    assert perf_counter() - began >= LONG_POLL_WAIT_SECONDS


@pytest.mark.usefixtures("steady_clock")
async def test_the_next_message_ends_the_moment() -> None:
    client = Client()
    client.asks_after = 3
    assert await client.answer()
    assert client.turns == 3


@pytest.mark.usefixtures("steady_clock")
async def test_a_client_that_asks_again_at_once_is_always_waited_for() -> None:
    client = Client()
    client.asks_after = 3
    assert all([await client.answer() for _ in range(300)])


async def test_the_waits_for_a_slow_client_become_rare() -> None:
    client = Client()
    waits = [number for number in range(300) if await client.answer()]
    pauses = [after - before - 1 for before, after in pairwise(waits)]
    assert pauses == [1, 3, 7, 15, 31, 63, 127]


async def test_answers_during_a_moment_begin_no_further_one() -> None:
    client = Client()
    client.wait.answered()
    looked = client.turns
    client.wait.answered()
    assert client.turns == looked


async def test_with_one_processor_there_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "SINGLE_PROCESSOR", True)
    client = Client()
    assert not await client.answer()

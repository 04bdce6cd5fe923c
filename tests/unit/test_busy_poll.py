"""After which messages the loop stays awake, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import pytest

from execserver import busy_poll
from execserver.busy_poll import BUSY_POLL_SECONDS, BusyPoll


class Turns(asyncio.SelectorEventLoop):
    """A loop that only notes what it is to do in its next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object], *args: object, context: object = None) -> None:  # type: ignore[override]  # what is noted is not cancelled
        self.noted.append(callback)

    def turn(self) -> bool:
        """Do it; whether the loop would not have slept."""
        noted, self.noted = self.noted, []
        for callback in noted:
            callback()
        return bool(noted)

    def settle(self) -> None:
        """Turn until it would sleep."""
        while self.turn():
            pass


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Turns:
    monkeypatch.setattr(busy_poll, "SINGLE_PROCESSOR", False)
    turns = Turns()
    turns.close()
    return turns


def served(each: BusyPoll, loop: Turns, *, quick: bool) -> bool:
    """One more message; whether the loop stayed awake after it."""
    each.served(0.0 if quick else float("inf"))
    awake = bool(loop.noted)
    loop.settle()
    return awake


def test_the_loop_stays_awake_for_a_moment_after_a_message(loop: Turns) -> None:
    began = perf_counter()
    BusyPoll(loop).served(began)
    assert loop.noted
    loop.settle()
    assert perf_counter() - began >= BUSY_POLL_SECONDS
    assert not loop.turn()


def test_a_client_whose_next_message_follows_at_once_is_always_waited_for(loop: Turns) -> None:
    each = BusyPoll(loop)
    assert all(served(each, loop, quick=True) for _ in range(1000))


def test_the_waits_for_a_slow_client_become_rare(loop: Turns) -> None:
    each = BusyPoll(loop)
    waits = [number for number in range(1200) if served(each, loop, quick=False)]
    pauses = [after - before - 1 for before, after in pairwise(waits)]
    assert pauses[:9] == [1, 3, 7, 15, 31, 63, 127, 255, 255]


def test_a_slow_client_that_becomes_quick_is_always_waited_for_again(loop: Turns) -> None:
    each = BusyPoll(loop)
    for _ in range(1200):
        served(each, loop, quick=False)
    waits = [served(each, loop, quick=True) for _ in range(600)]
    first = waits.index(True)
    assert first <= 255
    assert all(waits[first:])


def test_messages_during_a_moment_prolong_it_and_keep_one_callback(loop: Turns) -> None:
    each = BusyPoll(loop)
    for _ in range(100):
        last = perf_counter()
        each.served(0.0)  # as one that came in time
        assert len(loop.noted) == 1
    loop.settle()
    assert perf_counter() - last >= BUSY_POLL_SECONDS


def test_with_one_processor_there_is_no_wait(loop: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "SINGLE_PROCESSOR", True)
    each = BusyPoll(loop)
    assert not any(served(each, loop, quick=True) for _ in range(10))

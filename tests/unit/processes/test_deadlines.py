"""Deadlines: never early, with one timer, whatever moves them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from execserver.processes.deadlines import CONFIRM_SECONDS, Deadline, DeadlineKind, DeadlineQueue, Deadlines

FIRST = 1000.0


def queue(**deadlines: Deadline) -> DeadlineQueue:
    """A queue with processes `p1`, `p2`, …"""
    made = DeadlineQueue()
    for name, deadline in deadlines.items():
        made.add(int(name[1:]), deadline)
    return made


def test_without_deadlines_no_timer_runs() -> None:
    made = queue(p1=Deadline(None, None, FIRST))
    assert made.wakes_at() is None
    assert len(made) == 0
    assert made.passed(FIRST * 1e6) == []


def test_a_timeout_counts_from_the_start_whatever_happens() -> None:
    deadline = Deadline(FIRST + 10, None, FIRST)
    made = queue(p1=deadline)
    deadline.touch(FIRST + 9)
    assert made.wakes_at() == FIRST + 10
    assert made.passed(FIRST + 9.999) == []
    assert made.passed(FIRST + 10) == [(1, "timeout")]
    assert made.passed(FIRST + 20) == []
    assert made.wakes_at() is None


def test_an_idle_process_is_ended_when_it_was_still_idle_a_moment_later() -> None:
    made = queue(p1=Deadline(None, 5, FIRST))
    assert made.passed(FIRST + 4.999) == []
    assert made.passed(FIRST + 5) == []
    assert made.wakes_at() == FIRST + 5 + CONFIRM_SECONDS
    assert made.passed(FIRST + 5 + CONFIRM_SECONDS) == [(1, "idleTimeout")]
    assert made.wakes_at() is None


def test_a_sign_of_life_moves_the_idle_deadline() -> None:
    deadline = Deadline(None, 5, FIRST)
    made = queue(p1=deadline)
    deadline.touch(FIRST + 3)
    assert made.wakes_at() == FIRST + 5  # nothing was rescheduled
    assert made.passed(FIRST + 5) == []
    assert made.wakes_at() == FIRST + 8


def test_output_that_waited_while_the_server_stood_still_is_a_sign_of_life() -> None:
    deadline = Deadline(None, 5, FIRST)
    made = queue(p1=deadline)
    assert made.passed(FIRST + 100) == []  # the timer comes first …
    deadline.touch(FIRST + 100.001)  # … and then what has been in the pipe
    assert made.passed(FIRST + 100 + CONFIRM_SECONDS) == []
    assert made.wakes_at() == FIRST + 105.001
    assert made.passed(FIRST + 105.001) == []
    assert made.passed(FIRST + 105.001 + CONFIRM_SECONDS) == [(1, "idleTimeout")]


def test_of_both_the_one_that_comes_first_ends_the_process_once() -> None:
    busy, silent = Deadline(FIRST + 10, 4, FIRST), Deadline(FIRST + 10, 4, FIRST)
    made = queue(p1=busy, p2=silent)
    for second in range(1, 10):
        busy.touch(FIRST + second)
        assert (1, "timeout") not in made.passed(FIRST + second)
    assert len(made) == 1
    assert made.passed(FIRST + 10) == [(1, "timeout")]
    assert len(made) == 0


def test_a_process_that_is_forgotten_passes_nothing() -> None:
    made = queue(p1=Deadline(FIRST + 1, None, FIRST), p2=Deadline(FIRST + 2, None, FIRST))
    made.forget(1)
    made.forget(1)
    made.forget(99)
    assert made.wakes_at() == FIRST + 2
    assert made.passed(FIRST + 5) == [(2, "timeout")]


def test_thousands_of_short_processes_with_long_deadlines_leave_nothing_behind() -> None:
    made = DeadlineQueue()
    for number in range(10_000):
        made.add(number, Deadline(FIRST + 1e9, None, FIRST))
        made.forget(number)
        assert len(made._heap) < 200
    assert made.wakes_at() is None


@given(st.data())
def test_no_deadline_passes_early_and_none_is_forgotten(data: st.DataObject) -> None:
    seconds, booleans = st.floats(0.001, 20), st.booleans()
    made, now = DeadlineQueue(), FIRST
    watched: dict[int, Deadline] = {}
    for number in range(data.draw(st.integers(1, 5))):
        end = data.draw(st.none() | seconds)
        deadline = Deadline(None if end is None else now + end, data.draw(st.none() | seconds), now)
        made.add(number, deadline)
        watched[number] = deadline
    for _ in range(data.draw(st.integers(0, 30))):
        now += data.draw(st.floats(0, 5))
        if data.draw(booleans) and watched:
            watched[data.draw(st.sampled_from(sorted(watched)))].touch(now)
        for number, which in made.passed(now):
            deadline = watched.pop(number)
            assert_over(deadline, which, now)
    for _ in range(100):
        wakes_at = made.wakes_at()
        if wakes_at is None:
            break
        assert wakes_at > now
        now = wakes_at
        for number, which in made.passed(now):
            assert_over(watched.pop(number), which, now)
    assert all(left.ends_at is None and left.idle_seconds is None for left in watched.values())


def assert_over(deadline: Deadline, which: DeadlineKind, now: float) -> None:
    if which == "timeout":
        assert deadline.ends_at is not None
        assert now >= deadline.ends_at
    else:
        assert deadline.idle_seconds is not None
        assert now >= deadline.active_at + deadline.idle_seconds


# -- on a loop


@contextmanager
def on_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def test_many_deadlines_pass_in_time_and_none_early() -> None:
    with on_loop() as loop:
        passed: list[tuple[int, DeadlineKind, float]] = []
        ends: dict[int, float] = {}
        deadlines = Deadlines(loop, lambda number, which: passed.append((number, which, time.monotonic())))
        begin = time.monotonic()
        for number in random.Random(1).sample(range(60), 60):
            ends[number] = begin + 0.02 + number * 0.003
            deadlines.add(number, Deadline(ends[number], None, begin))
        loop.run_until_complete(asyncio.sleep(0.4))
        assert [number for number, _, _ in passed] == list(range(60))
        assert all(at >= ends[number] for number, _, at in passed)
        assert len(deadlines) == 0
        deadlines.close()


def test_an_earlier_deadline_that_comes_later_is_not_missed_and_one_that_is_over_passes_at_once() -> None:
    with on_loop() as loop:
        passed: list[int] = []
        deadlines = Deadlines(loop, lambda number, _: passed.append(number))
        now = time.monotonic()
        deadlines.add(1, Deadline(now + 1e12, None, now))  # beyond what a timer can wait for
        deadlines.add(2, Deadline(now + 1, None, now))
        deadlines.add(3, Deadline(now - 5, None, now - 10))
        loop.run_until_complete(asyncio.sleep(0.02))
        assert passed == [3] or (passed == [3, 2] and time.monotonic() >= now + 1)
        loop.run_until_complete(asyncio.sleep(1.03))
        assert passed == [3, 2]
        assert len(deadlines) == 1
        deadlines.close()


@pytest.mark.parametrize("forgotten", [False, True])
def test_nothing_passes_after_the_end(forgotten: bool) -> None:
    with on_loop() as loop:
        passed: list[int] = []
        deadlines = Deadlines(loop, lambda number, _: passed.append(number))
        deadlines.add(1, Deadline(time.monotonic() + 0.02, None, time.monotonic()))
        if forgotten:
            deadlines.forget(1)
        else:
            deadlines.close()
        loop.run_until_complete(asyncio.sleep(0.06))
        assert passed == []
        deadlines.close()


def test_a_callback_may_add_and_forget() -> None:
    with on_loop() as loop:
        passed: list[int] = []

        def on_passed(number: int, _: DeadlineKind) -> None:
            passed.append(number)
            deadlines.forget(number)
            if number < 3:
                deadlines.add(number + 1, Deadline(time.monotonic(), None, time.monotonic()))

        deadlines = Deadlines(loop, on_passed)
        begin = time.monotonic()
        deadlines.add(1, Deadline(begin, None, begin))
        loop.run_until_complete(asyncio.sleep(0.06))
        while len(passed) < 3 and time.monotonic() < begin + 20:
            loop.run_until_complete(asyncio.sleep(0.06))
        assert passed == [1, 2, 3]
        deadlines.close()

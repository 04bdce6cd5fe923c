"""What a connection's schedule begins, and what it lets go of when the connection ends first."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from execprotocol.methods import METHODS
from execserver.rpc.flow_control import FlowControl
from execserver.rpc.handlers import StreamedResult
from execserver.rpc.params import decode_params
from execserver.rpc.scheduler import PendingRequest, Scheduler

PARAMS: dict[str, dict[str, Any]] = {
    "process/read": {"processId": "p", "waitMs": 60_000},
    "process/terminate": {"processId": "p"},
    "fs/readDirectory": {"path": "file:///"},
}


class Answers:
    """A connection that notes what it is told."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.errors: list[Exception] = []

    def invoke(self, pending: PendingRequest) -> Any:
        raise AssertionError(f"{pending} was not to wait")

    def succeeded(self, pending: PendingRequest, result: Any) -> None:
        self.results.append(result)

    async def streamed(self, pending: PendingRequest, result: StreamedResult) -> None:
        raise AssertionError(f"{pending} has a small result")

    def failed(self, pending: PendingRequest, error: Exception) -> None:
        self.errors.append(error)

    def progressed(self) -> None:
        pass


class Peer:
    """One that takes everything at once."""

    unsent = 0


async def some_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def pending_of(name: str) -> PendingRequest:
    params = decode_params(METHODS[name], PARAMS[name])
    return PendingRequest(target=1, method=METHODS[name], params=params, size=100, began=0.0, trace=None)


def schedule_for(answers: Answers) -> Scheduler:
    return Scheduler(None, answers, FlowControl(cast("Any", Peer())))


async def answer_after(event: asyncio.Event) -> dict[str, Any]:
    await event.wait()
    return {"done": True}


@pytest.mark.parametrize("name", PARAMS)
async def test_what_has_to_wait_is_held_at_once_and_answered_when_it_is_done(name: str) -> None:
    answers, event = Answers(), asyncio.Event()
    schedule = schedule_for(answers)

    schedule.start(pending_of(name), answer_after(event))
    assert len(schedule.unfinished) == 1
    assert schedule.held_bytes > 100
    await some_turns()
    assert not answers.results

    event.set()
    await some_turns()
    assert answers.results == [{"done": True}]
    assert not schedule.unfinished
    assert schedule.held_bytes == 0


@pytest.mark.parametrize("turns_before_the_end", range(4))
@pytest.mark.parametrize("name", PARAMS)
async def test_a_connection_that_ends_leaves_nothing_of_what_had_begun_or_not(
    name: str, turns_before_the_end: int
) -> None:
    answers = Answers()
    schedule = schedule_for(answers)
    work: Coroutine[Any, Any, dict[str, Any]] = answer_after(asyncio.Event())

    schedule.start(pending_of(name), work)
    for _ in range(turns_before_the_end):
        await asyncio.sleep(0)
    schedule.close()
    await some_turns()

    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert not answers.results
    assert not answers.errors
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_what_came_with_a_poll_is_answered_before_the_poll_begins() -> None:
    answers, order = Answers(), list[str]()
    schedule = schedule_for(answers)

    async def noted(what: str) -> dict[str, Any]:
        order.append(what)
        return {}

    schedule.start(pending_of("process/read"), noted("poll"))
    schedule.start(pending_of("process/terminate"), noted("terminate"))
    await some_turns()

    assert order == ["terminate", "poll"]
    assert answers.results == [{}, {}]


async def test_a_poll_that_fails_is_answered_with_its_error() -> None:
    answers = Answers()

    async def failing() -> dict[str, Any]:
        raise LookupError("gone")

    schedule = schedule_for(answers)
    schedule.start(pending_of("process/read"), failing())
    await some_turns()

    assert [str(error) for error in answers.errors] == ["gone"]
    assert not schedule.unfinished

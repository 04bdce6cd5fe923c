"""The calls that are under way when a toolset is closed."""

from __future__ import annotations

import asyncio

import pytest

from execclient.errors import ExecutorClosed
from execclient.tools.parallel import OpenCalls


async def test_the_end_waits_until_all_calls_have_cleaned_up() -> None:
    calls, cleaned = OpenCalls(), []

    async def call(number: int) -> None:
        async with calls.entered():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                cleaned.append(number)

    tasks = [asyncio.create_task(call(number)) for number in range(3)]
    await asyncio.sleep(0)
    await calls.end()

    assert sorted(cleaned) == [0, 1, 2]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {TimeoutError}


async def test_no_call_begins_after_the_end() -> None:
    calls = OpenCalls()
    await calls.end()
    await calls.end()

    with pytest.raises(ExecutorClosed, match="make another one"):
        async with calls.entered():
            raise AssertionError


async def test_a_call_that_its_caller_cancels_is_cancelled_and_not_ended() -> None:
    calls = OpenCalls()

    async def call() -> None:
        async with calls.entered():
            await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await calls.end()


async def test_two_ends_at_once_both_wait() -> None:
    calls, entered = OpenCalls(), asyncio.Event()

    async def call() -> None:
        async with calls.entered():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await entered.wait()
    async with asyncio.timeout(20):
        await asyncio.gather(calls.end(), calls.end())

    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], TimeoutError)

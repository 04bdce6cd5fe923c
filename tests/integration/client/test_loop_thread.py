"""Calls to the loop of a thread from the coroutines of another loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from execclient import Executor, ExecutorClosed, SystemFailure, connect
from execclient.loop_thread import LoopThread

Opened = tuple[LoopThread[Executor], Executor]


@pytest.fixture
def opened(url: str) -> Iterator[Opened]:
    thread = LoopThread(lambda: connect(url))
    yield thread, thread.enter()
    thread.close()


async def running(thread: LoopThread[Executor], executor: Executor) -> list[str]:
    processes = await thread.call_async(executor.processes)
    return [process.process_id for process in processes if process.state == "running"]


async def test_a_call_returns_its_result_or_raises_its_error(opened: Opened) -> None:
    thread, executor = opened
    result = await thread.call_async(lambda: executor.run(["echo", "one"]))
    assert result.text == "one\n"
    with pytest.raises(SystemFailure):
        await thread.call_async(lambda: executor.run(["no-such-program"]))
    with pytest.raises(TypeError):
        await thread.call_async(lambda: executor.run(1))  # type: ignore[arg-type]  # the test


async def test_the_loop_of_the_caller_runs_on_meanwhile(opened: Opened, tmp_path: Path) -> None:
    thread, executor = opened
    script = f"while ! [ -e {tmp_path}/go ]; do sleep 0.01; done; echo went"
    running = asyncio.create_task(thread.call_async(lambda: executor.run(["sh", "-c", script])))
    await asyncio.sleep(0)
    (tmp_path / "go").touch()
    assert (await running).text == "went\n"


def test_calls_come_from_any_number_of_loops(opened: Opened) -> None:
    thread, executor = opened
    texts: list[str] = []

    async def several(name: int) -> None:
        runs = [partial(executor.run, ["echo", f"{name} {number}"]) for number in range(5)]
        for result in await asyncio.gather(*map(thread.call_async, runs)):
            texts.append(result.text)

    threads = [threading.Thread(target=asyncio.run, args=(several(name),)) for name in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(texts) == sorted(f"{name} {number}\n" for name in range(3) for number in range(5))


async def test_a_cancelled_call_has_killed_its_command(opened: Opened, tmp_path: Path) -> None:
    thread, executor = opened
    argv = ["sh", "-c", f"touch {tmp_path}/begun; exec sleep 60"]
    calling = asyncio.create_task(thread.call_async(lambda: executor.run(argv)))
    async with asyncio.timeout(20):
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
    assert len(await running(thread, executor)) == 1
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await running(thread, executor) == []


async def test_a_call_that_is_cancelled_twice_is_not_waited_for(opened: Opened) -> None:
    thread, _ = opened
    never, begun = threading.Event(), threading.Event()

    async def stubborn() -> None:
        begun.set()
        while not never.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    calling = asyncio.create_task(thread.call_async(stubborn))
    await asyncio.to_thread(begun.wait)
    calling.cancel()
    await asyncio.sleep(0.05)
    assert not calling.done()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    never.set()


async def test_a_call_under_way_ends_with_the_thread_and_later_ones_are_refused(url: str) -> None:
    thread = LoopThread(lambda: connect(url))
    executor = await asyncio.to_thread(thread.enter)
    calling = asyncio.create_task(thread.call_async(lambda: executor.run(["sleep", "60"])))
    while not await running(thread, executor):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(thread.close)
    # It ends with the session: the command was killed, or is no longer waited for.
    with suppress(ExecutorClosed):
        assert (await calling).exit_code
    with pytest.raises(ExecutorClosed):
        await thread.call_async(lambda: executor.run(["true"]))


async def test_a_call_from_the_loop_itself_is_refused(opened: Opened) -> None:
    thread, executor = opened
    with pytest.raises(RuntimeError, match="its own event loop"):
        await thread.call_async(lambda: thread.call_async(executor.processes))

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from execprotocol.errors import InternalError, NotFound
from execserver.filesystem.blocking import CALLS_PER_CONNECTION, BlockingCalls
from execserver.filesystem.mounts import MountTable
from tests.unit.filesystem.caller import StubCaller


@pytest.fixture
async def calls() -> AsyncIterator[BlockingCalls]:
    made = BlockingCalls()
    yield made
    made.close()


async def test_a_call_gives_its_result(calls: BlockingCalls) -> None:
    assert await calls.run(divmod, 7, 2) == (3, 1)


async def test_an_os_error_becomes_the_wires_error(calls: BlockingCalls) -> None:
    with pytest.raises(NotFound, match=r"^No such file or directory \(os error 2\)$"):
        await calls.run(os.stat, "/does/not/exist")


async def test_any_other_error_comes_out_as_it_is(calls: BlockingCalls) -> None:
    with pytest.raises(ZeroDivisionError):
        await calls.run(divmod, 1, 0)


async def test_one_connection_has_a_limited_number_of_calls_in_threads(calls: BlockingCalls) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def wait_for_the_others() -> None:
        begun.release()
        go_on.wait()

    futures = [calls.run(wait_for_the_others) for _ in range(CALLS_PER_CONNECTION)]
    last = calls.run(os.getpid)
    for _ in range(CALLS_PER_CONNECTION):
        await asyncio.to_thread(begun.acquire)
    assert not last.done()

    go_on.set()
    await asyncio.gather(*futures)
    assert await last == os.getpid()


async def test_the_end_of_the_connection_cancels_what_waits_and_stops_what_runs() -> None:
    calls = BlockingCalls()
    running = [calls.run(calls.stop.wait) for _ in range(CALLS_PER_CONNECTION)]
    waiting = calls.run(os.getpid)

    calls.close()

    assert waiting.cancelled()
    assert await asyncio.gather(*running) == [True] * CALLS_PER_CONNECTION
    assert calls.run(os.getpid).cancelled()


async def test_a_cancelled_call_that_still_waits_is_not_made(calls: BlockingCalls) -> None:
    go_on = threading.Event()
    made: list[int] = []
    running = [calls.run(go_on.wait) for _ in range(CALLS_PER_CONNECTION)]
    calls.run(made.append, 1).cancel()
    last = calls.run(made.append, 2)

    go_on.set()
    await asyncio.gather(*running, last)

    assert made == [2]


async def test_a_dead_mount_takes_neither_the_loop_nor_the_other_connections(
    caller: StubCaller,
    other_caller: StubCaller,
    mounts: MountTable,
    dead_mount: Path,
    tmp_path: Path,
    slowest_turn: Callable[[], float],
) -> None:
    mounts.can_hang = True
    (tmp_path / "file").write_text("alive")
    stuck = [
        asyncio.ensure_future(caller.call(method, path=dead_mount / str(number)))
        for number in range(50)
        for method in ("fs/getMetadata", "fs/readFile", "fs/canonicalize", "fs/readDirectory")
    ]

    for _ in range(20):
        assert (await other_caller.call("fs/getMetadata", path=tmp_path / "file"))["size"] == 5
        assert await other_caller.call("fs/readFile", path=tmp_path / "file") == {"dataBase64": "YWxpdmU="}

    assert not any(call.done() for call in stuck)
    assert slowest_turn() < 0.2
    caller.close()
    for call in stuck:
        call.cancel()


async def test_a_lookup_that_is_answered_in_a_thread_has_the_same_errors(
    caller: StubCaller, mounts: MountTable, tmp_path: Path
) -> None:
    mounts.can_hang = True
    (tmp_path / "file").touch()

    with pytest.raises(NotFound):
        await caller.call("fs/getMetadata", path=tmp_path / "missing")
    with pytest.raises(InternalError, match=r"Not a directory \(os error 20\)"):
        await caller.call("fs/canonicalize", path=tmp_path / "file" / "below")

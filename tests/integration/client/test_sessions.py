"""The owner and the lifetime of a session: `await connect(…)`, `keep=`, `session_id=`."""

from __future__ import annotations

import asyncio
import time

import pytest

from execclient import ExecutorClosed, SessionAttached, SessionLost, connect
from execclient.session import recovery
from tests.support.wire import alive, wait_gone

PATIENCE = 10.0


async def test_connect_can_be_awaited_and_closed_by_hand(url: str) -> None:
    executor = await connect(url)
    process = await executor.start(["sleep", "60"])
    assert process.pid is not None
    await executor.close()

    with pytest.raises(ExecutorClosed):
        await executor.run(["true"])
    assert await asyncio.to_thread(wait_gone, process.pid, PATIENCE)


async def test_a_session_that_is_kept_goes_on_with_another_client(shared_url: str) -> None:
    async with connect(shared_url, keep=True) as executor:
        session_id = executor.session_id
        process = await executor.start(["sh", "-c", "read line; echo got $line"], stdin=True)
        process_id = process.id
        assert process.pid is not None
    assert alive(process.pid)

    async with connect(shared_url, session_id=session_id) as executor:
        assert executor.session_id == session_id
        again = await executor.attach(process_id)
        await again.write("this\n")

        assert b"".join([chunk.data async for chunk in again]) == b"got this\n"


async def test_a_session_that_is_not_kept_is_not_there_any_more_for_its_processes(shared_url: str) -> None:
    async with connect(shared_url) as executor:
        process = await executor.start(["sleep", "60"])
        assert process.pid is not None

    assert await asyncio.to_thread(wait_gone, process.pid, PATIENCE)


async def test_a_session_that_does_not_exist_is_lost(url: str) -> None:
    with pytest.raises(SessionLost, match="0000"):
        async with connect(url, session_id="00000000-0000-0000-0000-000000000000"):
            pass


async def test_an_attached_session_is_asked_for_again_and_then_refused(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "ATTACHED_SECONDS", 0.3)
    async with connect(shared_url) as first:
        begin = time.monotonic()
        with pytest.raises(SessionAttached):
            async with connect(shared_url, session_id=first.session_id):
                pass

        assert 0.3 <= time.monotonic() - begin < PATIENCE
        assert (await first.run(["echo", "mine"])).text == "mine\n"


async def test_a_session_that_is_given_up_meanwhile_is_taken_over(shared_url: str) -> None:
    first = await connect(shared_url, keep=True)
    taking = asyncio.create_task(connect(shared_url, session_id=first.session_id).__aenter__())
    done, _ = await asyncio.wait({taking}, timeout=0.3)
    assert not done
    await first.close()

    second = await taking
    assert second.session_id == first.session_id
    await second.close()

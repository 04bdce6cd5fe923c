"""A client that ends its session kills its processes; one that keeps the session or detaches does not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, ExecutorClosed, SessionLost, connect, sync
from execclient.expect import RemoteSpawn
from execclient.govern.sandbox import WorkspaceWrite
from execclient.session import session as session_module
from tests.integration.client.conftest import Peer, ScriptedDaemon
from tests.support.background import DAEMON, IN_BACKGROUND, Left
from tests.support.wire import Server, at_most

SOON = 5.0
"""Seconds within which a client is gone that is not let go."""


@pytest.fixture
def left() -> Iterator[Left]:
    """Something to leave running."""
    left = Left()
    yield left
    left.kill()


def in_background(left: Left) -> list[str]:
    """A command that leaves it running and exits."""
    return ["sh", "-c", IN_BACKGROUND.format(sleep=left.sleep)]


async def leave(executor: Executor, left: Left) -> None:
    """Leave it running in the two ways that a process group does not show."""
    assert (await executor.run(in_background(left))).text == "left\n"
    await executor.run([sys.executable, "-I", "-c", DAEMON, *left.argv])
    await asyncio.to_thread(left.wait_running, 2)


# -- a session that is left


async def test_what_commands_left_in_the_background_ends_with_the_block(url: str, left: Left) -> None:
    async with connect(url) as executor:
        await leave(executor, left)
    assert not left.pids


async def test_it_ends_with_a_close(url: str, left: Left) -> None:
    executor = await connect(url)
    await leave(executor, left)
    await executor.close()
    await executor.close()
    assert not left.pids


async def test_it_ends_when_the_block_fails(url: str, left: Left) -> None:
    async def fail() -> None:
        async with connect(url) as executor:
            await leave(executor, left)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not left.pids


async def test_it_ends_when_the_block_is_cancelled(url: str, left: Left) -> None:
    running = asyncio.Event()

    async def work() -> None:
        async with connect(url) as executor:
            await leave(executor, left)
            running.set()
            await asyncio.sleep(1000)

    working = asyncio.create_task(work())
    await running.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert not left.pids


def test_it_ends_with_a_block_that_has_no_event_loop(url: str, left: Left) -> None:
    with sync.connect(url) as executor:
        executor.run(in_background(left))
        executor.start(left.argv, tty=True)
        left.wait_running(2)
    assert not left.pids


async def test_running_processes_of_every_kind_end(url: str, left: Left, tmp_path: Path) -> None:
    space = tmp_path / "space"
    space.mkdir()
    sandbox = WorkspaceWrite().context(str(space), [str(space)])
    stubborn = ["sh", "-c", f"trap '' TERM HUP INT; {left.sleep} & {left.sleep}"]
    async with connect(url) as executor:
        for _ in range(3):
            await executor.start(left.argv)
            await executor.start(left.argv, stdin=True)
            await executor.start(stubborn, tty=True)
            await executor.start(left.argv, cwd=space, sandbox=sandbox)
        await asyncio.to_thread(left.wait_running, 15)
    assert not left.pids


async def test_its_id_is_lost(shared_url: str) -> None:
    async with connect(shared_url) as executor:
        pass
    with pytest.raises(SessionLost, match="unknown session id"):
        await connect(shared_url, session_id=executor.session_id)


async def test_what_is_left_of_a_terminal_that_is_expected_from_ends(url: str, left: Left) -> None:
    def expect() -> None:
        child = RemoteSpawn(["sh", "-c", f"trap '' HUP; setsid {left.sleep} & echo up; read x"], url=url)
        child.expect("up")
        left.wait_running()
        child.close()

    await asyncio.to_thread(expect)
    assert not left.pids


# -- one that is kept


@pytest.mark.parametrize("how", ["keep", "detach"])
async def test_a_session_that_is_kept_goes_on_with_all_of_it(shared_url: str, left: Left, how: str) -> None:
    executor = await connect(shared_url, keep=how == "keep")
    await leave(executor, left)
    await (executor.close if how == "keep" else executor.detach)()
    assert len(left.pids) == 2

    async with connect(shared_url, session_id=executor.session_id, keep=True):
        pass
    assert len(left.pids) == 2
    async with connect(shared_url, session_id=executor.session_id):
        pass
    assert not left.pids


async def test_only_what_was_let_go_of_outlives_the_block(shared_url: str, left: Left) -> None:
    others = Left()
    try:
        async with connect(shared_url) as executor:
            process = await executor.start(left.argv)
            await process.detach()
            await leave(executor, others)
            await executor.start(others.argv)
            await asyncio.to_thread(others.wait_running, 3)
        assert (len(left.pids), others.pids) == (1, [])
        async with connect(shared_url, session_id=executor.session_id) as again:
            assert [each.process_id for each in await again.processes() if each.exit_code is None] == [
                process.id
            ]
        assert not left.pids
    finally:
        others.kill()


async def test_another_session_s_process_goes_on_when_its_observer_leaves(
    start_server: Callable[..., Server], tmp_path: Path, left: Left
) -> None:
    url = start_server(f"unix://{tmp_path}/s").url
    async with connect(url) as owner:
        process = await owner.start(left.argv)
        async with connect(url) as observer:
            attached = await observer.attach(process.id, session_id=owner.session_id)
            await attached.signal("CONT")
        assert len(left.pids) == 1
        assert process.exit_code is None


CLIENT = """
import sys
from execclient.sync import connect
executor = connect(sys.argv[1])
executor.run(sys.argv[2:])
print(executor.session_id, flush=True)
sys.stdin.read()
"""


async def test_a_client_that_is_killed_can_be_followed_by_another(shared_url: str, left: Left) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, shared_url, *in_background(left)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with client:
        assert client.stdout is not None
        session_id = client.stdout.readline().decode().strip()
        left.wait_running()
        client.kill()
        client.wait()
    await asyncio.sleep(0.5)
    assert left.pids
    async with connect(shared_url, session_id=session_id):
        assert left.pids
    assert not left.pids


# -- connections that are lost


async def test_a_session_whose_connection_was_lost_ends_all_the_same(shared_url: str, left: Left) -> None:
    async with connect(shared_url) as executor:
        await leave(executor, left)
        executor.drop_connection()
    assert not left.pids


async def test_a_daemon_that_does_not_answer_is_not_waited_for(
    start_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "KILL_SECONDS", 0.3)
    server = start_server(f"unix://{tmp_path}/s")
    executor = await connect(server.url)
    pid = (await executor.call("server/health", {}))["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with at_most(SOON):
            await executor.close()
    finally:
        os.kill(pid, signal.SIGCONT)


# -- a peer that does as the test says


async def handshake(peer: Peer, *capabilities: str) -> dict[str, Any]:
    """Take part in the handshake, as a daemon that serves these extensions."""
    info = {"capabilities": {"execserver": list(capabilities)}}
    request = await peer.answer("initialize", {"sessionId": "s1", "environmentInfo": info})
    await peer.expect("initialized")
    return request


async def connected(scripted: ScriptedDaemon, *capabilities: str) -> tuple[Executor, Peer]:
    """A client of such a daemon, and our side of its connection."""
    connecting = asyncio.create_task(connect(scripted.url).__aenter__())
    peer = await scripted.accept()
    await handshake(peer, *capabilities)
    return await connecting, peer


async def test_a_daemon_without_the_method_is_asked_to_kill_what_runs(scripted: ScriptedDaemon) -> None:
    executor, peer = await connected(scripted, "process/list")
    starting = asyncio.create_task(executor.start(["x"], id="p1"))
    await peer.answer("process/start", {"processId": "p1"})
    await starting

    closing = asyncio.create_task(executor.close())
    killing = await peer.answer("process/terminate", {"running": True})
    assert killing["params"] == {"processId": "p1", "scope": "tree"}
    assert await peer.receive() == {}
    await peer.close()
    await closing


async def test_the_end_is_asked_for_again_on_the_next_connection(scripted: ScriptedDaemon) -> None:
    executor, peer = await connected(scripted, "session/end")
    closing = asyncio.create_task(executor.close())
    await peer.expect("session/end")
    await peer.close()

    peer = await scripted.accept()
    assert (await handshake(peer, "session/end"))["params"]["resumeSessionId"] == "s1"
    await peer.answer("session/end", {})
    await peer.close()
    await closing


async def test_a_session_that_is_gone_when_the_connection_comes_back_has_ended(
    scripted: ScriptedDaemon,
) -> None:
    executor, peer = await connected(scripted, "session/end")
    closing = asyncio.create_task(executor.close())
    await peer.expect("session/end")
    await peer.close()

    peer = await scripted.accept()
    await peer.refuse("initialize", -32600, "unknown session id s1")
    with at_most(SOON):
        await closing


async def test_calls_under_way_then_end_as_with_any_other_close(scripted: ScriptedDaemon) -> None:
    executor, peer = await connected(scripted, "session/end")
    running = asyncio.create_task(executor.run(["x"]))
    await peer.answer("process/start", {})
    calling = asyncio.create_task(executor.fs.stat("x"))
    await peer.expect("fs/getMetadata")
    closing = asyncio.create_task(executor.close())
    await peer.expect("session/end")
    await peer.close()

    peer = await scripted.accept()
    await peer.refuse("initialize", -32600, "unknown session id s1")
    await closing
    for task in (running, calling):
        with pytest.raises(ExecutorClosed):
            await task


async def test_after_the_answer_nothing_is_recovered(scripted: ScriptedDaemon) -> None:
    executor, peer = await connected(scripted, "session/end")
    closing = asyncio.create_task(executor.close())
    await peer.answer("session/end", {})
    await peer.close()
    await closing
    await asyncio.sleep(0.1)
    assert len(scripted.peers) == 1


async def test_a_refusal_is_no_failure(scripted: ScriptedDaemon) -> None:
    executor, peer = await connected(scripted, "session/end")
    closing = asyncio.create_task(executor.close())
    await peer.refuse("session/end", -32600, "the daemon is stopping")
    assert await peer.receive() == {}
    await peer.close()
    await closing


Close = Callable[[Executor], Awaitable[None]]


@pytest.mark.parametrize("close", [Executor.close, Executor.detach], ids=["close", "detach"])
async def test_a_connection_that_does_not_come_back_is_not_waited_for(
    scripted: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch, close: Close
) -> None:
    monkeypatch.setattr(session_module, "KILL_SECONDS", 0.3)
    executor, peer = await connected(scripted, "session/end")
    await peer.close()
    await scripted.accept()  # and it is never answered
    with at_most(SOON):
        await close(executor)

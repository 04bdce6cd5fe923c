"""`connect(ttl=…)`: how long the daemon keeps a session while no client is connected to it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, Refused, SessionLost, Unsupported, UnsupportedUrl, connect, sync
from tests.conftest import StartServer
from tests.integration.client.conftest import ScriptedDaemon
from tests.integration.client.test_session_end import handshake
from tests.support.wire import Server, alive, wait_gone


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> Server:
    """A daemon that keeps no session for long unless it is asked to."""
    return start_server(f"unix://{tmp_path}/s", "--session-ttl", "0.3", "--max-session-ttl", "3600")


async def kept(url: str, **arguments: Any) -> tuple[Executor, int]:
    """A session that is left, and the process id of what runs in it."""
    async with connect(url, keep=True, **arguments) as executor:
        process = await executor.start(["sleep", "300"], id="service")
    assert process.pid is not None
    return executor, process.pid


async def test_a_kept_session_lives_as_long_as_its_client_asked_for(server: Server) -> None:
    long, pid = await kept(server.url, ttl=3600)
    short, other = await kept(server.url)
    assert (long.session_ttl, short.session_ttl) == (3600, 0.3)
    assert await asyncio.to_thread(wait_gone, other)
    assert alive(pid)
    async with connect(server.url, session_id=long.session_id) as executor:
        assert executor.session_ttl == 3600
        assert [each.process_id for each in await executor.processes()] == ["service"]
    assert await asyncio.to_thread(wait_gone, pid)


async def test_a_client_that_resumes_a_session_may_change_its_time(server: Server) -> None:
    executor, pid = await kept(server.url, ttl=3600)
    async with connect(server.url, session_id=executor.session_id, keep=True, ttl=0.01) as again:
        assert again.session_ttl == 0.01
    assert await asyncio.to_thread(wait_gone, pid)
    with pytest.raises(SessionLost):
        await connect(server.url, session_id=executor.session_id)


LOST = """
import sys, time
from execclient.sync import connect

executor = connect(sys.argv[1], ttl=float(sys.argv[2]))
print(executor.session_id, executor.start(["sleep", "300"]).pid, flush=True)
time.sleep(300)
"""


def lost(url: str, ttl: float) -> tuple[str, int]:
    """The session of a client that was killed without having kept it, and what runs in it."""
    client = subprocess.Popen([sys.executable, "-c", LOST, url, str(ttl)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    with client:
        session, pid = client.stdout.readline().split()
        client.kill()
    return session.decode(), int(pid)


async def test_the_time_counts_for_a_client_that_is_killed_too(server: Server) -> None:
    (session, pid), (_, other) = lost(server.url, 3600), lost(server.url, 0.01)
    assert await asyncio.to_thread(wait_gone, other)
    assert alive(pid)
    async with connect(server.url, session_id=session):
        pass
    assert await asyncio.to_thread(wait_gone, pid)


async def test_a_time_above_the_limit_is_refused_and_the_session_ended(server: Server) -> None:
    with pytest.raises(Refused, match=r"at most 3600 s .*--max-session-ttl"):
        await connect(server.url, ttl=3601)
    async with connect(server.url) as executor:
        health = await executor.call("server/health", {})
        assert health["sessions"] == 1


async def test_a_refused_time_leaves_a_resumed_session_as_it_was(server: Server) -> None:
    executor, pid = await kept(server.url, ttl=3600)
    with pytest.raises(Refused):
        await connect(server.url, session_id=executor.session_id, ttl=3601)
    assert alive(pid)
    async with connect(server.url, session_id=executor.session_id) as again:
        assert again.session_ttl == 3600
    assert await asyncio.to_thread(wait_gone, pid)


def test_it_works_without_an_event_loop(server: Server) -> None:
    with sync.connect(server.url, keep=True, ttl=60) as executor:
        pid = executor.start(["sleep", "300"]).pid
        assert executor.session_ttl == 60
    with sync.connect(server.url, session_id=executor.session_id) as executor:
        assert executor.session_ttl == 60
    assert pid is not None
    assert wait_gone(pid)


@pytest.mark.parametrize(
    ("ttl", "error", "text"),
    [
        (0, ValueError, "ttl is above 0 seconds"),
        (float("inf"), ValueError, "ttl is at most"),
        (float("nan"), ValueError, "ttl is a number of seconds, not NaN"),
        ("8h", TypeError, "ttl is a number of seconds, not str"),
    ],
)
def test_a_time_that_is_none_is_told_before_the_daemon_is_asked(
    ttl: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        connect("unix:///nowhere", ttl=ttl)


async def test_over_stdio_there_is_no_time_to_set() -> None:
    with pytest.raises(UnsupportedUrl, match="ttl= does not go with stdio:"):
        await connect("stdio:", ttl=60)


async def test_another_server_is_not_asked_for_what_it_does_not_serve(scripted: ScriptedDaemon) -> None:
    connecting = asyncio.create_task(connect(scripted.url, ttl=60).__aenter__())
    peer = await scripted.accept()
    await handshake(peer)
    assert await peer.receive() == {}, "only the end of the connection follows"
    await peer.close()
    with pytest.raises(Unsupported, match="leave out the ttl") as raised:
        await connecting
    assert raised.value.extension == "session/setTtl"

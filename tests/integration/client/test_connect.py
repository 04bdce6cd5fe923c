from __future__ import annotations

import asyncio
import copy
import errno
import os
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execclient import (
    ConnectionFailed,
    DaemonNotRunning,
    ExecutorClosed,
    OutcomeUnknown,
    SessionLost,
    UntrustedServer,
    connect,
)
from execclient.session.recovery import HANDSHAKES
from tests.conftest import StartServer
from tests.integration.client.conftest import ScriptedDaemon, connect_to
from tests.support.cutting_proxy import Cut, cutting
from tests.support.wire import Server

NOBODY = 65534


async def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    hint = rf'execserver serve --listen unix://{tmp_path}/none .*connect\("stdio:"\)'
    with pytest.raises(DaemonNotRunning, match=hint) as raised:
        async with connect(f"unix://{tmp_path}/none"):
            pass
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, f"{tmp_path}/none")
    shown = "".join(traceback.format_exception(raised.value))
    assert "asyncio/" not in shown
    assert "direct cause" not in shown


def test_connect_without_an_event_loop_says_what_to_write(url: str) -> None:
    hint = "`async with connect\\(\\) as executor`.*execclient.sync"
    with pytest.raises(TypeError, match=hint), connect(url):  # type: ignore[attr-defined]
        pass
    for name in ("run", "start", "fs", "no_such_name"):
        with pytest.raises(AttributeError, match=f"'{name}': use {hint}"):
            getattr(connect(url), name)
    assert not hasattr(connect(url), "run")
    with pytest.raises(AttributeError, match=r"'__len__'$"):
        connect(url).__len__  # type: ignore[attr-defined]  # noqa: B018
    assert repr(copy.copy(connect(url))) == f"<connect {url}>"


async def test_a_socket_that_a_dead_daemon_left_is_the_same(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "s"))

    with pytest.raises(DaemonNotRunning, match="Connection refused"):
        async with connect(f"unix://{tmp_path}/s"):
            pass


@pytest.mark.parametrize("url", ["unix"], indirect=True)
async def test_a_connection_that_is_lost_before_the_answer_is_made_again(url: str, tmp_path: Path) -> None:
    cuts: list[Cut | None] = [("to client", 1), ("to server", 30), ("to client", 100)]
    async with (
        cutting(url, tmp_path, lambda: cuts.pop(0) if cuts else None) as proxy,
        connect(proxy.url) as executor,
    ):
        assert (await executor.run(["echo", "there"])).text == "there\n"
    assert proxy.cuts == 3


@pytest.mark.parametrize("url", ["unix"], indirect=True)
async def test_connecting_ends_if_every_connection_is_lost(url: str, tmp_path: Path) -> None:
    async with cutting(url, tmp_path, lambda: ("to client", 1)) as proxy:
        with pytest.raises(ConnectionFailed, match="cannot connect to unix:"):
            await connect(proxy.url)
        assert proxy.cuts == HANDSHAKES


async def test_a_path_that_is_no_socket_path_is_a_failed_connection(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="path too long"):
        async with connect(f"unix:///{'x' * 200}"):
            pass


async def test_the_url_is_taken_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_URL", url)

    async with connect() as executor:
        assert executor.url == url
        assert (await executor.run(["echo", "hi"])).text == "hi\n"


async def test_the_default_is_where_a_daemon_listens_that_is_told_nothing(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EXECSERVER_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    start_server(f"unix://{tmp_path}/execserver/execserver.sock")

    async with connect() as executor:
        assert executor.session_id


async def test_a_daemon_need_not_report_a_home_folder(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, _):
        assert executor.home is None


async def test_the_daemon_tells_of_itself(url: str, tmp_path: Path, environment: dict[str, str]) -> None:
    async with connect(url) as executor:
        assert executor.info["platformOs"] == "linux"
        assert executor.cwd == str(tmp_path)
        assert executor.home == environment["HOME"]


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
async def test_nothing_is_sent_to_a_server_of_another_user(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with acting_as(NOBODY):
            listener.listen()  # the credentials are those of this moment

        with pytest.raises(UntrustedServer, match=f"runs as uid {NOBODY}"):
            async with connect(f"unix://{tmp_path}/s"):
                pass

        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(1) == b""


async def test_root_is_trusted(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("the daemon of this test is not root's")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    async with connect(shared_url) as executor:
        assert executor.session_id


async def test_calls_after_the_end_say_so(url: str) -> None:
    async with connect(url) as executor:
        process = await executor.start(["sleep", "60"])

    with pytest.raises(ExecutorClosed):
        await executor.run(["true"])
    with pytest.raises(ExecutorClosed):
        await process.read()


async def test_a_daemon_that_is_stopped_ends_everything_in_bounded_time(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(f"unix://{tmp_path}/other")
    async with connect(server.url) as executor:
        process = await executor.start(["sleep", "60"])
        waiting = asyncio.create_task(process.wait_closed())
        assert await asyncio.to_thread(server.stop) == 0
        begin = time.monotonic()
        # Its end may be told before the connection goes.
        await asyncio.wait({waiting}, timeout=10)
        with pytest.raises(SessionLost, match="the daemon has ended"):
            await executor.run(["true"])

        assert waiting.done()
        assert waiting.exception() is None or isinstance(waiting.exception(), SessionLost)
        assert time.monotonic() - begin < 20


async def test_a_daemon_that_is_killed_ends_everything_in_bounded_time(tmp_path: Path) -> None:
    server = Server(f"unix://{tmp_path}/s")
    try:
        async with connect(server.url) as executor:
            process = await executor.start(["sleep", "60"])
            running = asyncio.create_task(executor.run(["sleep", "60"]))
            reading = asyncio.create_task(process.read(wait=60))
            await executor.fs.stat("/")
            begin = time.monotonic()
            os.kill(server.pid, signal.SIGKILL)

            with pytest.raises((SessionLost, OutcomeUnknown)):  # the latter if its start had no answer yet
                await running
            with pytest.raises(SessionLost, match="the daemon has ended"):
                await reading
            with pytest.raises(SessionLost):
                await anext(process)
            with pytest.raises(SessionLost):
                await process.write("x")
            assert time.monotonic() - begin < 20
    finally:
        server.stop()


async def test_a_server_that_is_killed_below_its_supervisor_costs_the_caller_nothing(tmp_path: Path) -> None:
    with Server(f"unix://{tmp_path}/s") as server:
        async with connect(server.url) as executor:
            session = executor.session_id
            process = await executor.start(["sh", "-c", "echo early; sleep 2; echo late; exit 3"])
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGKILL)

            chunks = [chunk.data async for chunk in process]
            assert b"".join(chunks) == b"early\nlate\n"
            assert await process.wait() == 3
            assert executor.session_id == session

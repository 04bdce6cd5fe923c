"""A host that moves on when its executor drains."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from execclient import DrainNotice, ExecutorDraining, connect
from execclient.sync import connect as connect_blocking
from tests.support.wire import PATIENCE, Server


@pytest.fixture
def server() -> Iterator[Server]:
    """A daemon with a grace."""
    with tempfile.TemporaryDirectory(prefix="drain-") as folder:
        variables = {**os.environ, "EXECSERVER_CONFIG": "", "XDG_STATE_HOME": folder}
        server = Server(f"unix://{folder}/s.sock", "--drain-grace", "60", env=variables)
        yield server
        if server.running:
            server.process.send_signal(signal.SIGINT)
        server.stop()


async def test_the_handler_is_called_and_new_sessions_are_refused(server: Server) -> None:
    notices: asyncio.Queue[DrainNotice] = asyncio.Queue()
    async with connect(server.url, on_draining=notices.put) as executor:
        assert "executor/draining" in executor.capabilities
        server.process.send_signal(signal.SIGTERM)
        notice = await asyncio.wait_for(notices.get(), PATIENCE)
        assert notice.ends_in is not None
        assert 30 < notice.ends_in <= 60
        with pytest.raises(ExecutorDraining, match="opens no new sessions") as refused:
            await connect(server.url)
        assert refused.value.code == "executor_draining"
        assert (await executor.run(["echo", "goes on"])).text == "goes on\n"
        executor.drop_connection()
        again = await asyncio.wait_for(notices.get(), PATIENCE)
        assert again.ends_in is not None
        assert again.ends_in <= notice.ends_in
        assert executor.recoveries == 1
    assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0


async def test_a_handler_that_fails_does_not_end_the_session(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    called = asyncio.Event()

    def fail(notice: DrainNotice) -> None:
        called.set()
        raise RuntimeError("no other executor is known")

    async with connect(server.url, on_draining=fail) as executor:
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(called.wait(), PATIENCE)
        assert (await executor.run(["echo", "goes on"])).text == "goes on\n"
    assert "the handler of drains failed" in caplog.text


def test_the_blocking_client_calls_its_handler_in_a_thread_which_may_make_calls(
    server: Server, tmp_path: Path
) -> None:
    def finish(notice: DrainNotice) -> None:
        executor.run(["touch", tmp_path / "finished"])

    with connect_blocking(server.url, on_draining=finish) as executor:
        server.process.send_signal(signal.SIGTERM)
        executor.run(
            ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.02; done', tmp_path / "finished"], timeout=20
        )
        assert (tmp_path / "finished").exists()


async def test_a_handler_must_be_callable() -> None:
    with pytest.raises(TypeError, match="on_draining is a function"):
        connect("unix:///tmp/none.sock", on_draining=3)  # type: ignore[arg-type]

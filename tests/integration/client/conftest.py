"""The client with a real daemon, and with a peer that answers as the test says."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, Process, connect
from tests.conformance.endpoint import SharedServers
from tests.conftest import StartServer
from tests.support.wire import PATIENCE

TRANSPORTS = ("unix", "ws", "stdio")

ONE_TRANSPORT = frozenset(
    {
        "test_bad_arguments", "test_control", "test_expect", "test_file_parts", "test_forward",
        "test_long_lines", "test_run", "test_transfer_modes", "test_trees",
    }
)  # fmt: skip
"""Modules whose subject lies above the connection. Their tests run over a Unix socket alone, but for those
with `EVERY_TRANSPORT`. All tests of processes, files, transfers, watches and `execclient.sync` run over each
transport, and so do those of connecting, of sessions and of their end."""

EVERY_TRANSPORT = pytest.mark.parametrize("url", TRANSPORTS, indirect=True)
"""For a test of one of these modules."""

ONE_DAEMON = frozenset(
    {
        "test_bad_arguments", "test_control", "test_expect", "test_forward", "test_long_lines",
        "test_loop_thread", "test_process", "test_run", "test_session_end", "test_sessions", "test_sync",
        "test_watch",
    }
)  # fmt: skip
"""Modules whose tests share a daemon for each transport: a session is what they need of their own. A test
that works in the folder of its daemon, as those of the other modules do, has `own_daemon`."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_daemon: not one of the module; it works in the test's `tmp_path`")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = any(mark.args[0] == "url" for mark in metafunc.definition.iter_markers("parametrize"))
    if metafunc.definition.path.stem in ONE_TRANSPORT and "url" in metafunc.fixturenames and not own:
        metafunc.definition.add_marker(pytest.mark.parametrize("url", ["unix"], indirect=True))


@pytest.fixture(params=TRANSPORTS)
def url(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    shared_servers: SharedServers,
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A daemon of this test or its module, over each transport; over `stdio:` each connection has its own.

    The environment of all is the same, and so is the folder of those of a test.
    """
    if request.param == "stdio":
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        return "stdio:"
    if request.path.stem in ONE_DAEMON and request.node.get_closest_marker("own_daemon") is None:
        return shared_servers.get(str(request.param)).url
    return listening(start_server, str(request.param), tmp_path)


@pytest.fixture(params=["unix", "ws"])
def shared_url(request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path) -> str:
    """A daemon of this test that takes several connections, and resumes a lost one."""
    return listening(start_server, str(request.param), tmp_path)


def listening(start_server: StartServer, transport: str, folder: Path) -> str:
    """The URL of a new daemon."""
    return start_server(f"unix://{folder}/s" if transport == "unix" else "ws://127.0.0.1:0").url


@pytest.fixture
async def executor(url: str) -> AsyncIterator[Executor]:
    """A session with it."""
    async with connect(url) as connected:
        yield connected


class Peer:
    """One connection to the scripted daemon."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> dict[str, Any]:
        """The next message; empty at the end of the connection."""
        line = await self._reader.readline()
        return dict(json.loads(line)) if line else {}

    async def expect(self, method: str) -> dict[str, Any]:
        """The next message, which must be this one."""
        async with asyncio.timeout(PATIENCE):
            message = await self.receive()
        assert message.get("method") == method, message
        return message

    def send(self, *messages: dict[str, Any]) -> None:
        """Messages in one write."""
        self.send_bytes(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def send_bytes(self, data: bytes) -> None:
        """Bytes as they are."""
        self._writer.write(data)

    async def answer(self, method: str, result: Any) -> dict[str, Any]:
        """Wait for a request, answer it, and give it."""
        request = await self.expect(method)
        self.send({"id": request["id"], "result": result})
        return request

    async def refuse(self, method: str, code: int, message: str, name: str | None = None) -> None:
        """Wait for a request, and answer it with an error, which may have a name for programs."""
        request = await self.expect(method)
        error: dict[str, Any] = {"code": code, "message": message}
        if name is not None:
            error["data"] = {"code": name}
        self.send({"id": request["id"], "error": error})

    async def handshake(self) -> dict[str, Any]:
        """Take part in the handshake; the request."""
        request = await self.answer("initialize", {"sessionId": "s1"})
        await self.expect("initialized")
        return request

    async def agree(self) -> None:
        """Answer everything with what a client takes for a yes, until the connection ends."""
        while message := await self.receive():
            if "id" in message:
                self.send({"id": message["id"], "result": {"sessionId": "s1", "running": False}})

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class ScriptedDaemon:
    """A listener whose connections the test takes one by one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.peers: list[Peer] = []
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(self) -> Peer:
        """The next connection."""
        async with asyncio.timeout(10):
            return await self._accepted.get()

    async def session(self) -> Peer:
        """The next connection, after its handshake."""
        peer = await self.accept()
        await peer.handshake()
        return peer

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client came."""
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self._accepted.put_nowait(peer)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[tuple[Executor, Process, Peer]]:
        """A client that has started one process, and our side of its connection."""
        async with connect_to(self, **options) as (executor, peer):
            starting = asyncio.create_task(executor.start(["x"], id="p1", stdin=True))
            await peer.answer("process/start", {"processId": "p1"})
            yield executor, await starting, peer


@asynccontextmanager
async def connect_to(daemon: ScriptedDaemon, **options: Any) -> AsyncIterator[tuple[Executor, Peer]]:
    """A client, and our side of its connection; its last one agrees to all that the closing asks."""
    connecting = connect(daemon.url, **options)
    entering = asyncio.create_task(connecting.__aenter__())
    peer = await daemon.session()
    executor = await entering
    try:
        yield executor, peer
    finally:
        agreeing = asyncio.create_task(daemon.peers[-1].agree())
        await connecting.__aexit__(None, None, None)
        await agreeing


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[ScriptedDaemon]:
    """A daemon that says what the test wants it to."""
    daemon = ScriptedDaemon(f"unix://{tmp_path}/scripted")
    server = await asyncio.start_unix_server(daemon.connected, tmp_path / "scripted")
    yield daemon
    server.close()
    for peer in daemon.peers:
        await peer.close()
    await server.wait_closed()


def output(seq: int, data: bytes, process_id: str = "p1", **members: Any) -> dict[str, Any]:
    """A `process/output` notification."""
    chunk = base64.b64encode(data).decode()
    params = {"processId": process_id, "seq": seq, "stream": "stdout", "chunk": chunk, **members}
    return {"method": "process/output", "params": params}


def exited(seq: int, code: int = 0, process_id: str = "p1") -> dict[str, Any]:
    """A `process/exited` notification."""
    return {"method": "process/exited", "params": {"processId": process_id, "seq": seq, "exitCode": code}}


def closed(seq: int, process_id: str = "p1") -> dict[str, Any]:
    """A `process/closed` notification."""
    return {"method": "process/closed", "params": {"processId": process_id, "seq": seq}}


def page(*chunks: tuple[int, bytes], next_seq: int, **members: Any) -> dict[str, Any]:
    """The result of a `process/read`."""
    return {
        "chunks": [
            {"seq": seq, "stream": "stdout", "chunk": base64.b64encode(data).decode()} for seq, data in chunks
        ],
        "nextSeq": next_seq,
        "exited": False,
        "exitCode": None,
        "closed": False,
        **members,
    }

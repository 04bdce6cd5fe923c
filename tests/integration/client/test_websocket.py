"""WebSockets of the client: tokens, TLS, refusals, and a peer that is gone."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from execclient import (
    AccessDenied,
    ConnectionFailed,
    DaemonNotRunning,
    ProtocolFault,
    SessionLost,
    UntrustedServer,
    connect,
)
from execclient.connection import websocket
from tests.conftest import StartServer
from tests.integration.http.certificates import make_authority, server_context
from tests.support.servers import free_ports

INITIALIZED = '{"id":1,"result":{"sessionId":"s1"}}'


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXECSERVER_TOKEN", "EXECSERVER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def guarded(start_server: StartServer, tmp_path: Path) -> str:
    """A daemon that wants the token in `tmp_path/token`."""
    (tmp_path / "token").write_text("sesame\n")
    return start_server(
        "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", f"{tmp_path}/token"
    ).url


async def test_a_server_with_a_token_opens_to_its_token_only(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(guarded, token="sesame") as executor:
        assert (await executor.run(["echo", "in"])).text == "in\n"
    async with connect(guarded, token_file=tmp_path / "token") as executor:
        assert executor.session_id
    monkeypatch.setenv("EXECSERVER_TOKEN", "sesame")
    async with connect(guarded) as executor:
        assert executor.session_id


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_it_the_error_has_the_reason_and_the_way_out(guarded: str, token: str | None) -> None:
    with pytest.raises(
        AccessDenied, match=r"401 .*bearer token.*token=, token_file=, EXECSERVER_TOKEN"
    ) as raised:
        async with connect(guarded, token=token):
            pass

    assert raised.value.status == 401
    assert "wrong" not in str(raised.value).replace("invalid", "")


async def test_the_token_file_is_read_again_for_each_connection(guarded: str, tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("sesame")
    async with connect(guarded, token_file=tmp_path / "ours") as executor:
        (tmp_path / "ours").write_text("not written yet")
        executor.drop_connection()
        calling = asyncio.create_task(executor.run(["echo", "back"]))
        done, _ = await asyncio.wait({calling}, timeout=0.3)
        assert not done
        (tmp_path / "ours").write_text("sesame\n")

        assert (await calling).text == "back\n"


async def test_a_token_that_is_refused_later_ends_the_session_at_once(unused_port: int) -> None:
    accepted = 0

    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(INITIALIZED)
        await connection.recv()

    def gate(connection: ServerConnection, _: object) -> object:
        nonlocal accepted
        accepted += 1
        return connection.respond(401, "invalid websocket bearer token") if accepted > 1 else None

    server = serve(behave, "127.0.0.1", unused_port, process_request=gate)  # type: ignore[arg-type]
    async with server, connect(f"ws://127.0.0.1:{unused_port}", token="t") as executor:
        with pytest.raises(SessionLost, match="401"):
            await executor.fs.stat("/")
    assert accepted == 2


async def test_a_name_that_the_daemon_does_not_go_by_is_refused_with_the_way_out(
    start_server: StartServer,
) -> None:
    server = start_server("ws://127.0.0.1:0")

    with pytest.raises(AccessDenied, match=r"403.*--ws-host") as raised:
        async with connect(f"ws://localhost:{server.port}/"):
            pass

    assert raised.value.status == 403


async def test_a_path_that_is_not_served_is_a_failed_connection(start_server: StartServer) -> None:
    with pytest.raises(ConnectionFailed, match="404"):
        async with connect(start_server("ws://127.0.0.1:0").url + "/elsewhere"):
            pass


async def test_without_a_daemon_the_error_says_how_to_start_one(unused_port: int) -> None:
    with pytest.raises(DaemonNotRunning, match=f"execserver serve --listen ws://127.0.0.1:{unused_port}"):
        async with connect(f"ws://127.0.0.1:{unused_port}"):
            pass


async def test_what_is_no_websocket_server_is_a_failed_connection(unused_port: int) -> None:
    async def shrug(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 mail.example.com\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(shrug, "127.0.0.1", unused_port):
        with pytest.raises(ConnectionFailed, match=f"ws://127.0.0.1:{unused_port}"):
            async with connect(f"ws://127.0.0.1:{unused_port}"):
                pass


async def test_who_hangs_up_instead_of_answering_is_a_failed_connection(unused_port: int) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", unused_port):
        with pytest.raises(ConnectionFailed, match="hung up"):
            async with connect(f"ws://127.0.0.1:{unused_port}"):
                pass


@asynccontextmanager
async def scripted(
    port: int, behave: Callable[[ServerConnection], object], **options: object
) -> AsyncIterator[str]:
    """A peer that agrees to `initialize`, and then does what the test says."""

    async def serve_one(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(INITIALIZED)
        await connection.recv()
        await behave(connection)  # type: ignore[misc]

    async with serve(serve_one, "127.0.0.1", port, **options):  # type: ignore[arg-type]
        yield f"ws://127.0.0.1:{port}"


async def test_tls_is_checked_and_a_context_makes_an_own_authority_known(
    unused_port: int, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    seen: list[str | None] = []

    async def behave(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization"))
        await connection.wait_closed()

    async with scripted(unused_port, behave, ssl=server_context(tmp_path)) as url:
        secure = url.replace("ws://", "wss://")
        with pytest.raises(UntrustedServer, match="ssl="):
            async with connect(secure, token="sesame"):
                pass
        assert seen == []
        context = ssl.create_default_context(cafile=authority)
        async with connect(secure, token="sesame", ssl=context) as executor:
            assert executor.session_id == "s1"
    assert seen == ["Bearer sesame"]


async def test_messages_in_fragments_are_put_together(unused_port: int) -> None:
    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(['{"id":2,"resu', 'lt":{"text"', ':"ü"}}'])
        await connection.wait_closed()

    async with scripted(unused_port, behave) as url, connect(url) as executor:
        assert await executor.call("x", {}) == {"text": "ü"}


async def test_a_large_request_arrives_whole_and_in_fragments(unused_port: int) -> None:
    async def behave(connection: ServerConnection) -> None:
        pieces = [piece async for piece in connection.recv_streaming()]
        result = [len(pieces), sum(map(len, pieces))]
        await connection.send(json.dumps({"id": 2, "result": result}))
        await connection.wait_closed()

    async with scripted(unused_port, behave, max_size=None) as url, connect(url) as executor:
        fragments, size = await executor.call("x", {"text": "x" * (5 << 20)})

    assert fragments == 6
    assert size == (5 << 20) + len('{"id":2,"method":"x","params":{"text":""}}')


async def test_a_message_above_the_limit_is_a_fault(
    unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MAX_WEBSOCKET_REPLY_BYTES", 1000)

    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(["x" * 600, "x" * 600])
        await connection.wait_closed()

    async with scripted(unused_port, behave) as url, connect(url) as executor:
        with pytest.raises(ProtocolFault, match="more than 1000 bytes"):
            await executor.call("x", {})


async def test_a_peer_that_answers_no_ping_is_left_for_another_connection(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.2)
    patience = 5.0  # for a daemon that stands still for a moment
    monkeypatch.setattr(websocket, "GRACE_SECONDS", patience)
    server = start_server("ws://127.0.0.1:0")
    silent = asyncio.Event()
    over = asyncio.Event()
    connections = 0

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The first connection is forwarded for a while, and then leads nowhere, without an end.
        nonlocal connections
        connections += 1
        first = connections == 1
        monkeypatch.setattr(websocket, "GRACE_SECONDS", patience)
        theirs, ours = await asyncio.open_connection("127.0.0.1", server.port)
        forwarding = [asyncio.create_task(pump(reader, ours)), asyncio.create_task(pump(theirs, writer))]
        await (silent if first else over).wait()
        for task in forwarding:
            task.cancel()
        await asyncio.gather(*forwarding, return_exceptions=True)
        ours.transport.abort()  # the daemon sees an end, and the client none
        await over.wait()
        writer.transport.abort()
        await asyncio.gather(ours.wait_closed(), writer.wait_closed(), return_exceptions=True)
        ended.append(first)

    ended: list[bool] = []
    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as executor:
            process = await executor.start(["cat"], stdin=True)
            monkeypatch.setattr(websocket, "GRACE_SECONDS", 0.2)
            silent.set()
            await process.write("still here\n")

            assert (await anext(process)).data == b"still here\n"
            assert executor.recoveries == 1
        over.set()
        async with asyncio.timeout(5):
            while len(ended) < 2:
                await asyncio.sleep(0.01)


async def test_a_peer_that_answers_pings_is_kept(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.05)
    monkeypatch.setattr(websocket, "GRACE_SECONDS", 4.5)
    async with connect(start_server("ws://127.0.0.1:0").url) as executor:
        result = await executor.run(["sleep", "5"])

        assert (result.exit_code, executor.recoveries) == (0, 0)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@pytest.fixture
def unused_port() -> int:
    """A port of this machine on which no server listens."""
    return free_ports(1)[0]

"""The JSON-RPC 2.0 dialect under pressure: batches that wait, ends, memory, unrequested messages."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.http.client import PIECE_BYTES, EncodedPieces, HeldBytes, WholeBody
from execserver.rpc.connection import Connection
from execserver.rpc.handlers import Encoded, StreamedResult
from execserver.rpc.json_rpc import JsonRpcDialect, load_dispatch
from tests.integration.http.origin import Origin, response
from tests.support.framing import with_headers
from tests.support.service_manager import only_child
from tests.support.wire import (
    Client,
    Json,
    Server,
    SocketTransport,
    decode,
    encode,
    path_uri,
)

StartServer = Callable[..., Server]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers on a Unix socket that end with the test."""
    folder = Path(tempfile.mkdtemp(prefix="exec-", dir="/tmp"))
    servers: list[Server] = []

    def start(*flags: str, **options: Any) -> Server:
        servers.append(Server(f"unix://{folder}/{len(servers)}", *flags, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def client(start_server: StartServer) -> Iterator[Client]:
    """A standard connection that is ready."""
    with start_server().connect(standard=True) as connection:
        yield connection


def exchange(client: Client, message: Json) -> Json:
    """Send something, and take the next message that comes."""
    seen = len(client.received)
    client.send(message)
    client.wait_until(lambda: len(client.received) > seen)
    return client.received[seen]


# -- events of what nobody was told of


def test_a_process_that_was_started_by_a_notification_is_followed(client: Client) -> None:
    client.notify("process/start", client.start_params(["/bin/echo", "x"], processId="p"))
    assert client.process("p").read(wait_ms=5000)["chunks"]

    client.wait_until(lambda: client.log("p").closed, timeout=3)


def test_a_stream_that_was_asked_for_by_a_notification_ends(client: Client) -> None:
    origin = Origin(lambda exchange: exchange.send(response(b"hi")))
    try:
        request = {
            "method": "GET",
            "url": origin.url,
            "headers": [],
            "requestId": "r",
            "streamResponse": True,
            "timeoutMs": 2000,
        }
        client.notify("http/request", request)
        client.call("environment/status")
        client.wait_until(
            lambda: any(each["params"]["done"] for each in client.notifications), timeout=5, what="the end"
        )
    finally:
        origin.close()


def test_what_was_carried_out_is_not_refused_because_of_its_small_reply(
    client: Client, tmp_path: Path
) -> None:
    large, rest = tmp_path / "large", tmp_path / "rest"
    large.write_bytes(bytes(768 << 10))
    rest.write_bytes(bytes(786228))  # together with 15 of the other exactly 16 MiB
    reads = [
        client.message("fs/readFile", {"path": path_uri(path)}, id=f"read{number}")
        for number, path in enumerate([*[large] * 15, rest])
    ]
    writes = [
        client.message("fs/writeFile", {"path": path_uri(path), "dataBase64": encode("new")}, id=path.name)
        for path in (large, rest)
    ]
    start = client.message(
        "process/start", client.start_params(["/bin/echo", "x"], processId="p"), id="start"
    )

    replies = {reply["id"]: reply for reply in exchange(client, [*reads, *writes, start])}

    assert rest.read_bytes() == b"new"
    assert client.process("p").read(wait_ms=5000)["chunks"]  # it runs, whatever the reply says
    assert "error" not in replies["large"]
    assert "error" not in replies["rest"]
    assert "error" not in replies["start"]
    client.wait_until(lambda: client.log("p").closed, timeout=3)


def test_nothing_is_lost_while_a_batch_waits(client: Client) -> None:
    client.start("/bin/cat", processId="cat", pipeStdin=True)
    exchange(
        client,
        [
            client.message(
                "process/start",
                client.start_params(["/usr/bin/head", "-c", "3000000", "/dev/zero"], processId="p"),
                id=1,
            ),
            client.message("process/read", {"processId": "cat", "waitMs": 1500}, id=2),
        ],
    )
    client.wait_until(lambda: client.log("p").closed)
    assert client.log("p").lost_bytes == 0
    assert len(client.log("p").output) == 3000000


# -- order and scheduling


@pytest.mark.parametrize("flags", [(), ("--concurrent-requests", "1"), ("--concurrent-requests", "2")])
def test_the_handshake_can_be_a_batch(start_server: StartServer, flags: tuple[str, ...]) -> None:
    with start_server(*flags).connect(standard=True, handshake=False) as client:
        replies = exchange(
            client,
            [
                client.message("initialize", {"clientName": "tests"}, id=1),
                client.message("initialized"),
                client.message("process/start", client.start_params(["/bin/true"]), id=2),
            ],
        )
        assert ["result" in reply for reply in replies] == [True, True], replies


@pytest.mark.parametrize("flags", [(), ("--concurrent-requests", "1"), ("--concurrent-requests", "3")])
def test_batches_and_singles_are_all_answered(
    start_server: StartServer, flags: tuple[str, ...], tmp_path: Path
) -> None:
    target = path_uri(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"x")
    with start_server(*flags).connect(standard=True) as client:
        messages: list[Json] = []
        for number in range(60):
            messages.append(
                [
                    client.message(
                        "fs/writeFile", {"path": target, "dataBase64": encode(str(number))}, id=f"w{number}"
                    ),
                    client.message("fs/readFile", {"path": target}),
                    client.message("no/such"),
                    client.message(
                        "process/start",
                        client.start_params(["/bin/echo", "x"], processId=f"p{number}"),
                        id=f"s{number}",
                    ),
                    client.message("process/terminate", {"processId": f"p{number}"}, id=f"t{number}"),
                    client.message("fs/readFile", {"path": target}, id=f"r{number}"),
                    7,
                ]
            )
            messages.append(client.message("fs/readFile", {"path": target}, id=f"single{number}"))
            messages.append(client.message("fs/readFile", {"path": target}))
        client.send_all(*messages)
        for number in range(60):
            client.reply(f"w{number}")
            client.reply(f"t{number}")
            client.reply(f"s{number}")
            assert decode(client.result(f"r{number}")["dataBase64"]) == str(number).encode()
            assert decode(client.result(f"single{number}")["dataBase64"]) == str(number).encode()


def test_a_long_batch_one_by_one(start_server: StartServer) -> None:
    with start_server("--concurrent-requests", "1").connect(standard=True) as client:
        batch = [client.message("process/read", {"processId": "nobody"}, id=n) for n in range(100)]
        assert len(exchange(client, batch)) == 100
        batch = [client.message("environment/status", id=n) for n in range(100)]
        assert all("result" in reply for reply in exchange(client, batch))


# -- bounds


def peak_memory(server: Server) -> int:
    """The most memory that the serving process ever had, in bytes."""
    lines = Path(f"/proc/{only_child(server.pid)}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def test_batches_that_wait_do_not_pile_their_replies_up(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(768 << 10))
    path = path_uri(tmp_path / "file")
    server = start_server()
    with server.connect(standard=True) as client:
        client.start("/bin/cat", processId="cat", pipeStdin=True)
        before = peak_memory(server)
        read = [client.message("fs/readFile", {"path": path}, id=f"read{number}") for number in range(15)]
        poll = client.message("process/read", {"processId": "cat", "waitMs": 4000}, id="poll")
        client.send_all(*[[*read, poll]] * 20)
        client.call("fs/writeFile", {"path": path, "dataBase64": ""})
        for _ in range(20):
            client.reply("poll")
        assert peak_memory(server) - before < 128 << 20


class Peer:
    """A channel whose messages are kept."""

    peer, peer_proof, kind, max_reply_bytes, unsent, presumes_json_rpc = "test", None, "unix", None, 0, False
    ended, key_fingerprint = False, None

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.finished = False

    def abort(self) -> None: ...

    def finish(self) -> None:
        self.finished = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def send(self, parts: Any) -> None:
        self.sent.append(b"".join(parts))


class Later:
    """A connection whose requests are answered when the test says so."""

    max_reply_bytes = None

    def __init__(self) -> None:
        self.admitted: list[Any] = []

    def admit(self, target: Any, method: str, params: Any, size: int, trace: Any) -> None:
        self.admitted.append(target)

    def batch_begun(self, calls: int) -> None: ...

    def batch_answered(self, calls: int) -> None: ...


def later() -> tuple[Any, Later, Peer]:
    """A JSON-RPC 2.0 dialect without a peer and without a server."""
    peer, connection = Peer(), Later()
    dialect: Any = JsonRpcDialect(peer, connection, load_dispatch(), one_at_a_time=False)  # type: ignore[arg-type]
    return dialect, connection, peer


@pytest.mark.parametrize(
    "text", [b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', b'{"jsonrpc":"2.0","method":"x"}']
)
def test_the_memory_of_a_body_that_is_not_sent_is_given_back(text: bytes) -> None:
    async def scenario() -> int:
        held = HeldBytes(1 << 30)
        body = WholeBody(held, lambda _: None)
        dialect, connection, _ = later()

        async def chunks() -> Any:
            yield bytes(PIECE_BYTES + 1)

        await body.read(chunks())
        dialect.receive(text)
        result = StreamedResult(b'{"bodyBase64":"', EncodedPieces(body), b'"}', body.encoded_size)
        await dialect.stream(connection.admitted[0], result)
        return held.total

    assert asyncio.run(scenario()) == 0


def test_a_result_that_comes_after_the_end_of_the_connection_is_dropped() -> None:
    dialect, connection, peer = later()
    dialect.receive(b'{"jsonrpc":"2.0","id":1,"method":"x"}')
    dialect.connection_lost()
    dialect.result(connection.admitted[0], Encoded(b"{}"))
    assert peer.sent == []


# -- the choice of the dialect


def test_a_dialect_that_cannot_be_loaded_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    # As when the table of descriptors is full.
    monkeypatch.setitem(sys.modules, "jsonrpcserver", None)
    load_dispatch.cache_clear()

    async def scenario() -> Peer:
        peer = Peer()
        connection = Connection(peer, {}, None, lambda _: None)  # type: ignore[arg-type]
        connection.messages_received([b'{"jsonrpc":"2.0","id":1,"method":"environment/status"}'])
        connection.batch_ended()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if peer.finished:
                break
        return peer

    peer = asyncio.run(scenario())
    assert b"internal error" in peer.sent[0]
    assert peer.finished


def test_a_message_before_unusable_headers_is_served_even_if_it_is_the_first(
    start_server: StartServer,
) -> None:
    server = start_server()
    with server.connect(standard=True, sized=True, handshake=False) as client:
        request = json.dumps(client.message("environment/status", id=1)).encode()
        client.transport.send_bytes(with_headers(request) + b"nonsense\r\n\r\n")
        client.wait_end()
        assert [message["id"] for message in client.received] == [1, None]


@pytest.mark.parametrize("sized", [False, True])
def test_who_asks_once_and_ends_its_side_is_answered(start_server: StartServer, sized: bool) -> None:
    with start_server().connect(standard=True, sized=sized, handshake=False) as client:
        assert isinstance(client.transport, SocketTransport)
        client.request("environment/status")
        client.transport.finish_sending()
        assert client.failure(1).code == -32600


def test_many_messages_behind_the_first_keep_their_order(start_server: StartServer) -> None:
    with start_server().connect(standard=True, handshake=False) as client:
        messages = [client.message("environment/status", id=n) for n in range(2000)]
        client.send_all(*messages)
        client.reply(1999)
        assert client.reply_order() == list(range(2000))


def test_parameters_of_any_name_are_no_internal_error(client: Client) -> None:
    for params in ({"context": 1, "self": 2, "": 3, "args": 4, "kwargs": 5, "name": 6}, [1] * 1000):
        assert client.refused("fs/readFile", params).code == -32602
        assert client.refused("no/such", params).code == -32601

"""JSON-RPC clients that others wrote, each with the framing that it knows: they start a process, follow its
output, write to it, end it, and see an error with its data.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import jsonrpcclient
import pytest
import websockets.sync.client
from pygls.client import JsonRPCClient
from pygls.exceptions import JsonRpcException as PyglsError
from pylsp_jsonrpc.endpoint import Endpoint
from pylsp_jsonrpc.exceptions import JsonRpcException as PylspError
from pylsp_jsonrpc.streams import JsonRpcStreamReader, JsonRpcStreamWriter

from tests.conftest import StartServer
from tests.support.wire import PATIENCE, Json, decode, encode, server_command

START: dict[str, Json] = {
    "processId": "p",
    "argv": ["/bin/sh", "-c", 'echo ready; read -r word; echo "got $word"; exec sleep 300'],
    "cwd": "file:///",
    "env": {"PATH": "/usr/bin:/bin"},
    "tty": False,
    "pipeStdin": True,
}
WRITE = {"processId": "p", "chunk": encode("word\n"), "writeId": "1"}
MISSING = {"path": "file:///no/such/file"}
NOT_FOUND = (-32004, "No such file or directory (os error 2)", {"code": "not_found"})


# -- python-lsp-jsonrpc: Content-Length over stdio, a thread that reads


class Events:
    """What was notified, as a client hands it on; each name is a handler that files."""

    def __init__(self) -> None:
        self._queue: Queue[tuple[str, Json]] = Queue()
        self._output = b""
        self.handlers: dict[str, Callable[[Json], None]] = {
            f"process/{name}": self._filing(name) for name in ("output", "exited", "closed")
        }

    def _filing(self, name: str) -> Callable[[Json], None]:
        return lambda params: self._queue.put((name, params))

    def until_output(self, wanted: bytes) -> None:
        """Wait for some output."""
        while wanted not in self._output:
            name, params = self._queue.get(timeout=PATIENCE)
            assert name == "output", (name, params)
            self._output += decode(params["chunk"])

    def end(self) -> tuple[bytes, int]:
        """Wait for exit and close; all output and the exit code."""
        name, params = self._queue.get(timeout=PATIENCE)
        last, _ = self._queue.get(timeout=PATIENCE)
        assert (name, last) == ("exited", "closed")
        return self._output, params["exitCode"]


@pytest.fixture
def daemon(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon on its standard streams."""
    with subprocess.Popen(
        [*server_command(), "--listen", "stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=tmp_path,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_python_lsp_jsonrpc_drives_a_process_over_stdio(daemon: subprocess.Popen[bytes]) -> None:
    events = Events()
    endpoint = Endpoint(events.handlers, JsonRpcStreamWriter(daemon.stdin).write)
    reader = threading.Thread(target=JsonRpcStreamReader(daemon.stdout).listen, args=(endpoint.consume,))
    reader.start()

    def call(method: str, params: Json = None) -> Json:
        return endpoint.request(method, params).result(PATIENCE)

    try:
        assert call("initialize", {"clientName": "python-lsp-jsonrpc"})["sessionId"]
        endpoint.notify("initialized", {})
        assert call("process/start", START) == {"processId": "p", "sandboxType": "none"}
        events.until_output(b"ready\n")
        assert call("process/write", WRITE) == {"status": "accepted"}
        events.until_output(b"got word\n")
        assert call("process/terminate", {"processId": "p"}) == {"running": True}
        assert events.end() == (b"ready\ngot word\n", 137)
        with pytest.raises(PylspError) as refusal:
            call("fs/readFile", MISSING)
        assert (refusal.value.code, refusal.value.message, refusal.value.data) == NOT_FOUND
    finally:
        assert daemon.stdin is not None
        daemon.stdin.close()
        reader.join(PATIENCE)
        endpoint.shutdown()
    assert not reader.is_alive()


# -- pygls: Content-Length over stdio, asyncio


async def test_pygls_drives_a_process_over_stdio(environment: dict[str, str], tmp_path: Path) -> None:
    client = JsonRPCClient()
    came: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    for name in ("output", "exited", "closed"):

        def file(params: Any, name: str = name) -> None:
            came.put_nowait((name, params))

        client.feature(f"process/{name}")(file)
    statuses: asyncio.Queue[int | None] = asyncio.Queue()

    async def ended(server: asyncio.subprocess.Process) -> None:
        statuses.put_nowait(server.returncode)

    client.server_exit = ended  # type: ignore[method-assign]

    async def call(method: str, params: Json) -> Any:
        return await asyncio.wait_for(client.protocol.send_request_async(method, params), PATIENCE)

    async def output_until(wanted: bytes) -> None:
        output = b""
        while wanted not in output:
            name, params = await asyncio.wait_for(came.get(), PATIENCE)
            assert name == "output"
            output += decode(params.chunk)
        assert output == wanted

    command = [*server_command(), "--listen", "stdio"]
    await client.start_io(*command, env=environment, cwd=tmp_path)
    try:
        assert (await call("initialize", {"clientName": "pygls"})).sessionId
        client.protocol.notify("initialized", {})
        assert (await call("process/start", START)).processId == "p"
        await output_until(b"ready\n")
        assert (await call("process/write", WRITE)).status == "accepted"
        await output_until(b"got word\n")
        assert (await call("process/terminate", {"processId": "p"})).running
        kinds = [await asyncio.wait_for(came.get(), PATIENCE) for _ in range(2)]
        assert [kind for kind, _ in kinds] == ["exited", "closed"]
        assert kinds[0][1].exitCode == 137
        with pytest.raises(PyglsError) as refusal:
            await call("fs/readFile", MISSING)
        assert (refusal.value.code, refusal.value.message) == NOT_FOUND[:2]
        assert refusal.value.data == {"code": "not_found"}
    finally:
        server = client._server
        assert server is not None
        assert server.stdin is not None
        server.stdin.close()
        assert await asyncio.wait_for(statuses.get(), PATIENCE) == 0
        await client.stop()


# -- jsonrpcclient: builds and parses messages, and leaves carrying them to others


class Carried:
    """jsonrpcclient over whatever takes and gives texts."""

    def __init__(self, send: Callable[[str], object], receive: Callable[[], str]) -> None:
        self._send = send
        self._receive = receive
        self.events: list[Json] = []

    def call(
        self, method: str, params: dict[str, Json] | None = None
    ) -> jsonrpcclient.Ok | jsonrpcclient.Error:
        """Request, and file events until the reply is there."""
        request = jsonrpcclient.request(method, params)
        self._send(json.dumps(request))
        reply = self._next()
        while "method" in reply:
            self.events.append(reply)
            reply = self._next()
        assert reply["id"] == request["id"]
        response = jsonrpcclient.parse(reply)
        assert isinstance(response, jsonrpcclient.Ok | jsonrpcclient.Error)
        return response

    def result(self, method: str, params: dict[str, Json] | None = None) -> Json:
        """The result, which there must be."""
        response = self.call(method, params)
        assert isinstance(response, jsonrpcclient.Ok), response
        return response.result

    def notify(self, method: str) -> None:
        """Send a notification."""
        self._send(jsonrpcclient.notification_json(method))

    def event(self) -> Json:
        """The next event."""
        return self.events.pop(0) if self.events else self._next()

    def output_until(self, wanted: bytes) -> None:
        """Wait for output of exactly these bytes."""
        output = b""
        while wanted not in output:
            event = self.event()
            assert event["method"] == "process/output"
            output += decode(event["params"]["chunk"])
        assert output == wanted

    def batch(self, *requests: Json) -> list[Json]:
        """Several requests in one array; their parsed replies."""
        self._send(json.dumps(requests))
        return list(jsonrpcclient.parse(self._next()))

    def _next(self) -> Json:
        return json.loads(self._receive())


def drive(client: Carried) -> None:
    """The whole story, in whatever framing."""
    assert client.result("initialize", {"clientName": "jsonrpcclient"})["sessionId"]
    client.notify("initialized")
    assert client.result("process/start", START) == {"processId": "p", "sandboxType": "none"}
    client.output_until(b"ready\n")
    assert client.result("process/write", WRITE) == {"status": "accepted"}
    client.output_until(b"got word\n")
    assert client.result("process/terminate", {"processId": "p"}) == {"running": True}
    exited, closed = client.event(), client.event()
    assert (exited["method"], exited["params"]["exitCode"]) == ("process/exited", 137)
    assert closed["method"] == "process/closed"

    refusal = client.call("fs/readFile", MISSING)
    assert isinstance(refusal, jsonrpcclient.Error)
    assert (refusal.code, refusal.message, refusal.data) == NOT_FOUND

    status, missing = client.batch(
        jsonrpcclient.request("environment/status"), jsonrpcclient.request("fs/readFile", MISSING)
    )
    assert status.result == {"status": "ready"}
    assert missing.data == {"code": "not_found"}


def test_jsonrpcclient_drives_a_process_over_lines_on_a_unix_socket(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("s") / "s"
    start_server(f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        with connection.makefile("rw", encoding="utf-8", newline="\n") as lines:

            def send(text: str) -> None:
                lines.write(text + "\n")
                lines.flush()

            drive(Carried(send, lines.readline))


def test_jsonrpcclient_drives_a_process_over_a_websocket_of_websockets(start_server: StartServer) -> None:
    server = start_server("ws://127.0.0.1:0")
    with websockets.sync.client.connect(server.url) as connection:

        def receive() -> str:
            message = connection.recv(PATIENCE)
            assert isinstance(message, str)
            return message

        drive(Carried(connection.send, receive))


def test_websockets_comes_in_by_a_unix_socket_too(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("s") / "s"
    start_server(f"unix://{path}")
    with websockets.sync.client.unix_connect(str(path), "ws://localhost/") as connection:
        drive(Carried(connection.send, lambda: str(connection.recv(PATIENCE))))

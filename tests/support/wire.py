"""A raw, synchronous client of the wire, for tests.

It knows framing, ids and the order in which things arrived, and nothing of what the
messages mean beyond that: a test can send whatever bytes it likes and sees what came
back. The framings are those of `tests.support.framing`.

    with Server("unix:///tmp/x/socket") as server, server.connect() as client:
        process = client.shell("echo hello; exit 3")
        assert process.wait_closed().output == b"hello\\n"
        assert process.exit_code == 3

A thread a connection reads all the time and files what it reads; the calls of the test
wait on a condition, so nothing here polls or sleeps. `Client.pause` stops that thread,
which is how a test plays a reader that stalls.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from tests.support.framing import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    Framing,
    Headers,
    Lines,
    WebSocket,
    frame,
)

Json = Any
"""A decoded JSON value. Tests take it apart; its type ends here."""

PATIENCE = float(os.environ.get("EXECSERVER_TEST_PATIENCE", "20"))
"""Seconds to wait for something that must happen. Long, because it only matters in a failure."""


class ConnectionEndedError(ConnectionError):
    """The server ended the connection while the test waited for something."""


class ReplyError(Exception):
    """An error reply."""

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method}: {code} {message}")
        self.code = code
        self.message = message


class UpgradeRefusedError(Exception):
    """The server answered the WebSocket upgrade with another status than 101."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body!r}")
        self.status = status
        self.headers = headers
        self.body = body


class StartError(Exception):
    """The server ended before it was ready."""

    def __init__(self, status: int | None, stderr: str) -> None:
        super().__init__(f"status {status}: {stderr[-2000:]}")
        self.status = status
        self.stderr = stderr


def encode(data: bytes | str) -> str:
    """Bytes as they stand on the wire."""
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def decode(text: str) -> bytes:
    """Bytes as they stood on the wire; strict."""
    return base64.b64decode(text, validate=True)


def path_uri(path: str | bytes | os.PathLike[str]) -> str:
    """The URI of an absolute path."""
    return "file://" + quote(os.fsencode(path))


# ------------------------------------------------------------------ transports


class Transport(ABC):
    """One connection as a sequence of messages."""

    framing: Framing

    @abstractmethod
    def send_message(self, payload: bytes) -> None:
        """Send one message with the framing of this transport."""

    @abstractmethod
    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are, without framing."""

    @abstractmethod
    def receive(self) -> bytes | None:
        """The next message; `None` at the end of the connection. Called by one thread only."""

    @abstractmethod
    def close(self) -> None:
        """End the connection and release everything; a second call does nothing."""


class SocketTransport(Transport):
    """Messages of one framing over a socket."""

    def __init__(self, connection: socket.socket, framing: Framing) -> None:
        self.socket = connection
        self.framing = framing
        self._lock = threading.Lock()

    def send_message(self, payload: bytes) -> None:
        """One message in this framing."""
        self.send_bytes(self.framing.encode(payload))

    def send_bytes(self, data: bytes) -> None:
        """Bytes as they are."""
        with self._lock:
            self.socket.sendall(data)

    def receive(self) -> bytes | None:
        """The next message."""
        while (message := self.framing.take()) is None:
            data = self._more()
            if not data:
                return None
            self.framing.feed(data)
        return message

    def _more(self) -> bytes:
        try:
            return self.socket.recv(1 << 18)
        except OSError:
            return b""

    def finish_sending(self) -> None:
        """Close our direction only."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection in both directions."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def reset(self) -> None:
        """End the connection with a reset, as a crashed peer does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class WebSocketTransport(SocketTransport):
    """A WebSocket on which any frame can be sent, also a wrong one."""

    TEXT, BINARY, CLOSE, PING, PONG = TEXT, BINARY, CLOSE, PING, PONG
    frame = staticmethod(frame)

    def __init__(self, connection: socket.socket, left_over: bytes = b"") -> None:
        self.framing: WebSocket = WebSocket(left_over)
        super().__init__(connection, self.framing)
        self.answer_pings = True
        self.pings = 0

    @property
    def pongs(self) -> deque[bytes]:
        """The payloads of all pongs."""
        return self.framing.pongs

    @property
    def close_code(self) -> int | None:
        """Of the server's close frame; 1005 when it had none."""
        return self.framing.close_code

    @property
    def largest_frame(self) -> int:
        """Bytes."""
        return self.framing.largest_frame

    @property
    def opcodes(self) -> set[int]:
        """Of all data frames."""
        return self.framing.opcodes

    def send_frame(self, opcode: int, payload: bytes, *, fin: bool = True) -> None:
        """One frame of any kind; `opcode` 0 continues a message."""
        self.send_bytes(frame(opcode, payload, fin=fin))

    def receive(self) -> bytes | None:
        """The next message; pings are answered on the way."""
        while True:
            message = self.framing.take()
            while self.framing.pings:
                payload = self.framing.pings.popleft()
                self.pings += 1
                if self.answer_pings:
                    with contextlib.suppress(OSError):
                        self.send_frame(PONG, payload)
            if message is not None or self.framing.ended:
                return message
            data = self._more()
            if not data:
                return None
            self.framing.feed(data)


class StdioTransport(Transport):
    """Messages of one framing over the standard streams of a server that we started."""

    def __init__(self, process: subprocess.Popen[bytes], framing: Framing) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("stdin and stdout must be pipes")
        self.process = process
        self.framing = framing
        self._stdin, self._stdout = process.stdin, process.stdout
        self._lock = threading.Lock()

    def send_message(self, payload: bytes) -> None:
        """One message in this framing."""
        self.send_bytes(self.framing.encode(payload))

    def send_bytes(self, data: bytes) -> None:
        """Bytes as they are."""
        with self._lock:
            self._stdin.write(data)
            self._stdin.flush()

    def receive(self) -> bytes | None:
        """The next message."""
        while (message := self.framing.take()) is None:
            data = os.read(self._stdout.fileno(), 1 << 18)
            if not data:
                return None
            self.framing.feed(data)
        return message

    def finish_sending(self) -> None:
        """End of file on the server's standard input."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def close(self) -> None:
        """End of file, then wait for the server; a server that stays is killed."""
        self.finish_sending()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def release(self) -> None:
        """Close our end of its output, once nobody reads it any more."""
        self._stdout.close()


# ------------------------------------------------------------------ what came of a process


@dataclass
class ProcessLog:
    """All notifications of one process id, as they came."""

    events: list[tuple[str, Json]] = field(default_factory=list)
    output: bytearray = field(default_factory=bytearray)
    streams: dict[str, bytearray] = field(default_factory=dict)
    exit_code: int | None = None
    exited: bool = False
    closed: bool = False
    lost_bytes: int = 0

    def add(self, method: str, params: Json) -> None:
        """File one notification."""
        self.events.append((method, params))
        if method == "process/output":
            data = decode(params["chunk"])
            self.output += data
            self.streams.setdefault(params["stream"], bytearray()).extend(data)
            self.lost_bytes += params.get("lostBytes", 0)
        elif method == "process/exited":
            self.exited, self.exit_code = True, params["exitCode"]
        elif method == "process/closed":
            self.closed = True

    @property
    def seqs(self) -> list[int]:
        """The sequence numbers in order of arrival."""
        return [params["seq"] for _, params in self.events]

    @property
    def kinds(self) -> list[str]:
        """`output`, `exited`, `closed`, in order of arrival."""
        return [method.removeprefix("process/") for method, _ in self.events]


@dataclass
class Process:
    """A process that the test started, by its id on a connection."""

    client: Client
    id: str
    started: Json = None

    @property
    def log(self) -> ProcessLog:
        """What was notified so far."""
        return self.client.log(self.id)

    @property
    def output(self) -> bytes:
        """Everything it has written so far, both streams, in order of arrival."""
        return bytes(self.log.output)

    @property
    def exit_code(self) -> int | None:
        """What `process/exited` said."""
        return self.log.exit_code

    def wait_output(self, wanted: bytes | Callable[[bytes], bool], timeout: float = PATIENCE) -> bytes:
        """Wait until the output contains some bytes, or satisfies a condition; the output so far."""
        done = wanted if callable(wanted) else (lambda output: wanted in output)
        self.client.wait_until(lambda: done(self.output), timeout, f"output of {self.id!r}")
        return self.output

    def wait_exited(self, timeout: float = PATIENCE) -> Self:
        """Wait for `process/exited`."""
        self.client.wait_until(lambda: self.log.exited, timeout, f"exit of {self.id!r}")
        return self

    def wait_closed(self, timeout: float = PATIENCE) -> Self:
        """Wait for `process/closed`."""
        self.client.wait_until(lambda: self.log.closed, timeout, f"close of {self.id!r}")
        return self

    def read(
        self, after_seq: int | None = None, max_bytes: int | None = None, wait_ms: int | None = None
    ) -> Json:
        """`process/read`."""
        params = {"afterSeq": after_seq, "maxBytes": max_bytes, "waitMs": wait_ms}
        given = {name: value for name, value in params.items() if value is not None}
        return self.client.call("process/read", {"processId": self.id, **given})

    def write(self, data: bytes | str, write_id: str) -> str:
        """`process/write`; its status."""
        params = {"processId": self.id, "chunk": encode(data), "writeId": write_id}
        return str(self.client.call("process/write", params)["status"])

    def interrupt(self) -> Json:
        """`process/signal` with the one signal there is."""
        return self.client.call("process/signal", {"processId": self.id, "signal": "interrupt"})

    def terminate(self, scope: str | None = None) -> Json:
        """`process/terminate`."""
        params = {"processId": self.id} | ({"scope": scope} if scope else {})
        return self.client.call("process/terminate", params)


# ------------------------------------------------------------------ the client


class Client:
    """One connection: numbers requests, files replies and notifications.

    With `standard` it speaks JSON-RPC 2.0, and files what comes without its version member as
    the notification `(not JSON-RPC 2.0)`.
    """

    def __init__(self, transport: Transport, *, standard: bool = False) -> None:
        self.transport = transport
        self.standard = standard
        self.received: list[Json] = []
        """Every message in order of arrival."""
        self.raw: deque[bytes] = deque(maxlen=64)
        """The last messages before decoding."""
        self.notifications: list[Json] = []
        self.questions: list[Json] = []
        """The requests of the server."""
        self.session_id = ""
        self.initialized: Json = None
        """The result of `initialize`."""
        self.ended = False
        self._replies: dict[int | str | None, deque[Json]] = {}
        self._logs: dict[str, ProcessLog] = {}
        self._ids = itertools.count(1)
        self._names = itertools.count(1)
        self._news = threading.Condition()
        self._reading = threading.Event()
        self._reading.set()
        self._reader = threading.Thread(target=self._read, name="wire-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        while True:
            self._reading.wait()
            try:
                message = self.transport.receive()
            except (OSError, ValueError):
                message = None
            if message is None:
                break
            self._file(message)
        with self._news:
            self.ended = True
            self._news.notify_all()

    def _file(self, message: bytes) -> None:
        try:
            decoded = json.loads(message)
        except ValueError:
            decoded = {"method": "(not JSON)", "params": message[:200]}
        with self._news:
            self.raw.append(message)
            self.received.append(decoded)
            for each in decoded if isinstance(decoded, list) else [decoded]:
                self._file_one(each)
            self._news.notify_all()

    def _file_one(self, message: Json) -> None:
        if self.standard != (message.get("jsonrpc") == "2.0"):
            message = {"method": f"(not of this dialect: {str(message)[:200]})"}
        if "method" in message and "id" in message:
            self.questions.append(message)
        elif "method" in message:
            self.notifications.append(message)
            params = message.get("params")
            if message["method"].startswith("process/") and isinstance(params, dict):
                self._logs.setdefault(params["processId"], ProcessLog()).add(message["method"], params)
        else:
            self._replies.setdefault(message.get("id"), deque()).append(message)

    # -- life

    def close(self) -> None:
        """End the connection and wait for the reader."""
        self._reading.set()
        try:
            self.transport.close()
        finally:
            self._reader.join(PATIENCE)
            if isinstance(self.transport, StdioTransport):
                self.transport.release()

    def pause(self) -> None:
        """Stop reading from the connection; what is already on its way may still be filed."""
        self._reading.clear()

    def resume(self) -> None:
        """Read again."""
        self._reading.set()

    @property
    def websocket(self) -> WebSocketTransport:
        """The transport, when it is a WebSocket."""
        if not isinstance(self.transport, WebSocketTransport):
            raise TypeError("this connection is no WebSocket")
        return self.transport

    @property
    def stdio(self) -> StdioTransport:
        """The transport, when it is a pair of pipes."""
        if not isinstance(self.transport, StdioTransport):
            raise TypeError("this connection is not stdio")
        return self.transport

    # -- sending

    def send(self, message: Json) -> None:
        """Any JSON value as one message."""
        self.transport.send_message(json.dumps(message).encode())

    def send_raw(self, payload: bytes) -> None:
        """Any bytes as one message."""
        self.transport.send_message(payload)

    def request(self, method: str, params: Json = None, **members: Json) -> int:
        """Send a request and go on; its id, for `reply`."""
        number = next(self._ids)
        self.send(self.message(method, params, id=number) | members)
        return number

    def message(self, method: str, params: Json = None, **members: Json) -> dict[str, Json]:
        """A request or a notification, in this connection's dialect; not sent."""
        message: dict[str, Json] = {"jsonrpc": "2.0"} if self.standard else {}
        message |= {**members, "method": method}
        return message if params is None else message | {"params": params}

    def send_all(self, *messages: Json) -> None:
        """Several messages in one write."""
        payloads = (json.dumps(message).encode() for message in messages)
        self.transport.send_bytes(b"".join(map(self.transport.framing.encode, payloads)))

    def pipeline(self, *requests: tuple[str, Json]) -> list[int]:
        """Send several requests in one write, without waiting; their ids."""
        numbers = [next(self._ids) for _ in requests]
        self.send_all(
            *(self.message(*request, id=number) for number, request in zip(numbers, requests, strict=True))
        )
        return numbers

    def respond(self, number: Json, **members: Json) -> None:
        """Answer a request of the server, with a `result` or an `error`."""
        self.send(({"jsonrpc": "2.0"} if self.standard else {}) | {"id": number, **members})

    def notify(self, method: str, params: Json = None) -> None:
        """Send a notification."""
        self.send(self.message(method, params))

    # -- waiting

    def wait_until(self, done: Callable[[], object], timeout: float = PATIENCE, what: str = "") -> None:
        """Wait until a condition on what has arrived holds.

        Raises:
            ConnectionEndedError: the connection ended first.
            TimeoutError: it did not come in time.
        """
        deadline = time.monotonic() + timeout
        with self._news:
            while not done():
                left = deadline - time.monotonic()
                if self.ended:
                    raise ConnectionEndedError(
                        f"the connection ended while waiting for {what or 'a message'}"
                    )
                if left <= 0:
                    recent = [str(message)[:300] for message in self.received[-5:]]
                    raise TimeoutError(f"waited {timeout:g} s for {what or 'a message'}; last: {recent}")
                self._news.wait(left)

    def wait_end(self, timeout: float = PATIENCE) -> None:
        """Wait until the server has ended the connection."""
        with self._news:
            if not self._news.wait_for(lambda: self.ended, timeout):
                raise TimeoutError("the server keeps the connection")

    def reply(self, number: int | str | None, timeout: float = PATIENCE) -> Json:
        """The whole reply with that id; replies with one id come out in order of arrival."""
        self.wait_until(lambda: self._replies.get(number), timeout, f"the reply to {number!r}")
        return self._replies[number].popleft()

    def result(self, number: int | str, timeout: float = PATIENCE) -> Json:
        """The result in the reply with that id.

        Raises:
            ReplyError: it is an error.
        """
        reply = self.reply(number, timeout)
        if "error" in reply:
            raise ReplyError(f"request {number!r}", reply["error"]["code"], reply["error"]["message"])
        return reply["result"]

    def failure(self, number: int | str, timeout: float = PATIENCE) -> ReplyError:
        """The error in the reply with that id; a result is an assertion failure."""
        reply = self.reply(number, timeout)
        assert "error" in reply, f"expected an error, got {str(reply)[:400]}"
        return ReplyError(f"request {number!r}", reply["error"]["code"], reply["error"]["message"])

    def answered(self, number: int | str) -> bool:
        """Whether a reply with that id is there to be taken."""
        with self._news:
            return bool(self._replies.get(number))

    def reply_order(self) -> list[int | str]:
        """The ids of all replies in order of arrival."""
        with self._news:
            return [message["id"] for message in self.received if "method" not in message]

    # -- calling

    def call(self, method: str, params: Json = None, timeout: float = PATIENCE) -> Json:
        """Request, and wait for the result.

        Raises:
            ReplyError: the server answered with an error.
        """
        return self.result(self.request(method, params), timeout)

    def refused(self, method: str, params: Json = None, timeout: float = PATIENCE) -> ReplyError:
        """Request, and wait for the error that must come."""
        return self.failure(self.request(method, params), timeout)

    def handshake(self, resume: str | None = None, *, extensions: bool = False) -> Self:
        """`initialize` and `initialized`."""
        params: dict[str, Json] = {"clientName": "tests"}
        if resume is not None:
            params["resumeSessionId"] = resume
        if extensions:
            params["extensions"] = {"execserver": 1}
        self.initialized = self.call("initialize", params)
        self.session_id = self.initialized["sessionId"]
        self.notify("initialized", {})
        return self

    # -- processes

    def log(self, process_id: str) -> ProcessLog:
        """The notifications of a process id."""
        with self._news:
            return self._logs.setdefault(process_id, ProcessLog())

    def start_params(self, argv: Sequence[str], /, **members: Json) -> dict[str, Json]:
        """Parameters of a `process/start`; a fresh `processId` unless one is given."""
        return {
            "processId": f"p{next(self._names)}",
            "argv": list(argv),
            "cwd": "file:///",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "tty": False,
            **members,
        }

    def start(self, *argv: str, **members: Json) -> Process:
        """`process/start`."""
        params = self.start_params(argv, **members)
        return Process(self, params["processId"], self.call("process/start", params))

    def shell(self, script: str, **members: Json) -> Process:
        """`process/start` of a `/bin/sh` script."""
        return self.start("/bin/sh", "-c", script, **members)

    def process(self, process_id: str) -> Process:
        """A handle on a process that was started elsewhere."""
        return Process(self, process_id)


# ------------------------------------------------------------------ connecting


def connect_unix(path: str | os.PathLike[str], *, standard: bool = False, headers: bool = False) -> Client:
    """Connect to a Unix socket; no handshake yet."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.fspath(path))
    except OSError:
        connection.close()
        raise
    return Client(SocketTransport(connection, Headers() if headers else Lines()), standard=standard)


def connect_unix_ws(path: str | os.PathLike[str], *, standard: bool = False) -> Client:
    """Connect to a Unix socket and upgrade to a WebSocket there; no handshake of ours yet.

    Raises:
        UpgradeRefusedError: the server answered something else than 101.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.fspath(path))
        status, answer, left_over = _upgrade(connection, "localhost", "/", None)
        if status != 101:
            raise UpgradeRefusedError(status, answer, left_over)
    except BaseException:
        connection.close()
        raise
    return Client(WebSocketTransport(connection, left_over), standard=standard)


def connect_ws(
    url: str, headers: Mapping[str, str] | None = None, path: str | None = None, *, standard: bool = False
) -> Client:
    """Connect to a WebSocket; no handshake of ours yet.

    Raises:
        UpgradeRefusedError: the server answered something else than 101.
    """
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 80), PATIENCE)
    try:
        status, answer, left_over = _upgrade(connection, address.netloc, path or address.path or "/", headers)
        if status != 101:
            length = int(answer.get("content-length", "0"))
            while len(left_over) < length and (data := connection.recv(4096)):
                left_over += data
            raise UpgradeRefusedError(status, answer, left_over)
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    # Otherwise a small message behind another waits 40 ms for the server's delayed ACK.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Client(WebSocketTransport(connection, left_over), standard=standard)


def _upgrade(
    connection: socket.socket, host: str, path: str, headers: Mapping[str, str] | None
) -> tuple[int, dict[str, str], bytes]:
    fields = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": encode(os.urandom(16)),
        "Sec-WebSocket-Version": "13",
        **(headers or {}),
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    connection.sendall("\r\n".join(lines).encode())
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(4096)
        if not data:
            raise ConnectionEndedError("no answer to the upgrade")
        received += data
    head, _, left_over = received.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    answer = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return int(first.split(" ")[1]), answer, left_over


def server_command() -> list[str]:
    """The command that serves, to be followed by flags.

    `EXECSERVER_TEST_COMMAND` replaces it, which is how the suite is held against another executor.
    """
    other = os.environ.get("EXECSERVER_TEST_COMMAND")
    # The console script: then the first server is a copy of the supervisor.
    return other.split() if other else [str(Path(sys.executable).with_name("execserver")), "serve"]


def spawn_stdio(
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    *,
    standard: bool = False,
    headers: bool = False,
) -> Client:
    """Start a server that serves its standard streams; no handshake yet.

    Closing the client ends the server; `client.stdio.process.returncode` is its status then.
    """
    process = subprocess.Popen(
        [*server_command(), "--listen", "stdio", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=None if env is None else dict(env),
        cwd=cwd,
    )
    return Client(StdioTransport(process, Headers() if headers else Lines()), standard=standard)


class Server:
    """A server process that listens on one URL.

    `listen` is `unix:///PATH` or `ws://127.0.0.1:0`, or `None` when the flags say where; `url` is what it
    really bound. `prefix` is a command that becomes the server, to start it under other circumstances.

    Raises:
        StartError: it ended, or did not say its URL in time.
    """

    def __init__(
        self,
        listen: str | None,
        *flags: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        place = () if listen is None else ("--listen", listen)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            [*prefix, *server_command(), *place, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=None if env is None else dict(env),
            cwd=cwd,
        )
        self.pid = self.process.pid
        try:
            self.url = self._first_line()
        except BaseException:
            self.process.kill()
            self._release()
            raise

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        line, deadline = b"", time.monotonic() + PATIENCE
        descriptor = self.process.stdout.fileno()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(descriptor, 4096) if ready else b""
            if not data:
                status = self.process.wait(PATIENCE) if ready else None
                raise StartError(status, self.stderr)
            line += data
        return line.decode().strip()

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        with open(f"/proc/self/fd/{self._stderr.fileno()}", "rb") as log:
            return log.read().decode(errors="replace")

    def logs(self, text: str) -> bool:
        """Whether it logs a text, now or soon: its log is written by a thread."""
        until = time.monotonic() + PATIENCE
        while text not in self.stderr and time.monotonic() < until:
            time.sleep(0.01)
        return text in self.stderr

    @property
    def port(self) -> int:
        """The TCP port of a WebSocket listener."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None

    def connect(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        handshake: bool = True,
        resume: str | None = None,
        extensions: bool = False,
        standard: bool = False,
        sized: bool = False,
        upgrade: bool = False,
    ) -> Client:
        """A connection, with its handshake done unless told otherwise.

        Args:
            headers: of the WebSocket upgrade.
            handshake: `initialize` and `initialized`, with `resume` and `extensions`.
            standard: speak JSON-RPC 2.0.
            sized: on a Unix socket, `Content-Length` framing.
            upgrade: on a Unix socket, a WebSocket.
        """
        path = self.url.removeprefix("unix://")
        if path == self.url:
            client = connect_ws(self.url, headers, standard=standard)
        elif upgrade:
            client = connect_unix_ws(path, standard=standard)
        else:
            client = connect_unix(path, standard=standard, headers=sized)
        try:
            return client.handshake(resume, extensions=extensions) if handshake else client
        except BaseException:
            client.close()
            raise

    def stop(self) -> int:
        """SIGTERM, wait, and the exit status; a server that stays is killed and reported."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._release()

    def _release(self) -> None:
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# ------------------------------------------------------------------ facts about processes


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_state(pids: list[int], state: str) -> None:
    """Wait until the kernel has all processes in a state (`T` is stopped, `S` asleep)."""

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids}

    deadline = time.monotonic() + PATIENCE
    while states() != {state}:
        assert time.monotonic() < deadline, states()
        time.sleep(0.01)


def wait_gone(pid: int, timeout: float = PATIENCE) -> bool:
    """Wait for the end of any process, by its pidfd; whether it ended in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([descriptor], [], [], timeout)
        return bool(ready) or not alive(pid)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Assert that the body takes no longer."""
    begin = time.monotonic()
    yield
    taken = time.monotonic() - begin
    assert taken < seconds, f"took {taken:.2f} s, allowed are {seconds:g} s"

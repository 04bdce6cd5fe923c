"""A raw HTTP server in threads: it keeps what it got, byte by byte, and answers what the test says.

    with Origin(lambda exchange: exchange.send(response(b"hi"))) as origin: ...

An answer is a function of an `Exchange`; when it returns, the connection is closed.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PATIENCE = 20.0


@dataclass
class Request:
    """One request as it came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def target(self) -> str:
        """What stands between method and version."""
        return self.line.split(" ")[1]

    def values(self, name: str) -> list[str]:
        """The values of a header, whatever its spelling."""
        return [value for given, value in self.headers if given.lower() == name.lower()]


class Exchange:
    """A connection of a client with the request that it brought."""

    def __init__(self, connection: socket.socket, request: Request, stopping: threading.Event) -> None:
        self.connection = connection
        self.request = request
        self.stopping = stopping

    @property
    def path(self) -> str:
        """The path without its query."""
        return self.request.target.partition("?")[0]

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.connection.sendall(data)

    def wait_client_gone(self) -> None:
        """Return when the client has closed the connection."""
        with contextlib.suppress(OSError):
            while self.connection.recv(1 << 16):
                pass

    def reset(self) -> None:
        """End the connection as a crashed server does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


Answer = Callable[[Exchange], None]


def response(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A chunk of a body in chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Origin:
    """Listens on loopback from the beginning to `close`."""

    def __init__(self, answer: Answer, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.requests: list[Request] = []
        self.arrived: queue.Queue[Request] = queue.Queue()
        """The same, to be waited for."""
        self.accepted = 0
        self._answer = answer
        self._tls = tls
        self._stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._host = host
        self._socket = socket.create_server((host, 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self._start(self._accept)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self._host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"{'https' if self._tls else 'http'}://{self.address}"

    def next_request(self) -> Request:
        """Wait for a request that nobody has waited for yet."""
        return self.arrived.get(timeout=PATIENCE)

    def wait_idle(self) -> None:
        """Wait until no client has a connection."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._connections, PATIENCE)

    def close(self) -> None:
        """End everything: listener, connections, threads."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._changed:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="origin", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            with self._changed:
                self._connections.add(connection)
            self._start(lambda taken=connection: self._serve(taken))  # type: ignore[misc]
            del connection

    def _serve(self, connection: socket.socket) -> None:
        speaking = connection
        try:
            if self._tls is not None:
                speaking = self._tls.wrap_socket(connection, server_side=True)
            while (request := _read_request(speaking)) is not None:
                self.requests.append(request)
                self.arrived.put(request)
                self._answer(Exchange(speaking, request, self._stopping))
                return
        except OSError:
            return  # the client went, as many tests want it to
        finally:
            with self._changed:
                self._connections.discard(connection)
                self._changed.notify_all()
            speaking.close()
            connection.close()


def _read_request(connection: socket.socket) -> Request | None:
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(1 << 16)
        if not data:
            return None
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
    request = Request(line, headers, body)
    length = int((request.values("content-length") or ["0"])[0])
    while len(request.body) < length:
        data = connection.recv(1 << 16)
        if not data:
            return None
        request.body += data
    return request


Serve = Callable[[Answer], Origin]
"""Starts an origin that ends with the test."""

"""A proxy in a process of its own (CONNECT, plain requests, SOCKS5), and programs that reach nothing else.

    with ConnectProxy(tmp_path) as proxy:
        process = subprocess.Popen(proxy.behind("http", ["execserver", ...]), ...)
        proxy.tunnels()     # ["relay.test:8470", ...]: the targets, in order
        proxy.cut()         # ends all tunnels

A command of `behind` runs in a network namespace with nothing but a loopback device, on which the proxy
listens: the listening socket is made there and passed to the proxy, which is outside. The command's
`HTTPS_PROXY` and `HTTP_PROXY` name it. The proxy resolves all names to 127.0.0.1, and the command none.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.wire import PATIENCE

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


class ConnectProxy:
    """The process of a proxy.

    Args:
        folder: for its control socket and its list of tunnels.
        credentials: `USER:PASSWORD` that it wants; None: it wants none.
        status: with which it refuses every request; None: it serves them.
        tls: files with the certificate and the key of an https proxy; None: it is an http proxy.
    """

    def __init__(
        self,
        folder: Path,
        *,
        credentials: str | None = None,
        status: int | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.control = folder / "proxy.sock"
        self._options = {
            "credentials": credentials,
            "status": status,
            "tls": None if tls is None else [str(file) for file in tls],
        }
        self._list = folder / "tunnels"
        with self._list.open("wb") as tunnels:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.connect_proxy", "serve", str(self.control)],
                stdout=tunnels,
                stdin=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )
        while not self.control.exists():
            assert self._process.poll() is None, "the proxy does not start"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def behind(self, variable: str, command: Sequence[str], credentials: str = "") -> list[str]:
        """The command line that runs a command behind the proxy.

        Args:
            variable: that names the proxy to the command, such as `HTTPS_PROXY`; it gets `SCHEME` from the
                part behind a colon: `EXECSERVER_PROXY:socks5h`.
            command: to be run.
            credentials: `USER:PASSWORD@`, for the proxy's URL.
        """
        options = {**self._options, "variable": variable, "own": credentials}
        unshare = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        here = [sys.executable, "-m", "tests.support.connect_proxy", "behind", str(self.control)]
        return [*unshare, *here, json.dumps(options), *command]

    def listen(self) -> int:
        """Listen on loopback of this network namespace, too; the port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            _ask(str(self.control), {"listen": self._options}, listener.fileno())
            port: int = listener.getsockname()[1]
            return port

    def tunnels(self) -> list[str]:
        """The targets of all tunnels and requests until now."""
        return self._list.read_text().splitlines()

    def cut(self) -> None:
        """End all tunnels as a fault would."""
        _ask(str(self.control), {"cut": True})


def _ask(control: str, request: dict[str, Any], *descriptors: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(control)
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        assert connection.recv(10) == b"done"


def _run_behind(control: str, text: str, command: list[str]) -> None:
    options = json.loads(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _ask(control, {"listen": options}, listener.fileno())
        port = listener.getsockname()[1]
    variable, _, scheme = options["variable"].partition(":")
    scheme = scheme or ("https" if options["tls"] else "http")
    host = "localhost" if scheme == "https" else "127.0.0.1"
    os.environ[variable] = f"{scheme}://{options['own']}{host}:{port}"
    os.execvp(command[0], command)


# -- the process


class _Server:
    def __init__(self) -> None:
        self.transports: set[asyncio.WriteTransport] = set()

    def cut(self) -> None:
        for transport in self.transports.copy():
            transport.abort()

    async def listen(self, listener: socket.socket, options: dict[str, Any]) -> None:
        context = None
        if options["tls"]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*options["tls"])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.transports.add(writer.transport)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._connection(reader, writer, options)
            writer.transport.abort()
            self.transports.discard(writer.transport)

        await asyncio.start_server(serve, sock=listener, ssl=context)

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, options: dict[str, Any]
    ) -> None:
        first = await reader.readexactly(1)
        if first == b"\5":
            port = await _socks(reader, writer)
            rest = b""
        else:
            head = first + await reader.readuntil(b"\r\n\r\n")
            status = options["status"] or _judged(head, options["credentials"])
            if status != 200:
                writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
                return
            method, target = head.decode().split(" ")[:2]
            port = int(target.rpartition("://")[2].partition("/")[0].rpartition(":")[2])
            rest = b"" if method == "CONNECT" else head
            print(target, flush=True)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        upstream.write(rest)
        await asyncio.gather(_forward(reader, upstream), _forward(upstream_reader, writer))


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def _socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Serve the handshake of SOCKS5 with a name; the port."""
    await reader.readexactly((await reader.readexactly(1))[0])
    writer.write(b"\5\0")
    _, _, _, kind, length = await reader.readexactly(5)
    assert kind == 3, "the client resolved the name"
    name = (await reader.readexactly(length)).decode()
    port = int.from_bytes(await reader.readexactly(2))
    print(f"{name}:{port}", flush=True)
    writer.write(b"\5\0\0\1\0\0\0\0\0\0")
    return port


def _judged(head: bytes, credentials: str | None) -> int:
    if credentials is None:
        return 200
    given = f"basic {base64.b64encode(credentials.encode()).decode()}".lower()
    return 200 if f"proxy-authorization: {given}\r\n".encode() in head.lower() else 407


async def _serve(control: str) -> None:
    loop, server = asyncio.get_running_loop(), _Server()

    def requests() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{control}~")
            listener.listen()
            os.rename(f"{control}~", control)  # the file appears when connections are accepted
            while True:
                connection, _ = listener.accept()
                with connection:
                    data, descriptors, _, _ = socket.recv_fds(connection, 65_536, 1)
                    request = json.loads(data)
                    if "cut" in request:
                        loop.call_soon_threadsafe(server.cut)
                    else:
                        listening = server.listen(socket.socket(fileno=descriptors[0]), request["listen"])
                        asyncio.run_coroutine_threadsafe(listening, loop).result()
                    connection.send(b"done")

    threading.Thread(target=requests, daemon=True).start()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(sys.argv[2]))
    else:
        _run_behind(sys.argv[2], sys.argv[3], sys.argv[4:])

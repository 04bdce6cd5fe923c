"""A server under test: started from a command line, measured, and always ended."""

import os
import shlex
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import process_tree
from benchmarks.wire import Connection, LineConnection, Transport, WebSocketConnection, connect_socket

# A server that does not listen by then is broken, not slow.
LISTEN_SECONDS = 15.0
# Ending a thousand processes takes a while; after this the server is killed.
STOP_SECONDS = 10.0


def free_port() -> int:
    """A port of the loopback address on which no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerUnderTest:
    """One started server.

    Args:
        command: command line with `{listen}` where the listen URL belongs.
        transport: what to listen on; loopback and private paths only.
        scratch: folder that serves as home, state folder and place of the Unix socket.
        log: file that collects standard error; None drops it.
    """

    def __init__(self, command: str, transport: Transport, scratch: Path, log: Path | None = None) -> None:
        self.transport = transport
        self._port = free_port() if transport == "ws" else 0
        self._path = scratch / "server.sock"
        self._path.unlink(missing_ok=True)
        listen = {
            "stdio": "stdio",
            "ws": f"ws://127.0.0.1:{self._port}",
            "unix": f"unix://{self._path}",
        }[transport]
        self.url = listen
        """Where it listens."""
        piped = subprocess.PIPE if transport == "stdio" else subprocess.DEVNULL
        errors = log.open("ab") if log else None
        self.started_at = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                shlex.split(command.replace("{listen}", listen)),
                stdin=piped,
                stdout=piped,
                stderr=errors or subprocess.DEVNULL,
                env=self._environment(scratch),
                bufsize=0,
                start_new_session=True,
            )
        finally:
            if errors:
                errors.close()
        self.first_response_at: float | None = None

    @staticmethod
    def _environment(scratch: Path) -> dict[str, str]:
        dropped = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        home = str(scratch)
        return kept | {"HOME": home, "CODEX_HOME": home, "XDG_STATE_HOME": home, "RUST_LOG": "off"}

    @property
    def pid(self) -> int:
        """The started process; with a supervisor, that one."""
        return self._process.pid

    def connect(self, *, extensions: bool = False) -> Connection:
        """A new connection with the handshake done (over stdio there can be only one)."""
        connection = self._open()
        connection.handshake(extensions=extensions)
        if self.first_response_at is None:
            self.first_response_at = time.perf_counter()
        return connection

    def _open(self) -> Connection:
        if self.transport == "stdio":
            if self._process.stdin is None or self._process.stdout is None:
                raise RuntimeError("started without pipes")
            return LineConnection(self._process.stdout.fileno(), self._process.stdin.fileno())
        if self.transport == "unix":
            peer = connect_socket(socket.AF_UNIX, str(self._path), within=LISTEN_SECONDS)
            return LineConnection(peer.fileno(), peer.fileno(), peer)
        address = ("127.0.0.1", self._port)
        return WebSocketConnection(connect_socket(socket.AF_INET, address, within=LISTEN_SECONDS))

    def memory(self) -> process_tree.Memory:
        """Memory of the server, its supervisor and its workers."""
        return process_tree.memory(self.pid)

    def cpu_seconds(self) -> float:
        """CPU time of the server, its supervisor and its workers so far."""
        return process_tree.cpu_seconds(self.pid)

    def stop(self) -> None:
        """End the server the way its transport asks for, then whatever it left behind."""
        below = process_tree.descendants(self.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        if self.transport != "stdio":
            self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        process_tree.kill_all(below)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

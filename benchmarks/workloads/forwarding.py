"""A forwarded port: `execserver forward` beside `ssh -L`, both to a listener on this machine."""

import base64
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.server import ServerUnderTest, free_port
from benchmarks.wire import Connection, connect_socket
from benchmarks.workloads.model import MIB, Measured, Row, Sizes, Workload, fresh_id, percentile, start
from tests.support.ssh_server import missing_programs, ssh_server

CONNECT_SECONDS = 15.0
WARM_UP = 20
ECHOES = 500

# One byte says what a connection is for: `d` to get so many bytes, `u` to send some and get one back at their
# end, `e` for an echo of each byte.
LISTENER = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
block = bytes(1 << 20)

def serve(peer):
    with peer:
        kind = peer.recv(1)
        if kind == b"d":
            for _ in range(int(sys.argv[1])):
                peer.sendall(block)
        elif kind == b"u":
            while peer.recv(1 << 20):
                pass
            peer.sendall(b".")
        else:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while kind:
                peer.sendall(kind)
                kind = peer.recv(1)

while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""


def _command(sizes: Sizes) -> list[str]:
    return [sys.executable, "-c", LISTENER, str(sizes.forwarded_mib)]


def _measured(port: int, sizes: Sizes) -> Measured:
    """What a client of a local port gets."""
    size = sizes.forwarded_mib * MIB
    with _connected(port) as peer:
        began = time.perf_counter()
        peer.sendall(b"d")
        left, block = size, bytearray(MIB)
        while count := peer.recv_into(block):
            left -= count
        down = time.perf_counter() - began
    if left:
        raise AssertionError(f"{size - left} of {size} bytes came")
    with _connected(port) as peer:
        began = time.perf_counter()
        peer.sendall(b"u")
        for _ in range(sizes.forwarded_mib):
            peer.sendall(block)
        peer.shutdown(socket.SHUT_WR)
        if peer.recv(1) != b".":
            raise AssertionError("the upload did not arrive")
        up = time.perf_counter() - began
    connects = []
    for _ in range(sizes.forwarded_connections):
        began = time.perf_counter()
        with _connected(port) as peer:
            _echo(peer)
            connects.append(time.perf_counter() - began)
    with _connected(port) as peer:
        echoes = [_echo(peer) for _ in range(ECHOES + WARM_UP)][WARM_UP:]
    return {
        "forward_down": size / 1e6 / down,
        "forward_up": size / 1e6 / up,
        "forward_connect": percentile(connects, 0.5) * 1e3,
        "forward_echo": percentile(echoes, 0.5) * 1e6,
    }


def _connected(port: int) -> socket.socket:
    peer = connect_socket(socket.AF_INET, ("127.0.0.1", port), within=CONNECT_SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _echo(peer: socket.socket) -> float:
    began = time.perf_counter()
    peer.sendall(b"e")
    if peer.recv(1) != b"e":
        raise AssertionError("there is no echo")
    return time.perf_counter() - began


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


def _ssh(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    if missing_programs():
        return {}  # the rows stand alone
    with ssh_server() as machine, _running(_command(sizes)) as listener:
        assert listener.stdout is not None
        port, local = int(listener.stdout.readline()), free_port()
        *ssh, host = machine.ssh()
        forward = f"127.0.0.1:{local}:127.0.0.1:{port}"
        with _running([*ssh, "-N", "-L", forward, "-o", "ExitOnForwardFailure=yes", host]):
            return _measured(local, sizes)


def _execserver(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    process = fresh_id()
    connection.send(connection.frame(start(process, _command(sizes))))
    port, local = _announced(connection), free_port()
    program = str(Path(sys.executable).parent / "execserver")
    with _running([program, "forward", f"{port}:{local}", "--url", server.url]):
        return _measured(local, sizes)


def _announced(connection: Connection) -> int:
    """The port, which the listener prints."""
    while True:
        message = json.loads(connection.receive())
        if message.get("method") == "process/output":
            return int(base64.b64decode(message["params"]["chunk"]))


WORKLOADS = (
    Workload(
        "forwarding",
        _execserver,
        (
            Row("forward_down", "forwarded port, to the client", "MB/s", "higher"),
            Row("forward_up", "forwarded port, from the client", "MB/s", "higher"),
            Row("forward_connect", "forwarded connection, to the first byte, p50", "ms"),
            Row("forward_echo", "a byte there and back, p50", "µs"),
        ),
        frozenset({"unix"}),
        generator=_ssh,
        beside="programs",
    ),
)

"""Programs that listen on a port, and streams to them, for the tests of `port/*`."""

from __future__ import annotations

import hashlib
import sys

from tests.support.wire import Client, Json, Process

LISTEN = """
import os, socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
mapped = sys.argv[1].startswith("::ffff:")
where = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(where, family=family, backlog=300, dualstack_ipv6=mapped)
print(listener.getsockname()[1], flush=True)
"""

ECHO = """
def serve(peer):
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

SEND = """
peer, _ = listener.accept()
for number in range(int(sys.argv[3]) << 4):
    peer.sendall(number.to_bytes(8, "big") * 8192)
peer.close()
"""
"""Sends so many MiB, none of whose blocks is like another."""

TALK = """
peer, _ = listener.accept()
peer.sendall(b"first")
peer.shutdown(socket.SHUT_WR)
heard = b""
while data := peer.recv(65536):
    heard += data
print("heard", heard.decode(), flush=True)
"""
"""Ends its own direction, and listens on."""


FULL = """
listener.listen(0)
others = [socket.socket() for _ in range(3)]
for other in others:
    other.setblocking(False)
    other.connect_ex(listener.getsockname())
print("full", flush=True)
threading.Event().wait()
"""
"""Accepts no connection, and has as many as it may have that wait."""


def sent_by(mebibytes: int) -> str:
    """The digest of what `SEND` sends."""
    digest = hashlib.sha256()
    for number in range(mebibytes << 4):
        digest.update(number.to_bytes(8, "big") * 8192)
    return digest.hexdigest()


def listen(
    client: Client, then: str = ECHO, *arguments: str, address: str = "127.0.0.1", **members: Json
) -> tuple[Process, int]:
    """A process that listens, and its port."""
    argv = [sys.executable, "-c", LISTEN + then, address, "0", *arguments]
    process = client.start(*argv, **members)
    return process, int(process.wait_output(b"\n").splitlines()[0])


def ports(client: Client, **params: Json) -> list[Json]:
    found: list[Json] = client.call("port/list", params)["ports"]
    return found


def open_port(client: Client, port: int, name: str = "stream", **params: Json) -> Process:
    assert client.call("port/open", {"processId": name, "port": port, **params})["port"] == port
    return client.process(name)


def close_input(process: Process) -> None:
    assert process.client.call("process/closeStdin", {"processId": process.id}) == {"status": "accepted"}


def stream_of(process: Process, name: str = "stdout") -> bytes:
    return bytes(process.log.streams.get(name, b""))

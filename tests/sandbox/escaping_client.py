"""A client that a test starts inside a sandbox: it asks a daemon outside to write a file. A program.

    python escaping_client.py WAY ADDRESS FILE

ADDRESS is the path of a Unix socket, or a port of the loopback. WAY says how the connection is made and held.
Standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import sys
import time

PATIENCE = 20.0

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2l4dGVlbiBieXRlcyBvaw==\r\n\r\n"
)


def connected(address: str) -> socket.socket:
    """A connection with all requests sent, without waiting for replies."""
    written = {"path": "file://" + sys.argv[3], "dataBase64": base64.b64encode(b"written").decode()}
    messages = [
        json.dumps(message).encode().ljust(126)  # a frame of medium size, whatever it says
        for message in (
            {"id": 1, "method": "initialize", "params": {"clientName": "escaping"}},
            {"method": "initialized"},
            {"id": 2, "method": "fs/writeFile", "params": written},
        )
    ]
    if address.isdigit():
        connection = socket.socket(socket.AF_INET6 if sys.argv[1] == "mapped" else socket.AF_INET)
        connection.connect(("::ffff:127.0.0.1" if sys.argv[1] == "mapped" else "127.0.0.1", int(address)))
        connection.sendall(
            UPGRADE + b"".join(struct.pack(">BBHI", 0x81, 0xFE, len(m), 0) + m for m in messages)
        )
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        connection.sendall(b"".join(message + b"\n" for message in messages))
    connection.settimeout(PATIENCE)
    return connection


def until_it_ends(connection: socket.socket) -> None:
    """Read until the daemon has written the file, or closes."""
    try:
        while not os.path.exists(sys.argv[3]) and connection.recv(65536):
            pass
    except OSError:
        pass


def holds() -> None:
    """The ordinary way."""
    until_it_ends(connected(sys.argv[2]))


def ends_at_once() -> None:
    """The client has ended when the daemon checks it."""
    connected(sys.argv[2])
    os._exit(0)


def leaves_it_to_a_child() -> None:
    """The process that connected ends, and its child continues."""
    connection = connected(sys.argv[2])
    if os.fork() == 0:
        until_it_ends(connection)


def takes_its_tag_off() -> None:
    """It has removed its ownership tag."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 40, hard))
    holds()


def leaves_it_to_a_thread() -> None:
    """The process looks like one that has ended: its first thread has, and its own table is empty."""
    import ctypes
    import threading

    threading.Thread(target=until_it_ends, args=[connected(sys.argv[2])]).start()
    ctypes.CDLL(None).pthread_exit(None)


def hides_it_in_a_message() -> None:
    """No process has the descriptor: it is on its way between two sockets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    connection = connected(sys.argv[2])
    socket.send_fds(ours, [b"x"], [connection.fileno()])
    connection.close()
    time.sleep(1)  # unseen, as long as a daemon might look
    (descriptor,) = socket.recv_fds(theirs, 1, 1)[1]
    until_it_ends(socket.socket(fileno=descriptor))


def hops_from_child_to_child() -> None:
    """Each process that holds the connection lives only for a moment."""
    connection = connected(sys.argv[2])
    end = time.monotonic() + 1
    while time.monotonic() < end:
        if os.fork() != 0:
            os._exit(0)
    until_it_ends(connection)


{
    "holds": holds,
    "mapped": holds,
    "ends": ends_at_once,
    "child": leaves_it_to_a_child,
    "untagged": takes_its_tag_off,
    "thread": leaves_it_to_a_thread,
    "message": hides_it_in_a_message,
    "hops": hops_from_child_to_child,
}[sys.argv[1]]()

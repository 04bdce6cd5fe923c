"""A program that listens on a port, for tests: `python listener.py [ADDRESS [PORT]]` prints its port.

The first line of a connection says what it does:

    echo           sends back what it gets, and after the end of that `bye`
    send N         sends N bytes of a known sequence, ends its direction, and reads on
    drip           sends without end
    count          reads to the end, and answers with the number of bytes and their digest
    reset          resets the connection
    dripped        answers with the bytes that all `drip` could send so far
    open           answers with the number of other connections
"""

from __future__ import annotations

import hashlib
import socket
import struct
import sys
import threading
from io import BufferedReader

PATTERN = bytes(range(256)) * 257
"""65,792 bytes: no power of two, so that a block that is lost or doubled changes what follows."""

dripped = 0
connections = 0
lock = threading.Lock()


def pattern(size: int) -> bytes:
    """The first bytes of the sequence."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def serve(connection: socket.socket) -> None:
    global connections
    with connection, connection.makefile("rb") as lines:
        with lock:
            connections += 1
        try:
            act(connection, lines)
        except OSError:
            pass
        finally:
            with lock:
                connections -= 1


def act(connection: socket.socket, lines: BufferedReader) -> None:
    global dripped
    word, _, rest = lines.readline().decode().strip().partition(" ")
    if word == "echo":
        while data := lines.read1(65536):
            connection.sendall(data)
        connection.sendall(b"bye")
    elif word == "send":
        connection.sendall(pattern(int(rest)))
        connection.shutdown(socket.SHUT_WR)
        while lines.read1(65536):
            pass
    elif word == "drip":
        while True:
            connection.sendall(PATTERN)
            dripped += len(PATTERN)
    elif word == "count":
        digest, size = hashlib.sha256(), 0
        while data := lines.read1(65536):
            digest.update(data)
            size += len(data)
        connection.sendall(f"{size} {digest.hexdigest()}".encode())
    elif word == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif word == "dripped":
        connection.sendall(str(dripped).encode())
    elif word == "open":
        connection.sendall(str(connections - 1).encode())


def main() -> None:
    address, port = [*sys.argv[1:], "127.0.0.1", "0"][:2] if len(sys.argv) != 2 else (sys.argv[1], "0")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, int(port)), family=family, backlog=128)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=[connection], daemon=True).start()


if __name__ == "__main__":
    main()

"""Ends with status 0 when the daemon serves clients: `GET /readyz`, or another page, on its Unix socket."""

import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(2)
    connection.connect(sys.argv[1])
    page = sys.argv[2] if len(sys.argv) > 2 else "/readyz"
    connection.sendall(f"GET {page} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    status = connection.makefile("rb").readline().split()[1:2]
sys.exit(0 if status == [b"200"] else f"not ready: {status}")

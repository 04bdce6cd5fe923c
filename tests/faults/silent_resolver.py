"""A place with a name server that never answers: `python silent_resolver.py FOLDER COMMAND...`.

Run in namespaces of its own (`unshare -rmn`): there is no network but loopback, and a resolver that waits
longer than any test. The file `asked` of the folder appears with the first question.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
from pathlib import Path

_MS_BIND = 4096
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_ADDRESS = "127.0.0.1"
# glibc's most.
_CONFIGURATION = f"nameserver {_ADDRESS}\noptions timeout:30 attempts:5\n"


def main(folder: Path, command: list[str]) -> None:
    """Become the command."""
    configuration = folder / "resolv.conf"
    configuration.write_text(_CONFIGURATION)
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.path.realpath("/etc/resolv.conf").encode()
    if libc.mount(bytes(configuration), target, None, _MS_BIND, None):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(server, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    server.bind((_ADDRESS, 53))
    parent = os.pidfd_open(os.getpid())
    if os.fork():
        os.execvp(command[0], command)
    while parent not in select.select([server.fileno(), parent], [], [])[0]:
        server.recv(512)
        (folder / "asked").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""A program that tries allowed and forbidden operations *inside* a sandbox, and prints the results as JSON.

    python -I -S inside_probe.py OPEN CLOSED MASKED ADDRESS PID

ADDRESS is that of an abstract socket of the host, without its NUL, and PID that of a process of the host.

It is started by its path, and uses only the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Callable

_PTRACE_SEIZE = 0x4206
_NEW_USER = 0x1000_0000


def main(arguments: list[str]) -> None:
    """Try all operations and print the results: an empty text for success, else the error's name."""
    open_file, closed_file, masked, address, pid = arguments
    descriptors = _descriptors()
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    found = {
        "open": _tried(lambda: _write(open_file)),
        "closed": _tried(lambda: _write(closed_file)),
        "masked": _tried(lambda: os.listdir(masked)),
        "launcher": _tried(lambda: _require_writable_mount("/proc/1/exe")),
        "traced": _tried(lambda: _trace(1)),
        "held": _tried(lambda: os.pidfd_open(1)),
        "socket": _tried(lambda: socket.socket(socket.AF_INET).close()),
        "abstract": _tried(lambda: _connect(f"\0{address}")),
        "signal": _tried(lambda: os.kill(int(pid), 0)),
        "nested": _tried(_make_namespace),
        "descriptors": descriptors,
        "environment": dict(os.environ),
        "seccomp": status.get("Seccomp", ""),
        "no_new_privs": status.get("NoNewPrivs", ""),
        "capabilities": status.get("CapEff", ""),
        "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user", "mnt")},
    }
    json.dump(found, sys.stdout)


def _descriptors() -> list[str]:
    """What is open besides the standard streams."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                found.append(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue  # that of the listing itself
    return found


def _write(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("written inside\n")


def _require_writable_mount(path: str) -> None:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, path)


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


def _make_namespace() -> None:
    """In a child, because this process must stay as it is."""
    child = os.fork()
    if not child:
        libc = ctypes.CDLL(None, use_errno=True)
        os._exit(ctypes.get_errno() if libc.unshare(_NEW_USER) < 0 else 0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, "unshare")


def _trace(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_SEIZE, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def _tried(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])

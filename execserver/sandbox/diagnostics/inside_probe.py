"""A program that tries allowed and forbidden operations *inside* a sandbox, and prints the results as JSON.

    python -I -S inside_probe.py OPEN CLOSED MASKED

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


def main(arguments: list[str]) -> None:
    """Try all operations and print the results: an empty text for success, else the error's name."""
    open_file, closed_file, masked = arguments
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    found = {
        "open": _tried(lambda: _write(open_file)),
        "closed": _tried(lambda: _write(closed_file)),
        "masked": _tried(lambda: os.listdir(masked)),
        "launcher": _tried(lambda: os.stat("/proc/1/exe")),
        "traced": _tried(lambda: _trace(1)),
        "held": _tried(lambda: os.pidfd_open(1)),
        "socket": _tried(lambda: socket.socket(socket.AF_INET).close()),
        "seccomp": status.get("Seccomp", ""),
        "no_new_privs": status.get("NoNewPrivs", ""),
        "capabilities": status.get("CapEff", ""),
        "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user", "mnt")},
    }
    json.dump(found, sys.stdout)


def _write(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("written inside\n")


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

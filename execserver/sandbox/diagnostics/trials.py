"""A program that tries the kernel's mechanisms, each in a separate process, and prints the results.

    python -I -S trials.py

It uses only the standard library. It is a separate program because only a process without threads can make
namespaces, and the caller must not change. It prints `{"user": "", "mount": "EPERM: …", …}`: an empty text if
the mechanism works, else the error.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable

_NEW_USER, _NEW_MOUNT, _NEW_PID, _NEW_NET = 0x1000_0000, 0x0002_0000, 0x2000_0000, 0x4000_0000
_MS_REC, _MS_PRIVATE, _MS_SLAVE = 1 << 14, 1 << 18, 1 << 19
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_NS_GET_USERNS, _IP_FREEBIND = 0xB701, 15
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF_0000)  # BPF_RET, SECCOMP_RET_ALLOW

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def main() -> None:
    """Try all mechanisms and print the results."""
    trials = {
        "user": _user,
        "mount": _mount,
        "pid": _pid,
        "network": _network,
        "joined": _joined,
        "seccomp": _seccomp,
    }
    json.dump({name: _apart(trial) for name, trial in trials.items()}, sys.stdout)


def _user() -> None:
    """A user namespace that maps this user to itself, as bubblewrap makes it."""
    _unshare(_NEW_USER)


def _mount() -> None:
    """A mount namespace without propagation, and a mount in it."""
    _unshare(_NEW_USER | _NEW_MOUNT)
    for flags in (_MS_SLAVE, _MS_PRIVATE):
        _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | flags), None))
    _check(_libc.mount(b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None))


def _pid() -> None:
    _unshare(_NEW_USER | _NEW_PID)


def _network() -> None:
    """A network namespace, and its loopback device."""
    _unshare(_NEW_USER | _NEW_NET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(device, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _joined() -> None:
    """A listener in the network namespace of another process, made from outside, as a network proxy does."""
    made, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _unshare(_NEW_USER | _NEW_NET)
            os.write(ready, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(ready)
    try:
        if not os.read(made, 1):
            raise OSError(errno.ECHILD, "no network namespace can be made")
        with open(f"/proc/{pid}/ns/net", "rb") as network:
            if _libc.setns(network.fileno(), _NEW_NET) != 0:
                _check(_libc.setns(fcntl.ioctl(network, _NS_GET_USERNS), _NEW_USER))
                _check(_libc.setns(network.fileno(), _NEW_NET))
        with socket.socket() as listener:
            listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            listener.bind(("127.0.0.1", 1024))
            listener.listen()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _seccomp() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    code = ctypes.create_string_buffer(_ALLOW_ALL, len(_ALLOW_ALL))
    program = _Program(1, ctypes.cast(code, ctypes.c_void_p))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def _unshare(kinds: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(kinds))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _apart(trial: Callable[[], None]) -> str:
    """Run a trial in a child; its error, or an empty text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            trial()
        except OSError as error:
            text = f"{errno.errorcode.get(error.errno or 0, '?')}: {error.strerror}"
        except BaseException as error:
            text = repr(error)
        finally:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    return text or (f"ended with status {status}" if status else "")


if __name__ == "__main__":
    main()

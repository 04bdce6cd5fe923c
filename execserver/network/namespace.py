"""Listeners in the network namespace of a sandbox, made by a process outside.

    proxy ──fork──▶ a child joins the namespace ──bind, listen──▶ sockets ──SCM_RIGHTS──▶ proxy

A socket belongs to the namespace that it was made in, wherever its descriptor goes. So the proxy, which is
outside, accepts the connections of the command, which is inside and has no other way out. Nothing of ours
runs inside.

Rules of this module:

1. The child joins while the sandbox waits at its gate, and opens the gate when the proxy has the listeners.
   If anything fails, the gate stays shut.
2. A pid is a number only while we look: the process must bear the tag of the start, and still live when its
   namespace is open. Otherwise a listener could get into another sandbox.
3. A child joins (`joining.py`), and ends.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence

import msgspec

from execserver.descendants import tag_of
from execserver.network.joining import join_network
from execserver.network.messages import Enter, receive

_IP_FREEBIND = 15  # include/uapi/linux/in.h

_LOOPBACK = "127.0.0.1"

_BACKLOG = 512
"""More than the connections that a proxy serves at once: it refuses what is too much itself."""

_REPORT_SECONDS = 30.0
"""How long the launcher may take for its report. It takes two milliseconds."""

_PAUSE_SECONDS = 0.0003

_MOST_REPORT_BYTES = 4096


class NamespaceError(Exception):
    """The namespace cannot be joined; the text says why."""


def listen_on_host(count: int) -> list[socket.socket]:
    """Listeners on free ports of the host's loopback.

    Raises:
        OSError: no descriptor or no port is left.
    """
    return [_listener(0) for _ in range(count)]


def listen_inside(control: socket.socket, result: socket.socket, ports: Sequence[int]) -> None:
    """In the child: wait for the sandbox, make the listeners, pass them to the proxy, and open the gate.

    Args:
        control: where the server's `Enter` arrives. Nothing else is read from it.
        result: gets the descriptors of the listeners, or the reason why there are none.
        ports: of the listeners.
    """
    try:
        message, descriptors = receive(control)
        if not isinstance(message, Enter) or len(descriptors) != 2:
            raise NamespaceError("the server did not say which sandbox to enter")
        report, gate = descriptors
        _join_network(_first_process(report, control), message.owner)
        listeners = [_listener(port) for port in ports]
        socket.send_fds(result, [b"\0"], [each.fileno() for each in listeners])
        open_gate(gate)
    except EOFError:
        return  # the process has ended meanwhile
    except (OSError, NamespaceError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        result.send((text or str(error)).encode())


def open_gate(gate: int) -> None:
    """Let the command begin. No error if it has begun, or its sandbox has ended."""
    try:
        os.write(gate, b"\0")
    except BrokenPipeError:
        return


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # In a new namespace the loopback device may not be up yet.
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        listener.bind((_LOOPBACK, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _first_process(report: int, control: socket.socket) -> int:
    """The pid of the first process inside, from the launcher's report."""
    deadline = time.monotonic() + _REPORT_SECONDS
    while time.monotonic() < deadline:
        line, complete, _ = os.pread(report, _MOST_REPORT_BYTES, 0).partition(b"\n")
        if complete:
            pid = msgspec.json.decode(line).get("child-pid")
            if not isinstance(pid, int):
                raise NamespaceError("the launcher's report does not begin with the first process")
            return pid
        if _is_closed(control):
            raise EOFError
        time.sleep(_PAUSE_SECONDS)
    raise NamespaceError(f"the launcher did not report for {_REPORT_SECONDS:g} s")


def _is_closed(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _join_network(pid: int, owner: int) -> None:
    try:
        handle = os.pidfd_open(pid)
        if tag_of(pid) != owner:
            raise NamespaceError("the first process of the sandbox is another one by now")
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        signal.pidfd_send_signal(handle, 0)
    except (ProcessLookupError, FileNotFoundError):
        raise NamespaceError("the first process of the sandbox has ended") from None
    if os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):
        raise NamespaceError("the sandbox has no network namespace of its own")
    join_network(network)

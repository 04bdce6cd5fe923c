"""Socket activation: listening sockets that a service manager opened for us (sd_listen_fds(3)).

They are descriptors 3 and up. `LISTEN_PID` is the process that they are for, `LISTEN_FDS` their number,
`LISTEN_FDNAMES` their names. Socket and file belong to the service manager: nothing is removed at the end,
and clients that connect while no server runs wait in the backlog.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from execprotocol.trust import UntrustedError, check_way
from execserver.supervisor import launch
from execserver.supervisor.listener import Listener, ListenError
from execserver.supervisor.listeners import MAX_LISTENERS

FIRST_DESCRIPTOR = 3

_STREAM_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_MPTCP)
_KINDS = {socket.AF_UNIX: "unix", socket.AF_INET: "tcp", socket.AF_INET6: "tcp"}


class ActivatedListener(Listener):
    """A listening socket of the service manager."""

    def __init__(self, kind: str, url: str, listening: socket.socket) -> None:
        self.kind = kind
        self.url = url
        self.descriptors = (listening.fileno(),)
        self._socket = listening

    def close(self) -> None:
        """Close our copy (idempotent); the service manager's socket still listens."""
        self._socket.close()


def take_descriptors(environment: MutableMapping[str, str]) -> list[tuple[int, str]]:
    """The descriptors passed to *this* process, with their names; close-on-exec from now on.

    The variables are removed, so that no child process uses them.

    Raises:
        ListenError: a variable is malformed, or a descriptor is not open.
    """
    pid, count, names = (environment.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()):  # meant for a parent process, and inherited
        return []
    if not (count.isascii() and count.isdigit()):
        raise ListenError(f"LISTEN_FDS={count!r} is no number of descriptors")
    if int(count) > MAX_LISTENERS:
        raise ListenError(f"LISTEN_FDS={count}: at most {MAX_LISTENERS} sockets can be served")
    named = dict(enumerate(names.split(":"), FIRST_DESCRIPTOR))
    passed = []
    for descriptor in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(descriptor, False)
        except OSError:
            raise ListenError(
                f"descriptor {descriptor} is not open, but LISTEN_FDS={count} says that it was passed"
            ) from None
        passed.append((descriptor, named.get(descriptor) or "unknown"))
    return passed


def listener_on(descriptor: int, name: str) -> ActivatedListener:
    """The listener for a passed descriptor.

    Args:
        descriptor: belongs to the listener from now on.
        name: the service manager's name for it, for messages.

    Raises:
        ListenError: not a listening stream socket of a supported family.
    """
    try:
        passed = socket.socket(fileno=descriptor)
    except OSError:
        raise _refused(descriptor, name, "no socket") from None
    fault = _fault(passed)
    if fault is not None:
        passed.close()
        raise _refused(descriptor, name, fault)
    address = passed.getsockname()
    if passed.family == socket.AF_UNIX:
        path = os.fsdecode(address)
        _warn_if_open_to_others(path)
        return ActivatedListener("unix", f"unix://{path.replace(chr(0), '@')}", passed)
    host, port = address[:2]
    return ActivatedListener("tcp", f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}", passed)


def _refused(descriptor: int, name: str, fault: str) -> ListenError:
    return ListenError(
        f"descriptor {descriptor} ({name}), passed by the service manager, is {fault}; listening stream "
        "sockets (Unix, TCP) are served: use ListenStream= and Accept=no in the socket unit"
    )


def _fault(passed: socket.socket) -> str | None:
    if passed.family not in _KINDS:
        return f"a socket of address family {int(passed.family)}"
    if passed.type != socket.SOCK_STREAM or passed.proto not in _STREAM_PROTOCOLS:
        return "a datagram socket" if passed.type == socket.SOCK_DGRAM else "no stream socket"
    if passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return None
    try:
        passed.getpeername()
    except OSError:
        return "a socket that does not listen"
    return "an accepted connection"


def _warn_if_open_to_others(path: str) -> None:
    """Warn if other users can connect: they would be refused without a visible reason."""
    try:
        mode = os.stat(path).st_mode & 0o777
    except (OSError, ValueError):  # abstract, or renamed since
        return
    if mode & 0o022:
        launch.report(f"{path} has mode {mode:04o}: other users are refused; SocketMode=0600 keeps them out")
    try:
        check_way(path)
    except UntrustedError as error:
        launch.report(f"{path} could be replaced, and clients would reach another program: {error}")

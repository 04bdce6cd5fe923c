"""The control socket of an instance, for `execserver drain`: beside its record, in a folder of the user.

    {"type": "drain"} | {"type": "cancel"} | {"type": "status"}
        → {"type": "state", "draining": BOOL, "sessions": N | null, "urls": [URL, …]}
        → {"type": "refused", "error": TEXT}

Each message is a packet. The supervisor answers, so a service has the socket whatever its listeners are, and
also while its server is down. Access is that of the folder: its owner and root. A process in a sandbox is
refused, as by the daemon's other Unix sockets.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from execserver.private_folder import FolderError, runtime_folder, state_folder
from execserver.supervisor.loop import Loop
from execserver.supervisor.packets import ChannelError, receive_packet, send_packet

SUFFIX = ".sock"

ANSWER_SECONDS = 5.0
"""How long the supervisor may take; it needs milliseconds."""

Message = Mapping[str, object]

_CREDENTIALS = struct.Struct("iII")
"""Of SO_PEERCRED: pid, uid, gid."""


class ControlSocket:
    """The supervisor's end.

    Args:
        loop: the supervisor's loop.
        path: of the socket; a file that is there is replaced.
        answer: makes the answer to a message.

    Raises:
        OSError: the socket cannot be bound.
    """

    def __init__(self, loop: Loop, path: str, answer: Callable[[Message], Message]) -> None:
        self._loop = loop
        self._answer = answer
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._connections: set[socket.socket] = set()
        try:
            with _Folder(path) as short:
                if os.path.lexists(path):
                    os.unlink(path)
                self._listener.bind(short)
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in tuple(self._connections):
            self._drop(connection)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        try:
            os.unlink(self._path)
        except OSError:
            return  # the folder was removed by hand

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        try:
            fault = _fault(connection)
            if fault is not None:
                _refuse(connection, fault)
        except OSError as error:
            fault = str(error)
        if fault is not None:
            connection.close()
            return
        self._connections.add(connection)
        self._loop.watch(connection.fileno(), partial(self._read, connection))

    def _read(self, connection: socket.socket) -> None:
        try:
            packet = receive_packet(connection)
            if packet is not None:
                message, descriptors = packet
                for descriptor in descriptors:
                    os.close(descriptor)
                send_packet(connection, self._answer(message))
                return
        except BlockingIOError:
            return
        except (ChannelError, OSError):
            pass  # not our client, or it is gone
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        self._loop.forget(connection.fileno())
        connection.close()


class ControlClient:
    """A connection to the supervisor of a running instance.

    Args:
        path: of its control socket.

    Raises:
        OSError: no supervisor listens there.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            with _Folder(path) as short:
                self._socket.connect(short)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, kind: str) -> Message | None:
        """The answer to a message; None if the service has ended.

        Raises:
            OSError, ChannelError: the answer did not come in time, or is not of this protocol.
        """
        with suppress(BrokenPipeError):  # a refusal may be there to be read
            send_packet(self._socket, {"type": kind})
        try:
            packet = receive_packet(self._socket)
        except ConnectionResetError:
            return None
        return None if packet is None else packet[0]

    def close(self) -> None:
        """Close the connection (idempotent)."""
        self._socket.close()


def control_sockets(environment: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str]]:
    """The control sockets that may belong to running instances, and the folders that were searched.

    Args:
        environment: as that of the daemon. The folders of the units are searched, too.
    """
    folders = [runtime_folder(environment)]
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    folders += [f"{runtime.rstrip('/')}/execserver"] if runtime.startswith("/") else []
    with suppress(FolderError):  # no home folder
        folders.append(state_folder(environment))
    folders.append("/run/execserver")
    searched = list(dict.fromkeys(folder for folder in folders if folder is not None))
    found = []
    for folder in searched:
        try:
            names = sorted(os.listdir(f"{folder}/instances"))
        except OSError:
            continue
        found += [f"{folder}/instances/{name}" for name in names if name.endswith(SUFFIX)]
    return found, searched


def _refuse(connection: socket.socket, fault: str) -> None:
    send_packet(connection, {"type": "refused", "error": f"the daemon refuses this: {fault}"})
    # A connection that is closed with an unread packet is reset, and the peer may not get the refusal.
    connection.shutdown(socket.SHUT_RD)
    while connection.recv(1):
        pass


def _fault(connection: socket.socket) -> str | None:
    """Why a peer may not control the service; None if it may."""
    # Here, because few daemons are controlled.
    from execserver.local_peers import unix_peer

    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if os.geteuid() != 0 == _CREDENTIALS.unpack(credentials)[1]:
        return None  # root needs no socket to end the service
    return unix_peer(connection)[1]


class _Folder:
    """The name of a socket by a descriptor of its folder: socket addresses have at most 108 bytes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> str:
        folder, name = os.path.split(self._path)
        self._descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

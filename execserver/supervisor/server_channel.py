"""The server's end of the channel to the supervisor.

The duties of the server (messages: `program.py`):

1. Call `ServerChannel.from_environment()` once, early; keep `Hello.record` open to the end.
2. Ignore TERM, INT and HUP: the supervisor sends `stop`.
3. Send `ready` when requests are answered, and `stopping` when it ends by itself; from `ready` on a `beat`
   from its loop every `hello.beat_seconds`; for every `reload` either `reloaded`, or `upgrading` and soon
   after it exit 0, once the new code is known to start.
4. Watch `fileno()` and `open_supervisor_pidfd(hello.supervisor_pid)`. On `stop`: end all work, exit 0 within
   10 s. When the supervisor is *gone* (pidfd readable, `receive()` is None or `SupervisorGoneError`):
   `kill_descendants(hello.instance, roots=[os.getpid()])`, then exit 1.
5. With `hello.take_over`: call `hello.fd_store.take_over()` before `ready`, once. Kill all other processes
   with a tag of the instance.
6. Store descriptors that have to outlive the server in `hello.fd_store` before any client learns of them.
7. Start every process under `descendants.set_own_tag(tag_value(hello.instance, number))`, with the soft limit
   NOFILE `hello.nofile_soft`.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Literal, NamedTuple

from execserver.supervisor.fd_store_client import FdStoreClient
from execserver.supervisor.packets import (
    CHANNEL_VARIABLE,
    VERSION,
    ChannelError,
    SupervisorGoneError,
    receive_packet,
    send_packet,
)

__all__ = [
    "ChannelError",
    "Hello",
    "PassedListener",
    "ServerChannel",
    "SupervisorGoneError",
    "open_supervisor_pidfd",
]


class PassedListener(NamedTuple):
    """A listener that the supervisor has bound.

    `socket` listens, or `stdio` is (stdin, stdout) of the client, or `memory` is the file in memory of a
    registry of remote clients (`remote.py`).
    """

    kind: Literal["unix", "tcp", "stdio", "remote"]
    url: str
    socket: socket.socket | None = None
    stdio: tuple[int, int] | None = None
    memory: int | None = None


class Hello(NamedTuple):
    """The first message of the supervisor, with its descriptors."""

    instance: int
    supervisor_pid: int
    nofile_soft: int
    """The soft limit that the service was started with; -1 is unlimited."""
    listeners: tuple[PassedListener, ...]
    take_over: bool
    """Whether a previous server left descriptors, which `fd_store.take_over()` returns."""
    fd_store: FdStoreClient
    record: int | None
    """A descriptor with the lock of this instance. Keep it open and do not use it."""
    beat_seconds: float | None
    """The interval of `beat` messages; None for none."""


class ServerChannel:
    """One end of the channel. Blocking; `send` may be called from any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket = channel

    @classmethod
    def from_environment(cls) -> tuple[ServerChannel, Hello]:
        """Open the channel to the supervisor, and receive its first message.

        Raises:
            ChannelError: no supervisor started this process, or one of another version.
        """
        value = os.environ.pop(CHANNEL_VARIABLE, None)
        if value is None:
            raise ChannelError("the server is started by `execserver serve`, not by itself")
        try:
            os.set_inheritable(int(value), False)
            connection = socket.socket(fileno=int(value))
        except (ValueError, OSError) as error:
            raise ChannelError(f"{CHANNEL_VARIABLE}={value} is no channel: {error}") from None
        try:
            first = receive_packet(connection)
            if first is None:
                raise ChannelError("the supervisor ended before its hello")
            return cls(connection), _hello(*first)
        except OSError as error:
            connection.close()
            raise ChannelError(f"{CHANNEL_VARIABLE}={value} is no channel: {error}") from None
        except ChannelError:
            connection.close()
            raise

    def fileno(self) -> int:
        """The descriptor, for an event loop."""
        return self._socket.fileno()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None if the supervisor's end is closed."""
        packet = receive_packet(self._socket)
        return None if packet is None else packet[0]

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; blocks if the channel is full. It is no error if the supervisor is gone."""
        try:
            send_packet(self._socket, message)
        except (BrokenPipeError, ConnectionResetError):
            return

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def open_supervisor_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the supervisor ends.

    Raises:
        SupervisorGoneError: it has ended.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise SupervisorGoneError(f"the supervisor {pid} is gone") from None
    # The pid is certainly the supervisor's only while it is our parent.
    if os.getppid() != pid:
        os.close(descriptor)
        raise SupervisorGoneError(f"the supervisor {pid} is gone")
    return descriptor


def _hello(message: dict[str, Any], descriptors: list[int]) -> Hello:
    if message.get("type") != "hello" or message.get("version") != VERSION:
        raise ChannelError(
            f"supervisor and server differ: this server speaks version {VERSION}, "
            f"the supervisor sent {message.get('type')} version {message.get('version')}"
        )
    remaining = iter(descriptors)
    listeners = []
    for entry in message["listeners"]:
        kind, url = entry["kind"], entry["url"]
        if kind == "stdio":
            listeners.append(PassedListener(kind, url, stdio=(next(remaining), next(remaining))))
        elif kind == "remote":
            listeners.append(PassedListener(kind, url, memory=next(remaining)))
        else:
            listeners.append(PassedListener(kind, url, socket=socket.socket(fileno=next(remaining))))
    fd_store = FdStoreClient(socket.socket(fileno=next(remaining)), next(remaining))
    return Hello(
        instance=message["instance"],
        supervisor_pid=message["supervisorPid"],
        nofile_soft=message["nofileSoft"],
        listeners=tuple(listeners),
        take_over=message["takeOver"],
        fd_store=fd_store,
        record=next(remaining) if message["record"] else None,
        beat_seconds=message["beatSeconds"],
    )

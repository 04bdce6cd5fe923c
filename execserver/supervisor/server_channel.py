"""The server's end of the channel to the supervisor.

What the server owes the supervisor (messages: `program.py`):

1. `ServerChannel.from_environment()` once, early; keep `Hello.record` open to the end.
2. Ignore TERM, INT and HUP: the supervisor says `stop`.
3. Send `ready` when requests are answered, `stopping` when it begins to end by itself; from `ready` on
   a `beat` from its loop every `hello.beat_seconds`; `reloaded` for every `reload`, or `upgrading` and, soon
   after it, exit 0, once it is sure that the new code starts.
4. Watch `fileno()` and `open_supervisor_pidfd(hello.supervisor_pid)`. On `stop`: end all work,
   exit 0 within 10 s. When the supervisor is *gone* (pidfd readable, `receive()` is None or
   `SupervisorGoneError`):
   `kill_descendants(hello.instance, roots=[os.getpid()])`, then exit 1.
5. With `hello.take_over`: `hello.keeper.take_over()` before `ready`, once. Whoever bears a tag of the
   instance then, and was not handed over, is nobody's: kill it.
6. What is to outlive the server is registered with `hello.keeper` before anybody is told of it.
7. Every process is started under `membership.set_own_tag(tag_value(hello.instance, number))`,
   with the soft limit NOFILE `hello.nofile_soft`.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Literal, NamedTuple

from execserver.supervisor.fd_store_client import KeeperClient
from execserver.supervisor.packets import (
    CHANNEL_VARIABLE,
    VERSION,
    ChannelError,
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


class SupervisorGoneError(Exception):
    """The supervisor ended before it could be watched."""


class PassedListener(NamedTuple):
    """Something to serve on: `socket` is listening, or `stdio` is (stdin, stdout) of the client, or `memory`
    is what servers leave to each other about a registry of remote clients (`remote.py`).
    """

    kind: Literal["unix", "tcp", "stdio", "remote"]
    url: str
    socket: socket.socket | None = None
    stdio: tuple[int, int] | None = None
    memory: int | None = None


class Hello(NamedTuple):
    """What the supervisor gives the server at its start."""

    instance: int
    supervisor_pid: int
    nofile_soft: int
    """The soft limit that the service was started with; -1 is unlimited."""
    listeners: tuple[PassedListener, ...]
    take_over: bool
    """Whether another server was here before us, and left what `keeper.take_over()` returns."""
    keeper: KeeperClient
    record: int | None
    """A descriptor whose lock says that this instance lives. To be kept open, not to be used."""
    beat_seconds: float | None
    """The time between two signs of life; None when nobody wants any."""


class ServerChannel:
    """One end of the channel. Blocking; `send` may be called from any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket = channel

    @classmethod
    def from_environment(cls) -> tuple[ServerChannel, Hello]:
        """Take the channel that the supervisor left, and its first message.

        Raises:
            ChannelError: not started by a supervisor, or by one of another version.
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
                raise ChannelError("the supervisor ended before it said hello")
            return cls(connection), _hello(*first)
        except OSError as error:
            connection.close()
            raise ChannelError(f"{CHANNEL_VARIABLE}={value} is no channel: {error}") from None
        except ChannelError:
            connection.close()
            raise

    def fileno(self) -> int:
        """For a loop's reader."""
        return self._socket.fileno()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the supervisor's end is closed."""
        packet = receive_packet(self._socket)
        return None if packet is None else packet[0]

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; waits for room. A supervisor that is gone is not an error: it is watched."""
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
        SupervisorGoneError: it ended already.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise SupervisorGoneError(f"the supervisor {pid} is gone") from None
    # Only while it is our parent is the number certainly the supervisor's.
    if os.getppid() != pid:
        os.close(descriptor)
        raise SupervisorGoneError(f"the supervisor {pid} is gone")
    return descriptor


def _hello(message: dict[str, Any], descriptors: list[int]) -> Hello:
    if message.get("type") != "hello" or message.get("version") != VERSION:
        raise ChannelError(
            f"supervisor and server differ: this server speaks version {VERSION}, "
            f"the supervisor said {message.get('type')} version {message.get('version')}"
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
    keeper = KeeperClient(socket.socket(fileno=next(remaining)), next(remaining))
    return Hello(
        instance=message["instance"],
        supervisor_pid=message["supervisorPid"],
        nofile_soft=message["nofileSoft"],
        listeners=tuple(listeners),
        take_over=message["takeOver"],
        keeper=keeper,
        record=next(remaining) if message["record"] else None,
        beat_seconds=message["beatSeconds"],
    )

"""`port/*`: the TCP ports that the processes of a session listen on, and byte streams to them
(`docs/protocol.md`, "Ports").
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from execprotocol.limits import LARGEST_PORT
from execprotocol.model import Params

PortNumber = Annotated[int, Meta(ge=1, le=LARGEST_PORT)]
Family = Literal["ipv4", "ipv6"]


class PortListParams(Params):
    """List the TCP ports that the descendants of a session's processes listen on.

    Also those inside a sandbox with a network of its own.
    """

    session_id: str | None = None
    """The session to list; null for the connection's own. Another session is accessible only on a Unix
    socket, or with `--ws-auth`."""

    all_sessions: bool = False
    """Whether to list the ports of every session; under the same condition, and not with `sessionId`."""

    watch: bool | None = None
    """True: from this result on, the connection gets a `port/listening` for each change of what the request
    lists, in place of an earlier watch. False: it gets none any more. Null changes nothing."""


class PortEntry(TypedDict):
    """One listening socket."""

    port: PortNumber
    """The TCP port that it listens on."""

    address: str
    """The address that it is bound to, such as `127.0.0.1`, `0.0.0.0`, `::` or `::1`."""

    family: Family
    """The family of the address. A socket on `::` may take IPv4 connections, too."""

    processId: str | None
    """The `processId` of the `process/start` whose descendant listens; null if that process is no longer
    kept."""

    sessionId: str
    """The session of that process."""

    pid: int
    """The process id, on the executor, of the process that listens; the lowest one if several share the
    socket."""

    name: str
    """The name of that process as the kernel has it, at most 15 bytes."""

    sandboxed: bool
    """Whether the socket is in another network namespace than the daemon, such as a sandbox with its own:
    then a connection from outside has to be made with `port/open`."""


class PortListResult(TypedDict):
    """The ports, in the order of their numbers."""

    ports: list[PortEntry]
    """Each listening socket once."""


class PortOpenParams(Params):
    """Open a byte stream to a listener of `port/list`.

    The stream is a process of this session. Its `stdout` is what the listener sends, and `process/write`
    sends to the listener. `process/closeStdin` ends that direction; when the listener ends the other one, the
    stream writes `eof` and a newline to `stderr`, after all bytes of `stdout`. It exits with 0 once both have
    ended, and with 1 if the connection breaks, whose reason is its `stderr`. Its output is never dropped:
    while more than 8 MiB of it are not sent, or after a resume not read, the listener has to wait. The same
    request for a stream that exists is answered again, and opens nothing.
    """

    process_id: str
    """The name of the stream, as in `process/start`: chosen by the client, and unique in the session."""

    port: PortNumber
    """The TCP port."""

    address: str | None = None
    """The address as in `port/list`, to choose one of several listeners; null for any."""

    of_process: str | None = None
    """The `processId` of the process whose descendant listens, to choose one of several; null for any."""

    session_id: str | None = None
    """The session whose process listens; null for the connection's own. Another session is accessible only
    on a Unix socket, or with `--ws-auth`. The stream belongs to the connection's own session."""


class PortOpenResult(TypedDict):
    """The stream, which is connected."""

    processId: str
    """The name of the stream, as in the request."""

    address: str
    """The address of the listener, as in `port/list`."""

    port: PortNumber
    """The TCP port of the listener."""


class ListeningEvent(PortEntry):
    """A process listens on a port, or does no longer.

    Sent to a connection with a watch (`watch` of `port/list`), within about a second of the change.
    """

    listening: bool
    """Whether it listens now."""

"""`initialize` and `session/end`: the start and the end of a session
(`docs/protocol.md`, "Handshake and sessions").
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from execprotocol.environment import EnvironmentInfo
from execprotocol.model import EXTENSION, Params


class Extensions(Params):
    """Which families of extension members the client understands, each by its version."""

    execserver: int | None = None
    """1 asks for the extension members of this daemon; null, or any other number, asks for nothing."""


class InitializeParams(Params):
    """Open a session, or resume a detached one.

    The first request of every connection; one that fails may be repeated. The connection is open
    for everything else when the client has then sent the notification `initialized`. A session owns
    processes and outlives its connection on sockets: it can be resumed for 80 seconds
    (`--session-ttl`) after the connection ended.
    """

    extension_members = frozenset({"extensions"})

    client_name: str
    """The name of the client program, for logs; it may be empty."""

    resume_session_id: str | None = None
    """The `sessionId` of a detached session to go on with; null opens a new session."""

    extensions: Extensions | None = None
    """The extension members that this connection wants to get; null means none."""


class InitializeResult(TypedDict):
    """The session that the connection is attached to from now on."""

    sessionId: str
    """The id of the session, a UUID as text; with it the session can be resumed later."""

    environmentInfo: EnvironmentInfo
    """The executor's host, the same as `environment/info` answers."""

    extensions: NotRequired[Annotated[dict[str, int], EXTENSION]]
    """The families of extension members that this connection will get, each with its version."""

    sessionTtlMs: NotRequired[Annotated[int, EXTENSION]]
    """How long a session is kept without a connection, and its processes with it, in milliseconds."""


class EndResult(TypedDict):
    """End the session, for a client that is done.

    Every process of the session is killed with all its descendants, also those that went into a session of
    their own or whose leader has exited. What is kept of their output is dropped, and the id of the session
    is unknown from now on. The answer comes when nothing is left; then the daemon closes the connection, and
    with it file handles and watches.
    """


class InitializedParams(Params):
    """The client is ready: it opens the connection for requests other than `initialize`.

    A notification, so it is not answered. It may be repeated, and whatever stands in its parameters
    is ignored. Sent before `initialize` has succeeded it ends the connection.
    """

"""`initialize`, `session/setTtl` and `session/end`: the start, the time to live and the end of a session
(`docs/protocol.md`, "Handshake and sessions").
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from execprotocol.environment import EnvironmentInfo
from execprotocol.model import EXTENSION, U64, Milliseconds, Params


class Extensions(Params):
    """The families of extension members that the client understands, each by its version."""

    execserver: int | None = None
    """1 requests the extension members of this daemon; null or any other number requests none."""


class InitializeParams(Params):
    """Open a session, or resume a detached one.

    The first request of every connection; it may be repeated if it fails. After the result, the client
    sends the notification `initialized`, and then any other request. A session owns processes. On
    sockets it outlives its connection, and can be resumed for 80 seconds (`--session-ttl`), or as long as
    its client asks for by `session/setTtl`.
    """

    extension_members = frozenset({"extensions"})

    client_name: str
    """The name of the client program, for logs; may be empty."""

    resume_session_id: str | None = None
    """The `sessionId` of a detached session to resume; null opens a new session."""

    extensions: Extensions | None = None
    """The requested extension members of this connection; null for none."""


class InitializeResult(TypedDict):
    """The session to which the connection is attached from now on."""

    sessionId: str
    """The id of the session, a UUID as text, for resuming the session."""

    environmentInfo: EnvironmentInfo
    """The executor's host, as in `environment/info`."""

    extensions: NotRequired[Annotated[dict[str, int], EXTENSION]]
    """The families of extension members that this connection gets, each with its version."""

    sessionTtlMs: NotRequired[Annotated[int, EXTENSION]]
    """How long this session and its processes are kept without a connection, in milliseconds."""


class SetTtlParams(Params):
    """Set how long the daemon keeps the session of this connection without a connection.

    The time begins anew at each end of a connection; then the session ends with its processes, unless a
    client resumes it. It belongs to the session: a resume keeps it, also at a new server. On stdio, where
    the session ends with its connection, it has no effect.
    """

    ttl_ms: Milliseconds | None
    """In milliseconds, at most the daemon's `--max-session-ttl`; null for the daemon's `--session-ttl`."""


class SetTtlResult(TypedDict):
    """The time that is in force."""

    sessionTtlMs: int
    """How long the session and its processes are kept without a connection, in milliseconds."""


class EndResult(TypedDict):
    """End the session and kill its processes.

    Every process of the session is killed with all its descendants, also after `setsid` and after the end of
    the leader. Their retained output is dropped, and the id of the session becomes unknown. The answer is
    sent once no process is left; then the daemon closes the connection with its file handles and watches.
    """


class DrainingEvent(TypedDict):
    """The executor drains: this session goes on, and no new one is opened.

    For connections with extensions: sent when the drain begins, again if its end is set, and after each
    resume while it lasts. A drain that is cancelled is not reported.
    """

    endsInMs: U64 | None
    """When the service ends at the latest, in milliseconds from now, with all its processes; null: it is not
    known that it ends."""


class InitializedParams(Params):
    """The client is ready: from now on it may send requests other than `initialize`.

    A notification, so there is no answer. It may be repeated, and its parameters are ignored. If it is
    sent before `initialize` has succeeded, the connection ends.
    """

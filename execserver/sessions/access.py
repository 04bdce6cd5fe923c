"""Whose processes a connection may reach.

Rules kept in this file:

1. The processes of its own session are any connection's. Those of another session are reached only by
   a peer of whom something is known: that it runs as the daemon's user, or that it showed the credentials
   of `--ws-auth`.
2. Reaching a process makes nobody its owner: it ends with its session, and only with that.
3. The size of a terminal is the owner's affair, and that of whoever attached to it interactively last.

`docs/protocol.md`, "Processes of other sessions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from execprotocol.errors import InvalidRequest
from execserver.processes.process import ManagedProcess
from execserver.sessions.event_stream import EventStream

if TYPE_CHECKING:
    from execserver.sessions.registry import SessionRegistry
    from execserver.sessions.session import Attachment, Session

PeerProof = Literal["user", "credentials"]
"""What is known of who is at the other end: the kernel says that it runs as the daemon's user, or it has
shown the credentials that are asked for."""


class Peer(Protocol):
    """A connection, as far as its rights are concerned."""

    @property
    def peer_proof(self) -> PeerProof | None:
        """What is known of who is at the other end."""

    @property
    def session(self) -> Session:
        """The session that it is attached to."""

    @property
    def attachment(self) -> Attachment:
        """Its feeds of events."""


def reach(peer: Peer, sessions: SessionRegistry, session_id: str | None) -> Session:
    """The session that a request names; the connection's own when it names none.

    Raises:
        InvalidRequest: the session is another one and unknown, or out of this connection's reach.
    """
    own = peer.session
    if session_id is None or session_id == own.id:
        return own
    require_proof(peer, "sessionId")
    return sessions.get(session_id)


def require_proof(peer: Peer, field: str) -> None:
    """Raise InvalidRequest when the processes of other sessions are not for this connection."""
    if peer.peer_proof is None:
        raise InvalidRequest(
            f"`{field}`: processes of other sessions are only reached over a Unix socket, or over WebSocket "
            "when the daemon is started with --ws-auth, and never through a relay: connect that way, or "
            "attach to the session itself by `resumeSessionId` of `initialize`",
            name="other_session_refused",
            field=field,
        )


def may_resize(peer: Peer, session: Session, process: ManagedProcess) -> bool:
    """Whether a connection may change the size of a process's terminal.

    Args:
        peer: who asks.
        session: whose process it is.
        process: the process.
    """
    if session is peer.session:
        return True
    latest = latest_interactive(process)
    return latest is not None and peer.attachment.observes(session.id, process.process_id) is latest


def require_resize(peer: Peer, session: Session, process: ManagedProcess) -> None:
    """Raise InvalidRequest unless `may_resize`; it says who may."""
    if may_resize(peer, session, process):
        return
    latest = latest_interactive(process)
    others = f" and to session {latest.follower}, which subscribed interactively last" if latest else ""
    raise InvalidRequest(
        f"the size of this terminal is left to session {session.id}, which owns the process{others}: send "
        "`process/subscribe` with `interactive` first",
        name="not_interactive",
        field="processId",
    )


def latest_interactive(process: ManagedProcess) -> EventStream | None:
    """The feed of whoever subscribed to a process interactively last, and still follows it."""
    for subscriber in reversed(process.subscribers):
        if isinstance(subscriber, EventStream) and subscriber.interactive:
            return subscriber
    return None

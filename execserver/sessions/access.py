"""Access of a connection to the processes of other sessions.

Rules kept in this file:

1. Every connection may access the processes of its own session. To access those of another session, a peer
   must run as the daemon's user or have presented the credentials of `--ws-auth`.
2. Access does not change the owner: a process ends with its own session, and with no other.
3. The size of a terminal is set by the owner, and by the connection that subscribed interactively last.

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
"""How a peer is known: the kernel reports that it runs as the daemon's user, or it has presented the required
credentials."""


class SessionPeer(Protocol):
    """The connection's side: what its rights depend on."""

    @property
    def peer_proof(self) -> PeerProof | None:
        """How the peer is known; None for an unknown peer."""

    @property
    def session(self) -> Session:
        """The session that the connection is attached to."""

    @property
    def attachment(self) -> Attachment:
        """The connection's event streams."""


def reach(peer: SessionPeer, sessions: SessionRegistry, session_id: str | None) -> Session:
    """The session that a request names; the connection's own if it names none.

    Raises:
        InvalidRequest: another session, which is unknown or which this connection may not access.
    """
    own = peer.session
    if session_id is None or session_id == own.id:
        return own
    require_proof(peer, "sessionId")
    return sessions.get(session_id)


def require_proof(peer: SessionPeer, field: str) -> None:
    """Raise InvalidRequest if the connection may not access the processes of other sessions."""
    if peer.peer_proof is None:
        raise InvalidRequest(
            f"`{field}`: processes of other sessions are only reached over a Unix socket, or over WebSocket "
            "when the daemon is started with --ws-auth, and never through a relay: connect that way, or "
            "attach to the session itself by `resumeSessionId` of `initialize`",
            name="other_session_refused",
            field=field,
        )


def may_resize(peer: SessionPeer, session: Session, process: ManagedProcess) -> bool:
    """Whether a connection may change the size of a process's terminal.

    Args:
        peer: the connection.
        session: the owner of the process.
        process: the process.
    """
    if session is peer.session:
        return True
    latest = latest_interactive(process)
    return latest is not None and peer.attachment.observes(session.id, process.process_id) is latest


def require_resize(peer: SessionPeer, session: Session, process: ManagedProcess) -> None:
    """Raise InvalidRequest unless `may_resize`; the text names the sessions that may."""
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
    """The event stream of the last interactive subscriber to a process that still follows it."""
    for subscriber in reversed(process.subscribers):
        if isinstance(subscriber, EventStream) and subscriber.interactive:
            return subscriber
    return None

"""`initialize`. `docs/protocol.md`, "Handshake and sessions"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.host import Host
from execserver.rpc.handlers import Caller, Handlers
from execserver.sessions.table import SessionTable

if TYPE_CHECKING:
    from execserver.protocol.handshake import InitializeParams, InitializeResult


EXTENSIONS_VERSION = 1


def handlers(sessions: SessionTable, host: Host) -> Handlers:
    """The handler of `initialize`."""
    info, extended_info = host.info(), host.info(extensions=True)

    def initialize(caller: Caller, params: InitializeParams) -> InitializeResult:
        resumed = params.resume_session_id is not None
        if params.resume_session_id is not None:
            session = sessions.resume(params.resume_session_id, caller)
        else:
            session = sessions.open(caller)
        extensions = params.extensions is not None and params.extensions.execserver == EXTENSIONS_VERSION
        caller.attach(session, resumed=resumed, extensions=extensions)
        if not extensions:
            return {"sessionId": session.id, "environmentInfo": info}
        return {
            "sessionId": session.id,
            "environmentInfo": extended_info,
            "extensions": {"execserver": EXTENSIONS_VERSION},
            "sessionTtlMs": round(sessions.ttl * 1000),
        }

    return {"initialize": initialize}

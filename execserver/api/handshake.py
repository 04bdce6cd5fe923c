"""`initialize` and `session/end`. `docs/protocol.md`, "Handshake and sessions"."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from execserver.host import Host
from execserver.rpc.handlers import Caller, Encoded, Handlers
from execserver.sessions.registry import SessionTable

if TYPE_CHECKING:
    from execprotocol.environment import NoParams
    from execprotocol.handshake import InitializeParams, InitializeResult


EXTENSIONS_VERSION = 1


def handlers(sessions: SessionTable, host: Host) -> Handlers:
    """The handlers of this family."""
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

    def end(caller: Caller, params: NoParams) -> Awaitable[Encoded]:
        return _end(caller, sessions.end(caller.session))

    return {"initialize": initialize, "session/end": end}


async def _end(caller: Caller, ending: Awaitable[None]) -> Encoded:
    await ending
    # `begun`: the connection ends behind a notification, too, and the result fits every batch.
    return Encoded(b"{}", after=caller.finish, begun=True)

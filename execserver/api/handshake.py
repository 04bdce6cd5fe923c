"""`initialize`, `session/setTtl`, `session/end` and `rpc.discover`: the requests about the connection, its
session and the protocol itself.

`docs/protocol.md`, "Handshake and sessions" and "Standard JSON-RPC"; either dialect answers `rpc.discover`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from execserver.host import Host
from execserver.loading import LOADER
from execserver.rpc.handlers import Caller, Encoded, Handlers
from execserver.sessions.registry import SessionRegistry

if TYPE_CHECKING:
    from execprotocol.environment import NoParams
    from execprotocol.handshake import InitializeParams, InitializeResult, SetTtlParams, SetTtlResult


EXTENSIONS_VERSION = 1

OPENRPC_DOCUMENT = Path(__file__).with_name("openrpc.json")
"""Written by `make schemas`, like `schemas/openrpc.json` but without white space."""


def handlers(sessions: SessionRegistry, host: Host) -> Handlers:
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
            "sessionTtlMs": sessions.ttl_ms(session),
        }

    def set_ttl(caller: Caller, params: SetTtlParams) -> SetTtlResult:
        sessions.set_ttl(caller.session, params.ttl_ms)
        return {"sessionTtlMs": sessions.ttl_ms(caller.session)}

    def end(caller: Caller, params: NoParams) -> Awaitable[Encoded]:
        return _end(caller, sessions.end(caller.session))

    return {
        "initialize": initialize,
        "session/setTtl": set_ttl,
        "session/end": end,
        "rpc.discover": discover,
    }


async def _end(caller: Caller, ending: Awaitable[None]) -> Encoded:
    await ending
    # `begun`: `after` ends the connection for a notification too, and the result fits every batch.
    return Encoded(b"{}", after=caller.finish, begun=True)


def discover(caller: Caller, params: NoParams) -> Encoded:
    """The OpenRPC document, some 130 KiB."""
    return Encoded(LOADER.load(OPENRPC_DOCUMENT.read_bytes))

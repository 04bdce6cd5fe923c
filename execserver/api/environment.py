"""`environment/*`. `docs/protocol.md`, "Environment and discovery"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.host import Host
from execserver.rpc.codec import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers

if TYPE_CHECKING:
    from execprotocol.environment import NoParams

_STATUS = b'{"status":"ready"}'


def _infos(host: Host) -> tuple[bytes, bytes]:
    """The daemon's description, without and with the extension members."""
    return encode_json(host.info()), encode_json(host.info(extensions=True))


def handlers(host: Host) -> Handlers:
    """The handlers of this family."""
    info_result, extended_info = map(Encoded, _infos(host))
    status_result = Encoded(_STATUS)

    def info(caller: Caller, params: NoParams) -> Encoded:
        return extended_info if caller.extensions else info_result

    def status(caller: Caller, params: NoParams) -> Encoded:
        return status_result

    return {
        "environment/info": info,
        "environment/status": status,
    }

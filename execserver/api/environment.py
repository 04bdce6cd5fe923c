"""`environment/*`, configuration and capability discovery. `docs/protocol.md`, "Environment and
discovery".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from execprotocol.path_uri import path_to_uri
from execserver.host import Host
from execserver.rpc.codec import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers

if TYPE_CHECKING:
    from execprotocol.environment import (
        ConfigReadParams,
        ConfigReadResult,
        DiscoverV1Params,
        DiscoverV1Result,
        DiscoverV2Params,
        DiscoverV2Result,
        NoParams,
    )

_STATUS = b'{"status":"ready"}'


def _infos(host: Host) -> tuple[bytes, bytes]:
    """The daemon's description, without and with the extension members."""
    return encode_json(host.info()), encode_json(host.info(extensions=True))


def handlers(host: Host) -> Handlers:
    """The handlers of this family."""
    info_result, extended_info = map(Encoded, _infos(host))
    status_result = Encoded(_STATUS)
    config_home = host.environment.get("CODEX_HOME") or os.path.join(host.home, ".codex")

    def info(caller: Caller, params: NoParams) -> Encoded:
        return extended_info if caller.extensions else info_result

    def status(caller: Caller, params: NoParams) -> Encoded:
        return status_result

    def read_config(caller: Caller, params: ConfigReadParams) -> ConfigReadResult:
        """This executor has no configuration layers for clients."""
        return {
            "userHomeDir": path_to_uri(host.home),
            "codexHomeDir": path_to_uri(config_home),
            "hostname": host.hostname,
            "config": {"layers": [], "cloudInsertionIndex": 0},
            "requirements": {"layers": [], "cloudInsertionIndex": 0},
        }

    def discover_roots(caller: Caller, params: DiscoverV1Params) -> DiscoverV1Result:
        """This executor offers no plugins."""
        return {"roots": []}

    def discover(caller: Caller, params: DiscoverV2Params) -> DiscoverV2Result:
        """This executor offers no plugins and no skills."""
        return {"plugins": [], "skills": [], "warnings": []}

    return {
        "environment/info": info,
        "environment/status": status,
        "environmentConfig/read": read_config,
        "capabilityRoots/discoverV1": discover_roots,
        "capabilities/discoverV2": discover,
    }

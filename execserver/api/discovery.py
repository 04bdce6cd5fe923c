"""Plugins, skills and layers of configuration. `docs/protocol.md`, "Environment and discovery"."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError, InvalidParams, InvalidRequest
from execprotocol.path_uri import ForeignPath, path_to_uri
from execserver.api.confinement import READ_ONLY, file_policy, require_limits
from execserver.api.filesystem import FileConfinement, blocking_calls, request_files
from execserver.filesystem.files import Files
from execserver.host import Host
from execserver.rpc.handlers import Caller, Handlers

if TYPE_CHECKING:
    from execprotocol.environment import (
        CapabilityRoot,
        CapabilityRootFiles,
        ConfigReadParams,
        ConfigReadResult,
        DiscoverV1Params,
        DiscoverV1Result,
        DiscoverV2Params,
        DiscoverV2Result,
    )
    from execprotocol.sandbox import SandboxContext

_MAX_ROOTS = 128
_MAX_REPLY_BYTES = 32 << 20
_SECONDS = 10.0


class DiscoveryHandlers:
    """The handlers of this family. What they need is loaded by the first request: few daemons get one."""

    def __init__(self, host: Host, confinement: FileConfinement) -> None:
        self._host = host
        self._confinement = confinement
        self._codex_home = host.environment.get("CODEX_HOME") or os.path.join(host.home, ".codex")

    def table(self) -> Handlers:
        """Method name → handler."""
        return {
            "environmentConfig/read": self.read_config,
            "capabilityRoots/discoverV1": self.discover_roots,
            "capabilities/discoverV2": self.discover_installed,
        }

    async def read_config(self, caller: Caller, params: ConfigReadParams) -> ConfigReadResult:
        """Read keys of the agent's configuration."""
        from execserver.discovery.config_layers import ConfigReader

        if type(params.cwd) is ForeignPath:
            raise InvalidParams(f"'{params.cwd}' is invalid on 'linux'", field="cwd")
        calls = blocking_calls(caller)
        reader = ConfigReader(self._files(caller, None), calls, self._codex_home)
        try:
            async with asyncio.timeout(_SECONDS):
                config, requirements = await reader.read(params.cwd)
        except TimeoutError:
            reason = f"reading it took longer than {_SECONDS:.0f} s"
            raise InternalError(f"failed to load executor-local config: {reason}") from None
        return {
            "userHomeDir": path_to_uri(self._host.home),
            "codexHomeDir": path_to_uri(self._codex_home),
            "hostname": self._host.hostname,
            "config": await calls.run(config.selected, params.config_paths),
            "requirements": await calls.run(requirements.selected, params.requirements_paths),
        }

    async def discover_roots(self, caller: Caller, params: DiscoverV1Params) -> DiscoverV1Result:
        """Find plugins and skills below folders."""
        if len(params.roots) > _MAX_ROOTS:
            raise InvalidRequest(
                f"capability root discovery accepts at most {_MAX_ROOTS} roots", field="roots"
            )
        left = _MAX_REPLY_BYTES
        roots = []
        for root in params.roots:
            found, size = await self._discover_root(caller, root, left)
            left -= size
            roots.append(found)
        return {"roots": roots}

    async def _discover_root(
        self, caller: Caller, root: CapabilityRoot, left: int
    ) -> tuple[CapabilityRootFiles, int]:
        from execserver.discovery.roots import discover_root, empty_root

        if type(root.path) is ForeignPath:
            fault = f"failed to inspect capability root {root.path}: '{root.path}' is invalid on 'linux'"
            return empty_root(root.id, str(root.path), fault), 0
        files = self._files(caller, root.sandbox)
        try:
            async with asyncio.timeout(_SECONDS):
                return await discover_root(files, root.id, root.path, left)
        except TimeoutError:
            fault = f"the search of the capability root took longer than {_SECONDS:.0f} s"
            return empty_root(root.id, path_to_uri(root.path), fault), 0

    async def discover_installed(self, caller: Caller, params: DiscoverV2Params) -> DiscoverV2Result:
        """Find what is installed on this host."""
        from execserver.discovery import installed

        if params.sandbox is not None and params.sandbox.cwd is None:
            raise InvalidParams("missing field `cwd`", field="sandbox.cwd")
        files = self._files(caller, params.sandbox)
        calls = blocking_calls(caller)
        return await installed.discover_installed(files, calls, self._codex_home, self._host.home)

    def _files(self, caller: Caller, sandbox: SandboxContext | None) -> Files:
        if self._host.require_sandbox:
            sandbox = sandbox or READ_ONLY
            require_limits(sandbox, file_policy(sandbox, self._confinement.tmpdir))
        return request_files(self._confinement, caller, sandbox)

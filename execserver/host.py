"""Facts about this host and this daemon, read once at launch."""

from __future__ import annotations

import os
import pwd
import sys

from execprotocol.path_text import escaped_uri
from execserver import __version__
from execserver.supervisor.launch import initial_environment

TYPE_CHECKING = False  # `typing` takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

    from execprotocol.environment import Capabilities, EnvironmentInfo
    from execserver.limits.settings import LimitSettings


CAPABILITIES: Capabilities = {
    # True only for what is implemented: a client uses what is true here.
    "networkProxyLaunch": sys.platform == "linux",
    "networkProxyReviewDomains": sys.platform == "linux",
    "credentialMasking": False,
    "credentialMaskingCustomProviders": False,
    "capabilityDiscoverySandbox": True,
    "fsWatchMissing": True,
    "capabilityDiscoveryV2": True,
    "environmentConfigRead": True,
    "httpHeaderEnvVars": True,
    "sandboxedFileStreaming": True,
    "fileWriteStreaming": True,
    "shellSnapshotV2": True,
    "linuxRootWritePreservesDevices": False,
    "linuxApprovedRootWritePreservesRestrictions": False,
    "windowsMxc": False,
}


class Host:
    """The launch of the daemon and its machine. It does not change."""

    cwd: str
    environment: Mapping[str, str]
    """The environment at the start: the interpreter may have added to its own copy since."""
    shell: str
    home: str
    temp: str
    hostname: str
    provider_id: str
    require_sandbox: bool
    """The setting of that name."""
    command_limits: LimitSettings | None
    """The settings for limits of commands; None without any."""

    def __init__(self, *, require_sandbox: bool = False, command_limits: LimitSettings | None = None) -> None:
        """Read the facts."""
        self.require_sandbox = require_sandbox
        self.command_limits = command_limits
        try:
            self.cwd = os.getcwd()
        except FileNotFoundError:
            self.cwd = "/"
        self.environment = environment = {
            os.fsdecode(name): os.fsdecode(value) for name, value in initial_environment().items()
        }
        try:
            account = pwd.getpwuid(os.getuid())
            self.shell, home = account.pw_shell or "/bin/sh", account.pw_dir
        except KeyError:
            self.shell, home = environment.get("SHELL", "/bin/sh"), "/"
        temp = environment.get("TMPDIR", "")
        self.home = environment.get("HOME") or home
        self.temp = temp if temp.startswith("/") else "/tmp"  # noqa: S108 - the system's own default
        self.hostname = os.uname().nodename
        self.provider_id = f"execserver:{os.urandom(16).hex()}"

    def continued(self, cwd: str, provider_id: str) -> Host:
        """This host, with the working directory and provider id of an earlier server of the service."""
        host = object.__new__(Host)
        vars(host).update(vars(self), cwd=cwd, provider_id=provider_id)
        return host

    def info(self, *, extensions: bool = False) -> EnvironmentInfo:
        """The answer to `environment/info`.

        Args:
            extensions: whether the connection asked for extension members.
        """
        capabilities = CAPABILITIES.copy()
        info: EnvironmentInfo = {
            "shell": {"name": os.path.basename(self.shell), "path": self.shell},
            "executorVersion": __version__,
            "providerId": self.provider_id,
            "cwd": escaped_uri(self.cwd),
            "userHomeDir": escaped_uri(self.home),
            "platformOs": "linux",
            "prependPathDirs": [],
            "temporaryDirectories": [escaped_uri(self.temp)],
            "tempDir": escaped_uri(self.temp),
            "capabilities": capabilities,
        }
        if extensions:
            from execprotocol.methods import extension_names

            capabilities["execserver"] = extension_names()
            info["requireSandbox"] = self.require_sandbox
        return info

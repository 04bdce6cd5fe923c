"""Facts about this host and this daemon, taken once at launch."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from execserver import __version__
from execserver.protocol.methods import extension_names
from execserver.protocol.path_uri import path_to_uri

if TYPE_CHECKING:
    from execserver.protocol.environment import Capabilities, EnvironmentInfo


CAPABILITIES: Capabilities = {
    # True only for what exists: a client uses what it finds here.
    "networkProxyLaunch": False,
    "networkProxyReviewDomains": False,
    "credentialMasking": False,
    "credentialMaskingCustomProviders": False,
    "capabilityDiscoverySandbox": False,
    "fsWatchMissing": True,
    "capabilityDiscoveryV2": False,
    "environmentConfigRead": True,
    "httpHeaderEnvVars": True,
    "sandboxedFileStreaming": True,
    "fileWriteStreaming": True,
    "shellSnapshotV2": False,
    "linuxRootWritePreservesDevices": False,
    "linuxApprovedRootWritePreservesRestrictions": False,
    "windowsMxc": False,
}


class Host(msgspec.Struct, frozen=True):
    """What the daemon was started with, and on what."""

    cwd: str
    environment: Mapping[str, str]
    shell: str
    home: str
    temp: str
    hostname: str
    provider_id: str

    @classmethod
    def take(cls) -> Host:
        """Read the facts. The environment is the one the daemon was exec'd with: the interpreter
        may have added to its own copy since.
        """
        try:
            cwd = os.getcwd()
        except FileNotFoundError:
            cwd = "/"
        environment = _initial_environment()
        try:
            account = pwd.getpwuid(os.getuid())
            shell, home = account.pw_shell or "/bin/sh", account.pw_dir
        except KeyError:
            shell, home = environment.get("SHELL", "/bin/sh"), "/"
        temp = environment.get("TMPDIR", "")
        return cls(
            cwd=cwd,
            environment=environment,
            shell=shell,
            home=environment.get("HOME") or home,
            temp=temp if temp.startswith("/") else "/tmp",  # noqa: S108 - the system's own default
            hostname=socket.gethostname(),
            provider_id=f"execserver:{os.urandom(16).hex()}",
        )

    def continued(self, cwd: str, provider_id: str) -> Host:
        """The same host, as a server before this one has described it."""
        return replace(self, cwd=cwd, provider_id=provider_id)

    def info(self, *, extensions: bool = False) -> EnvironmentInfo:
        """The answer to `environment/info`.

        Args:
            extensions: whether it is for a connection that asked for extension members.
        """
        capabilities = CAPABILITIES.copy()
        if extensions:
            capabilities["execserver"] = extension_names()
        return {
            "shell": {"name": os.path.basename(self.shell), "path": self.shell},
            "executorVersion": __version__,
            "providerId": self.provider_id,
            "cwd": path_to_uri(self.cwd),
            "userHomeDir": path_to_uri(self.home),
            "platformOs": "linux",
            "prependPathDirs": [],
            "temporaryDirectories": [path_to_uri(self.temp)],
            "tempDir": path_to_uri(self.temp),
            "capabilities": capabilities,
        }


def _initial_environment() -> dict[str, str]:
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    variables = (entry.partition(b"=") for entry in entries)
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in variables if equals}

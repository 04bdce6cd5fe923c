"""Requests with a sandbox: confined or refused, never run without confinement.

With the setting `require_sandbox`, requests without one, too. `docs/protocol.md`, "Sandbox context".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from execprotocol.errors import InvalidParams, InvalidRequest, RpcError, SpawnFailed
from execprotocol.sandbox import (
    FileSystemEntry,
    ManagedPermissions,
    RestrictedFileSystem,
    SandboxContext,
    SpecialEntryPath,
    SpecialPath,
)
from execserver.launch_spec import LaunchSpec, require_program
from execserver.processes.start_obstacle import require_interpreter, require_lengths
from execserver.rpc.handlers import Caller, Handler, Handlers, Result
from execserver.rpc.ordering import READING
from execserver.sandbox import refused
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.glob_patterns import refuse_denied
from execserver.sandbox.policy import Access, Policy, RequestFolders, resolve
from execserver.sandbox.sandboxes import Sandboxes
from execserver.telemetry.measures import measures

READ_ONLY = SandboxContext(
    permissions=ManagedPermissions(
        file_system=RestrictedFileSystem(
            entries=[FileSystemEntry(path=SpecialEntryPath(SpecialPath("root")), access="read")]
        ),
        network="restricted",
    ),
    windows_sandbox_level="disabled",
)
"""The sandbox of requests that only read and ask for none, with `require_sandbox`."""

_READING = READING | {"fs/getFiles", "fs/watch"}
_BOUND = frozenset(
    {
        "fs/readBlock",
        "fs/writeBlock",
        "fs/close",
        "fs/watchMissing",
        "fs/watchRead",
        "fs/unwatch",
        "fs/endSearch",
    }
)
"""Methods without a sandbox of their own: a handle keeps that of its `fs/open`, a watch that of its
`fs/watch`, and a search that of its first request; `fs/watchMissing` reports names."""


def command_policy(
    sandbox: SandboxContext, cwd: str, environment: Mapping[str, str], *, managed_network: bool
) -> Policy | None:
    """The policy of a command; None if it limits nothing.

    Args:
        sandbox: of the request.
        cwd: the working directory of the command.
        environment: its variables.
        managed_network: whether a network proxy is the only way out, whatever the sandbox says of the
            network, and also if it limits nothing else.

    Raises:
        InvalidParams: a path of another host.
        InvalidRequest: the older kind of sandbox is requested.
    """
    policy = resolve(sandbox, RequestFolders(cwd, environment.get("TMPDIR")))
    _refuse_older_kind(sandbox, policy)
    if managed_network:
        policy = replace(policy, network=False, managed_network=True)
    return policy if policy.limits_anything else None


def file_policy(sandbox: SandboxContext | None, tmpdir: str | None) -> Policy | None:
    """The policy of a file request; None if the server carries it out itself.

    Raises:
        InvalidParams: a path of another host, or entries that need a working directory that is not given.
        InvalidRequest: the older kind of sandbox is requested.
    """
    if sandbox is None:
        return None
    policy = resolve(sandbox, RequestFolders(None, tmpdir))
    if policy.unresolved:
        raise InvalidParams(
            "file system sandbox context with dynamic permissions requires cwd", field="sandbox.cwd"
        )
    _refuse_older_kind(sandbox, policy)
    return policy if policy.limits_files else None


def require_limits(sandbox: SandboxContext | None, policy: Policy | None) -> None:
    """Refuse a request whose sandbox limits nothing that matters: for the setting `require_sandbox`.

    Args:
        sandbox: the sandbox of the request.
        policy: its policy; None if it limits nothing.

    Raises:
        InvalidRequest: there is no sandbox, files are not limited, or the root folder may be written.
    """
    if sandbox is None:
        lack = "the request has no `sandbox`"
    elif policy is None or not policy.limits_files:
        lack = f"the `sandbox` of the request, of type `{sandbox.permissions.type}`, does not limit files"
    elif policy.access("/") is Access.WRITE:
        lack = "the `sandbox` of the request grants writing to the root folder"
    else:
        return
    error = InvalidRequest(
        f"this daemon requires a sandbox (setting require_sandbox), and {lack}",
        name="sandbox_required",
        field="sandbox",
    )
    error.details["reason"] = (
        "send `sandbox` with `permissions` of type `managed` and a `restricted` file system"
    )
    raise error


def require_file_limits(handlers: Handlers, tmpdir: str | None) -> Handlers:
    """The handlers of `fs/*` for the setting `require_sandbox`.

    Requests that only read and have no sandbox get `READ_ONLY`; other requests are refused as by
    `require_limits`.
    """
    return {
        name: handler if name in _BOUND else partial(_limited, handler, name in _READING, tmpdir)
        for name, handler in handlers.items()
    }


def _limited(
    handler: Handler, reads: bool, tmpdir: str | None, caller: Caller, params: Any
) -> Result | Awaitable[Result]:
    sandbox: SandboxContext | None = params.sandbox
    if sandbox is None and (reads or getattr(params, "mode", None) == "read"):
        return handler(caller, replace(params, sandbox=READ_ONLY))
    require_limits(sandbox, file_policy(sandbox, tmpdir))
    return handler(caller, params)


def _refuse_older_kind(sandbox: SandboxContext, policy: Policy) -> None:
    if sandbox.use_legacy_landlock and policy.limits_files:
        raise refused("useLegacyLandlock cannot limit files; leave it out", "sandbox.useLegacyLandlock")


def may_read(policy: Policy, path: str) -> bool:
    """Whether a policy allows reading a file, and its path if it is a link. May block."""
    folder, name = os.path.split(path)
    for real in (os.path.realpath(path), os.path.join(os.path.realpath(folder), name)):
        try:
            refuse_denied(policy.deny_globs, real)
        except RpcError:
            return False
        if policy.access(real) is Access.DENY:
            return False
    return True


class Preparation:
    """A confinement that a thread prepares for a start, which may be cancelled meanwhile."""

    def __init__(self, sandboxes: Sandboxes, policy: Policy, make_spec: Callable[[], LaunchSpec]) -> None:
        self._sandboxes = sandboxes
        self._policy = policy
        self._make_spec = make_spec
        self._lock = threading.Lock()
        self._made: Confinement | None = None
        self._given_up = False

    def run(self) -> tuple[LaunchSpec, Confinement]:
        """In the thread: look at the disk and make everything ready.

        Raises:
            InvalidRequest: the command cannot be confined.
            SpawnFailed: the command could not be started without a sandbox either.
        """
        try:
            spec = self._make_spec()
            require_program(spec.program, spec.cwd)
            require_lengths(spec.arguments, spec.environment)
            require_interpreter(spec.program, spec.cwd, partial(may_read, self._policy))
        except (OSError, ValueError) as error:
            measures.failed_starts += 1
            raise SpawnFailed(error) from None
        confinement = self._sandboxes.prepare(self._policy, spec)
        with self._lock:
            if not self._given_up:
                self._made = confinement
                return spec, confinement
        self._sandboxes.release(confinement)
        return spec, confinement

    def taken(self) -> None:
        """A process has taken the confinement, and will release it."""
        self._made = None

    def give_up(self) -> None:
        """Release a confinement that no process has taken, now or once it is made. May block for a moment."""
        with self._lock:
            self._given_up = True
            made, self._made = self._made, None
        if made is not None:
            self._sandboxes.release(made)

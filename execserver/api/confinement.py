"""Requests with a sandbox: confined or refused, never run without confinement."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from execprotocol.errors import InvalidParams, RpcError, SpawnFailed
from execserver.launch_spec import LaunchSpec, require_program
from execserver.processes.start_obstacle import require_interpreter, require_lengths
from execserver.sandbox import refused
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.glob_patterns import refuse_denied
from execserver.sandbox.policy import Access, Policy, RequestFolders, resolve
from execserver.sandbox.sandboxes import Sandboxes
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.sandbox import SandboxContext


def command_policy(
    sandbox: SandboxContext, cwd: str, environment: Mapping[str, str], *, managed_network: bool
) -> Policy | None:
    """The policy of a command; None if it limits nothing.

    Raises:
        InvalidParams: a path of another host, or a network proxy, which this executor does not have.
        InvalidRequest: the older kind of sandbox is requested.
    """
    if managed_network:
        raise InvalidParams(
            "enforceManagedNetwork is not available on this executor: it has no network proxy; "
            "start the process without it, with a network that is restricted or enabled",
            field="enforceManagedNetwork",
        )
    policy = resolve(sandbox, RequestFolders(cwd, environment.get("TMPDIR")))
    _refuse_older_kind(sandbox, policy)
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

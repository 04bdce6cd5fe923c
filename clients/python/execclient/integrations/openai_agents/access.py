"""The sandboxes of a session of the SDK: that of its commands, and that of its host's own acts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from agents.sandbox.workspace_paths import sandbox_path_str

from execclient.connection.connection import Json
from execclient.govern.sandbox import ReadOnly, SandboxPolicy, WorkspaceWrite
from execclient.integrations.openai_agents.state import ExecServerSandboxSessionState

Context = Mapping[str, Json] | None
"""The member `sandbox` of a request; None for none."""


class Access:
    """The sandboxes of a session.

    In a workspace that was created for the session, `.git`, `.agents` and the other protected names are
    ordinary, since only the session itself reads them. Therefore the folder around it is the workspace of the
    policy.
    """

    def __init__(self, policy: SandboxPolicy | None, state: ExecServerSandboxSessionState) -> None:
        self._policy = policy
        self._state = state

    @property
    def root(self) -> str:
        """The workspace at the executor, absolute."""
        return sandbox_path_str(self._state.manifest.root)

    def commands(self) -> Context:
        """For commands and files. Writable `extra_path_grants` of the manifest extend a `WorkspaceWrite`."""
        root = self.root
        folder = posixpath.dirname(root) if self._state.workspace_root_owned else root
        return None if self._policy is None else self._granting(self._policy).context(root, [folder])

    def host(self) -> Context:
        """For what the host does with the workspace as a whole: the manifest and snapshots.

        It writes protected names, too, and also if the commands may only read.
        """
        policy, folder = self._policy, posixpath.dirname(self.root)
        if not isinstance(policy, ReadOnly | WorkspaceWrite) or folder == "/":
            return self.commands()
        if isinstance(policy, ReadOnly):
            policy = WorkspaceWrite(network=policy.network, deny_read=policy.deny_read)
        return self._granting(policy).context(self.root, [folder])

    def only(self, folder: str) -> Context:
        """For a command of this package that writes to one folder."""
        if not isinstance(self._policy, ReadOnly | WorkspaceWrite) or folder == "/":
            return self.commands()
        denied = self._policy.deny_read
        policy = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True, deny_read=denied)
        return policy.context(self.root, [folder])

    def _granting(self, policy: SandboxPolicy) -> SandboxPolicy:
        grants = self._state.manifest.extra_path_grants
        writable = tuple(grant.path for grant in grants if not grant.read_only)
        if not writable or not isinstance(policy, WorkspaceWrite):
            return policy
        return replace(policy, writable_roots=(*policy.writable_roots, *writable))

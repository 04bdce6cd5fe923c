"""The sandbox client: creates, resumes and deletes sessions."""

from __future__ import annotations

import uuid

from agents.sandbox import Manifest
from agents.sandbox.session import (
    BaseSandboxClient,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from execclient import arguments
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.govern.sandbox import SandboxPolicy, WorkspaceWrite
from execclient.integrations.openai_agents.links import Links, Settings
from execclient.integrations.openai_agents.session import ExecServerSandboxSession, supported
from execclient.integrations.openai_agents.state import (
    ExecServerSandboxClientOptions,
    ExecServerSandboxSessionState,
)

_DEFAULT_ROOT = Manifest().root


class ExecServerSandboxClient(BaseSandboxClient[ExecServerSandboxClientOptions | None]):
    """Runs the sandboxes of the OpenAI Agents SDK at an execserver daemon.

    A session has a folder of its own, unless `Manifest(root=…)` names one. A session that was neither closed
    nor deleted, because its process was killed, is kept by the daemon for `ttl` seconds with its running
    commands: `resume` with its saved state finds them.

    Args:
        url: as for `execclient.connect`; also its `EXECSERVER_…` variables are used.
        sandbox: what commands and files may touch: by default the workspace and temporary folders may be
            written, and there is no network. `ReadOnly(…)`, `WorkspaceWrite(…)`, or None for no sandbox.
        ttl: seconds for which the daemon keeps a session whose client is gone; by default its `--session-ttl`
            (80).
        inherit: the daemon's variables that commands inherit: all, the core (HOME, PATH, …), none, or a
            policy. `HOME` is the workspace; `Manifest(environment=…)` adds others.
        instrumentation: of the SDK.
        dependencies: of the SDK.
    """

    backend_id = "execserver"
    supports_default_options = True

    def __init__(
        self,
        url: str | None = None,
        *,
        sandbox: SandboxPolicy | None = WorkspaceWrite(),  # noqa: B008 - a value
        ttl: float | None = None,
        inherit: Inherit | EnvironmentPolicy = "core",
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        arguments.check_sandbox(sandbox)
        self._links = Links(Settings(url, sandbox, ttl, inherit))
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ExecServerSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """A new session, which is connected, and not started yet.

        Raises:
            WorkspaceStartError: the daemon is out of reach, or refuses; the message says what to do.
            ValueError: the manifest has what this client does not support.
        """
        manifest = self._validate_manifest_for_create(Manifest() if manifest is None else manifest)
        supported(manifest)
        session_id = uuid.uuid4()
        state = ExecServerSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
        )
        inner = ExecServerSandboxSession(state=state, links=self._links)
        if manifest.root == _DEFAULT_ROOT:
            await inner.place(session_id.hex)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session of a saved state, with the commands that still run in it.

        Raises:
            WorkspaceStartError: as for `create`; or another client is connected to the session.
            TypeError: the state is that of another sandbox.
        """
        if not isinstance(state, ExecServerSandboxSessionState):
            raise TypeError(f"the state is an ExecServerSandboxSessionState, not {type(state).__name__}")
        state.assert_path_grants_rebound()
        supported(state.manifest)
        inner = ExecServerSandboxSession(state=state, links=self._links)
        await inner.attach()
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session with all its processes, and remove its folder, unless the manifest named it.

        Raises:
            WorkspaceStartError: the daemon is out of reach.
            TypeError: the session is that of another client.
        """
        inner = session._inner  # noqa: SLF001 - the SDK's own clients have no other way
        if not isinstance(inner, ExecServerSandboxSession):
            raise TypeError(f"the session is an ExecServerSandboxSession, not {type(inner).__name__}")
        await inner.remove()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """The state from what `serialize_session_state` has returned."""
        return self._deserialize_session_state_payload(payload, ExecServerSandboxSessionState)

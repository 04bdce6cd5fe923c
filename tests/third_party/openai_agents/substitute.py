"""A plugin of pytest for the SDK's own tests: `UnixLocalSandboxClient` and its session are ours.

`test_suite.py` starts pytest with it in a process of its own: the SDK's tests are a package `tests`, too. Our
classes get what the tests use besides the interface: the name `unix_local`, the constructor, and variables of
the test process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from agents.sandbox import Manifest
from agents.sandbox.manifest import Environment
from agents.sandbox.sandboxes import unix_local
from agents.sandbox.session import Dependencies, Instrumentation, SandboxSession
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec
from agents.sandbox.types import ExecResult

from execclient import WorkspaceWrite
from execclient.integrations.openai_agents import client, session, state
from execclient.integrations.openai_agents.links import Links, Settings

RUN_IN_THE_SANDBOX = "requires_native_macos_sandbox"
"""The SDK's mark for tests that run commands in a sandbox."""

OF_THE_CLASS = "test_unix_local"
OF_THE_INTERFACE = (
    "snapshot_resume_removes_stale_link",
    "pty_exec_write_poll",
    "ctrl_c",
    "non_tty_pty",
    "stop_terminates",
    "persist_emits",
    "persisted_workspace_hydrates",
    "symlink_through_components",
    "move_to_an_existing_directory",
    "same_file",
    "apply_patch_create",
    "base_default_create",
)
"""Tests of the class `UnixLocalSandboxSession` that its interface promises, too. The others test

- its insides: cancelled threads, descriptors, private methods; and how `sudo` is called (9);
- which variables of the test process commands get, and the text of an error (5);
- names of tar members with `./`, and links that it makes relative and the Docker sandbox does not (6);
- exit codes of signals as -N (2): ours are 128+N, as those of a shell and of the Docker sandbox;
- a listing of the workspace, by the test process, after a refused snapshot (3): while a session has a
  sandbox, that process sees empty folders such as `.agents` in a workspace that the manifest names.
"""

_SETTINGS = Settings(os.environ["EXECSERVER_URL"], WorkspaceWrite(), None, "all")


class State(state.ExecServerSandboxSessionState):
    """Saved under the name of the SDK's own class."""

    type: Literal["unix_local"] = "unix_local"  # type: ignore[assignment]  # the other name


class Session(session.ExecServerSandboxSession):
    """Made from a state alone."""

    def __init__(self, *, state: State, links: Links | None = None) -> None:
        super().__init__(state=state, links=links or Links(_SETTINGS))

    @classmethod
    def from_state(cls, state: State) -> Session:
        return cls(state=state)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        # The tests put programs into PATH, which a profile of the machine may set anew.
        argv = ("sh", "-c", *command[2:]) if command[:2] == ("sh", "-lc") else command
        return await super()._exec_internal(*argv, timeout=timeout)


class Client(client.ExecServerSandboxClient):
    """With the constructor of the SDK's own class."""

    backend_id = "unix_local"
    passed_on: ClassVar[tuple[str, ...]] = ("PATH", "SANDBOX_INTEGRATION_TOOL_LOG")

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        inherit_host_environment: bool = True,
    ) -> None:
        super().__init__(
            os.environ["EXECSERVER_URL"],
            inherit="all" if inherit_host_environment else "core",
            instrumentation=instrumentation,
            dependencies=dependencies,
        )

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: object | None = None,
    ) -> SandboxSession:
        manifest = Manifest() if manifest is None else manifest
        passed = {name: os.environ[name] for name in self.passed_on if name in os.environ}
        own = dict(manifest.environment.value)
        manifest = manifest.model_copy(update={"environment": Environment(value={**passed, **own})})
        return await super().create(snapshot=snapshot, manifest=manifest)


for name, ours in (
    ("UnixLocalSandboxSessionState", State),
    ("UnixLocalSandboxSession", Session),
    ("UnixLocalSandboxClient", Client),
):
    setattr(unix_local, name, ours)
# What our client makes.
setattr(client, "ExecServerSandboxSession", Session)  # noqa: B010 - a type checker refuses the other form
setattr(client, "ExecServerSandboxSessionState", State)  # noqa: B010


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests that concern a sandbox as such."""

    def concerns_us(item: pytest.Item) -> bool:
        if item.path.stem == OF_THE_CLASS:
            return any(name in item.name for name in (*OF_THE_INTERFACE, "case_only"))
        return item.get_closest_marker(RUN_IN_THE_SANDBOX) is not None

    config.hook.pytest_deselected(items=[item for item in items if not concerns_us(item)])
    items[:] = [item for item in items if concerns_us(item)]

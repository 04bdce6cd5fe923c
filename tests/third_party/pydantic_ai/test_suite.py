"""pydantic-ai's own suite for backends."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from execclient import WorkspaceWrite
from execclient.govern.sandbox import SandboxPolicy
from execclient.integrations.pydantic_ai import ExecServerWorkspace, ExecServerWorkspaceBackend


class _Suite(WorkspaceBackendSuite):
    sandbox: SandboxPolicy | None

    def settings(self, url: str, folder: Path) -> ExecServerWorkspace[None]:
        return ExecServerWorkspace(url=url, root=str(folder), sandbox=self.sandbox)

    @pytest.fixture
    def fresh_backend(self, url: str, folder: Path) -> Callable[[], WorkspaceBackend]:
        return self.settings(url, folder).backend

    @pytest.fixture
    def backend(self, fresh_backend: Callable[[], WorkspaceBackend]) -> WorkspaceBackend:
        return fresh_backend()

    @pytest.fixture
    def attach_backend(self, url: str, folder: Path) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return self.settings(url, folder).backend

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await anyio.to_thread.run_sync(shutil.rmtree, backend.ref.id)

        return destroy


class TestWithoutSandbox(_Suite):
    """All rules."""

    sandbox = None


class TestSandboxed(_Suite):
    """All rules but three. A sandbox has processes of its own, and ends with its command (C25 and C31 in
    docs/protocol.md), so a job cannot outlive its command, and no command sees the processes of another one.
    """

    sandbox = WorkspaceWrite()

    async def test_background_child_does_not_hold_up_completed_command(  # type: ignore[override]
        self, backend: ExecServerWorkspaceBackend
    ) -> None:
        result = await backend.run(["sh", "-c", "sleep 3600 & sleep 0.2; printf done"], timeout=30)
        assert (result.exit_code, result.stdout) == (0, "done")
        assert "background processes ended with the sandbox of this command: sleep" in result.stderr

    async def test_a_backend_attached_by_ref_reaches_a_detached_process(  # type: ignore[override]
        self, backend: ExecServerWorkspaceBackend, folder: Path
    ) -> None:
        script = "setsid sleep 3600 < /dev/null > /dev/null 2>&1 & sleep 0.2; readlink /proc/self/ns/pid"
        result = await backend.run(script, shell=True)
        assert "background processes ended with the sandbox of this command: sleep" in result.stderr
        with anyio.fail_after(30):
            while processes_in(result.stdout.strip()):
                await anyio.sleep(0.05)

    async def test_cancellation_stops_foreground_work(  # type: ignore[override]
        self, backend: ExecServerWorkspaceBackend, folder: Path
    ) -> None:
        namespace = Path(await backend.working_dir(), "namespace")
        async with anyio.create_task_group() as group:
            script = f"readlink /proc/self/ns/pid > {namespace}; exec sleep 3600"
            group.start_soon(lambda: backend.run(script, shell=True))
            with anyio.fail_after(30):
                while not (namespace.exists() and processes_in(namespace.read_text().strip())):
                    await anyio.sleep(0.05)
            group.cancel_scope.cancel()
        with anyio.fail_after(30):
            while processes_in(namespace.read_text().strip()):
                await anyio.sleep(0.05)


def processes_in(namespace: str) -> list[str]:
    """The processes in a pid namespace, as `/proc/PID/ns/pid` names it."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == namespace:
                found.append(link.parts[2])
    return found

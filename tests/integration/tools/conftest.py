"""A real daemon, and a workspace for the tools that run at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, connect
from execclient.govern.approval_policy import ON_REQUEST, ApprovalPolicy
from execclient.govern.approvals import Approvals, Reviewer
from execclient.govern.sandbox import SandboxPolicy
from execclient.tools.toolset import Toolset
from tests.conformance.endpoint import SharedServers
from tests.conftest import StartServer
from tests.support.relayed_server import RelayedServer
from tests.support.toolsets import INSIDE, Make

ONE_DAEMON = frozenset(
    {
        "test_apply_patch", "test_approvals_that_do_not_widen", "test_calls_that_end_early",
        "test_file_tools", "test_network", "test_notes", "test_run_to_end", "test_sandbox_contexts",
        "test_sessions", "test_worked_examples", "test_co_profile", "test_proposed_rules",
    }
)  # fmt: skip
"""Modules whose tests share a daemon: a session and a workspace are what they need of their own."""


@pytest.fixture(params=["unix", "stdio"])
def url(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    shared_servers: SharedServers,
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """A daemon of this test or its module, over each transport; over `stdio:` each connection has its own.

    The environment of all is the same, and so is the folder of those of a test. Where the transport makes no
    difference, one is enough: `@pytest.mark.parametrize("url", ["unix"], indirect=True)`. A daemon behind a
    `"relay"` takes a second to be there, so that is for those who ask for it.
    """
    if request.param == "relay":
        with RelayedServer(tmp_path / "relay", env=environment, cwd=tmp_path) as server:
            monkeypatch.setenv("EXECSERVER_TOKEN", server.client_token)
            yield server.client_url
        return
    if request.param == "stdio":
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        yield "stdio:"
        return
    if request.path.stem in ONE_DAEMON:
        yield shared_servers.get("unix").url
        return
    yield start_server(f"unix://{tmp_path}/s").url


@pytest.fixture
async def executor(url: str) -> AsyncIterator[Executor]:
    """A session with it."""
    async with connect(url) as connected:
        yield connected


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with the file `a.txt`."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a.txt").write_text("hello\n")
    return folder


@pytest.fixture
async def make(executor: Executor, workspace: Path) -> AsyncIterator[Make]:
    """Makes toolsets in the workspace; they are closed at the end."""
    async with AsyncExitStack() as stack:

        def toolset(
            *,
            approval: ApprovalPolicy = ON_REQUEST,
            user: Reviewer | None = None,
            sandbox: SandboxPolicy = INSIDE,
            **options: Any,
        ) -> Toolset:
            made = Toolset(
                executor,
                approvals=Approvals(user=user, policy=approval),
                sandbox=sandbox,
                cwd=str(workspace),
                **options,
            )
            stack.push_async_callback(made.close)
            return made

        yield toolset


@pytest.fixture
def tools(make: Make) -> Toolset:
    """The tools, without a reviewer."""
    return make()

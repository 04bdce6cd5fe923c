"""Runtimes, with the names that the fixtures of SWE-ReX's own tests have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from swerex.runtime.abstract import CloseBashSessionRequest, CreateBashSessionRequest

from execclient.integrations.swe_rex import ExecServerRuntime


@pytest.fixture
async def remote_runtime(url: str, tmp_path: Path) -> AsyncIterator[ExecServerRuntime]:
    """A runtime whose workspace is the folder of the test."""
    runtime = ExecServerRuntime(url=url, cwd=str(tmp_path))
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime: ExecServerRuntime) -> AsyncIterator[ExecServerRuntime]:
    """The same with the session `default`."""
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


@pytest.fixture
def local_runtime(remote_runtime: ExecServerRuntime) -> ExecServerRuntime:
    """In the place of the project's own local runtime."""
    return remote_runtime

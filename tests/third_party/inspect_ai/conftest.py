"""A sandbox environment as a sample has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from execclient import connect
from execclient.integrations.inspect_ai import ExecServerSandboxConfig, ExecServerSandboxEnvironment

# The suite has a provider mark what it cannot do, by the name of the test.
_XFAIL = {
    "test_exec_as_user": "creates a user of the machine, as root; commands run as the daemon's user, "
    "and another user is a SandboxUserUnsupportedError",
}


@pytest.fixture
def config(url: str) -> ExecServerSandboxConfig:
    """The default configuration, but for the daemon."""
    return ExecServerSandboxConfig(url=url)


@pytest.fixture
async def home(url: str) -> Path:
    """The home folder of the daemon's user."""
    async with connect(url) as executor:
        assert executor.home is not None
        return Path(executor.home)


@pytest.fixture
async def sandbox_env(
    config: ExecServerSandboxConfig, request: pytest.FixtureRequest
) -> AsyncIterator[ExecServerSandboxEnvironment]:
    """The environment of a sample."""
    if reason := _XFAIL.get(request.node.originalname):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    environments = await ExecServerSandboxEnvironment.sample_init("suite", config, {})
    yield environments["default"].as_type(ExecServerSandboxEnvironment)
    await ExecServerSandboxEnvironment.sample_cleanup("suite", config, environments, False)

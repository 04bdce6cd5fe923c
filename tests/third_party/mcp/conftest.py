"""Hosts: clients of the SDK, connected to `execserver mcp`."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent


@dataclass(frozen=True)
class Hosts:
    """Starts hosts in a workspace of their own."""

    url: str
    workspace: Path
    state: Path
    mode: str

    def command(self, *options: str) -> StdioServerParameters:
        """How a host starts the server."""
        return StdioServerParameters(
            command=sys.executable,
            args=["-m", "execserver", "mcp", "--url", self.url, "--cwd", str(self.workspace), *options],
            env={"XDG_STATE_HOME": str(self.state), "PATH": os.environ["PATH"], "HOME": str(self.state)},
            cwd=self.workspace,
        )

    def start(
        self, *options: str, asked: ElicitationFnT | None = None
    ) -> AbstractAsyncContextManager[Client]:
        """A host with a server of its own."""
        return Client(self.command(*options), mode=self.mode, elicitation_callback=asked)


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    """The protocol up to 2025-11-25, with `initialize`, and that from 2026-07-28 on, without."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def hosts(url: str, mode: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    return Hosts(url, tmp_path_factory.mktemp("workspace"), tmp_path_factory.mktemp("state"), mode)


def text(result: CallToolResult) -> str:
    """The text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text

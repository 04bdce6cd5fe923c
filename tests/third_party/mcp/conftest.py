"""Hosts: clients of the SDK, connected to `execserver mcp`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent

from execclient import connect


@dataclass(frozen=True)
class Hosts:
    """Starts hosts in a workspace of their own."""

    url: str
    workspace: Path
    state: Path
    mode: str

    @property
    def pid(self) -> int:
        """The process of the server that was started last."""
        return int((self.state / "pid").read_text())

    async def running(self) -> int:
        """The commands that run in the workspace, by the daemon's list."""
        async with connect(self.url) as executor:
            processes = await executor.processes(all_sessions=True, argv=True)
        return sum(each.cwd == str(self.workspace) and each.state == "running" for each in processes)

    def kill(self) -> None:
        """Kill the server that was started last."""
        os.kill(self.pid, signal.SIGKILL)

    def command(self, *options: str) -> StdioServerParameters:
        """How a host starts the server."""
        server = [sys.executable, "-m", "execserver", "mcp", "--url", self.url, *options]
        return StdioServerParameters(
            command="/bin/sh",
            args=["-c", 'echo $$ > "$0"; exec "$@"', str(self.state / "pid"), *server],
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


Serve = Callable[..., str]


@pytest.fixture
def serve(hosts: Hosts) -> Iterator[Serve]:
    """Starts a server; returns its URL. It ends with the test, without a trace."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        command = hosts.command("--listen", "http://127.0.0.1:0", *options)
        server = subprocess.Popen(
            [command.command, *command.args],
            env=command.env,
            cwd=command.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(server)
        assert server.stdout is not None
        return server.stdout.readline().strip()

    yield start
    for server in started:
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=20)
        assert (server.returncode, errors) == (0, "")


def text(result: CallToolResult) -> str:
    """The text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def output_of(result: CallToolResult) -> str:
    """The output in the text of an answer."""
    return text(result).partition("\nOutput:\n")[2]


async def session_of(client: Client, command: str, **arguments: object) -> int:
    """The session of a command that runs longer than the call."""
    result = await client.call_tool("exec_command", {"cmd": command, "login": False, **arguments})
    assert not result.is_error, text(result)
    return int(result.structured_content["processId"])


async def read_to_end(client: Client, session: int) -> tuple[str, CallToolResult]:
    """All output of a session, and the last answer."""
    output = ""
    while True:
        result = await client.call_tool("write_stdin", {"session_id": session})
        output += output_of(result)
        if result.structured_content["exitCode"] is not None or result.is_error:
            return output, result


async def interrupted(client: Client, session: int) -> CallToolResult:
    """The last answer of a command that is ended by Ctrl-C, typed again as long as its outcome is unknown."""
    while True:
        result = await client.call_tool("write_stdin", {"session_id": session, "chars": "\x03"})
        if result.structured_content["exitCode"] is not None:
            return result
        if "whether it was done is unknown" not in text(result):
            return (await read_to_end(client, session))[1]

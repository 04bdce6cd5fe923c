"""MCP servers on another machine, which `execserver run` starts, with the official client.

With `--chaos` their connection is cut all the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, TextContent

from tests.docs.pages import ROOT, blocks_of
from tests.support.wire import alive, wait_gone
from tests.third_party.mcp.elsewhere_server import text_of

SERVER = Path(__file__).with_name("elsewhere_server.py")
INSTALLED = ROOT / ".integrations/mcp/node_modules/.bin/mcp-server-everything"
PAGE = ROOT / "docs/how-to/use-with.md"
CALLS = 200


@dataclass
class Elsewhere:
    """A client, and what its server records."""

    client: Client
    journal: Path
    stderr: Path

    async def number(self, value: int) -> str:
        """The answer without the process ID."""
        return text(await self.client.call_tool("number", {"value": value})).split()[0]

    async def server_pid(self) -> int:
        return int(text(await self.client.call_tool("number", {"value": -1})).split()[-1])

    def calls(self) -> list[int]:
        """What the server was asked, in order."""
        return [int(line) for line in self.journal.read_text().splitlines()]


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@asynccontextmanager
async def elsewhere(url: str, folder: Path, *options: str) -> AsyncIterator[Elsewhere]:
    """The server on the daemon, started as a host does it."""
    journal, stderr = folder / "journal", folder / "stderr"
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "execserver", "run", *options, "--", sys.executable, str(SERVER), str(journal)],
        env={"EXECSERVER_URL": url, "PYTHONPATH": os.getcwd()},
    )
    with stderr.open("w") as errors:
        async with Client(stdio_client(command, errlog=errors)) as client:
            yield Elsewhere(client, journal, stderr)


async def test_each_call_is_answered_once_and_in_order(url: str, tmp_path: Path) -> None:
    async with elsewhere(url, tmp_path) as server:
        answers = [await server.number(value) for value in range(CALLS)]
    assert answers == [str(value) for value in range(CALLS)]
    assert server.calls() == list(range(CALLS))


async def test_calls_at_the_same_time_are_each_answered_once(url: str, tmp_path: Path) -> None:
    async with elsewhere(url, tmp_path) as server:
        answers = await asyncio.gather(*(server.number(value) for value in range(CALLS)))
    assert answers == [str(value) for value in range(CALLS)]
    assert server.calls() == list(range(CALLS))


async def test_large_answers_and_arguments_arrive_whole(url: str, tmp_path: Path) -> None:
    async with elsewhere(url, tmp_path) as server:
        for seed in range(3):
            length = (seed + 1) << 20
            answer = await server.client.call_tool("large", {"seed": seed, "length": length})
            assert text(answer) == text_of(seed, length)
            asked = await server.client.call_tool("matches", {"seed": seed, "text": text_of(seed, length)})
            assert text(asked) == "yes"


async def test_what_the_server_writes_to_stderr_is_not_mixed_into_its_answers(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with elsewhere(url, tmp_path) as server:
        await asyncio.gather(*(server.number(value) for value in range(CALLS)))
    assert server.stderr.read_text().splitlines() == [f"call {value}" for value in range(CALLS)]
    assert caplog.records == []  # the client logs each line that is no message


@pytest.mark.without_chaos
async def test_a_server_in_a_sandbox_answers_and_cannot_write(url: str, tmp_path: Path) -> None:
    async with elsewhere(url, tmp_path, "--sandbox", "read-only") as server:
        answer = await server.client.call_tool("large", {"seed": 1, "length": 1000})
        assert text(answer) == text_of(1, 1000)
        denied = await server.client.call_tool("number", {"value": 1})
        assert denied.is_error
    assert not server.journal.exists()


async def test_a_server_of_npm_is_started_as_a_host_configures_it(url: str) -> None:
    configured = configuration("mcpServers")
    for host in ("mcp_servers", "servers", "context_servers"):
        assert {**configuration(host), "type": "stdio"} == {**configured, "type": "stdio"}, host
    assert configured["command"] == "execserver"
    assert list(configured["env"]) == ["EXECSERVER_URL"]
    *options, npx, yes, package = configured["args"]
    assert [npx, yes, package] == ["npx", "-y", "@modelcontextprotocol/server-everything"]
    command = StdioServerParameters(
        command=str(Path(sys.executable).with_name("execserver")),
        args=[*options, str(INSTALLED)],  # in its pinned version
        env={"EXECSERVER_URL": url},
    )
    steps: list[float] = []

    async def advance(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    with open(os.devnull, "w") as errors:
        async with Client(stdio_client(command, errlog=errors)) as client:
            for value in range(CALLS // 4):
                answer = await client.call_tool("get-sum", {"a": value, "b": 1})
                assert f" {value + 1}." in text(answer)
            await client.call_tool(
                "trigger-long-running-operation", {"duration": 1, "steps": 5}, progress_callback=advance
            )
            echoed = await client.call_tool("echo", {"message": "é" * (1 << 20)})
            assert text(echoed) == "Echo: " + "é" * (1 << 20)
    assert steps == [1, 2, 3, 4, 5]


def configuration(host: str) -> dict[str, Any]:
    """The server in the page's block for a host, by the name of the host's table of servers."""
    for block in blocks_of(PAGE):
        if block.language in ("json", "toml"):
            read = json.loads if block.language == "json" else tomllib.loads
            if host in (settings := read(block.text)):
                server: dict[str, Any] = settings[host]["everything"]
                return server
    raise AssertionError(f"{PAGE} has no block with {host}")


async def test_the_server_ends_with_its_client(url: str, tmp_path: Path) -> None:
    async with elsewhere(url, tmp_path) as server:
        pid = await server.server_pid()
        assert alive(pid)
    assert await asyncio.to_thread(wait_gone, pid)


async def test_the_client_sees_that_the_server_ended(url: str, tmp_path: Path) -> None:
    async with elsewhere(url, tmp_path) as server:
        await server.number(1)
        with pytest.raises(MCPError, match="closed"):
            await server.client.call_tool("end", {"status": 3})

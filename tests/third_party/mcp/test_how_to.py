"""The page does what it says: its program, and the command of each host's configuration."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.docs.pages import ROOT, blocks_of
from tests.third_party.how_to import follow

PAGE = "mcp"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`execserver` is found, and the home is one in which no sandbox may write."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_page(url: str, tmp_path: Path) -> None:
    assert follow(PAGE, url, tmp_path) == 1


def commands() -> dict[str, list[str]]:
    """The commands that the configurations of the hosts start, by host."""
    found = {}
    for block in blocks_of(ROOT / f"docs/how-to/{PAGE}.md"):
        if block.text.startswith("$ claude mcp add"):
            found["claude"] = shlex.split(block.text.partition(" -- ")[2])
        elif block.language == "toml":
            server = tomllib.loads(block.text)["mcp_servers"]["execserver"]
            found["codex"] = [server["command"], *server["args"]]
        elif block.language == "json":
            ((name, servers),) = json.loads(block.text).items()
            server = servers["execserver"]
            found[name] = [server["command"], *server["args"]]
    return found


async def test_the_configuration_of_each_host_starts_the_server(url: str, tmp_path: Path) -> None:
    found = commands()
    assert set(found) == {"claude", "codex", "servers", "context_servers"}
    for command in {tuple(command) for command in found.values()}:
        program, *arguments = [each.replace("${workspaceFolder}", str(tmp_path)) for each in command]
        server = StdioServerParameters(
            command=program, args=arguments, env={**os.environ, "EXECSERVER_URL": url}, cwd=tmp_path
        )
        async with Client(server) as client:
            result = await client.call_tool("exec_command", {"cmd": "pwd", "login": False})
        assert result.structured_content["output"].endswith(f"\n{tmp_path}\n"), command

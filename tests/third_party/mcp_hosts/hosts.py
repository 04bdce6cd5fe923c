"""Runs hosts that others wrote, each with a server of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tomllib
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT, blocks_of
from tests.third_party.mcp_hosts.scripted_model import ScriptedModel

INSPECTOR = ROOT / ".integrations/mcp/node_modules/.bin/mcp-inspector"
CODEX = next((ROOT / ".interop/node_modules/@openai").glob("codex*/vendor/*/bin/codex"))
PAGE = ROOT / "docs/how-to/codex.md"
NAME = "execserver"

HOST_SECONDS = 130
"""Before a host is taken for stuck, and killed."""

TOOL_FAILED = 5
"""The exit status of the inspector if a result has `isError`, as for a command that fails."""

CODEX_CONFIG = """\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
apps = false

[model_providers.scripted]
name = "scripted"
base_url = {model}
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
"""


class HostError(Exception):
    """A host failed; the message has its output."""


@dataclass(frozen=True)
class Home:
    """The home folder of a host, and the workspace of its server."""

    folder: Path
    url: str

    @classmethod
    def made(cls, folder: Path, url: str) -> Home:
        (folder / "workspace").mkdir(parents=True)
        return cls(folder, url)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def pids(self) -> list[int]:
        """The servers, the last one last."""
        return [int(line) for line in (self.folder / "pids").read_text().split()]

    def kill_server(self) -> None:
        """Kill the server that was started last."""
        os.kill(self.pids[-1], signal.SIGKILL)

    def server(self, *options: str) -> list[str]:
        """The command of a server that records its process ID."""
        record = 'echo $$ >> "$0"; exec "$@"'
        server = [sys.executable, "-m", "execserver", "mcp", *options]
        return ["/bin/sh", "-c", record, str(self.folder / "pids"), *server]

    async def run(self, *command: str, statuses: Container[int] = (0,)) -> str:
        """Run a host to its end; its stdout.

        Raises:
            HostError: its exit status is none of these.
        """
        foreign = ("CODEX_", "OPENAI_", "EXECSERVER_", "XDG_", "MCP_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment |= {"HOME": str(self.folder), "CODEX_HOME": str(self.folder), "NO_PROXY": "127.0.0.1"}
        environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")  # no one is there
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=self.workspace, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        ending = asyncio.create_task(process.communicate())
        done, _ = await asyncio.wait({ending}, timeout=HOST_SECONDS)
        if not done:
            process.kill()
        output, errors = await ending
        if process.returncode not in statuses:
            raise HostError(f"{process.returncode}: {output.decode()[-3000:]}\n{errors.decode()[-3000:]}")
        return output.decode()


class Inspector:
    """The inspector of MCP, which starts a server for each request."""

    def __init__(self, home: Home, *options: str) -> None:
        self.home = home
        command, *args = home.server(*options)
        server = {"command": command, "args": args, "env": {"EXECSERVER_URL": home.url}}
        self._config = home.folder / "mcp.json"
        self._config.write_text(json.dumps({"mcpServers": {NAME: server}}))

    async def request(self, method: str, *options: str) -> dict[str, Any]:
        """The result of a request."""
        chosen = ["--config", str(self._config), "--server", NAME, "--method", method, *options]
        output = await self.home.run(str(INSPECTOR), "--cli", *chosen, statuses=(0, TOOL_FAILED))
        result: dict[str, Any] = json.loads(output)
        return result

    async def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """The structured result of a tool."""
        given = [f"{name}={value}" for name, value in arguments.items()]
        result = await self.request("tools/call", "--tool-name", tool, "--tool-arg", *given)
        structured: dict[str, Any] = result["structuredContent"]
        return structured


class Codex:
    """The Codex agent, as its page configures it, with a model that follows a script."""

    def __init__(self, home: Home, model: ScriptedModel) -> None:
        self.home = home
        self._model = model
        command, *args = home.server()
        (block,) = (block for block in blocks_of(PAGE) if "[mcp_servers.execserver]" in block.text)
        server = tomllib.loads(block.text)["mcp_servers"][NAME]
        assert [server["command"], *server["args"]] == ["execserver", "mcp"]
        server |= {"command": command, "args": args}
        lines = [f"{name} = {json.dumps(value)}" for name, value in server.items() if name != "env"]
        lines.append(f"env = {{ EXECSERVER_URL = {json.dumps(home.url)} }}")
        config = CODEX_CONFIG.format(model=json.dumps(model.url))
        table = "\n".join(["[mcp_servers.execserver]", *lines])
        (home.folder / "config.toml").write_text(f"{config}\n{table}\n")

    async def run(self, *subcommand: str) -> None:
        """One turn, to its end."""
        await self.home.run(str(CODEX), "exec", *subcommand, "--skip-git-repo-check", "--json", "begin")

    def result(self, call_id: str) -> dict[str, Any]:
        """The structured result of a call, as the model got it."""
        result: dict[str, Any] = json.loads(self._model.outputs[call_id].partition("Output:\n")[2])
        return result

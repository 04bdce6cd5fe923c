"""The stock agent reaches an HTTP MCP server through the daemon: its requests go out from the executor.

`python -m tests.interop.stock_http_mcp SHARED_FOLDER OPTIONS…` adds the scenario `mcp_http` to those
of the shared stock client, and runs it with the options of its `run_turn.py`.
"""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

NAME = "mcp_http"
SAID = "hello over http"


def add_scenario() -> None:
    """Like the stock client's own scenario with an MCP server, but the server is on a port."""
    scenarios: Any = importlib.import_module("scenarios")
    mini_mcp: Any = importlib.import_module("mini_mcp")

    class McpHttp(scenarios.McpStdio):  # type: ignore[misc]
        name = NAME
        doc = "an MCP server on HTTP is reached through http/request of the exec-server, its tool is called"

        def setup(self, ctx: Any) -> None:
            super().setup(ctx)
            self.server = mini_mcp.http(0)
            threading.Thread(target=self.server.serve_forever, daemon=True).start()

        @property
        def config(self) -> str:
            port = self.server.server_address[1]
            return (
                f'[mcp_servers.mini]\nurl = "http://127.0.0.1:{port}/mcp"\nenvironment_id = "{self.env_id}"\n'
                'default_tools_approval_mode = "approve"\n'
            )

        def script(self, ctx: Any) -> Any:
            call = scenarios.function_call("c1", "echo", {"text": SAID})
            return [[call | {"namespace": "mcp__mini"}], scenarios.DONE]

        def check(self, ctx: Any, c: Any) -> None:
            answer = ctx.mock.text("c1")
            c("the tool answered", f"mini says {SAID}" in answer, answer)
            methods = [
                record["msg"].get("method")
                for record in ctx.rec.records
                if isinstance(record.get("msg"), dict)
            ]
            c("the request went through the exec-server", "http/request" in methods, str(methods)[:300])
            c("the body came in pieces", "http/request/bodyDelta" in methods, str(methods)[:300])
            self.server.shutdown()
            self.server.server_close()

    scenarios.ALL[NAME] = McpHttp


def main(argv: list[str]) -> int:
    """Run the scenario."""
    folder = Path(argv[0]).resolve() / "stock_client"
    if not folder.is_dir():
        sys.stderr.write(f"{folder} is missing: set SHARED to the shared folder\n")
        return 1
    sys.path.insert(0, str(folder))
    add_scenario()
    run_turn: Any = importlib.import_module("run_turn")
    sys.argv = [str(folder / "run_turn.py"), "--scenario", NAME, *argv[1:]]
    return int(run_turn.main() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

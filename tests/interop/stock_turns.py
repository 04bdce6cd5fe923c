"""Scenarios of our own for the stock agent, beside those of the shared stock client.

`python -m tests.interop.stock_turns SHARED_FOLDER --scenario NAME OPTIONS…` adds them to those of the shared
stock client, and runs it with the options of its `run_turn.py`:

- `mcp_http`: the agent reaches an HTTP MCP server through the daemon: its requests go out from the executor;
- `kill_server`: the server process is killed while a command runs, twice; the agent keeps its turn;
- `managed_network`: the agent's commands reach the permitted hosts through the daemon's proxy, and no other.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.servers import server_of

SAID = "hello over http"
GREETING = "hello from the origin"
TICKS = 14


def add_scenarios() -> None:
    """Register them."""
    scenarios: Any = importlib.import_module("scenarios")
    scenarios.ALL["mcp_http"] = _mcp_http(scenarios, importlib.import_module("mini_mcp"))
    scenarios.ALL["kill_server"] = _kill_server(scenarios)
    scenarios.ALL["managed_network"] = _managed_network(scenarios)


def _mcp_http(scenarios: Any, mini_mcp: Any) -> Any:
    """Like the stock client's own scenario with an MCP server, but the server is on a port."""

    class McpHttp(scenarios.McpStdio):  # type: ignore[misc]
        name = "mcp_http"
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
            methods = [message.get("method") for message in _messages(ctx)]
            c("the request went through the exec-server", "http/request" in methods, str(methods)[:300])
            c("the body came in pieces", "http/request/bodyDelta" in methods, str(methods)[:300])
            self.server.shutdown()
            self.server.server_close()

    return McpHttp


def _kill_server(scenarios: Any) -> Any:
    class KillServer(scenarios.Scenario):  # type: ignore[misc]
        name = "kill_server"
        doc = "the server process is killed while a command runs, twice: no output is lost or doubled"
        transport = "ws"
        timeout = 120

        def setup(self, ctx: Any) -> None:
            self.killed: list[int] = []

        def script(self, ctx: Any) -> Any:
            ticks = f"for i in $(seq 1 {TICKS}); do echo tick-$i; sleep 0.5; done; echo the-end; exit 5"
            return [
                [scenarios.run("c1", ticks, yield_time_ms=30_000)],
                [scenarios.run("c2", "echo after-the-kills")],
                scenarios.DONE,
            ]

        def during(self, ctx: Any) -> None:
            if not ctx.wait_wire(_is_output, 30):
                return
            for _ in range(2):
                time.sleep(1.2)
                pid = server_of(ctx.server.pid, 10)
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)
                time.sleep(1)

        def check(self, ctx: Any, c: Any) -> None:
            text = ctx.mock.text("c1")
            seen = [len(re.findall(rf"tick-{number}\b", text)) for number in range(1, TICKS + 1)]
            c("two servers were killed", len(set(self.killed)) == 2, str(self.killed))
            c("every tick exactly once", seen == [1] * TICKS, text)
            c("end and exit code survive", "the-end" in text and scenarios.exit_of(text) == 5, text)
            c("the next command works", "after-the-kills" in ctx.mock.text("c2"), ctx.mock.text("c2"))
            sessions = [
                message["params"].get("resumeSessionId")
                for message in _messages(ctx)
                if message.get("method") == "initialize"
            ]
            c("the session was resumed", len(sessions) >= 3 and all(sessions[1:]), str(sessions))

    return KillServer


def _managed_network(scenarios: Any) -> Any:
    class ManagedNetwork(scenarios.Scenario):  # type: ignore[misc]
        name = "managed_network"
        doc = "a profile with a list of hosts: commands reach those through the server's proxy, and no others"
        needs_sandbox = True
        exec_args = ("--enable", "network_proxy")
        config_top = 'approval_policy = "never"\ndefault_permissions = "guarded"'

        def setup(self, ctx: Any) -> None:
            self.origin = ThreadingHTTPServer(("127.0.0.1", 0), _Greeter)
            threading.Thread(target=self.origin.serve_forever, daemon=True).start()

        @property
        def config(self) -> str:
            # Nothing else than this machine can be reached in a test, so its own addresses are listed.
            return (
                '[permissions.guarded.filesystem]\n":root" = "read"\n":workspace_roots" = { "." = "write" }\n'
                "[permissions.guarded.network]\nenabled = true\nallow_upstream_proxy = false\n"
                '[permissions.guarded.network.domains]\n"127.0.0.1" = "allow"\n"denied.test" = "deny"\n'
            )

        def script(self, ctx: Any) -> Any:
            here = f"127.0.0.1:{self.origin.server_address[1]}"
            commands = (
                f"curl -sS -m 20 http://{here}/; curl -sS -m 20 -p -x $HTTP_PROXY http://{here}/tunnel",
                "curl -sS -m 20 http://denied.test/; curl -sS -m 20 http://other.test/",
                f"curl -sS -m 5 --noproxy '*' http://{here}/; echo direct $?; echo x > inside && echo wrote",
            )
            calls = [[scenarios.run(f"c{number}", text)] for number, text in enumerate(commands)]
            return [*calls, scenarios.DONE]

        def check(self, ctx: Any, c: Any) -> None:
            reached, refused, direct = (ctx.mock.text(f"c{number}") for number in range(3))
            c("a listed host is reached", f"{GREETING} /" in reached, reached)
            c("through a tunnel, too", f"{GREETING} /tunnel" in reached, reached)
            c("a denied host is refused", "Domain denied by the sandbox policy." in refused, refused)
            c("a host that is not listed is refused", "Domain not in allowlist." in refused, refused)
            c("past the proxy nothing is reached", "direct 7" in direct and GREETING not in direct, direct)
            c("the workspace can be written", "wrote" in direct, direct)
            self.origin.shutdown()
            self.origin.server_close()
            if ctx.rec is None:
                return  # sealed by a relay
            starts = [each["params"] for each in _messages(ctx) if each.get("method") == "process/start"]
            c(
                "the agent asked for it",
                all(each.get("enforceManagedNetwork") for each in starts),
                str(starts)[:300],
            )
            decided = [
                (each["params"]["host"], each["params"]["decision"])
                for each in _messages(ctx)
                if each.get("method") == "network/policyDecision"
            ]
            expected = [("127.0.0.1", "allow")] * 2 + [("denied.test", "deny"), ("other.test", "deny")]
            c("each decision was reported", decided == expected, str(decided))

    return ManagedNetwork


class _Greeter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{GREETING} {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the library
        pass


def _messages(ctx: Any) -> list[dict[str, Any]]:
    return [record["msg"] for record in ctx.rec.records if isinstance(record.get("msg"), dict)]


def _is_output(record: Any) -> bool:
    return isinstance(record.get("msg"), dict) and record["msg"].get("method") == "process/output"


def main(argv: list[str]) -> int:
    """Run scenarios."""
    folder = Path(argv[0]).resolve() / "stock_client"
    if not folder.is_dir():
        sys.stderr.write(f"{folder} is missing: set SHARED to the shared folder\n")
        return 1
    sys.path.insert(0, str(folder))
    add_scenarios()
    run_turn: Any = importlib.import_module("run_turn")
    sys.argv = [str(folder / "run_turn.py"), *argv[1:]]
    return int(run_turn.main() or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

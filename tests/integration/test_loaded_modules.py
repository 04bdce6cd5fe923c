"""What a daemon on stdio has loaded: at *ready*, after the first command, and a moment later."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NOT_YET = {"structlog"}
"""Libraries that take 20 ms and more to load."""

NEVER = {"jsonrpcserver", "picows", "pydantic_core"}
"""Libraries that a daemon on stdio needs for standard JSON-RPC and for URLs only."""

# The server, with its modules written down at each of these moments.
SERVER = """
import gc, sys
gc.disable()
folder = sys.argv.pop(1)

def write(moment):
    with open(f"{folder}/{moment}", "w") as file:
        file.write("\\n".join(sys.modules))

from execserver.supervisor.server_channel import ServerChannel
send = ServerChannel.send

def spy(channel, message):
    if message["type"] == "ready":
        write("ready")
        from execserver import late_modules
        load = late_modules.load_late_modules

        def load_and_write(**options):
            load(**options)
            write("later")

        late_modules.load_late_modules = load_and_write
    elif message["type"] == "stopping":
        write("end")
    send(channel, message)

ServerChannel.send = spy
from execserver import cli
sys.exit(cli.main(sys.argv[1:]))
"""

SUPERVISOR = """
import sys
from execserver.supervisor.start import run
folder, server = sys.argv[1:]
sys.exit(run(["--listen", "stdio"], (sys.executable, "-I", "-X", "utf8", "-c", server, folder)))
"""


class Daemon:
    """A daemon on stdio."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", SUPERVISOR, str(folder), SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )
        self._number = 0

    def call(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The answer to a request."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        return self.message(lambda message: message.get("id") == self._number)

    def message(self, wanted: Any) -> dict[str, Any]:
        """The next message of a kind; others are dropped."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if wanted(message):
                return message
        raise AssertionError("the daemon has ended")

    def begin(self) -> None:
        """The handshake."""
        self.call("initialize", clientName="test")
        self._send({"method": "initialized", "params": {}})

    def run(self, process_id: str) -> None:
        """Run a command to its end."""
        start = {"processId": process_id, "argv": ["/bin/true"], "cwd": "file:///", "env": {}, "tty": False}
        assert "result" in self.call("process/start", **start, pipeStdin=False, arg0=None)
        self.message(lambda message: message.get("method") == "process/closed")

    def end(self) -> None:
        """End it, by the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    def modules(self, moment: str) -> set[str]:
        """What was loaded by then."""
        return set((self._folder / moment).read_text().split())

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


def test_a_server_is_ready_before_the_rest_is_loaded(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.begin()
    daemon.end()
    assert daemon.modules("ready") & (NOT_YET | NEVER) == set()


def test_a_moment_after_ready_everything_is_loaded_that_requests_need(tmp_path: Path) -> None:
    """So that an upgrade may replace the files."""
    daemon = Daemon(tmp_path)
    daemon.begin()
    while not (tmp_path / "later").exists():
        time.sleep(0.02)
    (tmp_path / "file").write_bytes(b"text")
    path = f"file://{tmp_path}/file"
    assert daemon.call("fs/readFile", path=path)["result"] == {"dataBase64": "dGV4dA=="}
    assert daemon.call("fs/getMetadata", path=path)["result"]["size"] == 4
    assert daemon.call("process/list")["result"]["processes"] == []
    assert daemon.call("server/health")["result"]["status"] == "ok"
    assert "error" in daemon.call("http/request", method="GET", url="http://127.0.0.1:1/", headers=[])
    daemon.run("p")
    daemon.end()
    later = daemon.modules("later")
    assert NOT_YET - later == set()
    assert NEVER & later == set()
    assert {
        name for name in daemon.modules("end") - later if name.startswith(("execserver.", "execprotocol."))
    } == set()

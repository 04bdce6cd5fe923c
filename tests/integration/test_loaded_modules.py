"""What a daemon on stdio has loaded: at *ready*, after the first command, and a moment later."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NOT_YET = {
    *("argparse", "dataclasses", "hashlib", "http", "inspect", "linecache", "msgspec.inspect", "pathlib"),
    *("platform", "pydantic_core", "shutil", "ssl", "structlog", "subprocess", "tempfile"),
    *("traceback", "urllib.parse"),
    *("execserver.api.filesystem", "execserver.api.health", "execserver.api.http"),
    *("execserver.api.observing", "execserver.configuration.options", "execserver.filesystem.files"),
    *("execserver.filesystem.worker_pool", "execserver.fsworker.process", "execserver.http.client"),
    *("execserver.processes.inside", "execserver.rpc.standard", "execserver.sandbox.backends"),
    *("execserver.sandbox.mount_points", "execserver.sandbox.policy", "execserver.sandbox.probe"),
    *("execserver.telemetry.definitions", "execserver.transports.http_head"),
    *("execserver.transports.sockets", "execserver.worker_launch"),
}
"""Takes long to load, or belongs to something that the first command does not need."""

NEVER = frozenset({"argparse", "execserver.configuration.options"})
"""Of a command line that says no more than where to listen."""

# The server, with its modules written down at each of these moments. `Later` stands for a module.
SERVER = """
import gc, sys
gc.disable()
folder = sys.argv.pop(1)

def write(moment):
    names = [name for name, module in list(sys.modules.items()) if type(module).__name__ != "Later"]
    with open(f"{folder}/{moment}", "w") as file:
        file.write("\\n".join(names))

from execserver.supervisor.channel import ServerChannel
send = ServerChannel.send

def spy(channel, message):
    if message["type"] == "ready":
        write("ready")
        from execserver import server
        begin, load = server.logs.begin, server.load_the_rest

        def write_and_begin():
            server.logs.begin = begin
            write("first")
            begin()

        def load_and_write():
            load()
            write("later")

        server.logs.begin, server.load_the_rest = write_and_begin, load_and_write
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


def test_the_first_command_is_answered_before_the_rest_is_loaded(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.begin()
    daemon.run("p")
    while not (tmp_path / "later").exists():
        daemon.call("environment/status")
    daemon.end()
    assert daemon.modules("ready") & NOT_YET == set()
    assert daemon.modules("first") & NOT_YET == set()


def test_a_moment_after_ready_everything_is_loaded_that_requests_need(tmp_path: Path) -> None:
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
    assert NOT_YET - NEVER - later == set()
    assert NEVER & later == set()
    assert {name for name in daemon.modules("end") - later if name.startswith("execserver.")} == set()

"""Run a command in an execserver daemon, with nothing but the standard library.

    python agent_host.py SOCKET PROGRAM [ARGUMENT...]

Prints what the command prints, and ends with its exit code. A lost connection is made again, and
the output goes on behind the last number that was seen.
"""

import base64
import json
import os
import socket
import sys
import time
from typing import Any

Json = dict[str, Any]
PATIENCE = 60.0  # the daemon keeps a session for 80 seconds after its connection was lost


class Executor:
    """A connection that speaks standard JSON-RPC 2.0, a message a line."""

    def __init__(self, path: str) -> None:
        self.path, self.last_id = path, 0
        self.session: str | None = None
        self.events: list[Json] = []
        self.connect()

    def connect(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.path)
        self.lines = self.socket.makefile("rb")
        who = {"clientName": "agent_host.py", "resumeSessionId": self.session}
        self.session = self.call("initialize", who)["sessionId"]
        self.send({"method": "initialized"})

    def reconnect(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            self.socket.close()
            try:
                return self.connect()
            except (OSError, EOFError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def send(self, message: Json) -> None:
        self.socket.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def receive(self) -> Json:
        line = self.lines.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the daemon closed the connection")
        message: Json = json.loads(line)
        return message

    def call(self, method: str, params: Json) -> Json:
        """The result of a request. Events that come before it wait in `events`."""
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        while (message := self.receive()).get("id") != self.last_id:
            self.events.append(message)
        if "error" in message:
            error = message["error"]
            raise RuntimeError(f"{method}: {error['message']} ({error['data']['code']})")
        result: Json = message["result"]
        return result

    def next_event(self) -> Json:
        return self.events.pop(0) if self.events else self.receive()


def run(executor: Executor, argv: list[str]) -> int:
    process, seen, status = f"command-{time.time_ns()}", 0, 1
    start = {"processId": process, "argv": argv, "cwd": f"file://{os.getcwd()}"}
    executor.call("process/start", {**start, "env": dict(os.environ), "tty": False})
    while True:
        try:
            event = executor.next_event()
        except (OSError, EOFError):
            executor.events.clear()
            executor.reconnect()
            page = executor.call("process/read", {"processId": process, "afterSeq": seen})
            for chunk in page["chunks"]:
                show(chunk)
            seen = page["nextSeq"] - 1
            if page["exited"]:
                status = page["exitCode"]
            if page["closed"]:
                return status
            continue
        params = event["params"]
        if params["seq"] <= seen:
            continue
        seen = params["seq"]
        if event["method"] == "process/output":
            show(params)
        elif event["method"] == "process/exited":
            status = params["exitCode"]
        elif event["method"] == "process/closed":
            return status


def show(chunk: Json) -> None:
    stream = sys.stderr if chunk["stream"] == "stderr" else sys.stdout
    stream.buffer.write(base64.b64decode(chunk["chunk"]))
    stream.flush()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python agent_host.py SOCKET PROGRAM [ARGUMENT...]")
    try:
        sys.exit(run(Executor(sys.argv[1]), sys.argv[2:]))
    except (RuntimeError, OSError, EOFError) as error:
        sys.exit(f"agent_host.py: {error}")

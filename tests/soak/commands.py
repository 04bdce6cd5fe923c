"""Short commands of every kind a client starts, run many at a time and checked to the byte."""

import base64
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.wire import Connection

SESSIONS_AT_ONCE = 8
IN_FLIGHT_PER_SESSION = 4
COMMANDS_PER_SESSION = 50


@dataclass(frozen=True)
class Command:
    """A command and what must come of it; no exit code: the start must fail."""

    name: str
    argv: Sequence[str]
    output: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = 0
    tty: bool = False
    stdin: bytes = b""
    terminate: bool = False


_ECHO_LINE = 'read line; echo "got $line"'

COMMANDS = (
    Command("pipes", ["/bin/echo", "hello"], {"stdout": b"hello\n"}),
    Command(
        "both streams",
        ["/bin/sh", "-c", "echo out; echo err >&2; exit 3"],
        {"stdout": b"out\n", "stderr": b"err\n"},
        exit_code=3,
    ),
    Command("many chunks", ["/usr/bin/head", "-c", "200000", "/dev/zero"], {"stdout": bytes(200_000)}),
    Command("piped stdin", ["/bin/sh", "-c", _ECHO_LINE], {"stdout": b"got hello\n"}, stdin=b"hello\n"),
    Command("terminal", ["/bin/echo", "hello"], {"pty": b"hello\r\n"}, tty=True),
    # The terminal's own echo comes first.
    Command(
        "typing",
        ["/bin/sh", "-c", _ECHO_LINE],
        {"pty": b"hello\r\ngot hello\r\n"},
        tty=True,
        stdin=b"hello\n",
    ),
    Command("terminated", ["/bin/sleep", "600"], exit_code=137, terminate=True),
    Command("missing program", ["/nonexistent/program"], exit_code=None),
    Command(
        "leaves a child behind",
        ["/bin/sh", "-c", "sleep 600 >/dev/null 2>&1 & echo left"],
        {"stdout": b"left\n"},
    ),
    Command(
        "leaves a daemon behind",
        ["/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo left"],
        {"stdout": b"left\n"},
    ),
)


@dataclass
class _Running:
    process: str
    command: Command
    output: defaultdict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))
    last_seq: int = 0
    exit_code: int | None = None
    refused: bool = False
    terminating: bool = False
    # Replies still to come; a command is over when it is closed (or refused) and none is.
    replies: int = 1
    closed: bool = False

    @property
    def over(self) -> bool:
        return not self.replies and (self.closed or self.refused)


class SessionLoad:
    """Runs commands on one connection, a few at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._running: dict[str, _Running] = {}
        self._replies: dict[int, _Running] = {}

    def run(self, commands: Sequence[Command]) -> None:
        """Run all of them to their end.

        Raises:
            AssertionError: output, exit code, order of events or a reply is not what it must be.
        """
        for number, command in enumerate(commands):
            while len(self._running) >= IN_FLIGHT_PER_SESSION:
                self._handle_next()
            self._start(f"{command.name} {number}", command)
        while self._running:
            self._handle_next()

    def _request(self, running: _Running, method: str, params: dict[str, Any]) -> None:
        number = len(self._replies)
        self._replies[number] = running
        message = {"id": number, "method": method, "params": params}
        self._connection.send(self._connection.frame(json.dumps(message).encode()))

    def _start(self, process: str, command: Command) -> None:
        running = self._running[process] = _Running(process, command)
        params = {
            "processId": process,
            "argv": list(command.argv),
            "cwd": "file:///tmp",
            "env": {"PATH": "/usr/bin:/bin"},
            "tty": command.tty,
            "pipeStdin": bool(command.stdin) and not command.tty,
        }
        self._request(running, "process/start", params)
        if command.stdin:
            running.replies += 1
            chunk = base64.b64encode(command.stdin).decode()
            self._request(running, "process/write", {"processId": process, "chunk": chunk, "writeId": "1"})

    def _handle_next(self) -> None:
        message = json.loads(self._connection.receive())
        if "method" in message:
            process = message["params"]["processId"]
            self._event(self._running[process], message["method"], message["params"])
        else:
            self._reply(self._replies[message["id"]], message)
        for running in [running for running in self._running.values() if running.over]:
            self._check(self._running.pop(running.process))

    def _reply(self, running: _Running, message: dict[str, Any]) -> None:
        running.replies -= 1
        if "error" in message:
            assert running.command.exit_code is None, (running.command.name, message)
            running.refused = True
        elif running.command.terminate and not running.terminating:
            # Not before the start is answered: a terminate that overtakes it cancels it.
            running.terminating = True
            running.replies += 1
            self._request(running, "process/terminate", {"processId": running.process})

    @staticmethod
    def _event(running: _Running, method: str, params: dict[str, Any]) -> None:
        assert params["seq"] == running.last_seq + 1, (running.command.name, params["seq"], running.last_seq)
        running.last_seq = params["seq"]
        match method:
            case "process/output":
                running.output[params["stream"]] += base64.b64decode(params["chunk"])
            case "process/exited":
                running.exit_code = params["exitCode"]
            case "process/closed":
                running.closed = True

    @staticmethod
    def _check(running: _Running) -> None:
        command = running.command
        assert running.exit_code == command.exit_code, (command.name, running.exit_code)
        assert dict(running.output) == command.output, (command.name, dict(running.output))


def run_sessions(connect: Callable[[], Connection], count: int, seed: int = 0) -> None:
    """Run `count` commands in sessions of at most 50: eight sessions at a time, four commands in flight each.

    Eight sessions end together, by their connections being dropped: so a warm-up has seen the most that the
    server ever does at once. The mix is random, the same for the same seed.
    """
    chosen = random.Random(seed)
    # Small counts are spread over eight sessions too: a warm-up must reach what the load reaches.
    most = max(1, min(COMMANDS_PER_SESSION, count // SESSIONS_AT_ONCE))
    sizes = [min(most, count - first) for first in range(0, count, most)]
    parts = [chosen.choices(COMMANDS, k=size) for size in sizes]
    with ThreadPoolExecutor(SESSIONS_AT_ONCE) as pool:
        for first in range(0, len(parts), SESSIONS_AT_ONCE):
            wave = parts[first : first + SESSIONS_AT_ONCE]
            connections = [connect() for _ in wave]
            try:
                list(pool.map(lambda connection, part: SessionLoad(connection).run(part), connections, wave))
            finally:
                for connection in connections:
                    connection.close()

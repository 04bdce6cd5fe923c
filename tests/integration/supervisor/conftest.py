"""Real supervisors with the fake server, and a pipe that reports events."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from execserver.descendants import kill_descendants
from execserver.supervisor import restart_policy
from tests.support import fake_server

LIMIT_S = 8.0
"""In which everything has ended: 0.1 on an idle machine. Below the grace of 10 for what hangs."""

SUPERVISOR = (
    "import sys; from execserver.supervisor import program, restart_policy, start; "
    "program.STOP_GRACE_S = program.UPGRADE_GRACE_S = {grace}; restart_policy.BACKOFF_S = {backoff}; "
    "restart_policy.STEADY_S = {steady}; "
    "sys.exit(start.run(sys.argv[2:], ({interpreter!r}, '-I', sys.argv[1])))"
)
# A command that leaves a daemon: double fork, own session, empty environment; and stays itself.
DAEMON = """
(setsid env -i /bin/sh -c 'echo "{{\\"event\\": \\"daemon\\", \\"pid\\": $$}}" >{journal}; exec sleep 600' &)
echo "{{\\"event\\": \\"command\\", \\"pid\\": $$}}" >{journal}
exec sleep 600
"""


class Service:
    """A supervisor process, its fake server and their events."""

    def __init__(self, folder: Path, arguments: Sequence[str], **options: Any) -> None:
        self.journal_path = folder / f"journal-{len(os.listdir(folder))}"
        os.mkfifo(self.journal_path)
        # Open for both: no end of file when a writer leaves.
        self._journal = os.open(self.journal_path, os.O_RDWR)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self.instance: int | None = None
        daemon = DAEMON.format(journal=self.journal_path)
        program = SUPERVISOR.format(
            grace=options.pop("grace", 10.0),
            backoff=options.pop("backoff", restart_policy.BACKOFF_S),
            steady=options.pop("steady", restart_policy.STEADY_S),
            interpreter=options.pop("interpreter", sys.executable),
        )
        server = options.pop("server", fake_server).__file__
        command = [sys.executable, "-I", "-c", program, server]
        if server == fake_server.__file__:
            command += ["--fake-journal", str(self.journal_path)]
        nested = [*command, "--listen", f"unix://{folder}/nested", "--fake-run", daemon]
        programs = {"{daemon}": daemon, "{nested}": f"(setsid {shlex.join(nested)} &)"}
        environment = {
            "PATH": os.environ["PATH"],
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "EXECSERVER_CONFIG": "",
        }
        environment |= options.pop("env", {})
        launcher = options.pop("launcher", [])
        pipes: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        self.process = subprocess.Popen(
            [*launcher, *command, *(programs.get(argument, argument) for argument in arguments)],
            env=environment,
            **{**pipes, **options},
        )
        self.pid = self.process.pid

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the next event of that name."""
        while True:
            for index, event in enumerate(self._events):
                if event["event"] == name:
                    return self._events.pop(index)
            self._read_journal()

    def _read_journal(self) -> None:
        self._unread += os.read(self._journal, 4096)
        *lines, self._unread = self._unread.split(b"\n")
        self._events += map(json.loads, lines)
        for event in self._events:
            if event["event"] == "hello" and self.instance is None:
                self.instance = event["instance"]

    def url(self) -> str:
        """The next line of stdout."""
        assert self.process.stdout is not None
        return str(self.process.stdout.readline().decode().rstrip("\n"))

    def error_line(self) -> str:
        """The next line of stderr."""
        assert self.process.stderr is not None
        return str(self.process.stderr.readline().decode().rstrip("\n"))

    def end(self, timeout: float = 20) -> tuple[int, str, str]:
        """Wait for the end: exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, (out or b"").decode(), (err or b"").decode()

    def clean(self) -> None:
        """Kill all processes, also after a failed test."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        # A test that never asked for the server's hello leaves it unread: without the instance the server
        # would outlive its supervisor by a moment, and write into the folder while it is removed.
        while select.select([self._journal], [], [], 0)[0]:
            self._read_journal()
        if self.instance is not None:
            kill_descendants(self.instance)
        os.close(self._journal)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Watched:
    """A process behind a pidfd, so that its pid is never used later."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def ended(self, seconds: float = 0) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def send(self, number: int) -> None:
        signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        os.close(self._pidfd)


Start = Callable[..., Service]
Watch = Callable[[int], Watched]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="sup-"))
    (path / "runtime").mkdir()
    (path / "state").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start a service: `start("--listen", URL, …, env=…)`."""
    services: list[Service] = []

    def begin(*arguments: str, **options: Any) -> Service:
        services.append(Service(folder, arguments, **options))
        return services[-1]

    yield begin
    for service in services:
        service.clean()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Watch a living process: `watch(pid)`."""
    watched: list[Watched] = []

    def begin(pid: int) -> Watched:
        watched.append(Watched(pid))
        return watched[-1]

    yield begin
    for process in watched:
        process.close()

"""Executors, ours and the stock one, that dial a relay, for the suites with the stock binary.

    with stock_executor(codex, relay, "box", tmp_path / "home") as executor:
        executor.wait_online(relay, "box")
        executor.end(signal.SIGKILL)

Each is a process with a home folder of its own; what it prints is kept, and a test that fails shows it. None
can reach anything but this machine: every other destination meets a proxy that is not there.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.relay_service import RelayService
from tests.support.wire import PATIENCE

DEAD_PROXY = "http://127.0.0.1:9"


class Peer:
    """One process, ended with the `with` block.

    Args:
        argv: what to start.
        home: its home folder, made here; its output goes there, too.
        env: further variables.
        line: its standard input, if it wants some.
    """

    def __init__(
        self, argv: Sequence[str], home: Path, *, env: Mapping[str, str] | None = None, line: str = ""
    ) -> None:
        home.mkdir(parents=True)
        self._argv = list(argv)
        self._log = home / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**_environment(home), **(env or {})},
                cwd=home,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What it said on stderr."""
        return self._log.read_text(errors="replace")

    def first_line(self) -> str:
        """The first line on stdout, which is the address that a listener has bound."""
        assert self._process.stdout is not None
        line, deadline = b"", time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 4096) if ready else b""
            assert data, f"no address came: {self.log}"
            line += data
        return line.decode().strip()

    def wait_online(self, relay: RelayService, environment_id: str) -> None:
        """Wait until some executor is there, which fails at once when this one has ended."""
        deadline = time.monotonic() + PATIENCE
        while not any(row["environment"] == environment_id for row in relay.environments()):
            assert self._process.poll() is None, f"it ended: {self.log}"
            assert time.monotonic() < deadline, f"it is not online: {self.log}"

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal, and wait until it has ended."""
        self._process.send_signal(number)
        self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            if error is not None:
                sys.stderr.write(f"--- {self._argv}\n{self.log}\n")


def our_executor(
    relay: RelayService, environment_id: str, home: Path, *flags: str, env: Mapping[str, str] | None = None
) -> Peer:
    """`execserver serve --remote`."""
    command = [sys.executable, "-m", "execserver", "serve", *_remote(relay, environment_id), *flags]
    token = relay.token("executor", environment_id)
    return Peer(command, home, env={"EXECSERVER_REMOTE_TOKEN": token, **(env or {})})


def stock_executor(
    codex: str, relay: RelayService, environment_id: str, home: Path, *, env: Mapping[str, str] | None = None
) -> Peer:
    """`codex exec-server --remote`."""
    command = [codex, "exec-server", *_remote(relay, environment_id), "--registration-bearer-stdin"]
    return Peer(command, home, env=env, line=relay.token("executor", environment_id) + "\n")


def stock_forwarder(codex: str, relay: RelayService, environment_id: str, home: Path, url: str) -> Peer:
    """`codex exec-server forward`, in front of a listener."""
    command = [codex, "exec-server", "forward", *_remote(relay, environment_id)]
    command += ["--connect", url, "--registration-bearer-stdin"]
    return Peer(command, home, line=relay.token("executor", environment_id) + "\n")


def our_listener(home: Path) -> Peer:
    """`execserver serve --listen ws://…`."""
    return Peer([sys.executable, "-m", "execserver", "serve", "--listen", "ws://127.0.0.1:0"], home)


def stock_listener(codex: str, home: Path) -> Peer:
    """`codex exec-server --listen ws://…`."""
    return Peer([codex, "exec-server", "--listen", "ws://127.0.0.1:0"], home)


def _remote(relay: RelayService, environment_id: str) -> list[str]:
    return ["--remote", relay.url, "--environment-id", environment_id]


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CODEX_", "OPENAI_", "EXECSERVER_")) and "proxy" not in name.lower()
    }
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), DEAD_PROXY)
    own = {"HOME": str(home), "CODEX_HOME": str(home), "SHELL": "/bin/bash", "EXECSERVER_CONFIG": ""}
    return {**kept, **proxies, "NO_PROXY": "127.0.0.1,localhost", **own}

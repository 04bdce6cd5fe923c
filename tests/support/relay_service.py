"""A real `execserver relay serve` for tests, with a state folder of its own; tokens come by the command line.

    with RelayService(tmp_path / "relay") as relay:
        executor, client = relay.token("executor", "box"), relay.token("client", "box")
        relay.url                  # http://127.0.0.1:PORT, what `--remote` takes
        relay.client_url("box")    # relay+http://127.0.0.1:PORT?environment=box, what `connect` takes
        relay.environments()       # the rows of `relay environments --json`
        relay.metrics()            # {"execserver_relay_streams": 0.0, ...}; with labels: name{label="value"}
        relay.wait_online("box")   # until an executor's socket is there
        relay.kill()               # SIGKILL
        relay.start()              # again: the same port, the same state folder
        relay.stop()               # SIGTERM; the exit status

Starting takes about 0.5 s and each token 0.1 s: share a relay among the tests of a module, with an
environment id for each test. Everything is synchronous; from a coroutine call it with `asyncio.to_thread`
where the loop must not wait.
`nats=("--nats", url)` makes it a relay of a fleet, whose tokens are in the NATS cluster.
`command(...)` runs any `execserver relay` command to its end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from execserver.relay.service.control_socket import ask_relay
from tests.support.servers import free_ports
from tests.support.wire import PATIENCE

PROGRAM = (sys.executable, "-m", "execserver", "relay")


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `execserver relay ARGUMENTS` to its end; nothing is checked."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment() | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def environment() -> dict[str, str]:
    """The variables of this process, without those that are meant for a daemon or a service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    kept.pop("NOTIFY_SOCKET", None)
    return kept | {"EXECSERVER_CONFIG": ""}


class RelayService:
    """One relay process.

    Args:
        state: its state folder; made when missing.
        flags: more flags of `relay serve`.
        listen: where; port 0 is a free one, the same at each start.
        start: whether to start at once.
        env: variables besides those of this process.
        nats: the flags of a fleet, for `serve` and for `token`.
        ready: whether `start` waits until the relay is ready; of a fleet only.
    """

    def __init__(
        self,
        state: Path,
        *flags: str,
        listen: str = "http://127.0.0.1:0",
        start: bool = True,
        env: Mapping[str, str] | None = None,
        nats: Sequence[str] = (),
        ready: bool = True,
    ) -> None:
        self.nats = tuple(nats)
        self._ready = ready
        self._notes: dict[str, str] = {}  # of tokens that a fleet keeps
        self.state = state
        self.flags = flags
        self.url = ""
        """The base URL, as the relay printed it."""
        self._listen = re.sub(r":0(?=/|$)", lambda _: f":{free_ports(1)[0]}", listen)
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running.pid

    @property
    def log(self) -> str:
        """All that it said on stderr, over all starts."""
        position = os.lseek(self._log.fileno(), 0, os.SEEK_END)
        return os.pread(self._log.fileno(), position, 0).decode(errors="replace")

    def log_lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of an event."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    # -- life

    def start(self) -> None:
        """Start and wait until it serves."""
        assert self._process is None, "it runs"
        command_line = [*PROGRAM, "serve", "--listen", self._listen, "--state-dir", str(self.state)]
        self._process = subprocess.Popen(
            [*command_line, *self.flags, *self.nats],
            env=environment() | self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().rstrip("\n")
        if not self.url:
            status = self._reap()
            raise RuntimeError(f"the relay ended with {status}: {self.log[-2000:]}")
        if self.nats and self._ready:
            self.wait_ready()

    def wait_ready(self, timeout: float = PATIENCE) -> None:
        """Wait until it admits peers."""
        wait_until(lambda: not self.fault(), timeout, "the relay is not ready")

    def fault(self) -> str:
        """Why it is not ready, as its page says; empty if it is. It must listen on http."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=PATIENCE):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._running.pid, number)

    def stop(self) -> int:
        """SIGTERM, and wait; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process; the exit status."""
        self._running.wait(PATIENCE)
        return self._reap()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """End it in whatever state it is (idempotent)."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._reap()
        self._log.close()

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it does not run"
        return self._process

    def _reap(self) -> int:
        process, self._process = self._running, None
        assert process.stdout is not None
        process.stdout.close()
        return process.wait(PATIENCE)

    # -- what is asked of it

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `execserver relay ARGUMENTS --state-dir STATE`."""
        return command(*arguments, "--state-dir", str(self.state))

    def token(self, role: str, *environments: str, flags: Sequence[str] = ()) -> str:
        """A new token by `relay token create`, in NATS if that is where this relay has its tokens."""
        named = [argument for each in environments for argument in ("--environment", each)]
        note = secrets.token_hex(8)
        noted = ("--note", note) if self.nats else ()
        result = self._tokens("create", "--role", role, *named, *noted, *flags)
        assert result.returncode == 0, result.stderr
        token = result.stdout.rstrip("\n")
        self._notes[token] = note
        return token

    def revoke(self, token: str) -> None:
        """Revoke a token by `relay token revoke`; in a fleet, one that this object has made."""
        if self.nats:
            rows = json.loads(self._tokens("list", "--json").stdout)
            (number,) = [row["id"] for row in rows if row["note"] == self._notes[token]]
        else:
            digest = hashlib.sha256(token.encode()).hexdigest()
            rows = json.loads((self.state / "tokens.json").read_text())["tokens"]
            (number,) = [row["id"] for row in rows if row["sha256"] == digest]
        result = self._tokens("revoke", number)
        assert result.returncode == 0, result.stderr

    def _tokens(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return command("token", *arguments, *(self.nats or ("--state-dir", str(self.state))))

    def client_url(self, environment: str) -> str:
        """What `execclient.connect` takes."""
        return f"relay+{self.url}?environment={environment}"

    def environments(self) -> list[dict[str, Any]]:
        """Who is online: the rows of `relay environments --json`."""
        result = self.command("environments", "--json")
        assert result.returncode == 0, result.stderr
        rows: list[dict[str, Any]] = json.loads(result.stdout)
        return rows

    def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page on the control socket."""
        samples = {}
        for line in ask_relay(self.state, "/metrics").decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def wait_online(self, environment: str, timeout: float = PATIENCE) -> None:
        """Wait until an executor's socket is there for an environment."""

        def online() -> bool:
            rows = json.loads(ask_relay(self.state, "/environments"))
            return any(row["environment"] == environment for row in rows)

        wait_until(online, timeout, f"{environment} is not online")


def wait_until(
    condition: Callable[[], bool], timeout: float = PATIENCE, what: str = "it did not happen"
) -> None:
    """Ask again, every few milliseconds, until it is so."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)

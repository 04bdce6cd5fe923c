"""Real `nats-server` processes for tests: one, or a cluster with JetStream, on loopback.

    with NatsServers(tmp_path / "nats", 3) as nats:
        nats.url                   # nats://127.0.0.1:P1,nats://127.0.0.1:P2,...: what `--nats` takes
        nats[0].kill()             # SIGKILL
        nats[0].start()            # again: the same ports, the same store
        nats[1].pause()            # SIGSTOP
        nats[1].resume()           # SIGCONT
        nats[2].stop()             # SIGTERM
        nats.wait_ready()          # until every running server is healthy, and the cluster has a leader

A single server starts in 0.1 s, a cluster of three in 2 to 6 s: share it among the tests of a module, with a
prefix for each test. Everything is synchronous; from a coroutine call it with `asyncio.to_thread` where the
loop must not wait. `jwt_files` makes the credentials of an operator, an account and a user.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import nkeys

from tests.support.relay_service import wait_until
from tests.support.servers import free_ports
from tests.support.wire import PATIENCE


def program() -> str:
    """The path of nats-server: of this environment, else of the PATH."""
    found = Path(sys.executable).parent / "nats-server"
    path = str(found) if found.exists() else shutil.which("nats-server")
    assert path is not None, "nats-server is missing: `make setup` installs it"
    return path


class NatsServer:
    """One server.

    Args:
        name: unique in its cluster.
        folder: of its configuration and its log.
        store: of its streams.
        host: the host in its URL.
        launcher: a command in front, to start it under other circumstances.
    """

    def __init__(self, name: str, folder: Path, store: Path, host: str, launcher: Sequence[str] = ()) -> None:
        self.name = name
        self.folder = folder
        self.store = store
        self.port, self.route_port, self.monitor_port = free_ports(3)
        self.url = f"nats://{host}:{self.port}"
        self.configuration = ""
        """The text of its configuration file, which `start` writes."""
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process was started and not ended, stopped or not."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it logged, over all starts."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it; does not wait until it serves."""
        assert self._process is None, "it runs"
        path = self.folder / "server.conf"
        path.write_text(self.configuration)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._launcher, program(), "-c", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open, and it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def read(self, path: str) -> dict[str, Any]:
        """A page of its monitoring port, as JSON."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}{path}", timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def is_healthy(self) -> bool:
        """Whether it serves, and its streams are up to date."""
        try:
            return self.read("/healthz").get("status") == "ok"
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def _end(self, number: int) -> None:
        os.kill(self.pid, number)
        assert self._process is not None
        self._process.wait(PATIENCE)
        self._process = None


class NatsServers:
    """A server, or a cluster of several with one JetStream.

    Args:
        folder: of configurations, logs and stores; made when missing.
        count: how many servers.
        jetstream: whether streams can be kept; False: core NATS only.
        settings: more lines of each configuration file, for example `authorization { token: "t" }`.
        stores: the folders of the servers' streams, for example on small disks.
        max_file: the most bytes that a server keeps in files.
        host: the host in `url`, for certificates that have no IP address.
        launcher: a command in front of each server, for example to give it a small disk.
        advertise: whether clients learn of the other servers from one.
        start: whether to start at once, and wait until all serve.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        *,
        jetstream: bool = True,
        settings: str = "",
        stores: list[Path] | None = None,
        max_file: int = 256 << 20,
        host: str = "127.0.0.1",
        launcher: Sequence[str] = (),
        advertise: bool = True,
        start: bool = True,
    ) -> None:
        self._jetstream = jetstream
        self._advertise = advertise
        self.servers: list[NatsServer] = []
        for index in range(count):
            own = folder / f"n{index}"
            own.mkdir(parents=True, exist_ok=True)
            store = stores[index] if stores is not None else own / "store"
            self.servers.append(NatsServer(f"n{index}", own, store, host, launcher))
        for server in self.servers:
            server.configuration = self._configuration(server, settings, max_file)
        if start:
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, index: int) -> NatsServer:
        return self.servers[index]

    @property
    def url(self) -> str:
        """All servers, as `--nats` takes them."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        """Start all that do not run, and wait until all serve."""
        try:
            for server in self.servers:
                if not server.is_running:
                    server.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self, timeout: float = PATIENCE) -> None:
        """Wait until every running server is healthy, and the cluster has a leader that all know."""
        running = [server for server in self.servers if server.is_running]
        logs = {server.name: server.folder / "log" for server in running}

        def is_ready() -> bool:
            if not all(server.is_healthy() for server in running):
                return False
            if not self._jetstream or len(self.servers) == 1:
                return True
            return len({self._leader(server) for server in running} - {""}) == 1 and all(
                self._leader(server) for server in running
            )

        wait_until(is_ready, timeout, f"the servers are not ready, see {logs}")

    def leader_of(self, stream: str) -> NatsServer:
        """The server that leads a stream, as the first server that answers knows it."""
        for server in self.servers:
            with contextlib.suppress(AssertionError, OSError):
                server.pid  # noqa: B018 - only those that run
                if detail := _detail(server, stream):
                    name = detail["cluster"]["leader"]
                    return next(each for each in self.servers if each.name == name)
        raise AssertionError(f"no server knows {stream}")

    def wait_equal(self, stream: str) -> None:
        """Wait until all servers have the same messages of a stream: one that was restarted is behind."""

        def is_equal() -> bool:
            details = [_detail(server, stream) for server in self.servers]
            return len({detail and detail["state"]["last_seq"] for detail in details}) == 1

        wait_until(is_equal, PATIENCE, f"a server is behind in {stream}")

    def close(self) -> None:
        """End every server in whatever state it is (idempotent)."""
        for server in self.servers:
            if server.is_running:
                server.kill()

    @staticmethod
    def _leader(server: NatsServer) -> str:
        leader = server.read("/jsz").get("meta_cluster", {}).get("leader", "")
        assert isinstance(leader, str)
        return leader

    def _configuration(self, server: NatsServer, settings: str, max_file: int) -> str:
        lines = [
            f"server_name: {server.name}",
            f"listen: 127.0.0.1:{server.port}",
            f"http: 127.0.0.1:{server.monitor_port}",
        ]
        if self._jetstream:
            lines.append(
                f'jetstream {{ store_dir: "{server.store}", max_mem: {64 << 20}, max_file: {max_file} }}'
            )
        if len(self.servers) > 1:
            routes = ", ".join(f'"nats://127.0.0.1:{each.route_port}"' for each in self.servers)
            lines.append(
                f"cluster {{ name: test, listen: 127.0.0.1:{server.route_port}, routes: [{routes}], "
                f"no_advertise: {str(not self._advertise).lower()} }}"
            )
        return "\n".join([*lines, settings, ""])


def _detail(server: NatsServer, stream: str) -> dict[str, Any] | None:
    for account in server.read("/jsz?streams=1").get("account_details", ()):
        for detail in account.get("stream_detail", ()):
            if detail["name"] == stream:
                assert isinstance(detail, dict)
                return detail
    return None


class JwtFiles(NamedTuple):
    """The credentials of one user, and what servers need to know of them."""

    settings: str
    """For `NatsServers(settings=...)`."""
    credentials: Path
    """What `--nats-creds` takes."""


def jwt_files(folder: Path) -> JwtFiles:
    """Make an operator, an account with JetStream, and a user with a credentials file in `folder`."""
    operator, account, user = (key_pair(kind) for kind in ("operator", "account", "user"))
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    connections = {"conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": True}
    system = key_pair("account")
    operator_jwt = _jwt(operator, operator, {"type": "operator", "version": 2})
    limits = unlimited | connections | storage
    account_jwt = _jwt(operator, account, {"type": "account", "version": 2, "limits": limits})
    system_jwt = _jwt(operator, system, {"type": "account", "version": 2, "limits": unlimited | connections})
    user_jwt = _jwt(account, user, {"type": "user", "version": 2, **unlimited})
    path = folder / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    path.chmod(0o600)
    settings = (
        f"operator: {operator_jwt}\nsystem_account: {system.public_key.decode()}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key.decode()}: {account_jwt}, "
        f"{system.public_key.decode()}: {system_jwt} }}\n"
    )
    return JwtFiles(settings, path)


_KINDS: dict[str, int] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}


def key_pair(kind: str) -> Any:
    """A new nkey of an "operator", an "account" or a "user"."""
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), _KINDS[kind])))


def _jwt(issuer: Any, subject: Any, claims: dict[str, Any]) -> str:
    """A token of NATS: a JWT signed by an nkey."""
    body = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": claims["type"],
        "sub": subject.public_key.decode(),
        "nats": claims,
    }
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
    signed = ".".join(
        _url64(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)
    )
    return f"{signed}.{_url64(issuer.sign(signed.encode()))}"


def _url64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")

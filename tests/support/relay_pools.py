"""Pools at a real relay: tokens, members that are real executors, and clients.

    pool = Pool(relay, "gpu", tmp_path)
    with pool.member("first", "--capacity", "2") as environment_id:
        async with pool.connect("&label=zone=eu") as executor:
            assert member_of(executor) == environment_id
            pool.wait_for_loads(1)

Starting a member takes about a second.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from execclient import Executor, connect
from execprotocol.relay.key_files import load_key_pair
from tests.support.relay_service import RelayService, environment, wait_until
from tests.support.wire import PATIENCE, server_command


class Pool:
    """A pool at a relay: its tokens and its members.

    Args:
        relay: where clients connect.
        name: of the pool.
        folder: for the state of members and commands.
    """

    def __init__(self, relay: RelayService, name: str, folder: Path) -> None:
        self.relay, self.name, self.folder = relay, name, folder
        self.executor_token = relay.token("executor", flags=("--pool", name))
        self.token = relay.token("client", flags=("--pool", name))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """The supervisors of members."""

    def url(self, query: str = "", base: str = "") -> str:
        return f"relay+{base or self.relay.url}?pool={self.name}{query}"

    def connect(self, query: str = "", base: str = "", **arguments: Any) -> connect:
        return connect(self.url(query, base), **{"token": self.token, **arguments})

    def command(self, *arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `execserver ARGUMENTS` with the pool as its daemon; nothing is checked."""
        places = {"EXECSERVER_URL": url or self.url(), "EXECSERVER_TOKEN": self.token}
        return subprocess.run(
            [sys.executable, "-m", "execserver", *arguments],
            env=environment() | places | {"XDG_STATE_HOME": str(self.folder / "client")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    @property
    def loads(self) -> dict[str, int | None]:
        """The sessions of each connected member, by its environment id."""
        return {
            row["environment"]: row["sessions"]
            for row in self.relay.environments()
            if row["pool"] == self.name
        }

    def wait_for_loads(self, *loads: int) -> None:
        """Wait until the members have reported these numbers of sessions."""
        wait_until(lambda: sorted(self.loads.values(), key=str) == sorted(loads, key=str), what=f"{loads}")

    @contextmanager
    def member(self, name: str, *flags: str, at: RelayService | None = None) -> Iterator[str]:
        """A connected executor that has reported its load; its environment id.

        Args:
            name: of its folder, with its key, below the pool's.
            flags: more flags of `serve`.
            at: the relay that it dials; None: the pool's.
        """
        state, base = self.folder / name, (at or self.relay).url
        state.mkdir(exist_ok=True)
        key = load_key_pair(state / "key", create=True).public
        environment_id = f"{self.name}--{key.fingerprint[:16]}"
        with (state / "log").open("ab+") as log:
            process = subprocess.Popen(
                [
                    *server_command(),
                    *("--remote", base, "--pool", self.name),
                    *("--remote-key-file", str(state / "key"), *flags),
                ],
                env=environment()
                | {"EXECSERVER_REMOTE_TOKEN": self.executor_token, "XDG_STATE_HOME": str(state)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            self.processes[environment_id] = process
            assert process.stdout is not None
            try:
                assert process.stdout.readline().decode() == f"{self.url(base=base)}\n"
                wait_until(lambda: self.loads.get(environment_id) is not None, what="it is not online")
                yield environment_id
            finally:
                process.send_signal(signal.SIGTERM)
                status = process.wait(PATIENCE)
                process.stdout.close()
        assert status == 0, (state / "log").read_text()


def member_of(executor: Executor) -> str:
    """The environment id of the executor that a client got."""
    return str(executor.url).partition("?environment=")[2]

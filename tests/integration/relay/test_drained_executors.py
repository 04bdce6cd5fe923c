"""Executors of a pool that drain: the relay sends them no new sessions, and theirs go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execclient import Executor, ExecutorDraining, PoolFull, connect
from tests.support.relay_service import RelayService, wait_until
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Server

COUNT = "i=0; while [ ! -e $0 ] || [ $i -lt 300 ]; do i=$((i + 1)); echo $i; sleep 0.01; done"


class Member:
    """An executor of the pool `work`, with a state folder of its own."""

    def __init__(self, relay: RelayService, token: str, folder: Path, *flags: str) -> None:
        folder.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
        self.variables = {**kept, "EXECSERVER_CONFIG": "", "XDG_STATE_HOME": str(folder)}
        self.variables.pop("XDG_RUNTIME_DIR", None)
        place = ("--remote", relay.url, "--pool", "work", *flags)
        self.server = Server(None, *place, env={**self.variables, "EXECSERVER_REMOTE_TOKEN": token})

    def drain(self, *flags: str) -> str:
        """Run `execserver drain` with success; what it prints."""
        command = [sys.executable, "-m", "execserver", "drain", *flags]
        result = subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def stop(self) -> None:
        """End it at once."""
        if self.server.running:
            self.server.process.send_signal(signal.SIGINT)
        self.server.stop()


Pool = tuple[RelayService, str, list[Member]]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A relay, a client's token, and two members."""
    with RelayService(tmp_path / "relay") as relay:
        token = relay.token("executor", flags=["--pool", "work"])
        members: list[Member] = []
        try:
            for number in range(2):
                members.append(Member(relay, token, tmp_path / str(number), "--drain-grace", "60"))
            wait_until(lambda: len(relay.environments()) == 2)
            yield relay, relay.token("client", flags=["--pool", "work"]), members
        finally:
            for member in members:
                member.stop()


async def member_of(executor: Executor, members: list[Member]) -> Member:
    """The member that a session is at, by the process id of its server."""
    pid = (await executor.call("server/health", {}))["pid"]
    [found] = [member for member in members if server_of(member.server.pid, PATIENCE) == pid]
    return found


async def test_new_sessions_go_to_the_other_member_and_the_old_ones_go_on(pool: Pool, tmp_path: Path) -> None:
    relay, token, members = pool
    url = f"relay+{relay.url}?pool=work"
    recovered = tmp_path / "recovered"
    async with connect(url, token=token) as executor:
        draining = await member_of(executor, members)
        counting = asyncio.create_task(executor.run(["sh", "-c", COUNT, str(recovered)]))
        await asyncio.sleep(0.3)
        assert await asyncio.to_thread(draining.drain) == "draining: 1 session is left\n"
        for _ in range(5):  # also at once, before the relay knows
            async with connect(url, token=token) as another:
                assert await member_of(another, members) is not draining
        wait_until(lambda: sorted(row["draining"] for row in relay.environments()) == [False, True])
        executor.drop_connection()
        while not executor.recoveries:
            await asyncio.sleep(0.01)
        recovered.touch()
        numbers = list(map(int, (await counting).text.split()))
        assert numbers == list(range(1, max(300, len(numbers)) + 1))
        assert executor.recoveries == 1
        with pytest.raises(ExecutorDraining):
            await connect(executor.url, token=token)
    assert await asyncio.to_thread(draining.drain, "--wait", "10") == "draining: no sessions are left\n"


async def test_a_pool_whose_members_all_drain_is_full_until_one_is_cancelled(pool: Pool) -> None:
    relay, token, members = pool
    url = f"relay+{relay.url}?pool=work"
    for member in members:
        await asyncio.to_thread(member.drain)

    async def is_full() -> bool:
        try:
            await (await connect(url, token=token)).close()
        except (PoolFull, ExecutorDraining) as error:
            return isinstance(error, PoolFull)
        return False

    async with asyncio.timeout(PATIENCE):
        while not await is_full():
            await asyncio.sleep(0.05)
    await asyncio.to_thread(members[0].drain, "--cancel")
    async with asyncio.timeout(PATIENCE):
        executor = await connect(f"{url}&wait=15", token=token)
    assert await member_of(executor, members) is members[0]
    await executor.close()


async def test_sigterm_moves_the_next_session_of_a_host_to_the_other_member(pool: Pool) -> None:
    relay, token, members = pool
    url = f"relay+{relay.url}?pool=work"
    drained = asyncio.Event()
    executor = await connect(url, token=token, on_draining=lambda notice: drained.set())
    first = await member_of(executor, members)
    first.server.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(drained.wait(), PATIENCE)
    async with connect(url, token=token) as another:
        assert await member_of(another, members) is not first
        await executor.close()
        assert await asyncio.to_thread(first.server.process.wait, PATIENCE) == 0
        assert (await another.run(["echo", "on"])).text == "on\n"

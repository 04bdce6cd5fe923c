"""Our relay, executor and client with those of the stock binary at the other end, on loopback.

Named by `make relay-stock` only, which says where the binary is (CODEX_BIN) and the shared stock client
(RELAY_SHARED); without them the tests fail. What was measured is printed with `-s`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import execclient
from tests.integration.http.certificates import make_authority, server_context
from tests.interop.relay_peers import (
    Peer,
    our_executor,
    our_listener,
    stock_executor,
    stock_forwarder,
    stock_listener,
)
from tests.support.nats_servers import NatsServers
from tests.support.relay_service import RelayService, wait_until

REPOSITORY = Path(__file__).parents[2]
STREAMED_BYTES = 8 << 20
STREAMED_BY_STOCK_BYTES = 3 << 20
"""More than a stock server keeps of a process: it pushes all, sometimes the exit before the last of it."""

TAKE_OVER_SECONDS = 2.0
"""From the end of an executor to the first command on its standby."""

TURNS_ON_OURS = (
    "tty,parallel,leftover,interrupt,sandbox_workspace_write,managed_network",
    "oneshot,failing,bigout,patch,agents_md,view_image,patch_sandboxed,relay_cut",
)
TURNS_ON_STOCK = ("oneshot,patch,bigout",)
TURNS_AT_THE_DOOR = ("oneshot,bigout,patch,mcp_stdio", "cut_resume")
"""What stands in one text is played one after the other, and the texts at the same time: most of a turn is
waiting."""


@pytest.fixture(scope="module")
def codex() -> str:
    """The stock binary."""
    path = os.environ.get("CODEX_BIN", "")
    assert Path(path).is_file(), "CODEX_BIN must name the stock codex binary: run `make relay-stock`"
    return path


@pytest.fixture(scope="module")
def shared() -> str:
    """The folder with the shared stock client."""
    path = os.environ.get("RELAY_SHARED", "")
    assert (Path(path) / "stock_client" / "run_turn.py").is_file(), "RELAY_SHARED must name the shared folder"
    return path


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayService]:
    """One relay, below a path, for all tests; each has an environment of its own."""
    with RelayService(
        tmp_path_factory.mktemp("relay") / "state", listen="http://127.0.0.1:0/below/a-path"
    ) as service:
        yield service
        assert service.stop() == 0


async def use(
    relay: RelayService,
    environment_id: str,
    folder: Path,
    context: ssl.SSLContext | None = None,
    streamed_bytes: int = STREAMED_BY_STOCK_BYTES,
) -> None:
    """Commands that fail, a stream, a terminal and files, by our client."""
    token = relay.token("client", environment_id)
    async with execclient.connect(relay.client_url(environment_id), token=token, ssl=context) as executor:
        said = await executor.run(["/bin/sh", "-c", "echo to-stdout; echo to-stderr >&2; exit 3"])
        assert (said.exit_code, said.stdout, said.stderr) == (3, b"to-stdout\n", b"to-stderr\n")

        script = f"head -c {streamed_bytes} /dev/urandom | tee {folder}/noise"
        streamed = await executor.run(["/bin/sh", "-c", script])
        assert len(streamed.stdout) == streamed_bytes
        assert sha256(streamed.stdout) == sha256((folder / "noise").read_bytes())

        async with await executor.start(["/bin/cat"], tty=True) as terminal:
            await terminal.write("typed\n")
            echoed = b""
            async for chunk in terminal:
                echoed += chunk.data
                if echoed.count(b"typed") == 2:
                    break

        content = os.urandom(3 << 20)
        await executor.fs.write_bytes(folder / "written", content)
        assert (folder / "written").read_bytes() == content
        assert sha256(await executor.fs.read_bytes(folder / "noise")) == sha256(streamed.stdout)
        with pytest.raises(execclient.NotFound):
            await executor.fs.read_bytes(folder / "missing")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def play(
    relay: RelayService,
    environment_id: str,
    shared: str,
    turns: Sequence[str],
    *flags: str,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run turns of the stock agent, each of which must pass."""
    command = [sys.executable, "-m", "tests.interop.relay_turns", shared, relay.url, environment_id]
    variables = {**os.environ, **(env or {}), "RELAY_TOKEN": relay.token("client", environment_id)}

    def run(scenarios: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *flags, "--scenario", scenarios],
            cwd=REPOSITORY,
            env=variables,
            capture_output=True,
            text=True,
            timeout=55,
            check=False,
        )

    with ThreadPoolExecutor() as pool:
        for scenarios, done in zip(turns, pool.map(run, turns), strict=True):
            print(done.stdout)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
            assert done.stdout.count("PASS ") == len(scenarios.split(",")), done.stdout


# -- stock executors, our client


async def test_our_client_uses_a_stock_executor(relay: RelayService, codex: str, tmp_path: Path) -> None:
    with stock_executor(codex, relay, "stock", tmp_path / "home") as peer:
        await asyncio.to_thread(peer.wait_online, relay, "stock")
        await use(relay, "stock", tmp_path)


async def test_our_client_resumes_its_session_at_a_stock_executor_after_the_relay_was_killed(
    codex: str, tmp_path: Path
) -> None:
    with (
        RelayService(tmp_path / "state") as relay,
        stock_executor(codex, relay, "stock", tmp_path / "home") as peer,
    ):
        await asyncio.to_thread(peer.wait_online, relay, "stock")
        token = relay.token("client", "stock")
        async with execclient.connect(relay.client_url("stock"), token=token) as executor:
            counting = "for i in $(seq 1 12); do echo $i; sleep 0.25; done"
            async with await executor.start(["/bin/sh", "-c", counting]) as process:
                output = (await anext(process)).data
                await asyncio.to_thread(relay.kill)
                await asyncio.to_thread(relay.start)
                async for chunk in process:
                    output += chunk.data
                assert await process.wait() == 0
            assert output.split() == [str(number).encode() for number in range(1, 13)]
            assert executor.recoveries >= 1


# -- the stock agent


def test_the_stock_agent_takes_turns_on_our_executor(
    relay: RelayService, codex: str, shared: str, tmp_path: Path
) -> None:
    with our_executor(relay, "ours-for-stock", tmp_path / "home") as peer:
        peer.wait_online(relay, "ours-for-stock")
        play(relay, "ours-for-stock", shared, TURNS_ON_OURS)


def test_the_stock_agent_takes_turns_on_a_stock_executor(
    relay: RelayService, codex: str, shared: str, tmp_path: Path
) -> None:
    with stock_executor(codex, relay, "stock-for-stock", tmp_path / "home") as peer:
        peer.wait_online(relay, "stock-for-stock")
        play(relay, "stock-for-stock", shared, TURNS_ON_STOCK)


def test_the_stock_agent_keeps_its_turn_when_the_server_of_our_executor_is_killed(
    relay: RelayService, codex: str, shared: str, tmp_path: Path
) -> None:
    with our_executor(relay, "killed", tmp_path / "home") as peer:
        peer.wait_online(relay, "killed")
        play(relay, "killed", shared, ["relay_kill"], "--supervisor", str(peer.pid))


def test_the_stock_agent_takes_turns_through_the_plain_door(codex: str, shared: str, tmp_path: Path) -> None:
    with (
        RelayService(tmp_path / "state", "--plain-door", "door", listen="http://127.0.0.1:0/path") as relay,
        our_executor(relay, "door", tmp_path / "home") as peer,
    ):
        peer.wait_online(relay, "door")
        play(relay, "door", shared, TURNS_AT_THE_DOOR, "--door")


# -- a fleet: each peer at a relay of its own


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RelayService]]:
    """Three relays with NATS between them."""
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServers(folder / "nats"))
        relays = [
            stack.enter_context(RelayService(folder / f"r{number}", nats=("--nats", nats.url)))
            for number in range(3)
        ]
        yield relays
        assert [relay.stop() for relay in relays] == [0, 0, 0]


async def test_our_client_and_the_stock_agent_use_a_stock_executor_at_another_relay(
    fleet: list[RelayService], codex: str, shared: str, tmp_path: Path
) -> None:
    first, second, third = fleet
    with stock_executor(codex, first, "stock", tmp_path / "home") as peer:
        await asyncio.to_thread(peer.wait_online, second, "stock")
        agent = asyncio.to_thread(play, second, "stock", shared, ["oneshot,patch,bigout"])
        await asyncio.gather(agent, use(third, "stock", tmp_path))


def test_the_stock_agent_takes_turns_on_our_executor_at_another_relay(
    fleet: list[RelayService], codex: str, shared: str, tmp_path: Path
) -> None:
    first, second, third = fleet
    with our_executor(third, "ours", tmp_path / "home") as peer:
        peer.wait_online(first, "ours")
        play(second, "ours", shared, ["oneshot,tty", "relay_cut"])


# -- TLS, by an authority of one's own


async def test_stock_executors_and_agents_come_by_https(codex: str, shared: str, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    server_context(tmp_path)
    flags = ("--tls-cert", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem"))
    trusting = {"SSL_CERT_FILE": str(authority)}
    with (
        RelayService(tmp_path / "state", *flags, listen="https://127.0.0.1:0") as relay,
        stock_executor(codex, relay, "tls", tmp_path / "home", env=trusting) as peer,
    ):
        await asyncio.to_thread(peer.wait_online, relay, "tls")
        await use(relay, "tls", tmp_path, ssl.create_default_context(cafile=authority))
        await asyncio.to_thread(play, relay, "tls", shared, ["oneshot,patch"], env=trusting)


# -- the stock forwarder, in front of listeners


async def test_our_client_uses_our_daemon_behind_the_stock_forwarder(
    relay: RelayService, codex: str, tmp_path: Path
) -> None:
    with (
        our_listener(tmp_path / "daemon") as daemon,
        stock_forwarder(codex, relay, "forward-ours", tmp_path / "home", daemon.first_line()) as peer,
    ):
        await asyncio.to_thread(peer.wait_online, relay, "forward-ours")
        await use(relay, "forward-ours", tmp_path, streamed_bytes=STREAMED_BYTES)


async def test_our_client_uses_a_stock_daemon_behind_the_stock_forwarder(
    relay: RelayService, codex: str, tmp_path: Path
) -> None:
    with (
        stock_listener(codex, tmp_path / "daemon") as daemon,
        stock_forwarder(codex, relay, "forward-stock", tmp_path / "home", daemon.first_line()) as peer,
    ):
        await asyncio.to_thread(peer.wait_online, relay, "forward-stock")
        await use(relay, "forward-stock", tmp_path)


# -- hot standby


@pytest.mark.parametrize("standby", ["stock", "ours"])
@pytest.mark.parametrize("incumbent", ["stock", "ours"])
async def test_a_standby_takes_over_within_two_seconds(
    relay: RelayService, codex: str, tmp_path: Path, incumbent: str, standby: str
) -> None:
    environment_id = f"standby-{incumbent}-{standby}"

    def executor(kind: str, name: str) -> Peer:
        mark = {"MARK": name}
        if kind == "stock":
            return stock_executor(codex, relay, environment_id, tmp_path / name, env=mark)
        return our_executor(relay, environment_id, tmp_path / name, env=mark)

    def conflicts() -> int:
        return sum(
            line["path"].endswith(f"/{environment_id}/register") and line["status"] == 503
            for line in relay.log_lines("request")
        )

    token = relay.token("client", environment_id)
    with executor(incumbent, "first") as first:
        await asyncio.to_thread(first.wait_online, relay, environment_id)
        with executor(standby, "second"):
            # A stock standby asks less and less often: 0.5 to 0.75 s behind its first refusal, but up to
            # 7.5 s later on. Ours does not slow down, so it is let wait.
            wanted = 1 if standby == "stock" else 3
            await asyncio.to_thread(waited_for, conflicts, wanted)
            assert await mark_of(relay, environment_id, token) == b"first\n"

            await asyncio.to_thread(first.end, signal.SIGKILL if incumbent == "stock" else signal.SIGTERM)
            ended = time.monotonic()
            mark = await mark_of(relay, environment_id, token)
            seconds = time.monotonic() - ended

    print(f"{standby} standby of {incumbent}: first command {seconds:.2f} s after the end")
    assert mark == b"second\n"
    assert seconds < TAKE_OVER_SECONDS


def waited_for(count: Callable[[], int], wanted: int) -> None:
    """Wait until there are so many."""
    wait_until(lambda: count() >= wanted)


async def mark_of(relay: RelayService, environment_id: str, token: str) -> bytes:
    """Which executor a new client reaches, once there is one."""
    deadline = time.monotonic() + 10
    while True:
        try:
            async with execclient.connect(relay.client_url(environment_id), token=token) as executor:
                return (await executor.run(["/bin/sh", "-c", "echo $MARK"])).stdout
        except execclient.ConnectionFailed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

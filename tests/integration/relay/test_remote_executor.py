"""`execserver serve --remote`: real daemons against a registry and a rendezvous of the test's own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import REJECTION
from tests.support.fake_relay import PATIENCE, FakeRelay, StreamEnded, refusal
from tests.support.servers import server_of
from tests.support.wire import server_command

TOKEN = "xrt_" + "t" * 43


class Daemon:
    """A service that dials out."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it said on stderr."""
        return self._log.read_text()

    def events(self) -> list[str]:
        """What it logged, in order."""
        lines = (line for line in self.log.splitlines() if line.startswith("{"))
        return [json.loads(line)["event"] for line in lines]

    async def logged(self, text: str) -> None:
        """Wait until it has logged this; another thread of it writes."""
        async with asyncio.timeout(PATIENCE):
            while text not in self.log:
                await asyncio.sleep(0.01)

    async def line(self) -> str:
        """A line of its stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self.process.stdout.readline()).decode().rstrip("\n")

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return await self.wait()

    async def wait(self) -> int:
        """Wait for the end."""
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    def server(self) -> int:
        """The process id of the server."""
        return server_of(self.process.pid, PATIENCE)


Serve = Callable[..., Awaitable[Daemon]]


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        yield relay


@pytest.fixture
async def serve(relay: FakeRelay) -> AsyncIterator[Serve]:
    """Start a daemon that serves the relay: `serve("--flag", env={...}, stdin=b"...")`."""
    daemons: list[Daemon] = []
    with tempfile.TemporaryDirectory(prefix="h4-") as folder:

        async def start(*flags: str, env: dict[str, str] | None = None, stdin: bytes | None = None) -> Daemon:
            log = Path(folder) / f"log-{len(daemons)}"
            kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *server_command(),
                    *("--remote", relay.url, "--environment-id", relay.environment_id),
                    *flags,
                    env={
                        **kept,
                        "EXECSERVER_CONFIG": "",
                        "XDG_STATE_HOME": f"{folder}/state",
                        **({"EXECSERVER_REMOTE_TOKEN": TOKEN} if env is None else env),
                    },
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,  # no terminal: SIGHUP is an upgrade
                )
            assert process.stdin is not None
            if stdin is not None:
                process.stdin.write(stdin)
            process.stdin.close()
            daemons.append(Daemon(process, log))
            return daemons[-1]

        yield start
        for daemon in daemons:
            if daemon.process.returncode is None:
                await daemon.stop()


async def test_commands_run_for_a_client_behind_the_relay(relay: FakeRelay, serve: Serve) -> None:
    daemon = await serve()
    await relay.online()
    client = relay.client()
    assert await client.open() == b""
    await client.initialize()
    await client.shell("echo hello; exit 3")
    output = await client.output_until_closed()
    assert output == b"hello\n"
    assert await daemon.line() == f"relay+{relay.url}?environment=box"
    assert set(relay.tokens) == {f"Bearer {TOKEN}"}
    assert await daemon.stop() == 0


async def test_neither_token_nor_key_is_to_be_seen_by_commands_or_in_logs(
    relay: FakeRelay, serve: Serve
) -> None:
    daemon = await serve("--log-level", "debug")
    await relay.online()
    client = relay.client()
    await client.open()
    await client.initialize()
    await client.shell("env")
    assert b"EXECSERVER" not in await client.output_until_closed()
    assert TOKEN.encode() not in Path(f"/proc/{daemon.server()}/cmdline").read_bytes()
    await daemon.stop()
    assert TOKEN not in daemon.log
    assert "secret-" not in daemon.log  # the ticket in the query


@pytest.mark.statement("R46")
async def test_a_session_survives_the_loss_of_the_socket(relay: FakeRelay, serve: Serve) -> None:
    await serve()
    await relay.online()
    client = relay.client()
    await client.open()
    session = await client.initialize()
    await client.shell("for i in $(seq 300); do echo line $i; sleep 0.002; done")
    await client.receive()
    relay.cut()
    assert await client.ended() == "the executor's socket is gone"
    await relay.online(dials=2)

    again = relay.client()
    await again.open()
    assert await again.initialize(resume=session) == session
    output = b""
    after = 0
    while True:
        read = await again.call("process/read", {"processId": "p", "afterSeq": after, "waitMs": 5000})
        output += b"".join(base64.b64decode(chunk["chunk"]) for chunk in read["chunks"])
        after = read["nextSeq"] - 1
        if read["closed"]:
            break
    assert output == b"".join(b"line %d\n" % number for number in range(1, 301))
    assert relay.register_requests == 1  # the same URL again
    assert relay.dials == ["/executor/1", "/executor/1"]


@pytest.mark.statement("R46")
async def test_a_relay_that_has_forgotten_everything_is_told_again(relay: FakeRelay, serve: Serve) -> None:
    await serve()
    await relay.online()
    relay.dial_answers.extend([503, 410])
    relay.cut()
    await relay.online(dials=4)
    assert relay.dials == ["/executor/1", "/executor/1", "/executor/1", "/executor/2"]
    assert relay.executor_keys[0] == relay.executor_keys[1]


@pytest.mark.parametrize("how", ["killed", "upgraded"])
async def test_the_server_that_follows_is_the_same_executor(relay: FakeRelay, serve: Serve, how: str) -> None:
    daemon = await serve("--remote-token-stdin", env={}, stdin=TOKEN.encode() + b"\n")
    await relay.online()
    client = relay.client()
    await client.open()
    session = await client.initialize()
    await client.shell("read line; echo got $line")
    first = daemon.server()
    if how == "killed":
        os.kill(first, signal.SIGKILL)
    else:
        daemon.process.send_signal(signal.SIGHUP)
    await client.ended()
    await relay.online(dials=2)

    again = relay.client()
    await again.open()
    assert await again.initialize(resume=session) == session
    listed = await again.call("process/list", {})
    assert [process["processId"] for process in listed["processes"]] == ["p"]
    assert daemon.server() != first
    assert relay.executor_keys[0] == relay.executor_keys[1]
    assert set(relay.tokens) == {f"Bearer {TOKEN}"}


async def test_what_runs_is_answered_before_an_upgrade(relay: FakeRelay, serve: Serve) -> None:
    daemon = await serve()
    await relay.online()
    client = relay.client()
    await client.open()
    await client.initialize()
    await client.shell("sleep 60")
    read = {"id": 99, "method": "process/read", "params": {"processId": "p", "waitMs": 30_000}}
    await client.send(read)
    await client.call("environment/info", {})
    daemon.process.send_signal(signal.SIGHUP)
    assert (await client.receive())["id"] == 99
    assert await client.ended() == "executor_closed"


async def test_a_final_refusal_ends_the_service_if_that_is_wanted(relay: FakeRelay, serve: Serve) -> None:
    relay.register_answers.append(refusal(401, "unauthorized"))
    daemon = await serve("--remote-exit-on-refusal")
    assert await daemon.wait() == 1
    assert "the registry refuses it" in daemon.log
    assert "401 (unauthorized, by the test)" in daemon.log


@pytest.mark.statement("R43")
async def test_a_client_that_is_not_on_the_list_is_told_so_until_it_is(
    relay: FakeRelay, serve: Serve, tmp_path: Path
) -> None:
    allowed = tmp_path / "clients"
    allowed.write_text("# no client yet\n")
    daemon = await serve("--remote-allowed-clients", str(allowed))
    await relay.online()
    key = KeyPair.generate()
    assert await relay.client(key).open() == REJECTION
    assert not relay.validations
    await daemon.logged(key.public.fingerprint)  # so that it can be put on the list

    allowed.write_text(f"{key.public.fingerprint.upper()} # the test\n")
    client = relay.client(key)
    assert await client.open() == b""
    await client.initialize()

    allowed.chmod(0o666)  # any user could add a key
    with pytest.raises(StreamEnded, match="noise_relay_protocol_error"):
        await relay.client(key).open()


async def test_acts_are_written_down_with_the_key_of_the_client(
    relay: FakeRelay, serve: Serve, tmp_path: Path
) -> None:
    await serve("--audit-dir", str(tmp_path / "audit"))
    await relay.online()
    keys = [KeyPair.generate() for _ in range(2)]
    for key in keys:
        client = relay.client(key)
        await client.open()
        await client.initialize()
        await client.shell("true")

    (file,) = (tmp_path / "audit").glob("*.jsonl")
    peers = [json.loads(line)["peer"] for line in file.read_text().splitlines()]
    assert peers == [f"key:{key.public.fingerprint}" for key in keys]


@pytest.mark.statement("R47")
async def test_processes_of_other_sessions_are_not_reached_over_the_relay(
    relay: FakeRelay, serve: Serve
) -> None:
    await serve()
    await relay.online()
    owner, other = relay.client(), relay.client()
    for client in (owner, other):
        await client.open()
    session = await owner.initialize()
    await other.initialize()
    await owner.shell("sleep 60")
    for method, params in (
        ("process/list", {}),
        ("process/read", {"processId": "p"}),
        ("process/terminate", {"processId": "p"}),
        ("process/subscribe", {"processId": "p"}),
    ):
        reply = await other.reply(method, {**params, "sessionId": session})
        assert reply["error"]["code"] == -32600, reply
        assert "processes of other sessions" in reply["error"]["message"]


async def test_large_messages_go_both_ways_while_others_talk(
    relay: FakeRelay, serve: Serve, tmp_path: Path
) -> None:
    await serve()
    await relay.online()
    busy, quick = relay.client(), relay.client()
    for client in (busy, quick):
        await client.open()
        await client.initialize()
    content = os.urandom(8 << 20)
    path = (tmp_path / "file").as_uri()

    async def transfer() -> bytes:
        await busy.call("fs/writeFile", {"path": path, "dataBase64": base64.b64encode(content).decode()})
        return base64.b64decode((await busy.call("fs/readFile", {"path": path}))["dataBase64"])

    asked = 0
    for _ in range(3):  # one alone may be over before the other has asked that often
        moved = asyncio.create_task(transfer())
        while not moved.done():
            await quick.call("environment/info", {})
            asked += 1
        assert hashlib.sha256(await moved).digest() == hashlib.sha256(content).digest()
    assert asked > 10


async def test_the_end_of_the_service_reaches_clients_and_relay(relay: FakeRelay, serve: Serve) -> None:
    daemon = await serve()
    await relay.online()
    client = relay.client()
    await client.open()
    await client.initialize()
    await client.shell("exec sleep 60")
    daemon.process.terminate()
    methods = [(await client.receive())["method"] for _ in range(2)]
    assert methods == ["process/exited", "process/closed"]
    assert await client.ended() == "executor_closed"
    assert await daemon.wait() == 0

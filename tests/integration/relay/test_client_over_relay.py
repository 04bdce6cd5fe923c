"""The client and a real executor, with a real relay between them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from execclient import (
    AccessDenied,
    EnvironmentOffline,
    Executor,
    Process,
    SessionLost,
    UntrustedServer,
    WrongExecutor,
    connect,
)
from execclient.session import recovery
from execclient.sync import connect as connect_blocking
from execprotocol.relay.key_files import load_key_pair
from tests.integration.http.certificates import make_authority, server_context
from tests.support.background import IN_BACKGROUND, Left
from tests.support.cutting_proxy import Cut, cutting
from tests.support.relay_service import RelayService
from tests.support.wire import PATIENCE, server_command

COUNTER = [
    "sh",
    "-c",
    "i=0; trap 'echo end; exit 0' INT; while :; do i=$((i + 1)); echo $i; sleep 0.005; done",
]
"""Slow enough to leave the processors to those who recover."""

LARGE = 64 << 20


def variables(**further: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    return {**kept, "EXECSERVER_CONFIG": "", **further}


@pytest.fixture(autouse=True)
def nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXECSERVER_URL", "EXECSERVER_TOKEN", "EXECSERVER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def executing(url: str, environment_id: str, token: str, *flags: str, **further: str) -> Iterator[None]:
    """A daemon that serves an environment at a relay."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as state:
        process = subprocess.Popen(
            [*server_command(), "--remote", url, "--environment-id", environment_id, *flags],
            env=variables(EXECSERVER_REMOTE_TOKEN=token, XDG_STATE_HOME=state, **further),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith(b"relay+http")
            yield
        finally:
            process.terminate()
            status = process.wait(PATIENCE)
            process.stdout.close()
            log.seek(0)
            said = log.read().decode()
        assert status == 0, said
        assert token not in said


Tokens = tuple[str, str]
"""An executor's and a client's."""


class Place:
    """An environment at a relay: where it is, and with which tokens."""

    def __init__(self, relay: RelayService, environment_id: str, tokens: Tokens) -> None:
        self.relay = relay
        self.environment_id = environment_id
        self.executors_token, self.token = tokens

    @property
    def url(self) -> str:
        return self.relay.client_url(self.environment_id)

    @property
    def fingerprint(self) -> str:
        """The executor's, as an operator sees it."""
        [row] = [row for row in self.relay.environments() if row["environment"] == self.environment_id]
        found = next(value for value in row.values() if isinstance(value, str) and len(value) == 64)
        return str(found)

    @contextmanager
    def executor(self, *flags: str) -> Iterator[None]:
        """An executor that is online."""
        with executing(self.relay.url, self.environment_id, self.executors_token, *flags):
            self.relay.wait_online(self.environment_id)
            yield

    def connect(self, **arguments: Any) -> connect:
        return connect(self.url, **{"token": self.token, **arguments})

    def command(
        self, *arguments: str, data: bytes = b"", **further: str
    ) -> subprocess.CompletedProcess[bytes]:
        """`execserver ARGUMENTS` with this place as its daemon."""
        environment = {"EXECSERVER_URL": self.url, "EXECSERVER_TOKEN": self.token, **further}
        return subprocess.run(
            [sys.executable, "-m", "execserver", *arguments],
            env=variables(**environment),
            input=data,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayService]:
    with RelayService(tmp_path_factory.mktemp("relay") / "state") as relay:
        yield relay


def new_tokens(relay: RelayService, *environment_ids: str) -> Tokens:
    return relay.token("executor", *environment_ids), relay.token("client", *environment_ids)


@pytest.fixture(scope="module")
def tokens(relay: RelayService) -> Tokens:
    """For each place of this file that is at the shared relay: making one takes a while."""
    return new_tokens(relay, "box", "cut", "replaced", "listed", "empty")


@pytest.fixture(scope="module")
def box(relay: RelayService, tokens: Tokens) -> Iterator[Place]:
    """A place with an executor that every test may use, and none may end."""
    place = Place(relay, "box", tokens)
    with place.executor():
        yield place


@pytest.fixture
async def executor(box: Place) -> AsyncIterator[Executor]:
    async with box.connect() as connected:
        yield connected


# -- one client, several programs


async def test_a_program_that_only_asks_for_a_session_does_not_take_it_from_the_one_that_works_with_it(
    box: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "ATTACHED_SECONDS", 60)
    key = tmp_path / "key"
    load_key_pair(key, create=True)
    async with box.connect(key_file=key) as owner:

        async def ask() -> None:
            async with box.connect(key_file=key, session_id=owner.session_id):
                raise AssertionError("two have one session")

        asking = asyncio.create_task(ask())
        for _ in range(100):
            assert (await owner.run(["true"])).exit_code == 0
            await asyncio.sleep(0.02)
        assert not asking.done()
        assert owner.recoveries == 0
        asking.cancel()


# -- commands that are left


def test_a_detached_command_is_found_again_by_its_id(relay: RelayService, tmp_path: Path) -> None:
    place = Place(relay, "left", new_tokens(relay, "left"))

    def command(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return place.command(*arguments, data=data, XDG_STATE_HOME=str(tmp_path))

    script = "echo here; read -r line; echo got $line; exit 5"
    with place.executor("--session-ttl", "0.3"):
        done = command("run", "--detach", "--ttl", "8h", "-t", "sh", "-c", script)
        process = done.stdout.decode().strip()
        assert b"keeps running for 8 h" in done.stderr
        gone = command("run", "--detach", "sleep", "300").stdout.decode().strip()
        # Through a relay the session is the only way to a process.
        assert b"`run --detach`" in place.command("logs", process, XDG_STATE_HOME="/nowhere").stderr

        deadline = time.monotonic() + PATIENCE
        while (listed := command("ps")).stdout.decode().count(gone):
            assert time.monotonic() < deadline
        assert [row.split()[0] for row in listed.stdout.decode().splitlines()[1:]] == [process]
        assert command("logs", process).stdout == b"here\r\n"
        attached = command("attach", "--since-seq", "0", process, data=b"typed\n")
        assert (attached.returncode, b"got typed" in attached.stdout) == (5, True)
    with place.executor():
        done = command("logs", process)
        assert done.returncode == 125
        assert f"process {process} was started".encode() in done.stderr
        assert b"8 h without a client" in done.stderr


# -- as over anything else


async def test_a_command_runs_where_the_executor_is(executor: Executor, box: Place) -> None:
    result = await executor.run(["sh", "-c", "cat; echo err >&2; exit 7"], input="over a relay")

    assert (result.exit_code, result.text, result.stderr_text) == (7, "over a relay", "err\n")
    assert executor.url == box.url


async def test_64_mib_go_both_ways_and_are_the_same_there(executor: Executor, tmp_path: Path) -> None:
    data = random.Random(9).randbytes(1 << 20) * (LARGE >> 20)
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "data").write_bytes(data)

    there = await executor.run(["sha256sum"], input=data)
    back = await executor.run(["cat", str(tmp_path / "data")], max_output_bytes=2 * LARGE)

    assert there.text.split()[0] == digest
    assert hashlib.sha256(back.stdout).hexdigest() == digest


async def test_files_are_written_listed_copied_and_read(executor: Executor, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "local").write_bytes(data)

    await executor.fs.mkdir(tmp_path / "there" / "deep", parents=True)
    await executor.fs.write_text(tmp_path / "there" / "text", "ü")
    await executor.fs.upload(tmp_path / "local", tmp_path / "there" / "deep" / "up")
    await executor.fs.download(tmp_path / "there" / "deep" / "up", tmp_path / "down")

    assert (tmp_path / "down").read_bytes() == data
    assert await executor.fs.read_text(tmp_path / "there" / "text") == "ü"
    assert {entry.name for entry in await executor.fs.iterdir(tmp_path / "there")} == {"deep", "text"}


async def test_a_terminal_is_typed_into_resized_and_interrupted(executor: Executor) -> None:
    async with await executor.start(["sh"], tty=True, size=(30, 90), env={"PS1": "ready> "}) as terminal:
        await terminal.write("stty size; echo first-$((20 + 2))\n")
        await until(terminal, b"30 90", b"first-22")
        await terminal.resize(40, 120)
        await terminal.write("stty size; cat\n")
        await until(terminal, b"40 120")
        await terminal.write("heard\n")
        await until(terminal, b"heard\r\nheard")
        await terminal.write("\x03")
        await until(terminal, b"ready> ")  # what is typed before is cat's, or dropped with it
        await terminal.write("echo last-$((30 + 3)); exit 5\n")
        await until(terminal, b"last-33")
        assert await terminal.wait(PATIENCE) == 5


async def until(process: Process, *wanted: bytes) -> None:
    output = b""
    async with asyncio.timeout(PATIENCE):
        async for _, data in process:
            output += data
            if all(each in output for each in wanted):
                return
    raise AssertionError(output)


async def test_twenty_clients_at_once_each_have_a_session_of_their_own(box: Place) -> None:
    async def one(number: int) -> tuple[str, str]:
        async with box.connect() as executor:
            results = [await executor.run(["sh", "-c", f"echo {number}-{turn}"]) for turn in range(3)]
            return executor.session_id, "".join(result.text for result in results)

    found = await asyncio.gather(*(one(number) for number in range(20)))

    assert len({session for session, _ in found}) == 20
    assert [text for _, text in found] == [f"{number}-0\n{number}-1\n{number}-2\n" for number in range(20)]


def test_the_blocking_client_does_the_same(box: Place) -> None:
    with connect_blocking(box.url, token=box.token, executor_key_sha256=box.fingerprint) as executor:
        assert executor.run(["echo", "blocking"]).text == "blocking\n"


async def test_a_session_that_was_left_is_resumed_by_another_client(box: Place) -> None:
    async with box.connect(keep=True) as executor:
        process = await executor.start(["cat"], stdin=True)

    async with box.connect(session_id=executor.session_id) as again:
        process = await again.attach(process.id)
        await process.write("still there")
        await until(process, b"still there")


async def test_what_a_command_left_in_the_background_ends_with_the_client(box: Place) -> None:
    left = Left()
    try:
        async with box.connect() as executor:
            await executor.run(["sh", "-c", IN_BACKGROUND.format(sleep=left.sleep)])
            await executor.start(left.argv, tty=True)
            await asyncio.to_thread(left.wait_running, 2)
        assert not left.pids
    finally:
        left.kill()


# -- what is cut


async def count_on(process: Process, lines: int) -> bytes:
    """Read at least so many further lines."""
    output = b""
    async with asyncio.timeout(PATIENCE):
        async for _, data in process:
            output += data
            if output.count(b"\n") >= lines:
                return output
    raise AssertionError("the counter ended")


async def finish(process: Process, output: bytes) -> None:
    """End the counter; it must not have lost or repeated a line."""
    await process.interrupt()
    async with asyncio.timeout(PATIENCE):
        lines = (output + b"".join([data async for _, data in process])).splitlines()
    assert lines[-1] == b"end"
    assert lines[:-1] == [b"%d" % number for number in range(1, len(lines))]


async def test_a_client_whose_connections_are_cut_anywhere_loses_nothing(box: Place, tmp_path: Path) -> None:
    chance = random.Random(31)
    lasting = True

    def plan() -> Cut | None:
        # Everything to the relay goes this way, the questions for another way in, too.
        if lasting or chance.random() < 0.5:
            return None
        return chance.choice(("to client", "to server")), chance.randrange(1, 6000)

    async with cutting(box.relay.url, tmp_path, plan) as proxy:
        url = box.url.replace(box.relay.url, proxy.url.replace("ws:", "http:"))
        async with connect(url, token=box.token) as executor:
            process = await executor.start(COUNTER)
            lasting = False
            output = b""
            for turn in range(8):
                output += await count_on(process, chance.randrange(1, 8))
                proxy.cut()
                while executor.recoveries <= turn:
                    output += await count_on(process, 1)
            lasting = True
            recoveries = executor.recoveries
            proxy.cut()  # one that may still be planned would hit the signal that ends it
            while executor.recoveries == recoveries:
                output += await count_on(process, 1)
            await finish(process, output)

        assert proxy.cuts > 0


@pytest.mark.statement("R46")
async def test_an_executor_whose_socket_is_cut_comes_back_and_so_do_its_clients(
    relay: RelayService, tokens: Tokens, tmp_path: Path
) -> None:
    place = Place(relay, "cut", tokens)
    async with cutting(relay.url, tmp_path) as proxy:
        url = proxy.url.replace("ws:", "http:")
        executors = executing(url, "cut", place.executors_token)
        await asyncio.to_thread(executors.__enter__)
        try:
            await asyncio.to_thread(relay.wait_online, "cut")
            async with place.connect() as executor, place.connect() as other:
                process = await executor.start(COUNTER)
                output = await count_on(process, 10)
                for recoveries in (1, 2):
                    proxy.cut()
                    async with asyncio.timeout(PATIENCE):
                        while executor.recoveries < recoveries:
                            output += await count_on(process, 1)
                await finish(process, output)
                assert (await other.run(["echo", "here"])).text == "here\n"
                assert other.recoveries >= 1  # while it was away, it may have missed a cut
        finally:
            await asyncio.to_thread(executors.__exit__, None, None, None)


@pytest.mark.statement("R46")
async def test_a_restart_of_a_killed_relay_loses_nothing(tmp_path: Path) -> None:
    with RelayService(tmp_path / "state") as relay:
        place = Place(relay, "box", new_tokens(relay, "box"))
        with place.executor():
            async with place.connect() as executor:
                process = await executor.start(COUNTER)
                output = await count_on(process, 20)
                await asyncio.to_thread(relay.kill)
                await asyncio.to_thread(relay.start)
                output += await count_on(process, 30)
                while not executor.recoveries:
                    output += await count_on(process, 1)
                await finish(process, output)
        assert relay.stop() == 0


# -- who is there


@pytest.mark.statement("R48")
async def test_the_pinned_executor_is_let_through_and_no_other(box: Place) -> None:
    async with box.connect(executor_key_sha256=box.fingerprint) as executor:
        assert executor.session_id
    with pytest.raises(WrongExecutor, match=box.fingerprint):
        async with box.connect(executor_key_sha256="0" * 64):
            pass


@pytest.mark.statement("R48")
async def test_an_executor_that_was_replaced_ends_the_session_and_a_new_one_can_be_had(
    relay: RelayService, tokens: Tokens
) -> None:
    place = Place(relay, "replaced", tokens)
    with place.executor():
        executor = await place.connect()
    with place.executor():
        with pytest.raises(SessionLost, match="was replaced by another one"):
            await executor.processes()
        await executor.close()
        async with place.connect() as another:
            assert (await another.run(["echo", "new"])).text == "new\n"


async def test_keys_in_files_let_both_ends_know_each_other_whatever_the_relay_says(
    relay: RelayService, tokens: Tokens, tmp_path: Path
) -> None:
    place = Place(relay, "listed", tokens)
    executors = place.command("relay", "key", str(tmp_path / "executor")).stdout.decode().strip()
    clients = place.command("relay", "key", str(tmp_path / "client")).stdout.decode()
    (tmp_path / "clients").write_text("# ours\n" + clients)
    flags = ("--remote-key-file", f"{tmp_path}/executor", "--remote-allowed-clients", f"{tmp_path}/clients")

    with place.executor(*flags):
        async with place.connect(executor_key_sha256=executors, key_file=tmp_path / "client") as executor:
            assert (await executor.run(["echo", "known"])).text == "known\n"
        with pytest.raises(AccessDenied, match="key_file="):
            async with place.connect(executor_key_sha256=executors):
                pass


async def test_where_no_executor_is_the_error_has_the_name_and_the_way_out(
    relay: RelayService, tokens: Tokens
) -> None:
    place = Place(relay, "empty", tokens)

    with pytest.raises(EnvironmentOffline, match=r"environment empty .*--environment-id empty"):
        async with place.connect():
            pass


async def test_a_token_is_for_its_role_and_its_environments(box: Place, relay: RelayService) -> None:
    other = await asyncio.to_thread(relay.token, "client", "elsewhere")

    for token, status in (("xrt_" + "x" * 43, 401), (box.executors_token, 403), (other, 403)):
        with pytest.raises(AccessDenied) as raised:
            async with box.connect(token=token):
                pass
        assert raised.value.status == status
        assert token not in str(raised.value)


async def test_a_token_that_is_revoked_ends_the_session(box: Place, relay: RelayService) -> None:
    token = await asyncio.to_thread(relay.token, "client", "box")
    async with box.connect(token=token, recovery_timeout=0.3) as executor:
        process = await executor.start(["cat"], stdin=True)
        await asyncio.to_thread(relay.revoke, token)
        with pytest.raises(SessionLost, match="401"):
            await process.wait(PATIENCE)


async def test_over_tls_the_relay_must_have_a_certificate_that_holds(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    server_context(tmp_path)
    flags = ("--tls-cert", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with RelayService(tmp_path / "state", *flags, listen="https://127.0.0.1:0") as relay:
        place = Place(relay, "box", new_tokens(relay, "box"))
        trusting = {"SSL_CERT_FILE": str(authority)}
        with executing(relay.url, "box", place.executors_token, **trusting):
            relay.wait_online("box")
            async with place.connect(ssl=ssl.create_default_context(cafile=authority)) as executor:
                result = await executor.run(["wc", "-c"], input=bytes(5 << 20))
                assert result.text == f"{5 << 20}\n"
            with pytest.raises(UntrustedServer, match="ssl="):
                async with place.connect():
                    pass


# -- the command line


def test_commands_reach_the_executor_by_their_url(box: Place, tmp_path: Path) -> None:
    ran = box.command("run", "--url", box.url, "--", "sh", "-c", "cat; exit 3", data=b"piped")
    (tmp_path / "file").write_bytes(b"copied")
    copied = box.command("cp", str(tmp_path / "file"), f":{tmp_path}/copy")

    assert (ran.returncode, ran.stdout) == (3, b"piped"), ran.stderr
    assert (copied.returncode, (tmp_path / "copy").read_bytes()) == (0, b"copied"), copied.stderr


def test_the_command_line_says_who_is_not_there_and_who_is_another(box: Place) -> None:
    offline = box.command("run", "--url", box.relay.client_url("empty"), "true")
    wrong = box.command("run", "true", EXECSERVER_EXECUTOR_KEY_SHA256="0" * 64)

    assert (offline.returncode, b"no executor is connected" in offline.stderr) == (69, True), offline.stderr
    assert (wrong.returncode, b"and not the pinned one" in wrong.stderr) == (125, True), wrong.stderr

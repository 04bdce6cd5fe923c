"""A daemon that writes down what its clients do."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from execclient import connect
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools.toolset import Toolset
from tests.conftest import StartServer
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Client, Json, ReplyError, connect_unix, path_uri, wait_gone

EXECSERVER = [sys.executable, "-I", "-m", "execserver"]


def verified(path: Path) -> subprocess.CompletedProcess[str]:
    command = [*EXECSERVER, "audit", "verify", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def acts(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def socket(start_server: StartServer, tmp_path: Path, audit: Path) -> tuple[Path, int]:
    server = start_server(f"unix://{tmp_path}/s", "--audit-file", str(audit))
    return tmp_path / "s", server.pid


Connect = Callable[[Path], Client]


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Connects to a socket until the end of the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(connect_unix(path))).handshake()


@pytest.fixture
def client(socket: tuple[Path, int], connected: Connect) -> Client:
    return connected(socket[0])


def write_file(client: Client, path: Path, data: bytes) -> None:
    params = {"path": path_uri(path), "dataBase64": base64.b64encode(data).decode()}
    client.call("fs/writeFile", params)


def test_each_act_is_written_down_with_its_outcome_and_no_contents(
    client: Client, audit: Path, tmp_path: Path
) -> None:
    process = client.start("/bin/cat", pipeStdin=True, env={**os.environ, "TOKEN": "hunter2"})
    process.write(b"a secret", "w")
    process.wait_output(b"a secret")
    process.terminate()
    process.wait_closed()
    write_file(client, tmp_path / "f", b"another secret")
    large = os.urandom(1 << 20)
    write_file(client, tmp_path / "large", large)
    for program in ("/bin/cat", "/nonexistent"):
        with pytest.raises(ReplyError):
            client.start(program, processId=process.id if program == "/bin/cat" else "other")
    client.call("fs/readFile", {"path": path_uri(tmp_path / "f")})

    lines = acts(audit)
    assert [(line["method"], line["decision"], line["outcome"]) for line in lines] == [
        ("process/start", "allowed", "ok"),
        ("process/write", "allowed", "ok"),
        ("process/terminate", "allowed", "ok"),
        ("fs/writeFile", "allowed", "ok"),
        ("fs/writeFile", "allowed", "ok"),
        ("process/start", "refused", "process_exists"),
        ("process/start", "allowed", "spawn_failed"),
    ]
    start, write, _, *files = lines
    assert {line["session"] for line in lines} == {client.session_id}
    assert {line["peer"] for line in lines} == {"user"}
    assert (start["argv"], start["processId"], start["sandbox"]) == (["/bin/cat"], process.id, "none")
    assert (write["bytes"], write["sha256"]) == (8, hashlib.sha256(b"a secret").hexdigest())
    assert files[0]["path"] == str(tmp_path / "f")
    assert files[0]["sha256"] == hashlib.sha256(b"another secret").hexdigest()
    assert files[1]["sha256"] == hashlib.sha256(large).hexdigest()
    assert b"secret" not in audit.read_bytes()
    assert b"hunter2" not in audit.read_bytes()
    done = verified(audit)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"acts 1 to 7, hash {lines[-1]['hash']}\n"


async def test_the_record_of_a_tool_call_names_the_act(
    socket: tuple[Path, int], audit: Path, tmp_path: Path
) -> None:
    async with connect(f"unix://{socket[0]}") as executor:
        process = await executor.start(["true"])
        await process.wait()
        async with Toolset(executor, sandbox=DangerFullAccess(), cwd=str(tmp_path)) as tools:
            result = await tools.call("exec_command", {"cmd": "true"})

    starts = {act["n"]: act["processId"] for act in acts(audit) if act["method"] == "process/start"}
    assert process.audit is not None
    assert starts[process.audit] == process.id
    assert result.record.audit is not None
    assert starts[result.record.audit] == result.record.process_id


def test_a_new_server_continues_and_a_change_is_found(
    client: Client, connected: Connect, socket: tuple[Path, int], audit: Path
) -> None:
    client.start("/bin/true").wait_closed()
    pid = server_of(socket[1], PATIENCE)
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    connected(socket[0]).start("/bin/true").wait_closed()
    assert verified(audit).stdout.startswith("acts 1 to 2,")

    lines = audit.read_bytes().splitlines(keepends=True)
    audit.write_bytes(lines[0].replace(b"/bin/true", b"/bin/fals") + lines[1])

    done = verified(audit)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"execserver: {audit}, line 1: the line was changed\n"


@pytest.mark.parametrize("suffix", ["", ".end"])
def test_no_sandbox_shows_the_file(client: Client, audit: Path, tmp_path: Path, suffix: str) -> None:
    client.start("/bin/true").wait_closed()
    sandbox = context(READ_ONLY, cwd=tmp_path)
    process = client.shell(f"cat {audit}{suffix}", sandbox=sandbox).wait_closed()
    assert process.exit_code != 0 or not process.log.output


def test_a_daemon_does_not_start_with_a_file_that_others_can_read(tmp_path: Path, audit: Path) -> None:
    audit.touch(0o644)
    audit.chmod(0o644)
    command = [*EXECSERVER, "serve", "--listen", f"unix://{tmp_path}/t", "--audit-file", str(audit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "chmod 600" in done.stderr


def test_on_a_full_disk_acts_are_refused_and_reading_goes_on(
    start_server: StartServer, connected: Connect, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts in this namespace need root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    try:
        start_server(f"unix://{tmp_path}/s", "--audit-file", str(disk / "audit"))
        client = connected(tmp_path / "s")
        with pytest.raises(ReplyError, match=r"No space left on device.*nothing is done"):
            client.start("/bin/touch", str(tmp_path / "made"))
        assert not (tmp_path / "made").exists()
        client.call("fs/getMetadata", {"path": path_uri(tmp_path)})
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        client.start("/bin/touch", str(tmp_path / "made")).wait_closed()
        assert (tmp_path / "made").exists()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)

"""A daemon that writes down what its clients do."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket as net
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from execclient import connect
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools.toolset import Toolset
from execserver import drain_command, fault_points
from execserver.audit.chain import file_name
from tests.conftest import StartServer
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Client, Json, ReplyError, connect_unix, path_uri, wait_gone

EXECSERVER = [sys.executable, "-I", "-m", "execserver"]


def verified(path: Path) -> subprocess.CompletedProcess[str]:
    command = [*EXECSERVER, "audit", "verify", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def acts(folder: Path) -> list[Json]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def socket(start_server: StartServer, tmp_path: Path, audit: Path) -> tuple[Path, int]:
    server = start_server(f"unix://{tmp_path}/s", "--audit-dir", str(audit))
    return tmp_path / "s", server.pid


class Connect(Protocol):
    def __call__(self, path: Path, resume: str | None = None) -> Client: ...


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Connects to a socket until the end of the test."""
    with ExitStack() as stack:

        def connect(path: Path, resume: str | None = None) -> Client:
            return stack.enter_context(closing(connect_unix(path))).handshake(resume)

        yield connect


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
    assert write["status"] == "accepted"
    assert (write["bytes"], write["sha256"]) == (8, hashlib.sha256(b"a secret").hexdigest())
    assert files[0]["path"] == str(tmp_path / "f")
    assert files[0]["sha256"] == hashlib.sha256(b"another secret").hexdigest()
    assert files[1]["sha256"] == hashlib.sha256(large).hexdigest()
    text = (audit / file_name(1)).read_bytes()
    assert b"secret" not in text
    assert b"hunter2" not in text
    done = verified(audit)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"acts 1 to 7, hash {lines[-1]['hash']}\n"


def test_each_file_of_a_request_is_written_down_and_reading_is_not(
    client: Client, audit: Path, tmp_path: Path
) -> None:
    data = base64.b64encode(b"new").decode()
    (tmp_path / "old").touch()
    edits = [
        {"op": "write", "path": path_uri(tmp_path / "new"), "dataBase64": data},
        {"op": "remove", "path": path_uri(tmp_path / "old")},
    ]
    client.call("fs/applyEdits", {"edits": edits})
    for mode in ("read", "replace"):
        client.call("fs/open", {"handleId": mode, "path": path_uri(tmp_path / "new"), "mode": mode})

    edited, opened = acts(audit)
    digest = hashlib.sha256(b"new").hexdigest()
    assert (edited["method"], edited["files"]) == ("fs/applyEdits", 2)
    assert edited["edits"] == [
        {"op": "write", "path": str(tmp_path / "new"), "bytes": 3, "sha256": digest},
        {"op": "remove", "path": str(tmp_path / "old")},
    ]
    assert (opened["method"], opened["mode"]) == ("fs/open", "replace")


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
    kill_server(socket[1])
    connected(socket[0]).start("/bin/true").wait_closed()
    assert verified(audit).stdout.startswith("acts 1 to 2,")

    file = audit / file_name(1)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0].replace(b"/bin/true", b"/bin/fals") + lines[1])

    done = verified(audit)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"execserver: {file}, line 1: the line was changed\n"
    assert verified(file).stderr == done.stderr


def kill_server(supervisor: int) -> None:
    pid = server_of(supervisor, PATIENCE)
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)


def upgrade(supervisor: int) -> None:
    os.kill(supervisor, signal.SIGHUP)


@pytest.mark.parametrize(
    ("point", "known", "unfinished"),
    [("audit-before-line:3", 2, 1), ("audit-after-line:3", 3, 1), ("audit-new-file:2", 2, None)],
)
def test_a_kill_at_any_step_keeps_the_chain(
    start_server: StartServer,
    connected: Connect,
    tmp_path: Path,
    audit: Path,
    point: str,
    known: int,
    unfinished: int | None,
) -> None:
    flags = ("--audit-dir", str(audit), "--audit-max-bytes", "1")
    server = start_server(f"unix://{tmp_path}/s", *flags, env={fault_points.VARIABLE: point})
    client = connected(tmp_path / "s")
    for number in (1, 2):
        write_file(client, tmp_path / "f", b"%d" % number)
    pid = server_of(server.pid, PATIENCE)
    client.request("fs/writeFile", {"path": path_uri(tmp_path / "f"), "dataBase64": ""})
    wait_for_state(pid, "T")
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    assert verified(audit).stdout.startswith(f"acts 1 to {known},")

    client = connected(tmp_path / "s")
    for content in (b"later", b"last"):
        write_file(client, tmp_path / "f", content)

    assert verified(audit).stdout.startswith(f"acts 1 to {known + 2},")
    assert [act.get("unfinished") for act in acts(audit)] == [*[None] * known, unfinished, None]


def test_acts_that_were_going_on_at_a_kill_are_counted(
    start_server: StartServer, connected: Connect, tmp_path: Path, audit: Path
) -> None:
    server = start_server(f"unix://{tmp_path}/s", "--audit-dir", str(audit))
    client = connected(tmp_path / "s")
    with closing(net.create_server(("127.0.0.1", 0))) as silent:
        for number in range(3):
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            client.request("http/request", {"requestId": f"r{number}", "method": "GET", "url": url})
        asked = [silent.accept()[0] for _ in range(3)]
        kill_server(server.pid)
        for each in asked:
            each.close()
    kill_server(server.pid)  # one that has done nothing keeps the number

    write_file(connected(tmp_path / "s"), tmp_path / "f", b"later")

    assert [(act["method"], act.get("unfinished")) for act in acts(audit)] == [("fs/writeFile", 3)]


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_upgrades_and_a_drain_keep_the_chain(
    client: Client, connected: Connect, socket: tuple[Path, int], audit: Path
) -> None:
    process = client.start("/bin/cat", pipeStdin=True)
    for number in range(3):
        upgrade(socket[1])
        client.wait_end()
        client = connected(socket[0], client.session_id)
        client.process(process.id).write(b"x", f"{number}")
    entries = Path(f"/proc/{socket[1]}/environ").read_text().split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if entry)
    assert drain_command.run(f"unix://{socket[0]}", environment, wait=None, cancel=False) == 0
    client.process(process.id).terminate()
    assert [act["method"] for act in acts(audit)] == [
        "process/start", *["process/write"] * 3, "process/terminate",
    ]  # fmt: skip
    assert not any("unfinished" in act for act in acts(audit))
    assert verified(audit).stdout.startswith("acts 1 to 5,")


@pytest.mark.parametrize("failure", ["stop", "warn"])
def test_a_folder_that_is_unusable_at_a_takeover_refuses_acts_and_ends_nothing(
    start_server: StartServer, connected: Connect, tmp_path: Path, audit: Path, failure: str
) -> None:
    flags = ("--audit-dir", str(audit), "--audit-failure", failure)
    server = start_server(f"unix://{tmp_path}/s", *flags)
    client = connected(tmp_path / "s")
    process = client.start("/bin/cat", pipeStdin=True)
    process.write(b"before", "1")
    process.wait_output(b"before")
    assert client.call("server/health")["audit"] == {"acts": 2, "problem": None}
    audit.chmod(0o755)
    kill_server(server.pid)

    client = connected(tmp_path / "s", client.session_id)

    process = client.process(process.id)
    reason = f"acts cannot be written down in the audit folder {audit}: folder {audit} has mode 0755"
    assert process.read()["chunks"], "what only reads goes on"
    if failure == "stop":
        with pytest.raises(ReplyError, match=r"open to others; chmod it to 0700.*nothing is done"):
            process.write(b"refused", "2")
    else:
        process.write(b"unseen", "2")
        process.wait_output(b"unseen")
    health = client.call("server/health")
    assert health["status"] == "ok"
    assert health["audit"]["problem"].startswith(reason)
    doctor = [*EXECSERVER, "doctor", "--json", *flags]
    report = json.loads(subprocess.run(doctor, capture_output=True, timeout=60, check=False).stdout)
    check = next(each for each in report["checks"] if each["name"] == "audit folder")
    assert check["status"] == "warning"
    assert f"folder {audit} has mode 0755" in check["cause"]

    audit.chmod(0o700)
    process.write(b"after", "3")
    process.wait_output(b"after")
    assert [act.get("missed") for act in acts(audit)] == [None, None, None if failure == "stop" else 1]
    assert verified(audit).stdout.startswith("acts 1 to 3,")
    assert client.call("server/health")["audit"] == {"acts": 3, "problem": None}


def test_no_sandbox_shows_the_folder_not_even_one_that_was_there_before_a_new_file(
    start_server: StartServer, connected: Connect, tmp_path: Path, audit: Path
) -> None:
    start_server(f"unix://{tmp_path}/s", "--audit-dir", str(audit), "--audit-max-bytes", "1")
    client = connected(tmp_path / "s")
    script = f"exec 2>&1; while read line; do cat {audit}/*.jsonl {audit}/end; echo read; done"
    inside = client.shell(script, pipeStdin=True, sandbox=context(READ_ONLY, cwd=tmp_path))
    for number in range(3):
        inside.write("\n", f"{number}")
        inside.client.wait_until(lambda: inside.log.output.count(b"read\n") > number)  # noqa: B023
    inside.terminate()
    inside.wait_closed()
    outside = client.shell(
        f"cat {audit}/*.jsonl {audit}/end; ls -A {audit}", processId="outside"
    ).wait_closed()
    assert len(list(audit.iterdir())) > 5
    assert b"prev" not in inside.log.output
    assert b"Permission denied" in inside.log.output or b"No such file" in inside.log.output
    assert outside.log.output.count(b"prev") >= 5

    policy = context(READ_ONLY, cwd=tmp_path)
    for name in (file_name(1), "end"):
        params = {"path": path_uri(audit / name)}
        assert client.call("fs/readFile", params)["dataBase64"]
        assert client.refused("fs/readFile", {**params, "sandbox": policy}).code in (-32004, -32600)


def test_a_daemon_does_not_start_with_a_folder_that_others_can_read(tmp_path: Path, audit: Path) -> None:
    audit.mkdir()
    audit.chmod(0o755)
    flags = ("--audit-dir", str(audit))
    for command in (["serve", "--listen", f"unix://{tmp_path}/t"], ["config", "check"]):
        done = subprocess.run(
            [*EXECSERVER, *command, *flags], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 1
        assert "open to others; chmod it to 0700" in done.stderr


def test_on_a_full_disk_acts_are_refused_and_reading_goes_on(
    start_server: StartServer, connected: Connect, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts in this namespace need root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    try:
        server = start_server(f"unix://{tmp_path}/s", "--audit-dir", str(disk / "audit"))
        client = connected(tmp_path / "s")
        for end_server in (None, kill_server, upgrade):  # each new server finds it full, too
            if end_server is not None:
                end_server(server.pid)
                client.wait_end()
                client = connected(tmp_path / "s", client.session_id)
            with pytest.raises(ReplyError, match=r"No space left on device.*nothing is done"):
                client.start("/bin/touch", str(tmp_path / "made"))
            assert not (tmp_path / "made").exists()
            client.call("fs/getMetadata", {"path": path_uri(tmp_path)})
            assert client.call("server/health")["audit"]["problem"] == "No space left on device"
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        client.start("/bin/touch", str(tmp_path / "made")).wait_closed()
        assert (tmp_path / "made").exists()
        assert verified(disk / "audit").stdout.startswith("acts 1 to 1,")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_request_that_is_cancelled_is_written_down(
    client: Client, connected: Connect, socket: tuple[Path, int], audit: Path, tmp_path: Path
) -> None:
    silent = net.create_server(("127.0.0.1", 0))
    with silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/secret?token=hunter2"
        client.request("http/request", {"method": "GET", "url": url, "requestId": "r"})
        with silent.accept()[0]:  # the request is on its way
            client.close()
            deadline = time.monotonic() + PATIENCE
            while not acts(audit):
                assert time.monotonic() < deadline
                time.sleep(0.01)
    (act,) = acts(audit)
    assert (act["method"], act["host"], act["outcome"]) == ("http/request", "http://127.0.0.1", "cancelled")
    write_file(connected(socket[0]), tmp_path / "f", b"")
    assert verified(audit).stdout.startswith("acts 1 to 2,")

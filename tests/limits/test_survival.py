"""Limits and leaves when a server, or a whole service, is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from execprotocol.process import ResourceLimits
from execserver.descendants import new_instance
from execserver.limits.leaves import Leaves
from tests.faults.service import Service
from tests.limits.groups import (
    DELEGATED,
    HOG,
    MIB,
    PREFIX,
    abandoned_groups,
    exited,
    leaves_of,
    leaves_of_service,
    needs_groups,
    start,
    wait_for,
)
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.wire import PATIENCE, Client, Json, Process, ReplyError

pytestmark = needs_groups

POINTS = ["limits-launching", "limits-leaf-made", "limits-gated", "limits-entered"]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a service, which must leave no control group behind."""
    before = abandoned_groups()
    yield tmp_path_factory.mktemp("s")
    for group in [] if DELEGATED is None else [each for each in os.listdir(DELEGATED) if each.isdigit()]:
        os.rmdir(f"{DELEGATED}/{group}")
    wait_for(lambda: abandoned_groups() <= before)


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    """A service whose server a test may kill."""
    service = serve(folder)
    yield service
    service.end()


def serve(folder: Path, env: Mapping[str, str] | None = None) -> Service:
    return Service("unix", folder, launcher=PREFIX, env=env)


def connected(service: Service, resume: str | None = None) -> Client:
    client = service.connect(handshake=False)
    client.handshake(resume, extensions=True)
    return client


def killed(service: Service, client: Client) -> Client:
    """Kill the server; the session on the next one."""
    os.kill(service.server_pid, signal.SIGKILL)
    service.wait_for_new_server()
    return connected(service, client.session_id)


@pytest.mark.statement("P46", "X20")
@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)], ids=["no sandbox", "sandbox"])
def test_limits_hold_after_a_new_server_has_taken_over(service: Service, sandbox: Json) -> None:
    client = connected(service)
    limits = {"memoryBytes": 64 * MIB, "pids": 9}
    # In cgroup v1 it is the server that kills the shell, a moment after the kernel has killed its child.
    script = f"echo up; read -r x; {HOG}; sleep 5; echo survived; sleep 60"
    before = start(client, script, limits, pipeStdin=True, sandbox=sandbox)
    before.wait_output(b"up")
    group = leaves_of(before.started["pid"])
    client = killed(service, client)
    [entry] = client.call("process/list", {})["processes"]
    assert entry["limits"] == limits
    assert leaves_of(before.started["pid"]) == group
    process = Process(client, before.id)
    process.write("\n", "1")
    ended = exited(process)
    assert (ended["exitCode"], ended["cause"]) == (137, "limit")
    assert ended["limit"] == {"which": "memory", "value": 64 * MIB}
    assert b"survived" not in process.output


def test_memory_that_ran_out_without_a_server_ends_the_command(service: Service) -> None:
    client = connected(service)
    go, over = (service.path.parent / name for name in ("go", "over"))
    script = f"echo up; while [ ! -e {go} ]; do sleep 0.01; done; {HOG}; touch {over}; sleep 60"
    process = start(client, script, {"memoryBytes": 64 * MIB})
    process.wait_output(b"up")
    os.kill(service.server_pid, signal.SIGSTOP)
    go.touch()
    wait_for(lambda: over.exists() or is_dead(process.started["pid"]))
    client = killed(service, client)
    process = Process(client, process.id)
    client.wait_until(lambda: process.read()["closed"], PATIENCE, "the end")
    read = process.read()
    assert (read["exitCode"], read["cause"], read["limit"]["which"]) == (137, "limit", "memory")


def is_dead(pid: int) -> bool:
    """Whether a process has ended; the stopped server does not reap it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"


def test_a_limit_that_was_hit_is_known_to_the_next_server(service: Service) -> None:
    client = connected(service)
    ended = exited(start(client, f"exec {HOG}", {"memoryBytes": 64 * MIB}))
    client = killed(service, client)
    read = Process(client, ended["processId"]).read()
    assert {name: read[name] for name in ("cause", "limit", "usage")} == {
        name: ended[name] for name in ("cause", "limit", "usage")
    }


@pytest.mark.parametrize(
    ("point", "sandbox"), [*((point, None) for point in POINTS), ("limits-entered", context(READ_ONLY))]
)
def test_a_start_that_was_cut_leaves_nothing(folder: Path, point: str, sandbox: Json) -> None:
    service = serve(folder, env={"EXECSERVER_FAULT_POINT": point})
    try:
        client = connected(service)
        other = client.call("process/start", client.start_params(["/bin/cat"], pipeStdin=True))
        params = client.start_params(
            ["/bin/sh", "-c", f"touch {folder}/ran"], limits={"pids": 4}, sandbox=sandbox
        )
        client.request("process/start", params)
        stat = Path(f"/proc/{service.server_pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(") ")[2][0] == "T")
        client = killed(service, client)
        # The earlier process has survived, the one that was cut has not, and its name is free.
        assert Process(client, other["processId"]).write("x", "1") == "accepted"
        names = [entry["processId"] for entry in client.call("process/list", {})["processes"]]
        assert names == [other["processId"]]
        wait_for(lambda: not leaves_of_service(service.pid))
        assert exited_again(client, params) == 0
    finally:
        service.end()


def exited_again(client: Client, params: Json) -> int:
    client.call("process/start", {**params, "sandbox": None})
    ended = exited(Process(client, params["processId"]))
    return int(ended["exitCode"])


def test_the_next_service_sweeps_what_a_killed_one_has_left(folder: Path) -> None:
    first = serve(folder)
    client = connected(first)
    process = start(client, "setsid sleep 60 & echo up; sleep 60", {"pids": 9})
    process.wait_output(b"up")
    left = leaves_of_service(first.server_pid)
    assert left
    os.kill(first.pid, signal.SIGSTOP)  # so that it cannot clean up after its server
    os.kill(first.server_pid, signal.SIGKILL)
    os.kill(first.pid, signal.SIGKILL)
    first.end()
    second = serve(folder)
    try:
        wait_for(lambda: not any(each.exists() for each in left))
    finally:
        second.end()


SWEEPER = """
from execserver.limits.hierarchies import groups_of_services
from execserver.limits.leaves import sweep
print("begins", flush=True)
while True:
    sweep(groups_of_services())
"""


@pytest.mark.skipif(DELEGATED is not None, reason="only the daemons have groups of their own")
def test_a_group_is_kept_while_other_daemons_sweep() -> None:
    with subprocess.Popen([sys.executable, "-c", SWEEPER], stdout=subprocess.PIPE) as sweeper:
        assert sweeper.stdout is not None
        assert sweeper.stdout.readline() == b"begins\n"
        try:
            for _ in range(100):
                leaves = Leaves(new_instance(), lambda: ())
                leaves.make(1, ResourceLimits(memory_bytes=64 * MIB, pids=9), 0)
                leaves.close()
            assert sweeper.poll() is None
        finally:
            sweeper.kill()


def test_a_child_that_waits_for_its_group_ends_with_the_daemons(folder: Path) -> None:
    """It has copies of all descriptors of the server, and nothing else would end it."""
    service = Service("unix", folder, env={"EXECSERVER_FAULT_POINT": "limits-gated"})
    client = connected(service)
    service.settle()  # else its try of a sandbox may be a second child
    params = client.start_params(["/bin/sh", "-c", f"touch {folder}/ran"], limits={"pids": 4})
    client.request("process/start", params)
    server = psutil.Process(service.server_pid)
    wait_for(lambda: server.status() == psutil.STATUS_STOPPED)
    [child] = server.children()
    assert child.is_running()
    left = leaves_of_service(server.pid)
    assert left
    os.kill(service.pid, signal.SIGSTOP)  # so that it cannot clean up after its server
    os.kill(server.pid, signal.SIGKILL)
    os.kill(service.pid, signal.SIGKILL)
    service.end()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert not (folder / "ran").exists()
    second = Service("unix", folder)
    try:
        wait_for(lambda: not any(each.exists() for each in left))
    finally:
        second.end()


def test_the_groups_of_a_service_that_lives_are_left_alone(folder: Path) -> None:
    first = serve(folder)
    client = connected(first)
    process = start(client, "echo up; read -r x", {"pids": 9}, pipeStdin=True)
    process.wait_output(b"up")
    leaves = leaves_of_service(first.server_pid)
    assert leaves
    second = serve(folder)
    other = connected(second)
    assert exited(start(other, "true", {"pids": 9}))["exitCode"] == 0
    assert leaves <= leaves_of_service(first.server_pid)
    second.end()
    assert exited_with(process) == 0
    first.end()


def exited_with(process: Process) -> int:
    process.write("\n", "1")
    return int(exited(process)["exitCode"])


def resumed(service: Service, session: str) -> Client:
    """The session on another connection, as soon as the server has noticed the end of the first."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return connected(service, session)
        except ReplyError:
            assert time.monotonic() < deadline


def test_a_start_whose_connection_is_lost_leaves_no_leaf(service: Service) -> None:
    client = connected(service)
    for number in range(20):
        params = client.start_params(["/bin/true"], limits={"pids": 4}) | {"processId": f"cut {number}"}
        client.request("process/start", params)
    client.transport.close()
    again = resumed(service, client.session_id)
    wait_for(lambda: not leaves_of_service(service.server_pid))
    # Each was started or not, and each name can be asked for.
    for entry in again.call("process/list", {})["processes"]:
        assert Process(again, entry["processId"]).read()["closed"]
    with pytest.raises(ReplyError):
        again.call("process/start", again.start_params(["/nonexistent"], limits={"pids": 4}))


def test_the_daemon_limits_commands_by_its_settings(folder: Path) -> None:
    service = Service(
        "unix", folder, "--default-limit", "pids=3", "--max-limit", "memory=64M", launcher=PREFIX
    )
    try:
        client = connected(service)
        process = start(client, f"exec {HOG}", None, ifExists="attach")
        assert exited(process)["limit"] == {"which": "memory", "value": 64 * MIB}
        [entry] = client.call("process/list", {})["processes"]
        assert entry["limits"] == {"memoryBytes": 64 * MIB, "pids": 3}
        again = client.start_params(["/bin/sh", "-c", f"exec {HOG}"], ifExists="attach")
        assert client.call("process/start", {**again, "processId": process.id, "limits": None})["attached"]
        with pytest.raises(ReplyError, match=r"limits.memoryBytes` is at most 67108864"):
            start(client, "true", {"memoryBytes": 65 * MIB})
    finally:
        service.end()

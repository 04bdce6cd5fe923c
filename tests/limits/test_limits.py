"""Limits of real commands, by real control groups of either version."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from execserver.limits import hierarchies
from tests.limits.groups import (
    HOG,
    MIB,
    PYTHON,
    exited,
    leaves_of,
    leaves_of_service,
    needs_groups,
    start,
    wait_for,
)
from tests.sandbox.profiles import READ_ONLY, at, context, restricted, special
from tests.support.wire import Client, Json, Process, ReplyError, Server

pytestmark = needs_groups

SANDBOXES = [pytest.param(None, id="no sandbox"), pytest.param(context(READ_ONLY), id="sandbox")]

either = pytest.mark.parametrize("sandbox", SANDBOXES)


@pytest.mark.statement("P42", "X20", "X21")
@either
def test_a_command_that_exhausts_its_memory_ends_for_that_limit(client: Client, sandbox: Json) -> None:
    ended = exited(start(client, f"exec {HOG}", {"memoryBytes": 64 * MIB}, sandbox=sandbox))
    assert (ended["exitCode"], ended["cause"]) == (137, "limit")
    assert ended["limit"] == {"which": "memory", "value": 64 * MIB}
    assert ended["usage"]["limitsHit"] == ["memory"]
    # The kernel lets a process that it kills have some pages more.
    assert 60 * MIB < ended["usage"]["memoryPeakBytes"] < 65 * MIB


@either
def test_the_same_command_succeeds_with_enough_memory(client: Client, sandbox: Json) -> None:
    ended = exited(start(client, f"exec {HOG}", {"memoryBytes": 600 * MIB}, sandbox=sandbox))
    assert (ended["exitCode"], ended["cause"], ended.get("limit")) == (0, "normal", None)
    assert ended["usage"]["memoryPeakBytes"] > 400 * MIB


@pytest.mark.statement("P42")
@either
def test_all_of_a_command_ends_when_a_part_of_it_exhausts_the_memory(client: Client, sandbox: Json) -> None:
    # With cgroup v1 the daemon kills the shell, soon after the kernel killed the hog.
    script = f"{HOG}; sleep 5; echo survived; sleep 60"
    process = start(client, script, {"memoryBytes": 64 * MIB}, sandbox=sandbox)
    ended = exited(process)
    assert (ended["exitCode"], ended["cause"], ended["limit"]["which"]) == (137, "limit", "memory")
    assert b"survived" not in process.output


def test_a_background_process_with_too_much_memory_ends_the_command(client: Client) -> None:
    process = start(client, f"setsid {HOG} & sleep 60", {"memoryBytes": 64 * MIB})
    ended = exited(process)
    assert (ended["exitCode"], ended["cause"], ended["limit"]["which"]) == (137, "limit", "memory")


@pytest.mark.statement("P42", "X20")
def test_a_limit_of_memory_holds_in_a_daemon_with_more_than_a_thousand_descriptors(
    server_of_one_test: Server,
) -> None:
    with server_of_one_test.connect(extensions=True) as client:
        while len(os.listdir(f"/proc/{server_of_one_test.pid}/fd")) < 1100:
            client.call("process/start", client.start_params(["/bin/sleep", "600"], pipeStdin=True))
        ended = exited(start(client, f"setsid {HOG} & sleep 60", {"memoryBytes": 64 * MIB}))
        assert (ended["exitCode"], ended["cause"], ended["limit"]["which"]) == (137, "limit", "memory")


@pytest.mark.statement("X20")
def test_a_kill_from_outside_is_no_limit(client: Client) -> None:
    ended = exited(start(client, "kill -9 $$", {"memoryBytes": 64 * MIB}))
    assert (ended["cause"], ended.get("limit"), ended["usage"]["limitsHit"]) == ("signal", None, [])


def test_the_memory_of_another_command_is_no_reason(client: Client) -> None:
    waiting = start(client, "echo up; read -r x; kill -9 $$", {"memoryBytes": 64 * MIB}, pipeStdin=True)
    waiting.wait_output(b"up")
    assert exited(start(client, f"exec {HOG}", {"memoryBytes": 64 * MIB}))["cause"] == "limit"
    waiting.write("go\n", "1")
    assert exited(waiting)["cause"] == "signal"


@pytest.mark.statement("P43")
@either
@pytest.mark.parametrize("pids", [1, 3])
def test_a_command_has_no_more_processes_than_its_limit(client: Client, sandbox: Json, pids: int) -> None:
    # The shell is one. A shell that cannot fork gives up.
    script = "n=1; while [ $n -lt 9 ]; do (exec sleep 60) & n=$((n+1)); echo $n; done"
    process = start(client, script, {"pids": pids}, sandbox=sandbox)
    process.wait_output(b"fork")
    counted = [int(line) for line in process.output.split() if line.isdigit()]
    assert len(counted) == pids - 1
    process.terminate("tree")
    ended = exited(process)
    assert "pids" in ended["usage"]["limitsHit"]
    assert ended["usage"].get("pidsPeak", pids) == pids


@pytest.mark.statement("P43")
@either
def test_a_busy_command_gets_no_more_than_its_share_of_the_processor(client: Client, sandbox: Json) -> None:
    script = f"exec {PYTHON} -c 'import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass'"
    begin = time.monotonic()
    ended = exited(start(client, script, {"cpuPercent": 20}, sandbox=sandbox))
    periods = (time.monotonic() - begin) * 10
    assert (ended["exitCode"], ended["cause"]) == (0, "normal")
    assert ended["usage"]["limitsHit"] == ["cpu"]
    # 20 ms in each 100 ms, and as much in the period that had begun.
    assert 20 < ended["usage"]["cpuMs"] < 20 * (periods + 2)


@pytest.mark.statement("P44", "X20")
@either
@pytest.mark.parametrize("others", [{}, {"pids": 9}])
def test_a_command_that_runs_too_long_ends_for_that_limit(
    client: Client, sandbox: Json, others: dict[str, int]
) -> None:
    before = time.monotonic()
    ended = exited(start(client, "setsid sleep 60 & sleep 60", {"wallMs": 300, **others}, sandbox=sandbox))
    assert 0.3 <= time.monotonic() - before < 10
    assert (ended["exitCode"], ended["cause"]) == (137, "limit")
    assert ended["limit"] == {"which": "wall", "value": 300}
    assert ended["usage"]["limitsHit"] == ["wall"]


@either
def test_no_part_of_a_command_goes_on_after_another_was_killed(client: Client, sandbox: Json) -> None:
    script = "for n in $(seq 60); do (sleep 60; echo went on) & done; echo up; wait"
    process = start(client, script, {"pids": 200}, sandbox=sandbox)
    process.wait_output(b"up")
    process.terminate("tree")
    assert (exited(process)["exitCode"], process.output) == (137, b"up\n")


@pytest.mark.statement("P44")
@pytest.mark.parametrize(("wall", "timeout", "cause"), [(200, 9000, "limit"), (9000, 200, "timeout")])
def test_the_shorter_of_two_times_ends_a_command(client: Client, wall: int, timeout: int, cause: str) -> None:
    ended = exited(start(client, "sleep 60", {"wallMs": wall}, timeoutMs=timeout))
    assert ended["cause"] == cause
    assert ("limit" in ended) is (cause == "limit")


@pytest.mark.statement("P24", "P44")
def test_a_command_may_clean_up_within_its_grace(client: Client) -> None:
    script = "trap 'echo cleaned; exit 7' TERM; sleep 60 & wait"
    process = start(client, script, {"wallMs": 300, "pids": 9}, graceMs=5000)
    ended = exited(process)
    assert process.output == b"cleaned\n"
    assert (ended["exitCode"], ended["cause"]) == (7, "limit")
    assert ended["limit"] == {"which": "wall", "value": 300}


@pytest.mark.statement("P40")
@either
def test_every_process_of_a_command_is_in_its_leaf(client: Client, server: Server, sandbox: Json) -> None:
    script = "(setsid sleep 61 &) ; setsid sh -c 'sleep 62 & exec sleep 63' & echo up; wait; sleep 64"
    process = start(client, script, {"pids": 20}, sandbox=sandbox)
    process.wait_output(b"up")
    [leaf] = {"/".join(path.split("/")[-2:]) for path in leaves_of(process.started["pid"])}

    def sleepers() -> list[int]:
        names = [b"sleep\x006%d\0" % last for last in range(1, 5)]
        return [pid for pid in _pids() if _read(f"/proc/{pid}/cmdline") in names and _of(pid, leaf)]

    wait_for(lambda: len(sleepers()) >= 3)
    process.terminate("tree")
    process.wait_closed()
    assert sleepers() == []
    # The daemon itself is in none.
    assert not leaves_of(server.process.pid)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _of(pid: int, leaf: str) -> bool:
    return leaf.encode() in _read(f"/proc/{pid}/cgroup")


def output_of(client: Client, argv: list[str], limits: Json, **members: Json) -> bytes:
    params = client.start_params(argv, limits=limits, **members)
    client.call("process/start", params)
    return Process(client, params["processId"]).wait_closed().output


@pytest.mark.statement("P40")
@either
def test_the_first_instruction_runs_in_the_leaf(client: Client, sandbox: Json) -> None:
    for _ in range(20):
        memberships = output_of(client, ["/bin/cat", "/proc/self/cgroup"], {"pids": 1}, sandbox=sandbox)
        assert b"/execserver." in memberships


def test_a_limited_command_is_started_exactly_as_any_other(client: Client) -> None:
    show = (
        "import os, sys\n"
        "print(sys.argv, os.environb, os.getcwd(), os.getsid(0) == os.getpid(), os.fstat(0).st_rdev)\n"
        "print(os.listdir('/proc/self/fd'), open('/proc/self/cmdline').read())\n"
        "kept = ('SigB', 'SigI', 'SigC', 'Cap', 'NoNew', 'Seccomp:')\n"
        "print([line for line in open('/proc/self/status') if line.startswith(kept)])"
    )
    env = {"odd.name": "1", "PATH": os.environ["PATH"], "EMPTY": "", "_": "x"}
    argv = [sys.executable, "-I", "-c", show, "an argument", ""]
    usual = output_of(client, argv, None, env=env, arg0="other name")
    assert b"other name" in usual
    assert output_of(client, argv, {"pids": 5}, env=env, arg0="other name") == usual


def test_a_limited_command_has_its_terminal(client: Client) -> None:
    script = "tty; stty size; ps -o tpgid=,pid= -p $$ | tr -s ' '"
    process = start(client, script, {"pids": 9}, tty=True, size={"rows": 7, "cols": 77})
    assert exited(process)["exitCode"] == 0
    assert b"/dev/pts/" in process.output
    assert b"7 77" in process.output


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("/nonexistent/program", "No such file"),
        ("/etc/passwd", "Permission denied"),
        ("/", "Permission denied"),
    ],
)
def test_a_program_that_cannot_be_executed_is_reported_as_without_limits(
    client: Client, server: Server, program: str, text: str
) -> None:
    for limits in (None, {"pids": 5}):
        with pytest.raises(ReplyError, match=text):
            client.call("process/start", client.start_params([program], limits=limits))
    wait_for(lambda: not leaves_of_service(server.pid))


@pytest.mark.statement("P41")
@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"memoryBytes": 1000}, "limits.memoryBytes"),
        ({"pids": 0}, "limits.pids"),
        ({"cpuPercent": "fast"}, "limits.cpuPercent"),
        ({"ioWeight": 10_001}, "limits.ioWeight"),
        ({"memoryMax": 1 << 30}, "unknown field `limits.memoryMax`"),
    ],
)
def test_a_wrong_limit_is_refused_by_its_name(client: Client, limits: Json, text: str) -> None:
    with pytest.raises(ReplyError, match=text) as refused:
        start(client, "true", limits)
    assert refused.value.code == -32602


@pytest.mark.statement("P45")
def test_a_sandboxed_command_cannot_leave_its_leaf(client: Client, tmp_path: Path) -> None:
    script = (
        "for each in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do echo $$ > $each; done; "
        f"cat /proc/self/cgroup; touch {tmp_path}/written"
    )
    # All may be written, but for one folder: the files are limited.
    sandbox = context(restricted(special("root", "write"), at(tmp_path / "denied", "deny")))
    (tmp_path / "denied").mkdir()
    free = start(client, script, {"pids": 9})
    assert (exited(free)["exitCode"], b"/execserver." in free.output) == (0, False)
    (tmp_path / "written").unlink()
    confined = start(client, script, {"pids": 9}, sandbox=sandbox)
    assert exited(confined)["exitCode"] == 0
    assert b"/execserver." in confined.output
    assert (tmp_path / "written").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts control groups")
def test_a_second_mount_of_the_control_groups_is_no_way_out_of_a_leaf(
    environment: dict[str, str], tmp_path: Path
) -> None:
    again, denied = tmp_path / "again", tmp_path / "denied"
    again.mkdir()
    denied.mkdir()
    mount = 'mount -t cgroup -o pids none "$0" 2>/dev/null || mount -t cgroup2 none "$0"; exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", mount, str(again))
    script = f"echo $$ > {again}/cgroup.procs; cat /proc/self/cgroup"
    server = Server(f"unix://{tmp_path}/s", env=environment, cwd=tmp_path, prefix=prefix)
    try:
        with server.connect(extensions=True) as client:
            sandbox = context(restricted(special("root", "write"), at(denied, "deny")))
            free, confined = (start(client, script, {"pids": 9}, sandbox=each) for each in (None, sandbox))
            assert exited(free)["exitCode"] == exited(confined)["exitCode"] == 0
    finally:
        assert server.stop() == 0
    assert free.output.count(b"/execserver.") < confined.output.count(b"/execserver.")
    assert confined.output.count(b"/execserver.") == len(hierarchies.find_hierarchies())


@pytest.mark.statement("X21")
def test_the_list_of_processes_has_limits_and_use(client: Client) -> None:
    process = start(client, "echo up; read -r x", {"pids": 5, "memoryBytes": 64 * MIB}, pipeStdin=True)
    process.wait_output(b"up")
    [entry] = client.call("process/list", {})["processes"]
    assert entry["limits"] == {"pids": 5, "memoryBytes": 64 * MIB}
    assert entry["usage"]["limitsHit"] == []
    assert entry["usage"]["memoryPeakBytes"] > 0
    process.write("\n", "1")
    ended = exited(process)
    [entry] = client.call("process/list", {})["processes"]
    assert entry["usage"] == ended["usage"]


def test_a_leaf_goes_with_the_last_process_in_it(client: Client, server: Server) -> None:
    process = start(client, "setsid sleep 60 > /dev/null 2>&1 < /dev/null & echo $!", {"pids": 9})
    exited(process)
    child = int(process.output)
    leaves = [each for each in leaves_of_service(server.pid) if _procs(each) == [child]]
    assert leaves, "the process that was left running is in the leaf"
    process.terminate("tree")
    wait_for(lambda: not any(each.exists() for each in leaves))


def _procs(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []

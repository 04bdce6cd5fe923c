"""However it ends, nothing outlives it: the server, its supervisor, the client, a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from execserver.fault_points import VARIABLE
from tests.faults.service import Fifo, Serve, Service, Watched, eventually
from tests.faults.sizes import GONE_SECONDS
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.edits import wait_stopped
from tests.support.wire import PATIENCE, Client, encode

Tree = Callable[[Any], list[Watched]]
Watch = Callable[[str, int], Watched]


def survivors(members: list[Watched], within: float = GONE_SECONDS) -> list[str]:
    """Who is left after that time."""
    eventually(lambda: all(each.ended(0) for each in members), within)
    return [each.name for each in members if not each.ended(0)]


def _end_of_input(service: Service) -> None:
    service.connect().stdio.finish_sending()


ENDS: dict[str, tuple[Callable[[Service], None], int]] = {
    "server killed": (lambda service: service.signal_server(signal.SIGKILL), 1),
    "server crashed": (lambda service: service.signal_server(signal.SIGSEGV), 1),
    "supervisor killed": (lambda service: service.process.kill(), -signal.SIGKILL),
    "SIGTERM": (lambda service: service.process.terminate(), 0),
    "SIGINT": (lambda service: service.process.send_signal(signal.SIGINT), 0),
    "end of input": (_end_of_input, 0),
}


ONLY_STDIO = ("server killed", "server crashed", "end of input")


@pytest.mark.over("stdio", "unix")
@pytest.mark.parametrize("how", list(ENDS))
def test_no_descendant_outlives_the_service(
    transport: str, how: str, serve: Serve, tree: Tree, bystander: Callable[[], bool]
) -> None:
    if how in ONLY_STDIO and transport != "stdio":
        pytest.skip("only stdio has an input, and only there no new server follows")
    service = serve(transport, may_fail=True)
    members = tree(service.connect())
    end, status = ENDS[how]
    end(service)
    assert survivors(members) == []
    assert service.server_ended(within=GONE_SECONDS)
    assert service.process.wait(GONE_SECONDS) == status
    assert bystander()


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4])
def test_no_descendant_outlives_a_supervisor_that_is_killed_while_the_next_server_begins(
    delay: float, serve: Serve, tree: Tree, bystander: Callable[[], bool]
) -> None:
    service = serve("unix", may_fail=True)
    members = tree(service.connect())
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    time.sleep(delay)
    service.process.kill()
    assert survivors(members) == []
    assert service.server_ended(within=GONE_SECONDS)
    assert bystander()


def test_the_next_server_kills_everything_if_the_supervisor_is_killed_during_the_take_over(
    serve: Serve, tree: Tree
) -> None:
    service = serve("unix", may_fail=True, env={VARIABLE: "take-over-begun"})
    members = tree(service.connect())
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    wait_stopped(service)
    service.process.kill()
    service.signal_server(signal.SIGCONT)
    assert survivors(members) == []


PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "search": ("fs/search", {"pattern": "absent", "searchId": "s"}),
    "worker": ("fs/readDirectory", {}),
    "watch": ("fs/watch", {"watchId": "w"}),
}


@pytest.mark.parametrize("sandbox", [None, context(READ_ONLY)], ids=["open", "sandbox"])
@pytest.mark.parametrize("program", list(PROGRAMS))
def test_a_program_that_has_just_begun_ends_with_its_server(
    folder: Path, serve: Serve, watch: Watch, program: str, sandbox: Any
) -> None:
    if program == "worker" and sandbox is None:
        pytest.skip("without a sandbox the server itself does it")
    service = serve("unix", may_fail=True, env={VARIABLE: "program-spawned"})
    (folder / "0").write_bytes(b"some other text in a line\n" * 800_000)
    for number in range(1, 4000):
        (folder / str(number)).hardlink_to(folder / "0")
    method, params = PROGRAMS[program]
    service.connect().request(method, {"path": folder.as_uri(), "sandbox": sandbox, **params})
    wait_stopped(service)
    begun = psutil.Process(service.server_pid).children(recursive=True)
    assert begun
    members = [watch(each.name(), each.pid) for each in begun]
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    assert survivors(members, PATIENCE) == []


@pytest.mark.over("stdio", "unix")
def test_what_a_double_kill_leaves_is_swept_by_the_next_start(
    transport: str, serve: Serve, tree: Tree, bystander: Callable[[], bool]
) -> None:
    service = serve(transport, may_fail=True)
    members = tree(service.connect())
    service.process.send_signal(signal.SIGSTOP)  # so that it cannot do its work in between
    service.signal_server(signal.SIGKILL)
    service.process.kill()
    service.process.wait()
    assert survivors(members, within=0.3) != []
    serve("unix")
    assert survivors(members) == []
    assert bystander()


def test_a_client_that_is_killed_takes_its_stdio_service_along(folder: Path, watch: Watch, fifo: Any) -> None:
    news: Fifo = fifo()
    client = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.wire import spawn_stdio
client = spawn_stdio(env={{"PATH": {os.environ["PATH"]!r}, "HOME": {str(folder)!r}}}).handshake()
client.shell("echo leader $$ >{news.path}; exec sleep 600")
client.shell("setsid sh -c 'echo session $$ >{news.path}; exec sleep 600' & wait")
client.shell("(env -i setsid sh -c 'trap \\"\\" TERM; echo bare $$ >{news.path}; exec sleep 600' &)")
open({str(news.path)!r}, "w").write(f"daemon {{client.stdio.process.pid}}\\n")
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", client])
    try:
        lines = [news.line().split() for _ in range(4)]
        members = [watch(name, int(pid)) for name, pid in lines]
    finally:
        process.kill()
        process.wait()
    assert survivors(members) == []


@pytest.mark.over("unix", "ws")
def test_an_expired_session_leaves_nothing_and_touches_no_other(
    transport: str, serve: Serve, tree: Tree
) -> None:
    service = serve(transport, "--session-ttl", "1")
    client, other = service.connect(), service.connect()
    theirs = tree(other)
    ours = tree(client)
    begin = time.monotonic()
    client.close()
    kept = survivors(ours, within=0.7)
    assert kept or time.monotonic() - begin > 1, "ended before its time"
    assert survivors(ours, within=0.3 + GONE_SECONDS) == []
    assert survivors(theirs, within=0) == [each.name for each in theirs]
    assert other.start("/bin/echo", "hello").wait_closed().output == b"hello\n"


@pytest.mark.parametrize("how", ["server killed, then SIGTERM", "SIGHUP, then SIGTERM", "SIGTERM"])
def test_an_unread_log_does_not_keep_descendants_alive(how: str, serve: Serve, tree: Tree) -> None:
    reading, writing = os.pipe()
    service = serve("unix", may_fail=True, stderr=writing)
    members = tree(service.connect())
    # A descriptor of our own on the same pipe: O_NONBLOCK belongs to the open file, not to the pipe.
    mine = os.open(f"/proc/self/fd/{writing}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (4096, 1):
        while _fits(mine, size):
            pass
    try:
        if how == "server killed, then SIGTERM":
            service.signal_server(signal.SIGKILL)
        elif how == "SIGHUP, then SIGTERM":
            service.process.send_signal(signal.SIGHUP)
        # Nothing tells from outside that a signal was handled.
        time.sleep(0.2)
        service.process.terminate()
        # A stop may come while the new server starts, which takes seconds on a busy machine.
        assert survivors(members, within=PATIENCE) == []
        assert eventually(lambda: service.process.poll() is not None, within=PATIENCE)
    finally:
        os.close(reading)
        os.close(writing)
        os.close(mine)


def _fits(descriptor: int, size: int) -> bool:
    try:
        os.write(descriptor, bytes(size))
    except BlockingIOError:
        return False
    return True


# ------------------------------------------------------------------ a command that attacks its parent


def test_polite_signals_of_a_command_to_its_parent_are_ignored(transport: str, serve: Serve) -> None:
    client = serve(transport).connect()
    script = "for signal in TERM INT HUP; do kill -$signal $PPID; done; echo still here"
    assert client.shell(script).wait_closed().output == b"still here\n"
    assert client.start("/bin/echo", "still there").wait_closed().output == b"still there\n"


def kill_parent(client: Client) -> None:
    start = client.start_params(["/bin/sh", "-c", "kill -9 $PPID"])
    client.send({"id": 0, "method": "process/start", "params": start})


@pytest.mark.over("stdio")
def test_over_stdio_a_command_that_kills_its_parent_ends_everything(
    transport: str, serve: Serve, tree: Tree
) -> None:
    service = serve(transport, may_fail=True)
    client = service.connect()
    members = tree(client)
    kill_parent(client)
    assert service.process.wait(GONE_SECONDS + 1) == 1
    assert survivors(members, within=0) == []


@pytest.mark.over("unix", "ws")
def test_a_command_that_kills_its_parent_harms_no_other(transport: str, serve: Serve, tree: Tree) -> None:
    service = serve(transport)
    client = service.connect()
    members = tree(client)
    kill_parent(client)
    assert eventually(lambda: client.ended, within=GONE_SECONDS)
    resumed = service.connect(resume=client.session_id)
    assert resumed.start("/bin/echo", "hello", processId="new").wait_closed().output == b"hello\n"
    assert survivors(members, within=0) == [each.name for each in members]


def test_a_command_that_stops_its_parent_freezes_the_service_and_a_stop_still_ends_it(
    serve: Serve, tree: Tree, fifo: Any
) -> None:
    """Nobody wakes a stopped server. SIGTERM ends all after the grace of 10 s; this documents it."""
    service, news = serve("unix"), fifo()
    client: Client = service.connect()
    members = tree(client)
    script = f"kill -STOP $PPID; echo >{news.path}; sleep 600"
    client.request("process/start", client.start_params(["/bin/sh", "-c", script]))
    news.line()
    asked = client.request("environment/status")
    service.process.terminate()
    begin = time.monotonic()
    assert service.process.wait(14) == 0
    assert time.monotonic() - begin > 5
    assert not client.answered(asked)
    assert survivors(members, within=0) == []


def test_a_start_in_a_deleted_folder_works(serve: Serve, folder: Path) -> None:
    launch = folder / "launch"
    launch.mkdir()
    launcher = ["/bin/sh", "-c", f'rmdir {launch} && exec "$@"', "sh"]
    client = serve("unix", launcher=launcher, cwd=launch).connect()
    assert client.initialized["environmentInfo"]["cwd"] == "file:///"
    assert client.start("/bin/pwd").wait_closed().output == b"/\n"
    refusal = client.refused("process/start", client.start_params(["/bin/pwd"], cwd=f"file://{launch}"))
    assert (refusal.code, refusal.message) == (-32603, "No such file or directory (os error 2)")


def test_a_stop_in_the_middle_of_an_upgrade_waits_for_no_answer(serve: Serve) -> None:
    service = serve("unix", may_fail=True)
    client = service.connect()
    idle = client.start("/bin/sleep", "600", pipeStdin=True)
    chunk = encode(bytes(16 << 20))
    writes = [
        client.request("process/write", {"processId": idle.id, "chunk": chunk, "writeId": str(number)})
        for number in range(6)
    ]
    client.result(writes[-2])
    service.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: '"upgrading"' in service.log, within=10)
    assert not client.answered(writes[-1])
    begin = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(20) == 0
    assert time.monotonic() - begin < 5
    assert '"stopping"' in service.log, "what ends in order leaves no mount points"

"""What a client asked of a process is finished by the next server when this one dies over it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path

import pytest

from tests.faults.matrix.scene import marked
from tests.faults.resuming_client import ResumingClient
from tests.faults.service import Serve, Service, a_child_is_stopped, children, eventually
from tests.sandbox.profiles import context, unrestricted
from tests.support.servers import open_files
from tests.support.wire import Json, decode, encode

KILLED = 128 + signal.SIGKILL
INPUT_BYTES = 1_000_000
INPUT_AT_ITS_END = "exec 3<&0; (cat <&3; echo end) & exit 3"
"""Its leader ends at once; what it leaves behind ends with the input."""


def _die_at_the_point(service: Service, session: ResumingClient) -> None:
    """Kill the server that has stopped itself, and go on with the next one."""
    assert eventually(lambda: _state(service.server_pid) == "T", 10), "the point is not reached"
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    session.reconnect()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return ""


def _mark() -> str:
    return f"6{secrets.randbelow(10**8):08}"


# ------------------------------------------------------------------ the end of the input


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("point", ["after-stdin-closed", "after-ends-without-input"])
def test_an_input_ends_when_the_server_dies_over_it(
    serve: Serve, folder: Path, point: str, reads: bool
) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": point})
    session = ResumingClient(service)
    output = bytearray()
    go = folder / "go"
    os.mkfifo(go)
    argv = ["/bin/cat"] if reads else ["/bin/sh", "-c", f"read -r x < {go}; exec cat"]
    params = session.start_params(argv, pipeStdin=True)
    row = session.follow(params["processId"], lambda data, lost: output.extend(data))
    session.start_with(params)
    data = os.urandom(INPUT_BYTES)
    write = {"processId": row.process_id, "chunk": encode(data), "writeId": "1"}
    assert session.call("process/write", write) == {"status": "accepted"}
    close = {"processId": row.process_id}
    session.client.request("process/closeStdin", close)
    if not reads and point == "after-ends-without-input":
        go.write_text("go\n")  # it is told when everything is delivered
    _die_at_the_point(service, session)
    if not reads and point == "after-stdin-closed":
        go.write_text("go\n")
    for write_id, status in (("1", "accepted"), ("2", "stdinClosed")):
        assert session.call("process/write", {**write, "writeId": write_id}) == {"status": status}
    assert session.call("process/closeStdin", close) == {"status": "accepted"}
    session.finish(row)
    assert bytes(output) == data
    assert row.exit_code == 0
    session.cut()


def test_an_input_that_ends_leaves_no_descriptor(serve: Serve) -> None:
    service = serve("unix")
    client = service.connect()
    pids = (service.pid, service.server_pid)

    def pipes() -> list[int]:
        return [sum(link.startswith("pipe:") for link in open_files(pid)) for pid in pids]

    before = pipes()
    living = [client.shell("cat; echo end; exec sleep 300", pipeStdin=True) for _ in range(20)]
    for process in living:
        assert client.call("process/closeStdin", {"processId": process.id}) == {"status": "accepted"}
        process.wait_output(b"end")
    # Two outputs each, and no input.
    assert eventually(lambda: pipes() == [count + 40 for count in before], 5), (pipes(), before)
    for process in living:
        process.terminate()
        process.wait_closed()
    assert eventually(lambda: pipes() == before, 5), (pipes(), before)


def test_who_inherited_the_input_hears_of_its_end_when_the_leader_is_gone(serve: Serve) -> None:
    client = serve("unix").connect()
    process = client.shell(INPUT_AT_ITS_END, pipeStdin=True).wait_closed(10)
    assert process.output == b"end\n"
    assert process.exit_code == 3


@pytest.mark.parametrize("times", [1, 2])
def test_who_inherited_the_input_hears_of_its_end_when_the_server_dies_just_after_the_exit(
    serve: Serve, times: int
) -> None:
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "after-exit-journal"})
    session = ResumingClient(service)
    # One of the two outputs is at its end.
    process = session.start("/bin/sh", "-c", f"exec 2>&-; {INPUT_AT_ITS_END}", pipeStdin=True)
    assert eventually(lambda: a_child_is_stopped(service), 10)
    for _ in range(times):
        service.signal_server(signal.SIGKILL)
        service.wait_for_new_server()
        session.reconnect()
    handle = session.client.process(process)
    assert eventually(lambda: bool(handle.read()["closed"]), 10)
    page = handle.read()
    assert [decode(chunk["chunk"]) for chunk in page["chunks"]] == [b"end\n"]
    assert page["exitCode"] == 3
    session.cut()


# ------------------------------------------------------------------ the end of a tree


TREE = "(setsid sleep {mark} &); (env -i /usr/bin/setsid /bin/sh -c '(sleep {mark} &)' &); "
STRAGGLERS = 100
ENDINGS: list[tuple[str, Json, str]] = [
    ("process/terminate", {"scope": "tree"}, "terminated"),
    ("process/signal", {"signal": "SIGKILL", "scope": "tree"}, "signal"),
]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize(("method", "members", "cause"), ENDINGS)
def test_a_tree_is_killed_when_the_server_dies_over_it(
    serve: Serve, method: str, members: Json, cause: str, lives: bool, stopped: bool
) -> None:
    mark = _mark()
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "before-tree-kill"})
    session = ResumingClient(service)
    ending = f"exec sleep {mark}" if lives else "exit 5"
    process = session.start("/bin/sh", "-c", TREE.format(mark=mark) + ending)
    assert eventually(lambda: len(marked(mark)) == 2 + lives, 10)
    handle = session.client.process(process)
    if not lives:
        handle.wait_exited()
    session.client.request(method, {"processId": process, **members})
    assert eventually(lambda: _state(service.server_pid) == "T", 10)
    if stopped:  # as a server does it before it kills
        for pid in marked(mark):
            os.kill(pid, signal.SIGSTOP)
    _die_at_the_point(service, session)
    assert eventually(lambda: not marked(mark), 10), marked(mark)
    handle = session.client.process(process)
    assert eventually(lambda: bool(handle.read()["closed"]), 10)
    assert handle.read()["exitCode"] == (KILLED if lives else 5)
    assert session.call("process/terminate", {"processId": process, "scope": "tree"}) == {"running": False}
    session.cut()


@pytest.mark.parametrize(
    ("method", "members"), [("process/terminate", {}), ("process/signal", {"signal": "SIGKILL"})]
)
def test_a_sandbox_without_a_pid_namespace_is_killed_when_the_server_dies_over_it(
    serve: Serve, method: str, members: Json
) -> None:
    mark = _mark()
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "after-reap"})
    session = ResumingClient(service)
    # So many that to kill them takes a moment. They do not hold the output, for whose end `closed` waits.
    many = "n=0; while [ $n -lt {count} ]; do setsid sleep {mark} & n=$((n+1)); done; exec sleep 300"
    script = "exec >/dev/null 2>&1; " + many.format(count=STRAGGLERS, mark=mark)
    process = session.start("/bin/sh", "-c", script, sandbox=context(unrestricted("restricted"), cwd="/"))
    assert eventually(lambda: len(marked(mark)) == STRAGGLERS, 20)
    session.client.request(method, {"processId": process, **members})
    # The group is dead and reaped, and nobody has looked for what left it.
    _die_at_the_point(service, session)
    handle = session.client.process(process)
    # Without a pause, in which the last of them could end.
    deadline = time.monotonic() + 10
    while not handle.read()["closed"]:
        assert time.monotonic() < deadline
    assert not marked(mark)
    assert handle.read()["exitCode"] == KILLED
    session.cut()


def test_only_what_was_about_to_be_killed_is_killed(serve: Serve) -> None:
    mark, other = _mark(), _mark()
    service = serve("unix", may_fail=True, env={"EXECSERVER_FAULT_POINT": "before-tree-kill"})
    session = ResumingClient(service)
    session.start("/bin/sh", "-c", TREE.format(mark=other) + f"exec sleep {other}")
    # Its group was killed; what left the group was not meant.
    left = session.start("/bin/sh", "-c", f"(setsid sleep {other} &); exec sleep 300")
    assert eventually(lambda: len(marked(other)) == 4, 10)
    session.call("process/terminate", {"processId": left})
    process = session.start("/bin/sh", "-c", TREE.format(mark=mark) + "exec sleep 300")
    assert eventually(lambda: len(marked(mark)) == 2, 10)
    session.client.request("process/terminate", {"processId": process, "scope": "tree"})
    _die_at_the_point(service, session)
    assert eventually(lambda: not marked(mark), 10), marked(mark)
    assert len(marked(other)) == 4
    session.cut()
    assert children(service.pid)


# ------------------------------------------------------------------ the end of one process


@pytest.mark.parametrize("cause", ["terminated", "timeout"])
def test_a_kill_that_a_server_died_over_is_finished(serve: Serve, cause: str) -> None:
    service = serve("unix", may_fail=True)
    session = ResumingClient(service)
    process = session.start("/bin/sleep", "600")
    row = session.follow(process, lambda data, lost: None)
    service.signal_server(signal.SIGSTOP)
    _write_down(service, f'["ending",1,"{cause}"]')
    service.signal_server(signal.SIGKILL)
    service.wait_for_new_server()
    session.finish(row, within=10)
    assert row.exit_code == KILLED
    session.cut()


def _write_down(service: Service, record: str) -> None:
    folder = f"/proc/{service.server_pid}/fd"
    (name,) = (fd for fd in os.listdir(folder) if "memfd:ledger" in os.readlink(f"{folder}/{fd}"))
    with open(f"{folder}/{name}", "ab") as ledger:
        ledger.write(f"{record}\n".encode())

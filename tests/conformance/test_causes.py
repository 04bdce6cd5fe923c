"""Deadlines of processes, and why a process ended."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_sessions import resume
from tests.conformance.test_survive import kill_server, read_to_end
from tests.sandbox.profiles import READ_ONLY, context
from tests.support.wire import PATIENCE, Client, Json, Process, alive, at_most, wait_gone


@pytest.fixture
def extended(endpoint: Endpoint) -> Client:
    """A connection that asked for extension members."""
    return endpoint.connect(extensions=True)


def end_of(process: Process) -> tuple[int, str]:
    """Exit code and cause, which the event and a read say alike."""
    process.wait_closed()
    [exited] = (params for method, params in process.log.events if method == "process/exited")
    page = process.read()
    assert (page["exitCode"], page["cause"]) == (exited["exitCode"], exited["cause"])
    return exited["exitCode"], exited["cause"]


def begun(client: Client, script: str, limit: str = "timeoutMs", ms: int = 500, **members: Json) -> Process:
    """A process that has said something before its limit, a longer one if the machine is slow."""
    process = client.shell(script, **{limit: ms}, **members)
    client.wait_until(lambda: process.output or process.log.closed)
    return process if process.output or ms > 10_000 else begun(client, script, limit, 4 * ms, **members)


# -- deadlines


@pytest.mark.everywhere
@pytest.mark.statement("P17", "X8")
@pytest.mark.parametrize("tty", [False, True])
def test_a_process_that_runs_too_long_is_killed_with_all_its_descendants(extended: Client, tty: bool) -> None:
    begin = time.monotonic()
    script = "setsid sleep 300 & echo $!; while sleep 0.05; do echo busy; done"
    process = begun(extended, script, tty=tty)
    descendant = int(process.wait_output(b"\n").split()[0])
    process.wait_exited()
    assert time.monotonic() - begin >= 0.5
    assert wait_gone(descendant)
    assert end_of(process) == (137, "timeout")


@pytest.mark.statement("P17", "X8")
def test_a_process_that_ends_in_time_hears_nothing_of_its_timeout(extended: Client) -> None:
    process = extended.shell("echo x; exit 3", timeoutMs=3000, idleTimeoutMs=3000)
    assert end_of(process) == (3, "normal")
    threading.Event().wait(3.2)
    assert process.read()["cause"] == "normal"
    assert process.read()["exitCode"] == 3


@pytest.mark.everywhere
@pytest.mark.statement("P18", "X8")
def test_a_process_that_falls_silent_is_killed(extended: Client) -> None:
    for seconds in (1, 4):  # the second if the machine stands still for the first
        script = f"for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep {0.15 * seconds}; done; sleep 300"
        begin = time.monotonic()
        process = extended.shell(script, idleTimeoutMs=1000 * seconds).wait_closed()
        if b"10\n" in process.output:
            break
    assert b"10\n" in process.output
    assert end_of(process) == (137, "idleTimeout")
    assert time.monotonic() - begin >= (9 * 0.15 + 1) * seconds


@pytest.mark.statement("P18", "W2", "X8")
def test_accepted_writes_are_signs_of_life_and_repeated_ones_are_none(extended: Client) -> None:
    process = extended.shell("cat >/dev/null", pipeStdin=True, idleTimeoutMs=3000)
    for number in range(10):
        assert process.write("x", str(number)) == "accepted"
        threading.Event().wait(0.35)
    assert not process.read()["exited"]
    with at_most(PATIENCE):
        while not process.log.exited:
            extended.request("process/write", {"processId": process.id, "chunk": "eA==", "writeId": "9"})
            threading.Event().wait(0.1)
    assert end_of(process) == (137, "idleTimeout")


@pytest.mark.statement("P17", "X4")
def test_a_client_without_extensions_may_set_a_deadline_too(client: Client) -> None:
    process = client.start("/bin/sleep", "300", timeoutMs=100)
    assert process.wait_closed().exit_code == 137
    assert "cause" not in process.read()
    assert set(process.log.events[0][1]) == {"processId", "seq", "exitCode", "sandboxDenied"}


@pytest.mark.statement("P17", "P18", "E11")
@pytest.mark.parametrize("name", ["timeoutMs", "idleTimeoutMs"])
@pytest.mark.parametrize("value", [0, -1, 2**53 + 1, 1.5, "5", True])
def test_a_deadline_is_a_number_that_is_not_0(client: Client, name: str, value: Json) -> None:
    params = client.start_params(["/bin/true"], **{name: value})
    assert client.refused("process/start", params).code == -32602


@pytest.mark.statement("P17", "P18")
def test_the_longest_deadline_is_no_deadline(extended: Client) -> None:
    process = extended.shell("sleep 0.3; exit 1", timeoutMs=2**53, idleTimeoutMs=2**53)
    assert end_of(process) == (1, "normal")


@pytest.mark.statement("P17", "X8")
def test_a_confined_process_has_a_deadline_too(extended: Client) -> None:
    process = extended.shell("echo x; sleep 300", sandbox=context(READ_ONLY), timeoutMs=700)
    assert end_of(process) == (137, "timeout")


@pytest.mark.statement("P19", "X8")
@pytest.mark.transports("unix")
@pytest.mark.parametrize(("deadline", "cause"), [("timeoutMs", "timeout"), ("idleTimeoutMs", "idleTimeout")])
def test_a_deadline_holds_without_a_client(endpoint: Endpoint, deadline: str, cause: str) -> None:
    first = endpoint.connect(extensions=True)
    begin = time.monotonic()
    old = first.start("/bin/sleep", "300", **{deadline: 500})
    first.close()
    assert wait_gone(old.started["pid"])
    assert time.monotonic() - begin >= 0.5
    assert cause_after_resume(endpoint, first.session_id, old.id) == (137, cause)


@pytest.mark.statement("P19", "X8")
@pytest.mark.transports("unix", "ws")
@pytest.mark.parametrize(("deadline", "cause"), [("timeoutMs", "timeout"), ("idleTimeoutMs", "idleTimeout")])
def test_a_deadline_holds_after_a_take_over(endpoint: Endpoint, deadline: str, cause: str) -> None:
    private = endpoint.private()
    first = private.connect(extensions=True)
    begin = time.monotonic()
    old = first.start("/bin/sleep", "300", **{deadline: 1500})
    threading.Event().wait(0.5)
    killed = time.monotonic()
    kill_server(private)
    assert wait_gone(old.started["pid"], 10)
    counted_from = begin if deadline == "timeoutMs" else killed
    assert time.monotonic() - counted_from >= 1.5
    assert cause_after_resume(private, first.session_id, old.id) == (137, cause)


# -- grace

DEAF = r"trap '' TERM; echo \$\$; exec >/dev/null 2>&1; while :; do sleep 0.05; done"
"""A child that tells its pid when it no longer hears SIGTERM."""

TRAPPED = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"

TELLING = "trap 'echo told' TERM; echo; while :; do sleep 0.05; done"


@pytest.mark.everywhere
@pytest.mark.statement("P24", "X8")
@pytest.mark.parametrize(("limit", "cause"), [("timeoutMs", "timeout"), ("idleTimeoutMs", "idleTimeout")])
def test_a_process_may_clean_up_at_its_limit(extended: Client, limit: str, cause: str) -> None:
    process = begun(extended, TRAPPED, limit, graceMs=60_000)
    assert end_of(process) == (3, cause)
    assert b"told" in process.output


@pytest.mark.statement("P24", "X8")
@pytest.mark.parametrize(
    ("script", "code"),
    [("echo; exec sleep 300", 143), ("trap 'exit 0' TERM; echo; while :; do sleep 0.05; done", 0)],
)
def test_the_cause_is_the_limit_however_a_process_ends_in_its_grace(
    extended: Client, script: str, code: int
) -> None:
    assert end_of(begun(extended, script, graceMs=60_000)) == (code, "timeout")


@pytest.mark.everywhere
@pytest.mark.statement("P24", "X8")
@pytest.mark.parametrize("tty", [False, True])
def test_a_process_that_does_not_end_in_its_grace_is_killed(extended: Client, tty: bool) -> None:
    begin = time.monotonic()
    script = "trap '' TERM; setsid sleep 300 & echo $!; while :; do sleep 0.05; echo busy; done"
    process = begun(extended, script, tty=tty, graceMs=700)
    descendant = int(process.wait_output(b"\n").split()[0])
    process.wait_exited()
    assert time.monotonic() - begin >= 1.2
    assert wait_gone(descendant)
    assert end_of(process) == (137, "timeout")


@pytest.mark.statement("P24")
def test_descendants_keep_the_grace_of_a_leader_that_has_ended(extended: Client) -> None:
    begin = time.monotonic()
    process = begun(extended, f'setsid sh -c "{DEAF}" & wait', graceMs=1000)
    descendant = int(process.wait_output(b"\n").split()[0])
    assert end_of(process) == (143, "timeout")
    still_there = alive(descendant)
    assert still_there or time.monotonic() - begin >= 1.5
    assert wait_gone(descendant)
    assert time.monotonic() - begin >= 1.5


@pytest.mark.statement("P24")
@pytest.mark.transports("unix")
def test_descendants_in_their_grace_do_not_outlive_what_is_known_of_their_leader(endpoint: Endpoint) -> None:
    client = endpoint.private("--process-ttl", "0.5").connect(extensions=True)
    process = begun(client, f'setsid sh -c "{DEAF}" & wait', graceMs=600_000)
    descendant = int(process.wait_output(b"\n").split()[0])
    process.wait_closed()
    assert wait_gone(descendant)


@pytest.mark.statement("P24")
def test_a_stopped_process_hears_of_its_limit(extended: Client) -> None:
    script = f"{TRAPPED[: TRAPPED.index('while')]} kill -STOP $$; sleep 300"
    process = begun(extended, script, ms=800, graceMs=60_000)
    assert end_of(process) == (3, "timeout")


@pytest.mark.statement("P24", "X8")
def test_a_confined_process_has_a_grace_too(extended: Client) -> None:
    process = begun(extended, TRAPPED, ms=2000, sandbox=context(READ_ONLY), graceMs=60_000)
    script = "trap '' TERM; echo; while :; do sleep 0.05; done"
    stubborn = begun(extended, script, ms=1500, sandbox=context(READ_ONLY), graceMs=300)
    assert end_of(process) == (3, "timeout")
    assert end_of(stubborn) == (137, "timeout")


@pytest.mark.statement("P24")
def test_a_terminate_does_not_wait_for_the_grace(extended: Client) -> None:
    process = begun(extended, TELLING, graceMs=60_000)
    process.wait_output(b"told\n")
    process.terminate()
    assert end_of(process) == (137, "timeout")


@pytest.mark.statement("P24")
def test_the_end_of_a_session_does_not_wait_for_a_grace(endpoint: Endpoint) -> None:
    client = endpoint.connect(extensions=True)
    process = begun(client, TELLING, graceMs=60_000)
    process.wait_output(b"told\n")
    client.call("session/end")
    assert wait_gone(process.started["pid"])


@pytest.mark.statement("P24")
def test_a_grace_without_a_limit_is_refused_by_its_name(client: Client) -> None:
    for wrong in ({"graceMs": 5}, {"graceMs": 0, "timeoutMs": 5}, {"graceMs": "5", "timeoutMs": 5}):
        refused = client.refused("process/start", client.start_params(["/bin/true"], **wrong))
        assert (refused.code, "graceMs" in refused.message) == (-32602, True)


@pytest.mark.statement("P24", "X8")
@pytest.mark.transports("unix")
@pytest.mark.parametrize("ends", [True, False], ids=["cleans up", "ignores"])
def test_a_grace_goes_on_after_a_take_over(endpoint: Endpoint, here: Path, ends: bool) -> None:
    private = endpoint.private()
    first = private.connect(extensions=True)
    script = f"trap 'echo told' TERM; echo; while :; do sleep 0.05; test -e {here}/go && exit 4; done"
    begin = time.monotonic()
    old = begun(first, script, ms=700, graceMs=60_000 if ends else 2000)
    old.wait_output(b"told\n")
    kill_server(private)
    if ends:
        (here / "go").touch()
    assert wait_gone(old.started["pid"], 15)
    assert ends or time.monotonic() - begin >= 2.7
    assert cause_after_resume(private, first.session_id, old.id) == (4 if ends else 137, "timeout")


@pytest.mark.statement("P24")
@pytest.mark.transports("unix")
def test_the_grace_of_descendants_goes_on_after_a_take_over(endpoint: Endpoint) -> None:
    private = endpoint.private()
    client = private.connect(extensions=True)
    begin = time.monotonic()
    process = begun(client, f'setsid sh -c "{DEAF}" & wait', ms=1000, graceMs=2000)
    descendant = int(process.wait_output(b"\n").split()[0])
    process.wait_exited()
    kill_server(private)
    assert wait_gone(descendant, 15)
    assert time.monotonic() - begin >= 3


@pytest.mark.statement("P24")
@pytest.mark.transports("unix")
def test_a_grace_may_begin_after_a_take_over(endpoint: Endpoint) -> None:
    private = endpoint.private()
    first = private.connect(extensions=True)
    old = begun(first, TRAPPED, ms=1500, graceMs=60_000)
    kill_server(private)
    assert wait_gone(old.started["pid"], 15)
    assert cause_after_resume(private, first.session_id, old.id) == (3, "timeout")


def cause_after_resume(endpoint: Endpoint, session: str, process_id: str) -> tuple[int, str]:
    """Resume twice, the second time with extensions: a session does not remember that."""
    resume(endpoint, session).close()
    client = endpoint.connect(handshake=False)
    params = {"clientName": "x", "resumeSessionId": session, "extensions": {"execserver": 1}}
    with at_most(10):
        while "error" in client.reply(client.request("initialize", params)):
            threading.Event().wait(0.02)
    client.notify("initialized")
    _, page = read_to_end(client.process(process_id))
    return page["exitCode"], page["cause"]


# -- causes


@pytest.mark.everywhere
@pytest.mark.statement("X8")
@pytest.mark.parametrize(
    ("script", "code", "cause"),
    [
        ("exit 0", 0, "normal"),
        ("exit 7", 7, "normal"),
        ("exit 137", 137, "normal"),
        ("kill -TERM $$", 143, "signal"),
        ("kill -KILL $$", 137, "signal"),
        ("(kill -KILL $$) & wait", 137, "signal"),
        ("sh -c 'kill -KILL $$'", 137, "normal"),
        ("ulimit -c 0; ulimit -S -t 1; while :; do :; done", 128 + signal.SIGXCPU, "limit"),
    ],
)
def test_the_cause_of_what_a_command_does_itself(
    extended: Client, script: str, code: int, cause: str
) -> None:
    # The last command of a shell may take its place.
    assert end_of(extended.shell(f"{script}; exit $?")) == (code, cause)


@pytest.mark.statement("X8")
def test_a_file_that_grows_too_large_is_a_limit(extended: Client, here: Path) -> None:
    script = f"ulimit -c 0; ulimit -f 1; exec dd if=/dev/zero of={here}/f bs=64k count=10"
    assert end_of(extended.shell(script)) == (128 + signal.SIGXFSZ, "limit")


@pytest.mark.everywhere
@pytest.mark.statement("X8", "P33")
def test_the_cause_of_what_a_client_does(extended: Client) -> None:
    interrupted, killed, felled = (extended.start("/bin/sleep", "300") for _ in range(3))
    interrupted.interrupt()
    killed.terminate()
    felled.terminate("tree")
    assert end_of(interrupted) == (130, "signal")
    assert end_of(killed) == (137, "terminated")
    assert end_of(felled) == (137, "terminated")


@pytest.mark.statement("X8")
def test_a_terminate_that_comes_too_late_is_no_cause(extended: Client) -> None:
    process = extended.shell("exit 9").wait_closed()
    assert process.terminate() == {"running": False}
    assert process.terminate("tree")["running"] is False
    assert end_of(process) == (9, "normal")


@pytest.mark.statement("X8")
def test_a_running_process_has_no_cause(extended: Client) -> None:
    process = extended.start("/bin/cat", pipeStdin=True)
    assert "cause" not in process.read()


@pytest.mark.statement("X8")
def test_the_end_of_the_service_is_a_cause(endpoint: Endpoint) -> None:
    private = endpoint.private()
    client = private.connect(extensions=True)
    process = client.start("/bin/sleep", "300")
    private.server.process.send_signal(signal.SIGTERM)
    process.wait_exited()
    [exited] = (params for method, params in process.log.events if method == "process/exited")
    assert (exited["exitCode"], exited["cause"]) == (137, "serviceStop")


@pytest.mark.statement("X8")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_by_another_program_after_a_take_over_is_not_put_down_to_us(
    endpoint: Endpoint, number: signal.Signals
) -> None:
    private = endpoint.private()
    first = private.connect(extensions=True)
    old = first.shell(f"read -r x; kill -{number.value} $$", pipeStdin=True)
    kill_server(private)
    second = resume(private, first.session_id)
    second.process(old.id).write("\n", "1")
    read_to_end(second.process(old.id))
    second.close()
    wanted = {"signal", "unknown"} if number == signal.SIGKILL else {"signal"}
    assert cause_after_resume(private, first.session_id, old.id)[1] in wanted

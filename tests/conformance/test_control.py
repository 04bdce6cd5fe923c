"""Ending processes: terminate and its scopes, signals, exit codes, and how long the dead are kept."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import PATIENCE, Client, Json, Process, alive, at_most, wait_gone, wait_state

OWN_SESSION = "setsid sh -c 'echo $$; exec sleep 300' & "


def first_pid(output: bytes) -> int:
    return int(output.split()[0])


def send(process: Process, name: str, scope: str | None = None) -> Json:
    """Send a signal to a process; without a scope as it is by default."""
    params = {"processId": process.id, "signal": name}
    return process.client.call("process/signal", params if scope is None else {**params, "scope": scope})


@pytest.mark.everywhere
@pytest.mark.statement("P30", "P34")
def test_terminate_kills_at_once(client: Client) -> None:
    process = client.shell("trap '' TERM HUP INT; echo ready; while :; do sleep 0.05; done")
    process.wait_output(b"ready")
    assert process.terminate() == {"running": True}
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("P30")
def test_terminate_kills_the_group(client: Client) -> None:
    process = client.shell("sleep 300 & echo $!; wait")
    pid = first_pid(process.wait_output(b"\n"))
    process.terminate()
    assert wait_gone(pid)
    process.wait_closed()


@pytest.mark.everywhere
@pytest.mark.statement("P31")
def test_terminate_of_unknown_and_closed_processes(client: Client) -> None:
    assert client.process("nobody").terminate() == {"running": False}
    assert client.start("/bin/true").wait_closed().terminate() == {"running": False}


@pytest.mark.statement("P31", "P32")
def test_background_process_survives_a_plain_terminate_and_not_the_tree(client: Client) -> None:
    process = client.shell("sleep 300 & echo $!; exit 0").wait_exited()
    pid = first_pid(process.wait_output(b"\n"))
    assert process.terminate() == {"running": False}
    assert process.terminate("group") == {"running": False}
    assert alive(pid)
    assert not process.read()["closed"]
    assert process.terminate("tree") == {"running": False}
    assert wait_gone(pid)
    process.wait_closed()


@pytest.mark.statement("P32")
@pytest.mark.parametrize("tty", [False, True])
def test_tree_reaches_other_sessions(client: Client, tty: bool) -> None:
    process = client.shell(OWN_SESSION + "wait", tty=tty)
    pid = first_pid(process.wait_output(b"\n"))
    assert process.terminate("tree") == {"running": True}
    assert wait_gone(pid)
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("P32")
def test_tree_reaches_orphans_of_orphans(client: Client) -> None:
    script = (
        "setsid sh -c '(setsid env -i /bin/sh -c \"echo \\$\\$; exec sleep 300\" &) ; exit 0'; exec sleep 300"
    )
    process = client.shell(script)
    pid = first_pid(process.wait_output(b"\n"))
    assert process.terminate("tree")["running"]
    assert wait_gone(pid)


@pytest.mark.statement("P32")
def test_tree_leaves_other_processes_alone(client: Client) -> None:
    other = client.start("/bin/cat", pipeStdin=True)
    process = client.shell(OWN_SESSION + "wait")
    process.wait_output(b"\n")
    process.terminate("tree")
    process.wait_exited()
    other.write("alive", "1")
    other.wait_output(b"alive")


@pytest.mark.statement("P32")
def test_scope_is_checked(client: Client) -> None:
    assert client.refused("process/terminate", {"processId": "p", "scope": "world"}).code == -32602


@pytest.mark.everywhere
@pytest.mark.statement("P33")
def test_interrupt_can_be_caught(client: Client) -> None:
    process = client.shell("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done")
    process.wait_output(b"ready\n")
    assert process.interrupt() == {}
    assert process.wait_closed().exit_code == 7
    assert process.output == b"ready\ncaught\n"


@pytest.mark.statement("P33", "P34")
def test_interrupt_reaches_the_group_and_kills_by_default(client: Client) -> None:
    process = client.shell("sleep 300 & echo $!; exec sleep 300")
    process.wait_output(b"\n")
    process.interrupt()
    assert process.wait_exited().exit_code == 130
    process.terminate("tree")


@pytest.mark.statement("P33")
def test_interrupt_of_an_unknown_process(client: Client) -> None:
    assert client.process("nobody").interrupt() == {}
    assert client.start("/bin/true").wait_closed().interrupt() == {}


@pytest.mark.statement("P33")
def test_names_of_signals_are_exact(client: Client) -> None:
    for other in ("kill", "INT", "sigint", "SIGRTMIN+0", "SIGRTMIN+31", "SIGNAL", "SIGINT\n", "", 2):
        params = {"processId": "p", "signal": other}
        assert client.refused("process/signal", params).code == -32602
    assert "SIGTERM" in client.refused("process/signal", {"processId": "p", "signal": "TERM"}).message


SIGNALLED = """
import os, signal, sys

# Not signal.pause: one that comes right before it would be answered at the next only.
numbers = set(map(int, sys.argv[1:]))
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
while True:
    os.write(1, b"%d\\n" % signal.sigwait(numbers))
"""
NUMBERS = {
    **{
        f"SIG{name}": getattr(signal, f"SIG{name}")
        for name in ["HUP", "QUIT", "TERM", "USR1", "ALRM", "CONT", "WINCH", "IO"]
    },
    "SIGRTMIN": signal.SIGRTMIN,
    "SIGRTMIN+3": signal.SIGRTMIN + 3,
    "SIGRTMAX-1": signal.SIGRTMAX - 1,
    "SIGRTMIN+30": signal.SIGRTMAX,
}


@pytest.mark.everywhere
@pytest.mark.statement("P33")
def test_every_signal_has_its_number(client: Client) -> None:
    process = client.start(
        sys.executable, "-c", SIGNALLED, *(str(int(number)) for number in NUMBERS.values())
    )
    wanted = b"ready\n"
    process.wait_output(wanted)
    for name, number in NUMBERS.items():
        assert send(process, name) == {}
        wanted += b"%d\n" % number
        assert process.wait_output(wanted) == wanted
    assert send(process, "SIGKILL") == {}
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("P33")
def test_stopped_group_goes_on(client: Client) -> None:
    process = client.shell("sleep 300 & echo $! $$; exec sleep 300")
    pids = [int(pid) for pid in process.wait_output(b"\n").split()]
    send(process, "SIGSTOP")
    wait_state(pids, "T")
    send(process, "SIGCONT")
    wait_state(pids, "S")
    process.terminate("tree")


FAMILY = """
import os, signal

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

def follow(name):
    os.write(1, b"ready\\n")
    while signal.sigwait([signal.SIGUSR1]):
        os.write(1, name + b"\\n")

for name, apart in ((b"member", False), (b"other", True)):
    if os.fork() == 0:
        if apart:
            os.setsid()
        follow(name)
follow(b"leader")
"""
REACHED = {"group": {b"leader", b"member"}, "leader": {b"leader"}, "tree": {b"leader", b"member", b"other"}}


@pytest.mark.statement("P36")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("scope", ["group", "leader", "tree"])
def test_scope_says_who_gets_a_signal(client: Client, scope: str, tty: bool) -> None:
    process = client.start(sys.executable, "-c", FAMILY, tty=tty)
    process.wait_output(lambda output: output.count(b"ready") == 3)
    # Whoever else would get it has it by the end of the second round.
    for number in (1, 2):
        send(process, "SIGUSR1", scope)
        process.wait_output(lambda output: all(output.count(name) == number for name in REACHED[scope]))  # noqa: B023
    assert process.terminate("tree")["running"]
    process.wait_closed()
    assert set(process.output.split()) - {b"ready"} == REACHED[scope]


@pytest.mark.statement("P36")
def test_tree_gets_a_signal_also_when_its_leader_has_exited(client: Client) -> None:
    process = client.shell(
        "setsid sh -c 'trap \"echo got; exit\" USR1; echo ready; while :; do sleep 0.02; done' & exit 0"
    )
    process.wait_output(b"ready")
    process.wait_exited()
    send(process, "SIGUSR1")
    send(process, "SIGUSR1", "leader")
    assert not process.read()["closed"]
    send(process, "SIGUSR1", "tree")
    process.wait_closed()
    assert b"got" in process.output


@pytest.mark.statement("P36")
def test_stopped_and_killed_trees_are_whole(client: Client) -> None:
    process = client.shell(
        "for i in 1 2 3 4; do setsid sh -c 'echo $$; while :; do (exec true); done' & done; wait"
    )
    pids = [int(pid) for pid in process.wait_output(lambda output: output.count(b"\n") == 4).split()]
    send(process, "SIGSTOP", "tree")
    wait_state(pids, "T")
    send(process, "SIGKILL", "tree")
    assert all(wait_gone(pid) for pid in pids)
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("P36")
def test_scope_of_a_signal_is_checked(client: Client) -> None:
    params = {"processId": "p", "signal": "SIGTERM", "scope": "world"}
    assert client.refused("process/signal", params).code == -32602


@pytest.mark.statement("P34")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_death_by_signal(client: Client, number: signal.Signals, tty: bool) -> None:
    process = client.shell(f"kill -{number.value} $$", tty=tty)
    assert process.wait_closed().exit_code == 128 + number


@pytest.mark.statement("P34")
@pytest.mark.parametrize("status", [0, 1, 124, 128, 255])
def test_status_is_passed_on(client: Client, status: int) -> None:
    assert client.shell(f"exit {status}").wait_closed().exit_code == status


@pytest.mark.everywhere
@pytest.mark.statement("P34")
def test_terminated_terminal_says_137(client: Client) -> None:
    process = client.shell("echo ready; exec sleep 300", tty=True)
    process.wait_output(b"ready")
    assert process.terminate() == {"running": True}
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("P35")
def test_closed_process_is_forgotten_after_its_time(endpoint: Endpoint) -> None:
    client = endpoint.private("--process-ttl", "3").connect()
    begin = time.monotonic()
    process = client.shell("echo kept", processId="p").wait_closed()
    assert process.read()["closed"]
    running = client.start("/bin/cat", processId="q", pipeStdin=True)
    while (reply := client.reply(client.request("process/read", {"processId": "p"}))) and "result" in reply:
        assert time.monotonic() - begin < PATIENCE, "never forgotten"
        running.read(wait_ms=50)
    assert time.monotonic() - begin >= 3
    assert reply["error"]["message"] == "unknown process id p"
    assert not running.read()["exited"]
    client.shell("echo again", processId="p")
    client.wait_until(lambda: process.log.kinds.count("closed") == 2)
    assert process.output == b"kept\nagain\n"


# -- the order of signals


@pytest.mark.statement("S18")
def test_signals_arrive_in_their_order(client: Client) -> None:
    process = client.shell("sleep 300 & echo $$; wait")
    pid = first_pid(process.wait_output(b"\n"))
    for last in ("group", "leader", "tree"):
        for _ in range(5):
            numbers = client.pipeline(
                *(
                    ("process/signal", {"processId": process.id, "signal": name, "scope": scope})
                    for name, scope in (("SIGSTOP", "tree"), ("SIGCONT", last))
                )
            )
            for number in numbers:
                client.result(number)
            assert Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T"
    client.request("process/signal", {"processId": process.id, "signal": "SIGSTOP", "scope": "tree"})
    client.call("process/signal", {"processId": process.id, "signal": "SIGKILL"})
    assert process.wait_closed().exit_code == 137


# -- the end of connections, sessions and daemons


@pytest.mark.transports("stdio")
@pytest.mark.statement("T16")
def test_end_of_input_kills_processes(client: Client) -> None:
    process = client.shell("sleep 300 & echo $!; wait")
    pid = first_pid(process.wait_output(b"\n"))
    with at_most(10):
        client.close()
    assert client.stdio.process.returncode == 0
    assert wait_gone(pid)


@pytest.mark.transports("stdio")
@pytest.mark.statement("T17")
def test_end_of_input_kills_own_sessions_too(client: Client) -> None:
    process = client.shell(OWN_SESSION + "wait")
    pid = first_pid(process.wait_output(b"\n"))
    client.close()
    assert wait_gone(pid)


@pytest.mark.statement("T6", "T7", "T17")
def test_sigterm_ends_everything(endpoint: Endpoint) -> None:
    private = endpoint.private()
    client = private.connect()
    process = client.shell(OWN_SESSION + "sleep 300 & echo $!; wait")
    pids = [int(line) for line in process.wait_output(lambda output: output.count(b"\n") == 2).split()]
    os.kill(private.server.pid, signal.SIGTERM)
    client.wait_end()
    assert private.server.process.wait(20) == 0
    assert all(wait_gone(pid) for pid in pids)
    if private.server.url.startswith("unix://"):
        assert not Path(private.server.url.removeprefix("unix://")).exists()


@pytest.mark.statement("H30", "T17")
def test_expired_session_is_gone_with_all_its_processes(endpoint: Endpoint) -> None:
    private = endpoint.private("--session-ttl", "1")
    client = private.connect()
    process = client.shell(OWN_SESSION + "sleep 300 & echo $!; wait")
    pids = [int(line) for line in process.wait_output(lambda output: output.count(b"\n") == 2).split()]
    assert all(map(alive, pids))
    client.close()
    assert all(wait_gone(pid, 15) for pid in pids)
    newcomer = private.connect(handshake=False)
    params = {"clientName": "x", "resumeSessionId": client.session_id}
    failure = newcomer.refused("initialize", params)
    assert (failure.code, failure.message) == (-32600, f"unknown session id {client.session_id}")

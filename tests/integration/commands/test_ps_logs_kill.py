from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path

import pexpect
import pytest

from tests.conftest import StartServer
from tests.integration.commands.conftest import EXECSERVER, CommandLine, until
from tests.support.wire import wait_gone


def started(execserver: CommandLine, *command: str) -> str:
    return execserver("run", "--detach", "--", *command).stdout.decode().strip()


def states(execserver: CommandLine) -> dict[str, str]:
    return {each.process_id: each.state for each in execserver.processes()}


def test_ps_shows_what_runs_and_with_all_what_ended_too(execserver: CommandLine) -> None:
    running = started(execserver, "sleep", "50")
    ended = started(execserver, "sh", "-c", "exit 3")
    until(lambda: states(execserver)[ended] != "running")

    heading, *rows = execserver("ps").stdout.decode().splitlines()
    assert heading.split()[:3] == ["ID", "STATE", "PID"]
    assert [row.split()[:2] for row in rows] == [[running, "running"]]
    _, *rows = execserver("ps", "--all").stdout.decode().splitlines()
    assert [row.split()[:3] for row in rows][1] == [ended, "exited", "3"]


def test_ps_hides_command_lines_unless_asked_and_what_a_terminal_would_obey_always(
    execserver: CommandLine,
) -> None:
    started(execserver, "sh", "-c", "sleep 50; : \x1b[31msecret")

    assert b"secret" not in execserver("ps").stdout
    shown = execserver("ps", "--argv").stdout
    assert b"\\x1b[31msecret" in shown
    assert b"\x1b" not in shown


def test_ps_as_json_is_the_wire_s_list(execserver: CommandLine) -> None:
    process = started(execserver, "sleep", "50")

    (entry,) = json.loads(execserver("ps", "--json", "--argv").stdout)

    assert (entry["processId"], entry["state"], entry["argv"]) == (process, "running", ["sleep", "50"])
    assert entry["pid"] > 0


def test_ps_draws_a_table_on_a_terminal(execserver: CommandLine) -> None:
    process = started(execserver, "sleep", "50")
    program, *before = EXECSERVER
    environment = {**execserver.environment, "COLUMNS": "140"}
    output = pexpect.run(
        " ".join([program, *before, "ps", "--argv"]), env=environment, timeout=20, encoding="utf-8"
    )

    assert "─" in output
    assert process in output
    assert "sleep 50" in output


def test_logs_gives_each_stream_its_own_and_json_all_with_numbers(execserver: CommandLine) -> None:
    process = started(
        execserver, "sh", "-c", "printf '\\377'; sleep 0.2; printf e >&2; sleep 0.2; printf end"
    )
    until(lambda: states(execserver)[process] == "closed")

    done = execserver("logs", process)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xffend", b"e")
    lines = [json.loads(line) for line in execserver("logs", "--json", process).stdout.splitlines()]
    assert [(each["seq"], each["stream"], base64.b64decode(each["chunk"])) for each in lines] == [
        (1, "stdout", b"\xff"),
        (2, "stderr", b"e"),
        (3, "stdout", b"end"),
    ]
    assert execserver("logs", "--since-seq", "2", process).stdout == b"end"


def test_logs_follows_until_the_end(execserver: CommandLine) -> None:
    fifo = execserver.folder / "fifo"
    os.mkfifo(fifo)
    process = started(execserver, "sh", "-c", f"echo before; cat {fifo}; exit 4")
    with execserver.start("logs", "--follow", process) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"before\n"
        with open(fifo, "w") as writer:
            for n in range(5):
                print(n, file=writer, flush=True)
                assert following.stdout.readline() == b"%d\n" % n
        assert following.stdout.read() == b""
        assert following.wait(20) == 0


def test_logs_of_more_than_a_page_are_whole(execserver: CommandLine) -> None:
    process = started(execserver, "sh", "-c", "seq 1 1000000")
    until(lambda: states(execserver)[process] == "closed")

    assert execserver("logs", process).stdout == b"".join(b"%d\n" % n for n in range(1, 1000001))


@pytest.mark.parametrize("text", ["TERM", "sigterm", "15"])
def test_kill_sends_the_signal_by_any_name(execserver: CommandLine, text: str) -> None:
    process = started(execserver, "sleep", "50")

    assert execserver("kill", "-s", text, process).returncode == 0
    until(lambda: states(execserver)[process] != "running")
    assert [each.exit_code for each in execserver.processes() if each.process_id == process] == [143]


def test_kill_reaches_the_whole_tree_if_asked(execserver: CommandLine) -> None:
    process = started(execserver, "sh", "-c", "setsid sleep 50 & echo $!; wait")
    until(lambda: execserver("logs", process).stdout.endswith(b"\n"))
    (child,) = (int(each) for each in execserver("logs", process).stdout.split())

    assert execserver("kill", "-s", "KILL", "--scope", "tree", process).returncode == 0
    assert wait_gone(child)


def test_kill_says_of_each_process_what_became_of_it(execserver: CommandLine) -> None:
    running, ended = started(execserver, "sleep", "50"), started(execserver, "true")
    until(lambda: states(execserver)[ended] != "running")

    done = execserver("kill", "--json", running, ended, "nobody")

    assert done.returncode == 1
    assert [each["status"] for each in json.loads(done.stdout)] == [
        "delivered",
        "alreadyExited",
        "unknownProcess",
    ]


def test_an_id_in_two_sessions_needs_the_session(execserver: CommandLine) -> None:
    import asyncio

    from execclient import connect

    async def start_twins() -> list[str]:
        sessions = []
        for _ in range(2):
            async with connect(execserver.url, keep=True) as executor:
                await executor.start(["sh", "-c", f"echo {executor.session_id}; sleep 50"], id="twin")
                sessions.append(executor.session_id)
        return sessions

    first, second = asyncio.run(start_twins())

    done = execserver("logs", "twin")
    assert done.returncode == 125
    assert f"choose with --session: {first}, {second}".encode() in done.stderr
    assert execserver("logs", "--session", second, "twin").stdout == f"{second}\n".encode()
    assert execserver("kill", "twin").returncode == 1
    assert execserver("kill", "--session", first, "twin").returncode == 0
    until(lambda: sorted(each.state == "running" for each in execserver.processes()) == [False, True])


def test_over_a_websocket_a_token_is_needed_to_see_other_sessions(
    start_server: StartServer, tmp_path: Path
) -> None:
    open_to_all = CommandLine(start_server("ws://127.0.0.1:0").url, tmp_path)
    assert open_to_all("run", "echo", "x").stdout == b"x\n"
    done = open_to_all("ps")
    assert done.returncode == 125
    assert b"--ws-auth" in done.stderr


def test_interrupted_logs_end_quietly(execserver: CommandLine) -> None:
    process = started(execserver, "sh", "-c", "echo x; sleep 50")
    with execserver.start("logs", "-f", process) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == b"x\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
        assert following.stderr.read() == b""


def test_a_command_that_is_confined_is_told_the_way_out_and_one_that_is_not_is_served(
    execserver: CommandLine, start_server: StartServer
) -> None:
    over_websocket = start_server("ws://127.0.0.1:0").url
    ps = [*EXECSERVER, "ps", "--url"]

    inside = execserver("run", "--", *ps, execserver.url)
    on_path = execserver("run", "--", "unshare", "--user", *ps, execserver.url)
    on_port = execserver("run", "--", "unshare", "--user", *ps, over_websocket)

    assert inside.stdout.startswith(b"ID ")
    assert (on_path.stdout, on_port.stdout) == (b"", b"")
    assert b"no clients from a sandbox or a container" in on_path.stderr
    assert b"Start the daemon with --ws-auth" in on_port.stderr
    assert b"--ws-host" not in on_port.stderr

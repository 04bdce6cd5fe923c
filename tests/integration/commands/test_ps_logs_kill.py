from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from typing import cast

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

    without = execserver("ps").stdout.decode()
    assert "secret" not in without
    assert [line.split()[-1] for line in without.splitlines()] == ["NAME", "sh"]
    assert b"secret" not in execserver("ps", "--json").stdout
    shown = execserver("ps", "--argv").stdout
    assert b"\\x1b[31msecret" in shown
    assert b"\x1b" not in shown


def test_ps_as_json_is_the_wire_s_list(execserver: CommandLine) -> None:
    process = started(execserver, "sleep", "50")

    (entry,) = json.loads(execserver("ps", "--json", "--argv").stdout)

    assert (entry["processId"], entry["state"], entry["argv"]) == (process, "running", ["sleep", "50"])
    assert entry["pid"] > 0


def on_terminal(execserver: CommandLine, columns: int, *arguments: str) -> list[str]:
    """The lines that a command prints on a terminal of so many columns."""
    program, *before = EXECSERVER
    environment = {name: value for name, value in execserver.environment.items() if name != "COLUMNS"}
    child = pexpect.spawn(
        program,
        [*before, *arguments],
        env=cast("os._Environ[str]", environment),
        dimensions=(24, columns),
        timeout=20,
        encoding="utf-8",
    )
    output = child.read()
    child.close()
    assert child.exitstatus == 0, output
    return output.splitlines()


@pytest.mark.parametrize("columns", [20, 40, 80, 120, 200])
def test_ps_fits_the_terminal_and_never_shortens_an_id(execserver: CommandLine, columns: int) -> None:
    ids = [started(execserver, "sleep", "50") for _ in range(3)]

    heading, *rows = on_terminal(execserver, columns, "ps")

    assert [row.split()[0] for row in rows] == ids
    assert [row.split()[1] for row in rows] == ["running"] * 3
    assert max(map(len, [heading, *rows])) <= columns
    assert ("SESSION" in heading) == (columns >= 120)


def test_ps_cuts_a_long_command_line_before_its_other_columns_vanish(execserver: CommandLine) -> None:
    process = started(execserver, "sleep", "50", *["0" for _ in range(80)])

    heading, row = on_terminal(execserver, 80, "ps", "--argv")
    assert (len(row), row[-1], row.split()[0]) == (80, "…", process)
    assert "MEMORY" in heading
    (_, wide) = on_terminal(execserver, 80, "ps", "--argv", "--format", "wide")
    assert wide.endswith(" 0 0 0")


def test_ps_leaves_out_an_empty_column_before_it_cuts_a_command_line(execserver: CommandLine) -> None:
    started(execserver, "sleep", "50", *["0" for _ in range(80)])
    assert "TTY" not in on_terminal(execserver, 110, "ps", "--argv")[0]

    execserver("run", "-dt", "sleep", "50")
    assert "TTY" in on_terminal(execserver, 110, "ps", "--argv")[0]


def test_ps_through_a_pipe_is_whole(execserver: CommandLine) -> None:
    started(execserver, "sleep", "50", *["0" for _ in range(80)])

    heading, row = execserver("ps", "--argv").stdout.decode().splitlines()
    assert heading.split()[-2:] == ["SESSION", "COMMAND"]
    assert row.endswith(" 0 0 0")


def test_ps_prints_the_ids_only_if_asked_so_that_kill_takes_them(execserver: CommandLine) -> None:
    ids = [started(execserver, "sleep", "50") for _ in range(2)]

    assert execserver("ps", "-q").stdout.decode().split() == ids
    assert json.loads(execserver("ps", "-q", "--json").stdout) == ids
    assert execserver("kill", *ids).returncode == 0
    until(lambda: "running" not in states(execserver).values())
    assert execserver("ps", "-q").stdout == b""
    assert execserver("ps", "-aq").stdout.decode().split() == ids


def test_logs_takes_the_short_name_of_tail(execserver: CommandLine) -> None:
    process = started(execserver, "seq", "5")
    until(lambda: states(execserver)[process] != "running")

    assert execserver("logs", "-n", "2", process).stdout == b"4\n5\n"


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


@pytest.mark.parametrize(
    ("lines", "begin"), [("0", 100001), ("1", 100000), ("3", 99998), ("70000", 30001), ("200000", 1)]
)
def test_logs_can_begin_with_the_last_lines(execserver: CommandLine, lines: str, begin: int) -> None:
    process = started(execserver, "sh", "-c", "seq 1 100000")
    until(lambda: states(execserver)[process] == "closed")

    done = execserver("logs", "--tail", lines, process)

    assert done.stdout == b"".join(b"%d\n" % n for n in range(begin, 100001))
    assert done.stderr == b""


def test_the_last_lines_are_those_of_both_streams_and_the_last_needs_no_end(execserver: CommandLine) -> None:
    process = started(execserver, "sh", "-c", "echo 1; sleep 0.2; printf '2\n3\n' >&2; sleep 0.2; printf 4")
    until(lambda: states(execserver)[process] == "closed")

    done = execserver("logs", "--tail", "2", process)
    assert (done.stdout, done.stderr) == (b"4", b"3\n")
    lines = [
        json.loads(line) for line in execserver("logs", "--tail", "2", "--json", process).stdout.splitlines()
    ]
    assert [(each["stream"], base64.b64decode(each["chunk"])) for each in lines] == [
        ("stderr", b"3\n"),
        ("stdout", b"4"),
    ]


def test_logs_follows_after_the_last_lines(execserver: CommandLine) -> None:
    fifo = execserver.folder / "fifo"
    os.mkfifo(fifo)
    process = started(execserver, "sh", "-c", f"echo a; echo b; cat {fifo}")
    until(lambda: execserver("logs", process).stdout == b"a\nb\n")
    with execserver.start("logs", "-f", "--tail", "1", process) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"b\n"
        fifo.write_text("c\n")
        assert following.stdout.read() == b"c\n"
        assert following.wait(20) == 0


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        (["-s", "TERM"], 143),
        (["-s", "sigterm"], 143),
        (["--signal", "15"], 143),
        ([], 143),
        (["-9"], 137),
        (["-KILL"], 137),
        (["-SIGINT"], 130),
        (["-RTMIN+2"], 128 + signal.SIGRTMIN + 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_kill_sends_the_signal_by_any_name(
    execserver: CommandLine, options: list[str], exit_code: int
) -> None:
    process = started(execserver, "sleep", "50")

    assert execserver("kill", *options, process).returncode == 0
    until(lambda: states(execserver)[process] != "running")
    assert [each.exit_code for each in execserver.processes() if each.process_id == process] == [exit_code]


def test_options_of_kill_may_follow_the_ids(execserver: CommandLine) -> None:
    ids = [started(execserver, "sleep", "50") for _ in range(2)]

    assert execserver("kill", ids[0], "-9", ids[1]).returncode == 0
    until(lambda: "running" not in states(execserver).values())
    assert {each.exit_code for each in execserver.processes()} == {137}


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

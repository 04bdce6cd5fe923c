from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pexpect
import pytest

from execclient import TextStream, connect
from tests.conftest import StartServer
from tests.integration.commands.conftest import EXECSERVER, CommandLine, Done, until
from tests.support.wire import wait_gone


def started(execserver: CommandLine, *command: str, tty: bool = False) -> str:
    options = ["--tty"] if tty else []
    return execserver("run", "--detach", *options, "--", *command).stdout.decode().strip()


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
    process = stepped(execserver, "printf '\\377'", "printf e >&2", "printf end")

    done = execserver("logs", process)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xffend", b"e")
    lines = [json.loads(line) for line in execserver("logs", "--json", process).stdout.splitlines()]
    assert [(each["seq"], each["stream"], base64.b64decode(each["chunk"])) for each in lines] == [
        (1, "stdout", b"\xff"),
        (2, "stderr", b"e"),
        (3, "stdout", b"end"),
    ]
    assert execserver("logs", "--since-seq", "2", process).stdout == b"end"


def stepped(execserver: CommandLine, *steps: str) -> str:
    """The id of a closed process that ran these steps, each after the output of the step before was taken."""
    script = steps[0]
    # One for each step: a reader that is faster than our close would go on with the same writer.
    fifos = [execserver.folder / f"fifo{number}" for number in range(1, len(steps))]
    for fifo, step in zip(fifos, steps[1:], strict=True):
        os.mkfifo(fifo)
        script += f"; read -r x < {fifo}; {step}"
    process = started(execserver, "sh", "-c", script)
    for taken, fifo in enumerate(fifos, 1):
        until(lambda: len(execserver("logs", "--json", process).stdout.splitlines()) == taken)  # noqa: B023
        fifo.write_text("\n")
    until(lambda: states(execserver)[process] == "closed")
    return process


def test_logs_begins_each_line_with_the_time_of_its_beginning(execserver: CommandLine) -> None:
    before = datetime.now(UTC)
    process = stepped(execserver, "printf 'a\nb'", "echo c >&2", "printf 'b\nd\n'", "printf e")

    done = execserver("logs", "--timestamps", process)
    stamped = [line.split(b" ", 1) for line in done.stdout.splitlines() + done.stderr.splitlines()]
    assert [text for _, text in stamped] == [b"a", b"bb", b"d", b"e", b"c"]
    times = [datetime.fromisoformat(text.decode()) for text, _ in stamped]
    a, b, d, e, c = times
    assert before - timedelta(milliseconds=1) <= a == b < c < d < e <= datetime.now(UTC)


def test_logs_begins_with_the_output_since_a_time(execserver: CommandLine) -> None:
    process = stepped(execserver, "echo 1", "echo 2", "echo 3", "echo 4", "echo 5")
    lines = [json.loads(line) for line in execserver("logs", "--json", process).stdout.splitlines()]
    for begin in range(5):
        since = datetime.fromtimestamp(lines[begin]["at"] / 1000).isoformat()
        expected = b"".join(b"%d\n" % n for n in range(begin + 1, 6))
        assert execserver("logs", "--since", since, process).stdout == expected

    assert execserver("logs", "--since", "1h", process).stdout == b"1\n2\n3\n4\n5\n"
    assert execserver("logs", "--since", "0.001", process).stdout == b""
    assert execserver("logs", "--since", "1h", "--since-seq", "3", process).stdout == b"4\n5\n"
    assert execserver("logs", "--since", "1h", "--tail", "1", process).stdout == b"5\n"
    refused = execserver("logs", "--since", "yesterday", process)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"no time: 'yesterday'" in refused.stderr


def cast_of(done: Done) -> tuple[dict[str, Any], list[tuple[float, str, str]]]:
    assert (done.returncode, done.stderr) == (0, b"")
    header, *events = (json.loads(line) for line in done.stdout.splitlines())
    times = [time for time, _, _ in events]
    assert times == sorted(times)
    assert all(time >= 0 for time in times)
    return header, [(time, code, text) for time, code, text in events]


async def resized(execserver: CommandLine, *sizes: tuple[int, int], pause: float = 0.3) -> str:
    """The id of a closed process that printed `aü` with a pause, after each size `b`, and at the end `c`."""
    go = execserver.folder / "go"
    script = f"printf 'a\\303'; until [ -e {go} ]; do sleep 0.02; done; sleep {pause}; printf '\\274'"
    script += "; while read -r x; do printf b; done; printf c"
    async with connect(execserver.url, keep=True) as executor:
        process = await executor.start(["sh", "-c", script], tty=True, size=(20, 70))
        screen = process.text()
        await printed(screen, "a")
        go.touch()
        await printed(screen, "ü")
        for rows, cols in sizes:
            await process.resize(rows, cols)
            await process.write("\n")
            await printed(screen, "b")
        await process.write(b"\x04")
        await process.wait_closed()
        return process.id


async def printed(screen: TextStream, wanted: str) -> None:
    seen = ""
    while wanted not in seen:
        seen += (await anext(screen)).text


def test_a_cast_has_the_output_of_a_terminal_with_its_times_and_sizes(execserver: CommandLine) -> None:
    before = time.time()
    process = asyncio.run(resized(execserver, (30, 100), (40, 120)))

    header, events = cast_of(execserver("logs", "--cast", process))

    assert {**header, "timestamp": 0} == {
        "version": 2,
        "width": 70,
        "height": 20,
        "timestamp": 0,
        "title": process,
    }
    assert int(before) <= header["timestamp"] <= time.time()
    assert "".join(text for _, code, text in events if code == "o").replace("\r\n", "") == "aübbc"
    codes = "".join(code if code == "r" else text.strip() for _, code, text in events)
    assert codes == "aürbrbc"
    assert [text for _, code, text in events if code == "r"] == ["100x30", "120x40"]
    ended = next(at for at, _, text in events if "ü" in text)
    assert 0.1 <= ended - events[0][0] < 5


ASCIINEMA = str(Path(sys.executable).parent / "asciinema")


def asciinema(*arguments: str, folder: Path) -> bytes:
    """What the program prints."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    command = [ASCIINEMA, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, timeout=30, check=True).stdout


def test_asciinema_plays_a_cast_with_its_sizes_and_skips_idle_time(execserver: CommandLine) -> None:
    process = asyncio.run(resized(execserver, (30, 100), (40, 120), pause=10.0))
    cast = execserver.folder / "build.cast"
    cast.write_bytes(execserver("logs", "--cast", process).stdout)

    assert asciinema("cat", str(cast), folder=execserver.folder) == execserver("logs", process).stdout

    _, events = cast_of(execserver("logs", "--cast", process))
    begun = time.monotonic()
    play = ("play", "--idle-time-limit", "0.05", "--out-fmt", "asciicast")
    played = asciinema(*play, str(cast), folder=execserver.folder).splitlines()
    assert time.monotonic() - begun < 9.5 <= events[-1][0]
    header, *shown = map(json.loads, played)
    assert (header["width"], header["height"]) == (70, 20)
    assert [event[1:] for event in shown] == [list(event[1:]) for event in events]
    assert [text for _, code, text in shown if code == "r"] == ["100x30", "120x40"]


def test_a_cast_since_a_number_begins_with_the_size_of_then(execserver: CommandLine) -> None:
    process = asyncio.run(resized(execserver, (30, 100), (40, 120)))
    lines = [json.loads(line) for line in execserver("logs", "--json", process).stdout.splitlines()]
    first_b = next(line["seq"] for line in lines if b"b" in base64.b64decode(line["chunk"]))

    header, events = cast_of(execserver("logs", "--cast", "--since-seq", str(first_b), process))

    assert (header["width"], header["height"]) == (120, 40)
    assert events[0][0] == 0
    assert "".join(text for _, code, text in events if code == "o").replace("\r\n", "") == "bc"


def test_a_cast_marks_discarded_output(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(f"unix://{tmp_path}/small", "--retained-output-bytes", "1000")
    execserver = CommandLine(server.url, tmp_path)
    script = "for n in 1 2 3 4 5; do head -c 600 /dev/zero | tr '\\0' $n; sleep 0.1; done"
    process = started(execserver, "sh", "-c", script, tty=True)
    until(lambda: states(execserver)[process] == "closed")

    _, events = cast_of(execserver("logs", "--cast", process))

    kept = "".join(text for _, code, text in events if code == "o")
    assert [code for _, code, _ in events].count("m") == 1
    cast = tmp_path / "build.cast"
    cast.write_bytes(execserver("logs", "--cast", process).stdout)
    assert asciinema("cat", str(cast), folder=tmp_path).decode() == kept
    assert events[0][1:] == ("m", f"{3000 - len(kept)} bytes of output before this were discarded")


def test_a_cast_needs_a_terminal(execserver: CommandLine) -> None:
    process = started(execserver, "true")

    done = execserver("logs", "--cast", process)

    assert (done.returncode, done.stdout) == (125, b"")
    assert b"has no terminal" in done.stderr
    assert execserver("logs", "--cast", "--tail", "3", process).returncode == 2


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
    process = stepped(execserver, "echo 1", "printf '2\n3\n' >&2", "printf 4")

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
    until(lambda: execserver("logs", "--session", second, "twin").stdout == f"{second}\n".encode())
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

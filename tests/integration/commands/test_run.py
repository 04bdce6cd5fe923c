from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

from tests.conftest import StartServer
from tests.integration.commands.conftest import EXECSERVER, CommandLine, job_of, until, until_continued
from tests.support.wire import wait_gone

ALL_BYTES = bytes(range(256))
PYTHON = sys.executable


def test_both_streams_arrive_as_they_are_and_the_exit_code_is_the_command_s(execserver: CommandLine) -> None:
    code = (
        f"import sys; sys.stdout.buffer.write({ALL_BYTES!r}); sys.stderr.buffer.write(b'e\\xff'); sys.exit(7)"
    )

    done = execserver("run", "--", PYTHON, "-c", code)

    assert (done.returncode, done.stdout, done.stderr) == (7, ALL_BYTES, b"e\xff")


@pytest.mark.parametrize("size", [0, 1, 65536, 20_000_000])
def test_input_of_any_size_goes_through_and_its_end_is_told(execserver: CommandLine, size: int) -> None:
    data = (os.urandom(4096) * (size // 4096 + 1))[:size]

    done = execserver("run", "cat", data=data)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == size
    assert done.stdout == data


def test_output_comes_as_it_is_written(execserver: CommandLine) -> None:
    with execserver.start("run", "--", "sh", "-c", "printf first; read line; printf $line") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert os.read(process.stdout.fileno(), 100) == b"first"
        process.stdin.write(b"second\n")
        process.stdin.flush()
        assert os.read(process.stdout.fileno(), 100) == b"second"
        assert process.wait(20) == 0


def test_a_reader_of_our_output_that_dawdles_loses_nothing(execserver: CommandLine) -> None:
    megabytes = 80  # more than what may wait in memory, and than a client's inbox usually holds
    code = f"import os\nfor n in range({megabytes}): os.write(1, bytes([n]) * (1 << 20))"
    with execserver.start("run", "-n", "--", PYTHON, "-c", code) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        until(lambda: any(each.state != "running" for each in execserver.processes()))
        rest = process.stdout.read()
        assert process.wait(20) == 0

    expected = hashlib.sha256(b"".join(bytes([n]) * (1 << 20) for n in range(megabytes))).digest()
    assert hashlib.sha256(first + rest).digest() == expected


def test_without_a_reader_the_command_is_ended_and_so_are_we(execserver: CommandLine) -> None:
    command = " ".join([*EXECSERVER, "run", "-n", "--", "sh", "-c", "'while :; do echo y; done'"])
    shell = f"{command} | head -1; echo ${{PIPESTATUS[0]}}"

    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, timeout=30, env=execserver.environment, check=True
    )

    assert done.stdout == b"y\n141\n"
    assert done.stderr == b""
    until(lambda: all(each.state != "running" for each in execserver.processes()))


def test_a_full_disk_behind_our_output_is_said(execserver: CommandLine) -> None:
    with open("/dev/full", "wb") as full:
        process = execserver.start("run", "-n", "echo", "x", stdout=full)
        _, errors = process.communicate(timeout=30)

    assert process.returncode == 125
    assert errors == b"execserver: output cannot be written: No space left on device\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_is_handed_on_by_name(execserver: CommandLine, name: str) -> None:
    code = (
        "import os, signal\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])\n"
        "print('ready', flush=True)\n"
        f"os._exit(signal.sigwait([signal.{name}]) + 50)"
    )
    with execserver.start("run", "-n", "--", PYTHON, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.Signals[name])
        assert process.wait(20) == signal.Signals[name] + 50


def test_a_command_that_dies_of_a_signal_gives_128_and_its_number(execserver: CommandLine) -> None:
    assert execserver("run", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["INT", "HUP", "QUIT", "TERM"])
def test_a_signal_that_we_were_told_to_ignore_is_not_handed_on(execserver: CommandLine, name: str) -> None:
    command = " ".join([*EXECSERVER, "run", "-n", "--", "sh", "-c", "'echo ready; read x < fifo; echo $x'"])
    os.mkfifo(execserver.folder / "fifo")
    shell = f"trap '' {name}; exec {command.replace('fifo', str(execserver.folder / 'fifo'))}"
    with subprocess.Popen(
        ["sh", "-c", shell], stdout=subprocess.PIPE, env=execserver.environment, cwd=execserver.folder
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        (execserver.folder / "fifo").write_text("alive\n")
        assert process.stdout.readline() == b"alive\n"
        assert process.wait(20) == 0


def test_stopping_us_stops_nothing_there(execserver: CommandLine) -> None:
    counter = execserver.folder / "count"
    code = f"while :; do echo x >> {counter}; sleep 0.02; done"
    with execserver.start("run", "-n", "--", "sh", "-c", code) as process:
        until(counter.exists)
        process.send_signal(signal.SIGSTOP)
        before = counter.stat().st_size
        until(lambda: counter.stat().st_size > before + 10)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["run", "no-such-program"],
            127,
            "execserver: no-such-program: not found in the PATH of the daemon\n",
        ),
        (["run", "-e", "PATH=/", "no-such-program"], 127, "not found in the PATH of --env\n"),
        (["run", "./no-such-program"], 127, "./no-such-program: No such file or directory"),
        (["run", "/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (["run", "--cwd", "/nowhere", "true"], 125, "/nowhere: not a directory on the daemon"),
        (["run", "--cwd", "", "true"], 125, "cwd is empty"),
        (["run", "echo", os.fsdecode(b"\xff")], 125, "argv[1] holds bytes that are not UTF-8"),
        (["run", "--timeout", "0.2", "sleep", "60"], 124, ""),
        (["run", "--timeout", "1e20", "true"], 2, "the longest 3649d"),
        (["run"], 2, "no command is given"),
        (["run", "--env", "NEVER_SET", "true"], 2, "NEVER_SET is not set here"),
        (["attach", "nobody"], 125, "no process nobody"),
        (["attach", "--detach-keys", "ctrl-1", "x"], 2, "no key"),
        (["logs", "nobody"], 125, "no process nobody"),
        (["kill", "nobody"], 1, "execserver: no process nobody"),
        (["kill", "-s", "NOPE", "x"], 2, "no signal: NOPE"),
        (["kill", "-s", "TREM", "x"], 2, "no signal: TREM; did you mean TERM?"),
        (["kill", "--signal", "SIGHPU", "x"], 2, "no signal: SIGHPU; did you mean HUP?"),
        (["cp", "a", "b"], 2, "one of the two paths must be on the daemon"),
        (["cp", ":nothing", "b"], 125, "No such file"),
        (["cp", "nothing", ":b"], 125, "execserver: nothing: No such file or directory\n"),
        (["cp", "nothing", "none", ":/tmp"], 1, "execserver: none: No such file or directory\n"),
        (["cp", "/etc/passwd", ":~/b"], 125, "~ is not expanded there: relative paths begin in /"),
        (["cp", "-", ":~/b"], 125, "execserver: :~/b: "),
        (["cp", ":~/b", "b"], 125, "~ is not expanded there: relative paths begin in /"),
        (["ps", "--url", "ftp://x"], 125, "ftp://x"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_each_failure_of_our_own_has_its_status_and_says_why(
    execserver: CommandLine, arguments: list[str], status: int, message: str
) -> None:
    done = execserver(*arguments)

    assert done.returncode == status, done.stderr
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize("arguments", [["run", "true"], ["ps"], ["logs", "x"], ["cp", ":a", "b"]])
def test_without_a_daemon_it_says_how_to_start_one(execserver: CommandLine, arguments: list[str]) -> None:
    done = execserver(*arguments, "--url", "unix:///nonexistent/socket") if arguments[0] != "run" else None
    done = done or execserver("run", "--url", "unix:///nonexistent/socket", "true")

    assert done.returncode == 69
    assert b"execserver serve" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_command_may_clean_up_at_its_time_limit(execserver: CommandLine) -> None:
    cleans_up = 'trap "echo bye; exit 3" TERM; echo up; while :; do sleep 0.1; done'

    for options, output in ((["--grace", "20"], b"up\nbye\n"), ([], b"up\n")):
        for limit in ("1", "5", "15"):  # enough for a shell to begin
            done = execserver("run", "--timeout", limit, *options, "--", "sh", "-c", cleans_up)
            if done.stdout.startswith(b"up"):
                break
        assert (done.stdout, done.returncode) == (output, 124)


def test_variables_and_folder_are_the_command_s(execserver: CommandLine, tmp_path: Path) -> None:
    done = execserver(
        "run", "--cwd", str(tmp_path), "--env", "A=1=2", "--env", "TERM", "--", "sh", "-c", "pwd; env"
    )

    lines = done.stdout.decode().splitlines()
    assert lines[0] == str(tmp_path)
    assert {"A=1=2", "TERM=xterm"} <= set(lines)


def test_options_behind_the_command_are_its_own(execserver: CommandLine) -> None:
    assert execserver("run", "echo", "--", "--detach", "--no-such").stdout == b"-- --detach --no-such\n"
    assert execserver("run", "-n", "--", "echo", "-n", "--help").stdout == b"--help"
    assert execserver("run", "echo", "--tty", "-n", "--", "x").stdout == b"--tty -n -- x\n"


def test_options_as_docker_has_them_are_taken(execserver: CommandLine, tmp_path: Path) -> None:
    command = ("sh", "-c", "tty; echo $A; pwd; cat")

    done = execserver("run", "-i", "-e", "A=1", "-w", str(tmp_path), "--", *command, data=b"typed")
    assert done.stdout == f"not a tty\n1\n{tmp_path}\ntyped".encode()
    assert execserver("run", "-it", "tty", data=b"").stdout.startswith(b"/dev/pts/")
    (process,) = execserver("run", "-d", "sleep", "50").stdout.split()
    assert execserver("ps", "-q").stdout.split() == [process]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--unknown", "x"], "no such option: --unknown"),
        (["--detatch", "x"], "no such option: --detatch; did you mean --detach?"),
        (["--det", "x"], "no such option: --det; did you mean --detach?"),
        (["-x", "y"], "no such option: -x"),
        (["-in", "x"], "-i does not go with -n"),
        (["-di", "x"], "-i does not go with --detach: stdin is empty; with -dt, attach can type into it"),
        (["--grace", "1", "x"], "--grace needs --timeout"),
        (["--timeout", "soon", "x"], "no duration: 'soon'; write a time above 0: 90, 90s, 15m, 8h or 2d"),
        (["--"], "no command is given"),
        (["--timeout"], "expected one argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_option_is_an_error_that_names_the_way_out(
    execserver: CommandLine, options: list[str], message: str
) -> None:
    done = execserver("run", *options)

    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert done.stderr.endswith(b"See: execserver run --help\n")
    assert execserver.processes() == []


def test_json_has_all_output_and_the_end_a_line_each(execserver: CommandLine) -> None:
    done = execserver("run", "--json", "--", "sh", "-c", "printf '\\377'; printf e >&2; exit 3")

    begin, *chunks, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3
    assert set(begin) == {"processId", "sessionId", "pid"}
    streams = {each["stream"]: base64.b64decode(each["chunk"]) for each in chunks}
    assert streams == {"stdout": b"\xff", "stderr": b"e"}
    assert {**end, "durationSeconds": 0} == {"exitCode": 3, "cause": "normal", "durationSeconds": 0}


def test_a_child_in_the_background_does_not_keep_us(execserver: CommandLine) -> None:
    begin = time.monotonic()
    done = execserver("run", "--", "sh", "-c", "sleep 50 & echo done")

    assert (done.returncode, done.stdout) == (0, b"done\n")
    assert time.monotonic() - begin < 20


def test_a_closed_standard_input_is_fine(execserver: CommandLine) -> None:
    shell = f"{' '.join(EXECSERVER)} run -- sh -c 'cat; echo done' <&-"
    done = subprocess.run(
        ["sh", "-c", shell], capture_output=True, timeout=30, env=execserver.environment, check=False
    )

    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr


def test_input_that_the_command_does_not_read_stays_for_the_next_program(execserver: CommandLine) -> None:
    shell = f"{{ {' '.join(EXECSERVER)} run -n -- true; cat; }}"
    done = subprocess.run(
        ["sh", "-c", shell],
        input=b"for cat",
        capture_output=True,
        timeout=30,
        env=execserver.environment,
        check=True,
    )

    assert done.stdout == b"for cat"


def test_docker_s_options_for_a_shell_in_the_background_are_accepted(execserver: CommandLine) -> None:
    done = execserver("run", "-dit", "cat")

    (process_id,) = done.stdout.decode().split()
    assert execserver("ps", "-q").stdout.decode().split() == [process_id]


def test_what_is_detached_goes_on_and_can_be_found_again(execserver: CommandLine) -> None:
    done = execserver("run", "--detach", "--", "sh", "-c", "echo here; exec sleep 50")

    process_id = done.stdout.decode().strip()
    assert done.returncode == 0
    assert b" keeps running for 30 s without a client" in done.stderr
    assert process_id in execserver("ps").stdout.decode()
    until(lambda: execserver("logs", process_id).stdout == b"here\n")
    assert execserver("kill", "-s", "KILL", process_id).returncode == 0
    until(lambda: all(each.state != "running" for each in execserver.processes()))


def test_our_own_violent_death_leaves_no_command_behind_its_session(execserver: CommandLine) -> None:
    with execserver.start("run", "-n", "--", "sh", "-c", "echo $$; exec sleep 50") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait(20)

    execserver("kill", "--scope", "tree", "-s", "9", execserver.processes()[0].process_id)
    assert wait_gone(pid)


# -- at a terminal


def spawn(execserver: CommandLine, *arguments: str) -> pexpect.spawn[str]:
    program, *before = EXECSERVER
    return pexpect.spawn(
        program,
        [*before, *arguments],
        env=execserver.environment,
        encoding="utf-8",
        timeout=20,
        dimensions=(31, 97),
    )


def test_a_terminal_has_our_size_and_follows_it(execserver: CommandLine) -> None:
    with spawn(
        execserver,
        "run",
        "-t",
        "--",
        "sh",
        "-c",
        "trap 'stty size' WINCH; stty size; while :; do sleep 0.1; done",
    ) as terminal:
        terminal.expect_exact("31 97")
        terminal.setwinsize(20, 70)
        terminal.expect_exact("20 70")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.wait()
        assert terminal.exitstatus == 130


def test_keys_reach_the_remote_terminal_ctrl_c_and_ctrl_z_among_them(execserver: CommandLine) -> None:
    with spawn(execserver, "run", "-t", "--env", "PS1=> ", "--", "bash", "--norc", "-i") as terminal:
        terminal.expect_exact("> ")
        terminal.sendline("sleep 100")
        terminal.expect_exact("sleep 100\r\n")
        job = job_of(execserver, "sleep")
        terminal.sendcontrol("z")
        terminal.expect("Stopped.*sleep 100")
        terminal.sendline("fg")
        terminal.expect_exact("sleep 100\r\n")
        until_continued(job)
        terminal.sendintr()
        terminal.expect_exact("> ")
        terminal.sendline("echo $((6*7))")
        terminal.expect_exact("42\r\n")
        terminal.sendline("exit 5")
        terminal.expect(pexpect.EOF)
        terminal.wait()
        assert terminal.exitstatus == 5


@pytest.mark.parametrize("ending", ["exit", "kill -9 $$"])
def test_our_terminal_is_afterwards_as_it_was(execserver: CommandLine, ending: str) -> None:
    with pexpect.spawn(
        "sh",
        env=execserver.environment,
        cwd=str(execserver.folder),
        encoding="utf-8",
        timeout=20,
    ) as shell:
        shell.sendline("PS1=; stty -a > before")
        shell.sendline(
            f"{' '.join(EXECSERVER)} run -t -- sh -c '{ending}'; "
            "stty -a > after; cmp before after && echo sa''me"
        )
        shell.expect_exact("same\r\n")


def test_input_from_a_pipe_ends_what_reads_a_terminal(execserver: CommandLine) -> None:
    done = execserver("run", "-t", "--", "sh", "-c", "stty -echo; cat", data=b"no line end")

    assert done.returncode == 0
    assert b"no line end" in done.stdout


def test_stopped_from_outside_we_give_the_terminal_back_and_go_on_in_the_foreground(
    execserver: CommandLine,
) -> None:
    with pexpect.spawn(
        "bash",
        ["--norc", "-i"],
        env={**execserver.environment, "PS1": "% "},
        encoding="utf-8",
        timeout=20,
    ) as shell:
        shell.expect_exact("% ")
        shell.sendline(f"{' '.join(EXECSERVER)} run -t -- sh -c 'echo st''arted; read x; echo got $x'")
        shell.expect_exact("started")
        child = next(iter(_children(shell.pid)))
        os.kill(child, signal.SIGTSTP)
        shell.expect("Stopped")
        shell.sendline("fg")
        shell.expect_exact("run -t")
        until(lambda: _is_raw(shell))
        shell.send("word\r")
        shell.expect_exact("got word")


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_raw(shell: pexpect.spawn[str]) -> bool:
    import termios

    return not termios.tcgetattr(shell.child_fd)[3] & termios.ICANON


# -- the ways to a daemon


@pytest.fixture(params=["unix", "websocket", "stdio"])
def anywhere(
    request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line, with a daemon that is reached in one of the ways."""
    listen = {"unix": f"unix://{tmp_path}/s", "websocket": "ws://127.0.0.1:0"}.get(request.param)
    # The daemon of `stdio:` is ours: it must not find the spool of another one.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return CommandLine("stdio:" if listen is None else start_server(listen).url, tmp_path)


def test_output_input_and_exit_code_are_right_over_each(anywhere: CommandLine) -> None:
    data = os.urandom(3_000_000)

    done = anywhere("run", "--", "sh", "-c", "cat; printf e >&2; exit 7", data=data)

    assert (done.returncode, done.stderr) == (7, b"e")
    assert done.stdout == data


def test_ctrl_c_ends_the_command_and_not_the_way_to_it(anywhere: CommandLine) -> None:
    code = "trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.1; done"
    with spawn(anywhere, "run", "--", "sh", "-c", code) as terminal:
        terminal.expect_exact("ready")
        terminal.sendintr()
        terminal.expect_exact("caught")
        terminal.expect(pexpect.EOF)
        terminal.wait()
        assert terminal.exitstatus == 4


def test_files_are_copied_over_each(anywhere: CommandLine, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)

    assert anywhere("cp", "-", f":{tmp_path}/file", data=data).returncode == 0
    assert anywhere("cp", f":{tmp_path}/file", "-").stdout == data

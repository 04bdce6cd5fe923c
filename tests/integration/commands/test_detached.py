"""`run --detach --ttl`: what is left at a daemon, found again by its ID, and what is known after its end."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from execclient.commands.daemon import DaemonOptions
from execclient.commands.kill import kill
from execclient.session import recovery
from tests.conftest import StartServer
from tests.integration.commands.conftest import CommandLine, serving_process, until
from tests.support.wire import Server, alive, wait_gone


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> Server:
    """A daemon that keeps nothing for long unless it is asked to."""
    return start_server(
        f"unix://{tmp_path}/s", "--session-ttl", "0.3", "--process-ttl", "0.3", "--max-session-ttl", "3600"
    )


@pytest.fixture
def refusing(start_server: StartServer, tmp_path: Path) -> CommandLine:
    """The command line with a daemon that shows a client its own processes only."""
    folder = tmp_path / "here"
    folder.mkdir()
    server = start_server("ws://127.0.0.1:0", "--session-ttl", "0.3", "--process-ttl", "0.3")
    return CommandLine(server.url, folder)


def detached(execserver: CommandLine, *arguments: str) -> tuple[str, int]:
    """The id of a detached command, and its process id."""
    done = execserver("run", "--detach", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    return line["processId"], line["pid"]


def records(execserver: CommandLine) -> list[Path]:
    """The files with the recorded sessions."""
    return sorted((Path(execserver.environment["XDG_STATE_HOME"]) / "execserver" / "detached").iterdir())


# -- the time to live


def test_a_detached_command_lives_as_long_as_it_was_asked_for(execserver: CommandLine) -> None:
    long, pid = detached(execserver, "--ttl", "1h", "sh", "-c", "echo here; exec sleep 300")
    _, other = detached(execserver, "sleep", "300")
    assert wait_gone(other)
    assert alive(pid)
    until(lambda: execserver("logs", long).stdout == b"here\n")
    assert long in execserver("ps").stdout.decode()
    assert execserver("kill", long).returncode == 0
    assert wait_gone(pid)


def test_the_message_has_the_time_in_words_and_by_the_clock(execserver: CommandLine) -> None:
    before = time.time()
    done = execserver("run", "--detach", "--ttl", "45m", "sleep", "300")
    found = re.search(
        rb"keeps running for 45 min without a client, until (\d\d:\d\d|[-0-9]+ \d\d:\d\d)", done.stderr
    )
    assert found is not None, done.stderr
    ends = {time.strftime("%H:%M", time.localtime(each + 2700)) for each in (before, time.time())}
    assert found[1].decode()[-5:] in ends
    as_json = json.loads(execserver("run", "--detach", "--json", "--ttl", "45m", "sleep", "300").stdout)
    assert as_json["sessionTtlSeconds"] == 2700


@pytest.mark.parametrize(("options", "time"), [((), "20 s (--timeout)"), (("--ttl", "15"), "15 s without a")])
def test_the_time_in_the_message_is_the_shorter_one(
    execserver: CommandLine, options: tuple[str, ...], time: str
) -> None:
    done = execserver("run", "-d", "--timeout", "20", *(options or ("--ttl", "45m")), "--", "sleep", "5")
    assert f"keeps running for {time}" in done.stderr.decode()


def test_a_time_above_the_limit_of_the_daemon_starts_nothing(execserver: CommandLine) -> None:
    done = execserver("run", "--detach", "--ttl", "1h", "--", "touch", "made")
    assert done.returncode == 0
    done = execserver("run", "--detach", "--ttl", "2h", "--", "touch", str(execserver.folder / "made"))
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"--ttl: the daemon keeps a session for at most 1 h (" in done.stderr
    assert b"--max-session-ttl" in done.stderr
    assert not (execserver.folder / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--detach", "--ttl", "8 hours", "true"], b"no duration: '8 hours'"),
        (["run", "--detach", "--ttl", "0", "true"], b"the shortest is 0.001"),
    ],
)
def test_a_wrong_time_is_told_before_a_daemon_is_asked(
    execserver: CommandLine, arguments: list[str], text: bytes
) -> None:
    done = CommandLine("unix:///nowhere", execserver.folder)(*arguments)
    assert done.returncode == 2
    assert text in b" ".join(done.stderr.replace("│".encode(), b"").split())


def test_a_daemon_of_one_command_has_no_other_sessions(execserver: CommandLine) -> None:
    for arguments in (["ps"], ["logs", "x"], ["kill", "x"]):
        done = execserver(*arguments, "--url", "stdio:")
        assert done.returncode == (1 if arguments[0] == "kill" else 125)
        assert b"started for one command, and has no other sessions\n" in done.stderr


def test_over_stdio_a_command_cannot_be_left(execserver: CommandLine) -> None:
    done = execserver("run", "--detach", "--url", "stdio:", "true")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"a daemon that listens" in done.stderr


# -- after the end


@pytest.mark.parametrize("command", ["logs", "attach", "kill"])
def test_after_the_end_of_its_session_an_id_is_told_when_and_why(
    execserver: CommandLine, command: str
) -> None:
    process, pid = detached(execserver, "sleep", "300")
    assert wait_gone(pid)

    done = execserver(command, process)

    assert done.returncode == (1 if command == "kill" else 125)
    text = done.stderr.decode()
    assert re.search(rf"the session of {process} ended [\d.]+ s ago \(at [-0-9 ]*\d\d:\d\d\)", text), text
    assert "after 0.3 s without a client; it was killed then" in text
    assert "--ttl" in text


def test_the_end_is_known_at_the_next_server_too(start_server: StartServer, tmp_path: Path) -> None:
    """Also if the next server has not ended the session yet when the process has been kept long enough."""
    server = start_server(f"unix://{tmp_path}/s", "--session-ttl", "0.3", "--process-ttl", "0.01")
    execserver = CommandLine(server.url, tmp_path)
    process, pid = detached(execserver, "sleep", "300")
    assert wait_gone(pid)
    old = serving_process(server)
    old.kill()
    old.wait(20)
    assert b"after 0.3 s without a client; it was killed then" in execserver("logs", process).stderr


def test_a_command_that_ended_first_is_told_with_its_exit_code(execserver: CommandLine) -> None:
    process, _ = detached(execserver, "--ttl", "1h", "sh", "-c", "exit 7")
    until(lambda: process not in execserver("ps", "--all").stdout.decode())
    text = execserver("logs", process).stderr.decode()
    assert re.search(rf"{process} exited with 7 [\d.]+ s ago", text), text
    assert "--process-ttl" in text


def test_an_id_that_never_was_is_still_none(execserver: CommandLine) -> None:
    detached(execserver, "sleep", "300")
    assert b"no process nobody; see" in execserver("logs", "nobody").stderr


def test_after_a_restart_of_the_daemon_the_record_tells_of_the_end(
    start_server: StartServer, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    first = start_server(f"unix://{tmp_path}/s")
    execserver = CommandLine(first.url, folder)
    process, _ = detached(execserver, "--ttl", "8h", "sleep", "300")
    first.stop()
    start_server(f"unix://{tmp_path}/s")

    text = execserver("logs", process).stderr.decode()

    assert re.search(rf"process {process} was started \d.* ago \(at .*\), and its session has ended", text), (
        text
    )
    assert "8 h without a client" in text
    assert b"no process" in execserver("logs", process).stderr, "the record is dropped"


# -- where a client sees its own processes only


def test_where_others_are_not_shown_a_recorded_session_is_found_again(refusing: CommandLine) -> None:
    script = "echo here; read -r line; echo got $line; exit 5"
    process, pid = detached(refusing, "--ttl", "1h", "--tty", "sh", "-c", script)
    _, other = detached(refusing, "sleep", "300")
    assert wait_gone(other), "the time of the daemon is over for a long while"

    until(lambda: refusing("logs", process).stdout == b"here\r\n")
    shown = refusing("ps", "--argv")
    assert [row.split()[0] for row in shown.stdout.decode().splitlines()[1:]] == [process]
    assert alive(pid)
    attached = refusing("attach", "--since-seq", "0", process, data=b"typed\n")
    assert (attached.returncode, b"got typed" in attached.stdout) == (5, True)


def test_a_recorded_session_that_has_ended_is_told_and_dropped(refusing: CommandLine) -> None:
    (first, pid), (second, other) = detached(refusing, "sleep", "300"), detached(refusing, "sleep", "300")
    assert wait_gone(pid)
    assert wait_gone(other)
    assert len(records(refusing)) == 2

    text = refusing("logs", first).stderr.decode()
    assert re.search(rf"process {first} was started \d.* ago .*, and its session has ended", text), text
    assert "for 0.3 s without a client" in text
    done = refusing("ps")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert f"process {second} was started" in done.stderr.decode()
    assert not records(refusing)
    assert b"only reached over a Unix socket" in refusing("ps").stderr
    assert b"run --detach" in refusing("logs", first).stderr


def test_a_command_that_ended_in_a_recorded_session_is_told_with_its_exit_code(refusing: CommandLine) -> None:
    process, _ = detached(refusing, "--ttl", "1h", "sh", "-c", "exit 7")
    until(lambda: process not in refusing("ps", "--all").stdout.decode())
    assert re.search(rf"{process} exited with 7 [\d.]+ s ago", refusing("kill", process).stderr.decode())


def test_a_session_without_a_record_is_found_by_its_id(refusing: CommandLine) -> None:
    line = json.loads(
        refusing("run", "--detach", "--json", "--ttl", "1h", "sh", "-c", "echo x; sleep 300").stdout
    )
    (file,) = records(refusing)
    file.unlink()
    process = line["processId"]
    assert b"with --session" in refusing("logs", process).stderr
    until(lambda: refusing("logs", "--session", line["sessionId"], process).stdout == b"x\n")
    assert refusing("kill", "--session", line["sessionId"], process).returncode == 0
    assert wait_gone(line["pid"])


def test_while_another_client_has_the_session_that_is_told(
    refusing: CommandLine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recovery, "ATTACHED_SECONDS", 0.2)
    monkeypatch.setenv("XDG_STATE_HOME", refusing.environment["XDG_STATE_HOME"])
    process, pid = detached(refusing, "--ttl", "1h", "sh", "-c", "echo x; exec sleep 300")
    with refusing.start("logs", "--follow", process, stdin=subprocess.DEVNULL) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"x\n"
        daemon = DaemonOptions(refusing.url, None)
        killing = kill(daemon, [process], None, name="SIGTERM", scope="group", as_json=False)
        assert asyncio.run(killing) == 1
        assert f"another client is connected to the session of {process}" in capfd.readouterr().err
        following.terminate()
        following.wait(20)
    assert refusing("kill", process).returncode == 0
    assert wait_gone(pid)


# -- the record


def test_a_damaged_record_costs_no_other(refusing: CommandLine) -> None:
    process, _ = detached(refusing, "--ttl", "1h", "sh", "-c", "echo x; sleep 300")
    until(lambda: refusing("logs", process).stdout == b"x\n")
    (whole,) = records(refusing)
    broken = whole.with_name("0.json")
    broken.write_bytes(b"{")
    broken.chmod(0o600)
    done = refusing("logs", process)
    assert (done.returncode, done.stdout) == (0, b"x\n")
    assert str(broken).encode() in done.stderr


def test_a_folder_of_others_gets_no_record_and_the_command_runs_all_the_same(refusing: CommandLine) -> None:
    state = Path(refusing.environment["XDG_STATE_HOME"])
    (state / "execserver").mkdir(parents=True)
    (state / "execserver").chmod(0o777)
    done = refusing("run", "--detach", "--ttl", "1h", "sh", "-c", "echo x; sleep 300")
    assert done.returncode == 0
    found = re.search(rb"cannot be recorded: .*--session (\S+)", done.stderr, re.DOTALL)
    assert found is not None, done.stderr
    assert not records(refusing)
    process, session = done.stdout.decode().strip(), found[1].decode()
    until(lambda: refusing("logs", "--session", session, process).stdout == b"x\n")

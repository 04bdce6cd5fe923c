"""A command that is over leaves nothing at the daemon, but for what it was told to leave."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.commands.conftest import CommandLine, until
from tests.support.background import IN_BACKGROUND, Left
from tests.support.wire import connect_unix


@pytest.fixture
def left() -> Iterator[Left]:
    """Something to leave running."""
    left = Left()
    yield left
    left.kill()


def script(left: Left, then: str = "exit 0") -> list[str]:
    """A command that leaves it running, and then does something else."""
    return ["sh", "-c", f"{IN_BACKGROUND.format(sleep=left.sleep)}; {then}"]


@pytest.mark.parametrize(
    ("flags", "then", "status"),
    [
        ([], "exit 0", 0),
        (["--no-stdin"], "exit 3", 3),
        (["--json"], "exit 0", 0),
        (["--tty"], "exit 0", 0),
        (["--timeout", "0.5"], "sleep 60", 124),
        ([], "kill -KILL $$", 137),
    ],
)
def test_what_a_command_leaves_in_the_background_ends_with_run(
    execserver: CommandLine, left: Left, flags: list[str], then: str, status: int
) -> None:
    done = execserver("run", *flags, "--", *script(left, then))
    if "--timeout" in flags and not done.stdout:  # it was over before the shell began
        done = execserver("run", "--timeout", "5", "--", *script(left, then))
    assert done.returncode == status, done.stderr
    assert done.stdout
    assert not left.pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 3])
def test_a_signal_ends_run_and_all_of_it(
    execserver: CommandLine, left: Left, number: signal.Signals, times: int
) -> None:
    # In a session of its own: what the signal does not reach.
    alone = f"setsid {left.sleep} >/dev/null 2>&1 & echo left; exec sleep 60"
    with execserver.start("run", "--", "sh", "-c", alone) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"left\n"
        left.wait_running()
        for _ in range(times):
            process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert not left.pids


def test_an_output_without_a_reader_ends_run_and_all_of_it(execserver: CommandLine, left: Left) -> None:
    with execserver.start("run", "-n", "--", *script(left, "exec yes")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        left.wait_running()
        process.stdout.close()
        process.wait(20)
    assert not left.pids


def test_a_run_that_is_killed_keeps_its_session(execserver: CommandLine, left: Left) -> None:
    with execserver.start("run", "--", *script(left, "exec sleep 60")) as process:
        left.wait_running()
        process.kill()
    until(lambda: len(execserver.processes()) == 1)
    assert left.pids


def test_what_is_detached_outlives_every_command_that_looks_at_it(
    execserver: CommandLine, left: Left
) -> None:
    started = execserver("run", "--detach", "--", *script(left, f"exec {left.sleep}"))
    name = started.stdout.decode().strip()
    left.wait_running(2)
    (execserver.folder / "file").write_text("text")

    for command in (
        ["ps", "--all", "--argv"],
        ["logs", name],
        ["kill", "--signal", "CONT", name],
        ["cp", "file", ":copy"],
        ["run", "--", "true"],
    ):
        done = execserver(*command)
        assert done.returncode == 0, (command, done.stderr)
    with execserver.start("attach", name, stdin=subprocess.DEVNULL) as attached:
        until(lambda: b"attach" in _command_line(attached.pid))
        attached.send_signal(signal.SIGINT)
        attached.wait(20)
    assert len(left.pids) == 2
    assert execserver("logs", name).stdout == b"left\n"

    assert execserver("kill", "--signal", "KILL", "--scope", "tree", name).returncode == 0
    until(lambda: not left.pids)


def _command_line(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def test_commands_leave_no_session(execserver: CommandLine) -> None:
    (execserver.folder / "file").write_text("text")
    for command in (
        ["ps"],
        ["cp", "file", ":copy"],
        ["run", "--", "true"],
        ["kill", "none"],
        ["logs", "none"],
    ):
        execserver(*command)
    with connect_unix(execserver.url.removeprefix("unix://")).handshake() as witness:
        assert witness.call("server/health")["sessions"] == 1

"""`execserver attach` in a real terminal: tmux shows what a person would see."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands.conftest import (
    EXECSERVER,
    CommandLine,
    job_of,
    serving_process,
    until,
    until_continued,
)
from tests.support.wire import Server


class Screen:
    """A terminal of 80 columns and 24 rows, with a shell whose prompt is `% `."""

    def __init__(self, execserver: CommandLine) -> None:
        for program in ("tmux", "vim"):
            assert shutil.which(program), f"{program} is missing: run make terminal-tools"
        self._socket = str(execserver.folder.parent / "tmux")
        self._environment = {**execserver.environment, "PS1": "% ", "LANG": "C.UTF-8"}
        self._environment.pop("COLUMNS")
        self.folder = execserver.folder
        # A command in one word would be run by the user's shell, and that of `nobody` refuses all.
        shell = ("bash", "--norc", "--noprofile", "-i")
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", *shell)

    def tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout

    @property
    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def enter(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    def run(self, *arguments: str) -> None:
        """Type `execserver ARGUMENTS`; `echo status $?` follows at its end."""
        self.enter(shlex.join([*EXECSERVER, *arguments]) + "; echo status $?")

    def shows(self, pattern: str) -> str:
        """Wait until it shows a pattern."""
        try:
            until(lambda: re.search(pattern, self.text, re.MULTILINE))
        except AssertionError:
            raise AssertionError(f"the screen does not show {pattern!r}:\n{self.text}") from None
        return self.text

    def resize(self, columns: int, rows: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def close(self) -> None:
        self.tmux("kill-server")


@pytest.fixture
def screen(execserver: CommandLine) -> Iterator[Screen]:
    one = Screen(execserver)
    yield one
    one.close()


def detached(execserver: CommandLine, *command: str, tty: bool = True) -> str:
    """The id of a process that was left running."""
    terminal = ["--tty", "--env", "TERM=screen"] if tty else []
    done = execserver("run", "--detach", "--json", *terminal, "--", *command)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["processId"])


def test_vim_opens_resizes_edits_and_quits(execserver: CommandLine, screen: Screen) -> None:
    file = execserver.folder / "text"
    file.write_text("".join(f"line {n}\n" for n in range(1, 101)))
    process = detached(execserver, "vim", "-u", "NONE", "-N", str(file))

    screen.run("attach", process)
    shown = screen.shows(r"^line 23$")
    assert "line 24" not in shown
    screen.resize(100, 40)
    shown = screen.shows(r"^line 39$")
    assert "line 40" not in shown
    screen.type("ochanged ünder way")
    screen.press("Escape")
    screen.shows(r"^changed ünder way$")
    screen.enter(":wq")
    screen.shows(r"^status 0$")

    assert file.read_text().splitlines()[:3] == ["line 1", "changed ünder way", "line 2"]


def test_vim_can_be_left_and_taken_up_again_from_a_clean_screen(
    execserver: CommandLine, screen: Screen
) -> None:
    process = detached(execserver, "vim", "-u", "NONE", "-N", str(execserver.folder / "new"))

    screen.run("attach", process)
    screen.shows(r"^~$")
    screen.type("ifirst")
    screen.shows(r"^first")
    screen.press("C-p", "C-q")
    shown = screen.shows(r"^status 0$")
    # Below all that vim had drawn.
    assert re.search(r"detached from .*\nstatus 0\n[^~]*$", shown)
    screen.run("attach", process)
    screen.shows(r"^first\n~")  # drawn anew, though nothing was typed and the window is as it was
    screen.type(" and second")
    screen.press("Escape")
    screen.enter(":wq")
    screen.shows(r"written\n(.*\n)?status 0$")

    assert (execserver.folder / "new").read_text() == "first and second\n"


def test_ctrl_c_ctrl_z_and_fg_work_in_a_remote_shell(execserver: CommandLine, screen: Screen) -> None:
    process = detached(execserver, "env", "PS1=remote> ", "bash", "--norc", "--noprofile", "-i")

    screen.run("attach", process)
    screen.press("Enter")
    screen.shows(r"^remote> $|^remote>$")
    screen.enter("sleep 1000; echo after")
    job = job_of(execserver, "sleep")
    screen.press("C-z")
    screen.shows(r"Stopped")
    screen.enter("fg")
    screen.shows(r"^sleep 1000")
    until_continued(job)
    screen.press("C-c")
    screen.shows(r"\^C\n(.*\n)?remote>$")  # what is typed before is flushed by the key
    screen.enter("echo $((6 * 7))")
    screen.shows(r"^42$")
    screen.enter("stty size")
    screen.shows(r"^24 80$")
    screen.enter("exit 9")
    screen.shows(r"^status 9$")


def test_it_survives_that_the_server_dies(execserver: CommandLine, screen: Screen, server: Server) -> None:
    process = detached(execserver, "env", "PS1=remote> ", "bash", "--norc", "--noprofile", "-i")
    screen.run("attach", process)
    screen.press("Enter")
    screen.shows(r"^remote>")
    screen.enter('for n in $(seq 1 400); do echo -n "<$n>"; sleep 0.005; done; echo; echo ov""er')
    screen.shows(r"<50>")
    serving = serving_process(server)
    serving.send_signal(signal.SIGKILL)
    screen.shows(r"^over$")

    numbers = [int(number) for number in re.findall(r"<(\d+)>", screen.text.replace("\n", ""))]
    assert numbers == list(range(numbers[0], 401))
    assert serving_process(server).pid != serving.pid
    screen.enter("echo still $((6 * 7))")
    screen.shows(r"^still 42$")
    screen.resize(90, 30)
    screen.enter("stty size")
    screen.shows(r"^30 90$")
    screen.enter("exit")
    screen.shows(r"^status 0$")


def test_who_only_watches_types_nothing_and_leaves_by_ctrl_c(execserver: CommandLine, screen: Screen) -> None:
    process = detached(execserver, "sh", "-c", "stty size; while read line; do echo got $line; done")
    screen.run("attach", "--read-only", "--since-seq", "0", process)
    screen.shows(r"^\d+ \d+$")
    screen.enter("word")
    screen.press("C-c")
    screen.shows(r"status 130$")

    assert b"got" not in execserver("logs", process).stdout
    assert [each.state for each in execserver.processes() if each.process_id == process] == ["running"]


def test_other_detach_keys_can_be_chosen(execserver: CommandLine, screen: Screen) -> None:
    process = detached(execserver, "cat")
    screen.run("attach", "--detach-keys", "ctrl-],q", process)
    screen.enter("typed")
    screen.shows(r"^typed\ntyped$")
    screen.press("C-]")
    screen.type("q")
    screen.shows(r"^status 0$")
    assert "detached" in screen.text


def test_a_process_without_a_terminal_is_given_lines_and_the_end_of_input(execserver: CommandLine) -> None:
    # From a pipe the end is ours, not its own: others may go on writing.
    with execserver.start("run", "--", "sh", "-c", "echo ready; cat") as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stdout.readline() == b"ready\n"
        (process,) = execserver.processes()
        with execserver.start("attach", process.process_id) as attached:
            assert attached.stdout is not None
            assert attached.stdin is not None
            attached.stdin.write(b"from the side\n")
            attached.stdin.close()
            assert owner.stdout.readline() == b"from the side\n"
            assert attached.stdout.readline() == b"from the side\n"
            owner.stdin.write(b"from the owner\n")
            owner.stdin.close()
            assert attached.stdout.readline() == b"from the owner\n"
            assert attached.wait(20) == 0
        assert owner.stdout.read() == b"from the owner\n"
        assert owner.wait(20) == 0


def test_of_what_has_ended_it_gives_the_exit_code_and_says_where_the_output_is(
    execserver: CommandLine,
) -> None:
    process = detached(execserver, "sh", "-c", "echo out; exit 6", tty=False)
    until(lambda: all(each.state != "running" for each in execserver.processes()))

    late = execserver("attach", process)
    whole = execserver("attach", "--since-seq", "0", process)

    assert (late.returncode, late.stdout) == (6, b"")
    assert f"execserver logs {process}".encode() in late.stderr
    assert (whole.returncode, whole.stdout) == (6, b"out\n")


def test_the_terminal_is_restored_after_attach(execserver: CommandLine, screen: Screen) -> None:
    process = detached(execserver, "cat")
    before, after = execserver.folder / "before", execserver.folder / "after"
    screen.enter(f"stty -a > {before}")
    until(before.exists)
    screen.run("attach", process)
    screen.enter("x")
    screen.shows(r"^x\nx$")
    os.kill(_attached(screen), signal.SIGTERM)
    screen.shows(r"^status 143$")
    screen.enter(f"stty -a > {after}.part; mv {after}.part {after}")
    until(after.exists)

    assert after.read_text() == before.read_text()


def _attached(screen: Screen) -> int:
    shell = int(screen.tmux("list-panes", "-F", "#{pane_pid}"))
    return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

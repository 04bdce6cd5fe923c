"""The picture of the README, recorded: `python -m tools.demo [--tools FOLDER] SVG`, or `make demo`.

Two shells in tmux are typed into as a person would. One starts a daemon and later kills its server process,
the other runs a command that counts. asciinema records the screen, svg-term draws the recording.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

WIDTH, HEIGHT = 80, 24
COUNT = 12
CLIENT, DAEMON = 0, 1
"""The two shells, by tmux's numbers: the upper and the lower one."""
DAEMON_LINES = 6

SERVE = "execserver serve --log-level warning & sleep 1"
RUN = f"execserver run -- sh -c 'for n in $(seq {COUNT}); do echo line $n; sleep .4; done'"
KILL = "kill -9 $(pgrep --parent $!); sleep 1  # the server process"
STATUS = 'echo "exit code $?"'

KEY_SECONDS = 0.01
"""Between two keys: a fast typist, so that the picture takes about ten seconds."""
LOOK_SECONDS = 0.5
"""Before and after a command, for the eyes of the reader."""
LAST_SECONDS = 2.5
"""The last frame stays, before the picture begins again."""
PATIENCE = 20.0

_LABELS = {CLIENT: "a client", DAEMON: "the daemon"}


class DemoError(Exception):
    """The session does not go as it should; the message has the screen."""


class Stage:
    """Two shells, one above the other, in a tmux server of their own. `pace` 0 leaves the pauses out."""

    def __init__(self, folder: Path, programs: Path, pace: float = 1.0) -> None:
        """`folder` is for sockets and state; `programs` has execserver."""
        self._socket = folder / "tmux"
        self._folder = folder
        self._pace = pace
        self._environment = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PS1": "$ ",
            "SHELL": "/bin/sh",
            "TERM": "xterm-256color",
            "XDG_RUNTIME_DIR": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def open(self) -> None:
        """Start both shells."""
        shell = "bash --noprofile --norc"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), shell)
        for option, value in (
            ("status", "off"),
            ("pane-border-status", "top"),
            ("pane-border-format", " #{pane_title} "),
            ("pane-border-style", "fg=colour244"),
            ("pane-active-border-style", "fg=colour244"),
        ):
            self._tmux("set-option", "-g", option, value)
        self._tmux("split-window", "-v", "-l", str(DAEMON_LINES), shell)
        for shell_number, label in _LABELS.items():
            self._tmux("select-pane", "-t", str(shell_number), "-T", label)
            self.wait_for_prompt(shell_number)

    def close(self) -> None:
        """End both shells and the daemon, and wait for their end."""
        shells = self._tmux("list-panes", "-F", "#{pane_pid}", check=False).split()
        below = [each for pid in shells for each in psutil.Process(int(pid)).children(recursive=True)]
        self._tmux("kill-server", check=False)
        for each in below:
            # A shell that gets the hang-up of its terminal twice may end before it tells its jobs.
            with contextlib.suppress(psutil.NoSuchProcess):
                each.terminate()
        _, left = psutil.wait_procs(below, timeout=PATIENCE)
        for each in left:
            each.kill()

    @contextlib.contextmanager
    def recorded(self, asciinema: Path, cast: Path) -> Iterator[None]:
        """Record the screen as an asciicast."""
        attach = shlex.join(["tmux", "-S", str(self._socket), "attach-session"])
        size = ("--cols", str(WIDTH), "--rows", str(HEIGHT))
        recorder = subprocess.Popen(
            [asciinema, "rec", "--quiet", "--overwrite", *size, "--command", attach, str(cast)],
            env={**self._environment, "ASCIINEMA_CONFIG_HOME": str(self._folder)},
            stdin=subprocess.DEVNULL,
        )
        try:
            self._until(lambda: bool(self._tmux("list-clients")), "asciinema does not attach")
            yield
            # Drawn once more, or the picture would begin again with the last change.
            self._tmux("refresh-client", "-t", self._tmux("list-clients", "-F", "#{client_name}").strip())
            time.sleep(LOOK_SECONDS)
        finally:
            self._tmux("detach-client", "-s", "0", check=False)
            recorder.wait(PATIENCE)

    def type(self, shell: int, text: str) -> None:
        """Type a command and the Enter behind it."""
        self._tmux("select-pane", "-t", str(shell))
        self.look()
        for key in text:
            # A lone semicolon is tmux's own, between two commands.
            self._tmux("send-keys", "-t", str(shell), "-l", key.replace(";", "\\;"))
            time.sleep(KEY_SECONDS * self._pace)
        self._tmux("send-keys", "-t", str(shell), "Enter")

    def look(self, seconds: float = LOOK_SECONDS) -> None:
        """Let the reader look."""
        time.sleep(seconds * self._pace)

    def lines(self, shell: int) -> list[str]:
        """What a shell shows, without the empty lines at the end."""
        return self._tmux("capture-pane", "-p", "-J", "-t", str(shell)).rstrip().splitlines()

    def wait_for(self, shell: int, line: str) -> None:
        """Wait until a shell shows a line that begins so.

        Raises:
            DemoError: it does not within `PATIENCE`.
        """
        self._until(
            lambda: any(each.startswith(line) for each in self.lines(shell)),
            f"{_LABELS[shell]} does not show {line!r}",
        )

    def wait_for_prompt(self, shell: int) -> None:
        """Wait until a shell takes the next command.

        Raises:
            DemoError: it does not within `PATIENCE`.
        """
        self._until(lambda: self.lines(shell)[-1:] == ["$"], f"{_LABELS[shell]} shows no prompt")

    def _until(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                shown = "\n".join((*self.lines(CLIENT), *self.lines(DAEMON)))
                raise DemoError(f"{failure}:\n{shown}")
            time.sleep(0.02)

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=check,
        )
        return done.stdout


def play(stage: Stage) -> None:
    """The session: count, kill the server meanwhile, see the end.

    Raises:
        DemoError: a command does not show what it should.
    """
    stage.type(DAEMON, SERVE)
    stage.wait_for(DAEMON, "unix://")
    stage.wait_for_prompt(DAEMON)
    stage.type(CLIENT, RUN)
    stage.wait_for(CLIENT, f"line {COUNT // 4}")
    stage.type(DAEMON, KILL)
    stage.wait_for(DAEMON, "execserver: the server was killed by signal 9")
    stage.wait_for_prompt(DAEMON)
    stage.wait_for(CLIENT, f"line {COUNT}")
    stage.wait_for_prompt(CLIENT)
    stage.type(CLIENT, STATUS)
    stage.wait_for(CLIENT, "exit code")
    stage.wait_for_prompt(CLIENT)
    stage.look(LAST_SECONDS)


def draw(cast: Path, svg: Path, svg_term: Path) -> None:
    """Draw a recording, from when the prompts are there up to where tmux leaves the screen."""
    times = [json.loads(line)[0] for line in cast.read_text().splitlines()[1:]]
    pauses = [pair for pair in itertools.pairwise(times) if pair[1] - pair[0] > LOOK_SECONDS / 2]
    start, end = pauses[0][0], pauses[-1][1]
    look = ("--window", "--no-cursor", "--padding", "12")
    part = ("--from", str(int(start * 1000)), "--to", str(int(end * 1000) - 1))
    subprocess.run([svg_term, "--in", cast, "--out", svg, *look, *part], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the session and draw it."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--tools", type=Path, default=Path(".release"), help="has asciinema and svg-term")
    parser.add_argument("svg", type=Path)
    options = parser.parse_args(arguments)
    asciinema, svg_term = (options.tools / each for each in ("bin/asciinema", "node_modules/.bin/svg-term"))
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name)
        stage = Stage(folder, Path(sys.executable).parent)
        stage.open()
        try:
            with stage.recorded(asciinema, folder / "demo.cast"):
                play(stage)
        finally:
            stage.close()
        draw(folder / "demo.cast", options.svg, svg_term)


if __name__ == "__main__":
    main()

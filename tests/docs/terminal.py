"""One open shell of a reader: commands in order, and the daemons that run beside them."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.commands import Command, matches

PATIENCE = 20.0
_URL = re.compile(rb"^(unix|ws|(relay\+)?https?)://", re.MULTILINE)
_AT_RELAY = re.compile(rb'"event": "relay: ')
"""A daemon logs such an event when its relay has answered."""


@dataclass(slots=True)
class Daemon:
    """A program that goes on while others are typed."""

    pid: int
    output: int
    text: bytes = field(default=b"")

    def read_until(self, enough: re.Pattern[bytes], seconds: float = PATIENCE) -> bool:
        """Take what it prints until that matches; False at the end of its output, or of patience."""
        deadline = time.monotonic() + seconds
        while not enough.search(self.text):
            ready, _, _ = select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self.output, 1 << 16) if ready else b""
            if not piece:
                return False
            self.text += piece
        return True


class Terminal:
    """A bash without a line editor, in a folder, with nothing of ours in its environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str], logs: Path) -> None:
        self._logs = logs
        self._daemons: list[Daemon] = []
        self._count = 0
        status, self._status_end = os.pipe()
        self._status = os.fdopen(status)
        self._log = (logs / "shell.log").open("wb")
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[self._status_end],
        )
        os.close(self._status_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self._daemons:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGKILL)  # not reaped before the shell ends, so still its own
            os.close(daemon.output)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()
        self._status.close()
        self._log.close()

    @property
    def folder(self) -> Path:
        """Where the shell is now."""
        return Path(f"/proc/{self._shell.pid}/cwd").resolve()

    def run(self, command: Command, seconds: float) -> tuple[int, str]:
        """The exit status of a command, and what it printed, errors included, as a reader sees it."""
        self._count += 1
        output = self._logs / f"command-{self._count}"
        self._type(f"{{ {command.text}\n}} >{output} 2>&1 </dev/null")
        self._type(f"echo $? >&{self._status_end}")
        return self._answer(command.text, seconds), output.read_text(errors="backslashreplace")

    def start(self, command: Command) -> None:
        """Start what goes on, in the background of the shell; a daemon is waited for until it serves."""
        self._count += 1
        output, theirs = os.pipe()
        errors = self._logs / f"command-{self._count}"
        text = command.text.rstrip().removesuffix("&")
        # Opened by the shell first: once it answers, the child has its end, and ours can go.
        self._type(f"exec 9>/proc/{os.getpid()}/fd/{theirs}")
        self._type(f"{text} >&9 9>&- 2>{errors} </dev/null &")
        self._type(f"exec 9>&-; echo $! >&{self._status_end}")
        daemon = Daemon(self._answer(text, PATIENCE), output)
        os.close(theirs)
        self._daemons.append(daemon)
        if command.is_daemon:
            assert daemon.read_until(_URL), f"{text!r} does not serve:\n{errors.read_text()}"
            if command.is_remote:
                _wait_for(_AT_RELAY, errors)
            if command.expected:
                self._see(command, daemon)

    def _see(self, command: Command, daemon: Daemon) -> None:
        lines = re.compile(rb"(?:[^\n]*\n){%d}" % len(command.expected))
        daemon.read_until(lines)
        assert matches("\n".join(command.expected), daemon.text.decode()), daemon.text.decode()

    def stop_daemons(self) -> list[int]:
        """End what still runs, as Ctrl-C does, and give the exit status of each."""
        statuses = []
        for daemon in self._daemons:
            self._type(f"kill -INT {daemon.pid} 2>/dev/null; wait {daemon.pid}")
            self._type(f"echo $? >&{self._status_end}")
            statuses.append(self._answer("the end of what ran in the background", PATIENCE))
            os.close(daemon.output)
        self._daemons.clear()
        return statuses

    def _type(self, line: str) -> None:
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the shell has ended: `_answer` says so
            self._shell.stdin.write(line.encode() + b"\n")
            self._shell.stdin.flush()

    def _answer(self, what: str, seconds: float) -> int:
        ready, _, _ = select.select([self._status], [], [], seconds)
        if not ready:
            raise AssertionError(f"not done within {seconds:g} s: {what}")
        line = self._status.readline()
        assert line, f"the shell ended: {what}"
        return int(line)


def _wait_for(enough: re.Pattern[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not enough.search(log.read_bytes()):
        assert time.monotonic() < deadline, f"it does not log {enough.pattern!r}:\n{log.read_text()}"
        time.sleep(0.02)

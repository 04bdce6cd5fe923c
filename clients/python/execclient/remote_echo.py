"""The echo of a terminal at the daemon, by `stty`: there is no local descriptor."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pexpect.exceptions import ExceptionPexpect

from execclient.arguments import AnyPath
from execclient.errors import NotFound, SystemFailure
from execclient.results import RunResult
from execclient.sync import Executor

POLL_SECONDS = 0.1
"""Between two queries, as in pexpect."""

_MINOR_LOW, _MINOR_HIGH = 0xFF, 0xFFF00
"""The two parts of a minor number in a device number; the latter is shifted by 12 bits."""


def without_echo(argv: Sequence[AnyPath]) -> list[AnyPath]:
    """A command that switches the echo of its terminal off, and then executes another command."""
    return ["sh", "-c", 'stty -echo && exec "$@"', "sh", *argv]


class RemoteEcho:
    """The echo of a command's terminal.

    Args:
        executor: where the command runs.
        name: the command, for errors.
        pid: its process id; None if the server does not report it.
    """

    def __init__(self, executor: Executor, name: str, pid: int | None) -> None:
        self._executor = executor
        self._name = name
        self._pid = pid

    def get(self) -> bool:
        """Whether the echo is on.

        Raises:
            ExceptionPexpect: the command has ended, or the server does not report its process id or has no
                `stty`.
        """
        return "echo" in self._stty("-a").split()

    def set(self, state: bool) -> None:
        """Switch the echo on or off. Raises as `get`."""
        self._stty("echo" if state else "-echo")

    def wait_off(self, seconds: float | None) -> bool:
        """Wait until the echo is off, None for ever; whether it is. Raises as `get`."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.get():
            if end is not None and time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _stty(self, setting: str) -> str:
        """Run `stty`; its output."""
        if self._pid is None:
            raise self._unreachable(
                "the server does not report its process id; start it with echo=False, or run stty in it"
            )
        try:
            # First the quick way, because `set` races with the start of the command: a line editor that
            # has begun restores the echo that it found.
            done = self._run(f"/proc/{self._pid}/fd/0", setting)
            if done.exit_code:
                done = self._run(self._terminal(), setting)
        except (SystemFailure, NotFound) as error:
            raise self._unreachable(str(error)) from error
        if done.exit_code:
            raise self._unreachable(done.stderr_text.strip())
        return done.text

    def _run(self, terminal: str, setting: str) -> RunResult:
        return self._executor.run(["stty", "-F", terminal, setting], env={"LC_ALL": "C"})

    def _terminal(self) -> str:
        """The terminal of a command whose descriptors are hidden, as those of sudo, or have changed."""
        status = self._executor.fs.read_text(f"/proc/{self._pid}/stat", errors="replace")
        device = int(status.rpartition(")")[2].split()[4])
        if not device:
            raise self._unreachable("it has no terminal now")
        return f"/dev/pts/{device & _MINOR_LOW | device >> 12 & _MINOR_HIGH}"

    def _unreachable(self, why: str) -> ExceptionPexpect:
        return ExceptionPexpect(f"the echo of {self._name} is not accessible: {why}")

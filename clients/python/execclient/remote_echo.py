"""The echo of a terminal at the daemon: by `stty`, since there is no descriptor of it here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pexpect.exceptions import ExceptionPexpect

from execclient.arguments import AnyPath
from execclient.errors import NotFound, SystemFailure
from execclient.results import RunResult
from execclient.sync import Executor

POLL_SECONDS = 0.1
"""Between two looks, as in pexpect."""

_MINOR_LOW, _MINOR_HIGH = 0xFF, 0xFFF00
"""Where the kernel has the number of a terminal in that of its device; the latter is shifted by 12 bits."""


def without_echo(argv: Sequence[AnyPath]) -> list[AnyPath]:
    """A command that switches the echo of its terminal off, and then becomes another one."""
    return ["sh", "-c", 'stty -echo && exec "$@"', "sh", *argv]


class RemoteEcho:
    """Whether the terminal of a command repeats what is typed.

    Args:
        executor: where the command runs.
        name: the command, for errors.
        pid: its process id; None from a server that does not tell.
    """

    def __init__(self, executor: Executor, name: str, pid: int | None) -> None:
        self._executor = executor
        self._name = name
        self._pid = pid

    def get(self) -> bool:
        """Whether it does.

        Raises:
            ExceptionPexpect: the command has ended, or the server does not tell its process id or has no
                `stty`.
        """
        return "echo" in self._stty("-a").split()

    def set(self, state: bool) -> None:
        """Let it, or not. Raises as `get`."""
        self._stty("echo" if state else "-echo")

    def wait_off(self, seconds: float | None) -> bool:
        """Wait until it does not, None for ever; whether that came. Raises as `get`."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.get():
            if end is not None and time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _stty(self, setting: str) -> str:
        """What stty prints."""
        if self._pid is None:
            raise self._unreachable(
                "the server does not tell its process id; start it with echo=False, or run stty in it"
            )
        try:
            # At once, for `set` competes with the start of the command: a line editor that has begun by then
            # puts back the echo that it found.
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
        """That of a command whose descriptors cannot be seen, such as sudo, or which has others by now."""
        status = self._executor.fs.read_text(f"/proc/{self._pid}/stat", errors="replace")
        device = int(status.rpartition(")")[2].split()[4])
        if not device:
            raise self._unreachable("it has no terminal any more")
        return f"/dev/pts/{device & _MINOR_LOW | device >> 12 & _MINOR_HIGH}"

    def _unreachable(self, why: str) -> ExceptionPexpect:
        return ExceptionPexpect(f"the echo of {self._name} is out of reach: {why}")

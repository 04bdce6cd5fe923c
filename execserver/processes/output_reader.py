"""Reads the output of one process into its log: from two pipes, or from a terminal.

Rules kept in this file:

1. Nothing here waits for a client. Only `pause` holds the child back: its output then stays in the pipe.
2. A terminal is read through an inner pipe (`pty_relay.py`), and the process writes its input to the same
   descriptor.
3. A terminal that no process has open may be opened again while the leader lives. Closing our side would hang
   it up.
"""

from __future__ import annotations

import asyncio
import errno
import os
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from execprotocol.errors import InvalidRequest, os_error_text
from execserver.processes.output_batching import LEAST_BYTES, LargePipes, OutputBatching
from execserver.processes.output_log import OutputLog
from execserver.processes.pacing import Pacing
from execserver.processes.poller import HANGUP, READABLE, WRITABLE, DescriptorPoller, Watch
from execserver.processes.pty_relay import TerminalRelay
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.spawn import Spawned
from execserver.spool.spool import CHUNK_BYTES
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import Stream

log = Logger()

TERMINAL_END_SECONDS = 0.2
"""How long a terminal may take to report its end after its leader was reaped. The kernel hangs
it up at once; a descendant that ignored the hang-up must not keep it open."""

_TERMINAL_REOPEN_SECONDS = 0.05
"""How often a terminal that no process has open is looked at while its leader lives."""

_RETRY_SECONDS = 0.1
"""When output is looked at again that could not be taken for want of descriptors or memory."""

_TERMINAL: tuple[Stream, ...] = ("pty",)
_PIPES: tuple[Stream, ...] = ("stdout", "stderr")

_FINAL_TAKES = 64
"""Chunks taken from a pipe in one go when the leader exits: more than a pipe of 1 MiB holds. What a
descendant writes later is read by readiness."""


class OutputOwner(Protocol):
    """The process that writes the output."""

    process_id: str

    @property
    def running(self) -> bool:
        """Whether the leader has not been reaped."""

    def output_taken(self) -> None:
        """The log has a new chunk."""

    def output_ended(self) -> None:
        """A stream has ended, and its descriptor is closed."""


class TerminalInput(Protocol):
    """The input of a terminal, which is written to the descriptor that its output is read from."""

    @property
    def waiting(self) -> bool:
        """Whether something is queued that the terminal did not take."""

    def flush(self) -> None:
        """Write what the terminal takes now."""

    def close(self) -> None:
        """The terminal is about to be closed."""


class OutputReader:
    """The descriptors that output is read from, until each has ended.

    Args:
        owner: is notified of new output and of the end.
        log: where the output goes.
        tty: whether it comes from a terminal.
        poller: reports readiness.
        reserved: descriptors for a take when the table is full.
        large_pipes: enlarges the pipes of floods.
    """

    __slots__ = (
        "_batching",
        "_enlarged",
        "_held_back",
        "_hung_up",
        "_large_pipes",
        "_log",
        "_owner",
        "_poller",
        "_relay",
        "_relay_ends",
        "_reserved",
        "_terminal_input",
        "_throttled",
        "_watches",
        "pacing",
        "streams",
    )

    def __init__(
        self,
        owner: OutputOwner,
        log: OutputLog,
        poller: DescriptorPoller,
        reserved: ReservedDescriptors,
        large_pipes: LargePipes,
        *,
        tty: bool,
    ) -> None:
        self.streams = _TERMINAL if tty else _PIPES
        self.pacing: Pacing | None = None
        """Of a process whose output is never dropped."""
        self._throttled = self._held_back = False
        self._owner = owner
        self._log = log
        self._poller = poller
        self._reserved = reserved
        self._large_pipes = large_pipes
        self._watches: dict[Stream, Watch] = {}
        """The streams that have not ended."""
        self._enlarged: tuple[Stream, ...] = ()
        """The streams whose pipes were found full, and made larger."""
        self._batching: dict[Stream, OutputBatching] = {}
        """Of streams that brought a page at a time."""
        self._relay: TerminalRelay | None = None
        self._relay_ends: tuple[int, ...] = ()
        self._terminal_input: TerminalInput | None = None
        self._hung_up = False
        """Whether no process has the terminal open: the kernel would report that without end."""

    def watch(self, spawned: Spawned) -> None:
        """Read these descriptors, which belong to this object from now on.

        Raises:
            OSError: the kernel cannot watch them.
        """
        if spawned.relay is not None:
            self._relay_ends = spawned.relay
            self._relay = TerminalRelay(self._log, spawned.outputs[0], *spawned.relay[:2])
        for index, stream in enumerate(self.streams):
            fd = spawned.outputs[index]
            self._watches[stream] = self._poller.watch(fd, READABLE, partial(self._on_ready, stream, fd))
        if self._relay is not None and self._relay.held:
            # Left by a previous server. The terminal itself may never become ready again.
            asyncio.get_running_loop().call_soon(self._take_again, self._watches["pty"])

    def serve_input(self, terminal_input: TerminalInput) -> None:
        """Flush this input when the terminal takes more, and close it with the terminal."""
        self._terminal_input = terminal_input

    def want_writable(self, wanted: bool) -> None:
        """Whether the input of the terminal is to be flushed once the terminal takes more."""
        watch = self._watches.get("pty")
        if watch is not None:
            watch.want(WRITABLE, wanted and not self._hung_up)

    # -- what there is

    @property
    def open(self) -> bool:
        """Whether a stream has not ended."""
        return bool(self._watches)

    @property
    def terminal_size(self) -> tuple[int, int] | None:
        """Rows and columns of the terminal, which the program inside may change too; None without a terminal,
        or when it is closed.
        """
        master = self._watches.get("pty")
        return None if master is None else termios.tcgetwinsize(master.fd)

    def resize(self, rows: int, cols: int) -> bool:
        """Set the size of the terminal; the kernel sends SIGWINCH if it has changed. False when the leader
        has ended.

        Raises:
            InvalidRequest: there is no terminal.
        """
        if self.streams is not _TERMINAL:
            raise InvalidRequest(
                f"process {self._owner.process_id} has no terminal: start it with `tty` to give it a size",
                name="no_terminal",
                field="processId",
            )
        master = self._watches.get("pty")
        if master is None or not self._owner.running:
            return False
        termios.tcsetwinsize(master.fd, (rows, cols))
        return True

    def readable(self) -> list[Watch]:
        """The watches of the streams that are read now."""
        return [watch for watch in self._watches.values() if watch.events & READABLE]

    @contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """The descriptors of all streams in order, with an ended pipe for each stream that is closed.

        Raises:
            OSError: no descriptor is available.
        """
        found: list[int] = []
        ended: list[int] = []
        try:
            for stream in self.streams:
                watch = self._watches.get(stream)
                if watch is None:
                    ended.append(_ended_pipe())
                found.append(watch.fd if watch is not None else ended[-1])
            yield found
        finally:
            for fd in ended:
                os.close(fd)

    # -- pacing

    @property
    def paused(self) -> bool:
        """Whether no output is taken now."""
        return self._throttled or self._held_back

    def pause(self) -> None:
        """Take no output until `resume`."""
        self._set_paused(True, self._held_back)

    def resume(self) -> None:
        """Take output again, beginning with what is there."""
        self._set_paused(False, self._held_back)

    def pace(self) -> None:
        """Hold output back from now on that the client could lose."""
        self.pacing = Pacing(self._log, lambda held: self._set_paused(self._throttled, held))
        self.pacing.taken()

    def _set_paused(self, throttled: bool, held_back: bool) -> None:
        before = self.paused
        self._throttled, self._held_back = throttled, held_back
        if self.paused != before:
            for watch in list(self._watches.values()):
                watch.want(READABLE, before and not self._hung_up)

    def _taken(self, size: int) -> None:
        measures.output_bytes += size
        self._owner.output_taken()
        self._log.trim()
        if self.pacing is not None:
            self.pacing.taken()

    # -- the end

    def drain(self) -> None:
        """The leader has ended: take what it wrote, and close the streams that have ended."""
        for stream in tuple(self._watches):
            fd = self._watches[stream].fd
            for _ in range(_FINAL_TAKES):
                # A subscriber that is behind would lose what the log has no room for.
                size = 0 if self.paused else self._take(stream, fd)
                if not size:
                    break
                self._taken(size)
            if stream in self._log.ended:
                self._close(stream)

    def end_terminal(self) -> None:
        """The leader has been gone for a while: take the last output, however slow a client is, and close."""
        watch = self._watches.get("pty")
        if watch is None:
            return
        for _ in range(_FINAL_TAKES):
            size = self._take("pty", watch.fd)
            if not size:
                break
            measures.output_bytes += size
            self._owner.output_taken()
        if not watch.events and not self.paused and not self._hung_up:
            # The output could not be taken: later.
            asyncio.get_running_loop().call_later(TERMINAL_END_SECONDS, self.end_terminal)
            return
        self._end("pty")
        self._log.trim()

    def release(self) -> None:
        """Close all descriptors, whatever they hold, and report nothing from now on."""
        for stream in tuple(self._watches):
            self._close(stream)
        self._relay = self._terminal_input = None
        del self._owner  # it refers to this object

    # -- events

    def _on_ready(self, stream: Stream, fd: int, events: int) -> None:
        if events & WRITABLE and self._terminal_input is not None:
            self._terminal_input.flush()
            if events == WRITABLE:
                return
        if self.paused:
            return
        if events == HANGUP and self._relay is None and not self._log.has_leftover:
            # The pipe has no writer and is empty.
            self._end(stream)
            return
        size = self._take(stream, fd)
        if size:
            if size == CHUNK_BYTES and stream not in self._enlarged and self._relay is None:
                self._enlarge(stream, fd)
            self._taken(size)
            if (size >= LEAST_BYTES or self._batching) and self._relay is None:
                self._batch(stream, size)
        elif stream in self._log.ended:
            if self._relay is not None and self._owner.running:
                self._look_again_later()
            else:
                self._end(stream)

    def _batch(self, stream: Stream, size: int) -> None:
        watch = self._watches.get(stream)
        if watch is None or self._log.expedited:
            return
        batching = self._batching.get(stream)
        if batching is None:
            batching = self._batching[stream] = OutputBatching()
        if batching.delays_after(size, time.monotonic()):
            self._poller.delay(watch)

    def _enlarge(self, stream: Stream, fd: int) -> None:
        """The pipe was full."""
        if self._large_pipes.enlarge(fd):
            self._enlarged += (stream,)

    def _take(self, stream: Stream, fd: int) -> int:
        """Move what a descriptor has into the log. Returns the number of bytes."""
        relay = self._relay
        try:
            return self._log.take(stream, fd) if relay is None else relay.take()
        except OSError as error:
            return self._take_with_reserved(stream, fd, error)

    def _take_with_reserved(self, stream: Stream, fd: int, error: OSError) -> int:
        """The table of descriptors is full, or there is no memory: the rest stays where it is."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            relay = self._relay
            with suppress(OSError), self._reserved.released():
                return self._log.take(stream, fd) if relay is None else relay.take()
        log.warning("output cannot be taken now", process=self._owner.process_id, reason=os_error_text(error))
        watch = self._watches.get(stream)
        if watch is not None:
            watch.set(0)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._take_again, watch)
        return 0

    def _take_again(self, watch: Watch) -> None:
        if watch in self._watches.values():
            watch.want(READABLE, not (self.paused or self._hung_up))
            watch.want(WRITABLE, self._input_waits)
            if self._log.has_leftover or (self._relay is not None and self._relay.held):
                watch.callback(READABLE)

    def _look_again_later(self) -> None:
        """No process has the terminal open, but the leader lives and may open it again."""
        self._log.ended.discard("pty")
        self._hung_up = True
        self._watches["pty"].set(0)
        asyncio.get_running_loop().call_later(_TERMINAL_REOPEN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        watch = self._watches.get("pty")
        if watch is not None:
            self._hung_up = False
            watch.want(READABLE, not self.paused)
            watch.want(WRITABLE, self._input_waits)

    @property
    def _input_waits(self) -> bool:
        return self._terminal_input is not None and self._terminal_input.waiting

    def _end(self, stream: Stream) -> None:
        if stream in self._watches:
            self._close(stream)
        self._owner.output_ended()

    def _close(self, stream: Stream) -> None:
        watch = self._watches.pop(stream)
        if stream in self._enlarged:
            self._large_pipes.closed()
        if self._terminal_input is not None:
            self._terminal_input.close()
        for fd in self._relay_ends:
            os.close(fd)
        self._relay_ends = ()
        watch.close()


def _ended_pipe() -> int:
    """The read end of a pipe that is at its end."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.close(write)
    return read

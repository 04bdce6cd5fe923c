"""One managed process: its state, its descriptors and its log.

    running ──leader reaped──▶ exited ──outputs at their end──▶ closed

`exited` and `closed` are two events: a background child may hold the output open long after
the leader is gone. A terminal closes with its leader. A failed start never gets this far.

A process outlives the server: all that a new server has to know is in the ledger and with the supervisor
before a client is told of it (`recovery_state.py`). `ManagedProcess` is made in two ways: for a child that
was just spawned, and by `inherit` for a child of an earlier server. The end of the latter is reported by the
supervisor, whose child it is by then.

Nothing here waits for a reader. A subscriber that has fallen behind may ask that the child
be read no faster than it drains (`pause`), and the process forgets that wish by itself when
the subscriber makes no progress (`sessions/event_stream.py` decides; a stalled reader never holds a
child back).
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import termios
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, cast

import msgspec

from execprotocol.errors import InternalError, InvalidRequest, os_error_text
from execprotocol.limits import REMEMBERED_WRITE_IDS
from execserver.fault_points import reach
from execserver.processes import sandboxed_child
from execserver.processes.deadlines import Deadline, Deadlines
from execserver.processes.exit_cause import OomCounter, exit_cause, may_be_out_of_memory
from execserver.processes.output_batching import LEAST_BYTES, LargePipes, OutputBatching
from execserver.processes.output_log import OutputLog, Page
from execserver.processes.poller import HANGUP, READABLE, WRITABLE, DescriptorPoller, Watch
from execserver.processes.prompt_output import look
from execserver.processes.pty_relay import TerminalRelay
from execserver.processes.recovery_state import RecoveryState, Slots
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.spawn import Spawned
from execserver.processes.stdin import InputBudget, StdinWriter
from execserver.spool.records import FOREIGN_MARK, ProcessState, Started, stored_write_id
from execserver.spool.spool import CHUNK_BYTES
from execserver.supervisor.fd_store_protocol import INPUT, STATUS
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import CloseStdinResult, ExitCause, Stream, WriteResult
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.mount_points.description import Backend

log = Logger()

_TERMINAL_END_SECONDS = 0.2
"""How long a terminal may take to report its end after its leader was reaped. The kernel hangs
it up at once; a descendant that ignored the hang-up must not keep it open."""

_TERMINAL_REOPEN_SECONDS = 0.05
"""How often a terminal that nobody has open is looked at while its leader lives."""

_TAKE_AGAIN_SECONDS = 0.1
"""When output is looked at again that could not be taken for want of descriptors or memory."""

_TERMINAL: tuple[Stream, ...] = ("pty",)
_PIPES: tuple[Stream, ...] = ("stdout", "stderr")

_FINAL_TAKES = 64
"""Chunks taken from a pipe in one go when the leader exits: more than a pipe of 1 MiB holds. The
rest, written by somebody who still runs, comes by readiness like everything else."""


_JUDGED_BYTES = 1 << 20
"""How much of the last output is searched for signs of a denial; what the reference keeps."""

_EVIDENCE_BYTES = 128 << 10
"""How much of the last output is read for evidence, line by line: a few milliseconds. What made a command
fail is said at its end.
"""

_LAUNCHER_BYTES = 4096

_SIGNALLED = 128
"""Exit codes above this one are deaths by a signal, as a rule."""

_UNKNOWN_EXIT = 255
"""For a process of which nobody can tell how it ended."""

_SANDBOX_END_SECONDS = 3.0
"""How long the end of a sandbox may take. It takes a millisecond, unless something in it hangs in the
kernel."""


def _ignore_end(_process: ManagedProcess, _unknown: bool) -> None:
    """Nothing."""


class Subscriber(Protocol):
    """Somebody who follows the log of a process by a cursor of their own."""

    def wake(self) -> None:
        """The log has something new."""

    def forget(self) -> None:
        """The process is forgotten."""


class ExecutorContext(msgspec.Struct, frozen=True):
    """What all processes of the daemon share."""

    poller: DescriptorPoller
    input_budget: InputBudget
    recovery: RecoveryState
    deadlines: Deadlines
    oom_kills: OomCounter
    reserved: ReservedDescriptors
    large_pipes: LargePipes = msgspec.field(default_factory=LargePipes)


class ManagedProcess:
    """A process of a session.

    Args:
        started: what it is.
        log: its output, which belongs to this object from now on.
        context: what all processes share.
        on_closed: called once, when the process is closed.
        confinement: its sandbox.
        tag: the membership tag of what it starts; None without tags.
        on_ended: called once for a process with a sandbox, when nothing is known to run in there any more;
            the flag says that it is not known, and that somebody has to look.
    """

    # A dictionary for so many attributes would take more than 1.5 KB of each process.
    __slots__ = (
        "_batching",
        "_context",
        "_deadline",
        "_ending",
        "_enlarged",
        "_evidence",
        "_exiting",
        "_expedited",
        "_hung",
        "_inherited",
        "_judged",
        "_on_closed",
        "_on_ended",
        "_oom_kills",
        "_other_slots",
        "_others_write_ids",
        "_outputs",
        "_paused",
        "_pidfd",
        "_relay",
        "_relay_ends",
        "_released",
        "_sandbox_stands",
        "_stdin_watch",
        "_tag",
        "_tree_ending",
        "_waiters",
        "_write_ids",
        "cause",
        "closed_seq",
        "confinement",
        "exit_code",
        "exited_seq",
        "failure",
        "input_ended",
        "inside",
        "log",
        "number",
        "pid",
        "process_id",
        "started",
        "stdin",
        "streams",
        "subscribers",
        "tty",
        "wire_id",
    )

    def __init__(
        self,
        started: Started,
        log: OutputLog,
        context: ExecutorContext,
        on_closed: Callable[[ManagedProcess], None],
        confinement: Confinement | None = None,
        tag: int | None = None,
        on_ended: Callable[[ManagedProcess, bool], None] = _ignore_end,
    ) -> None:
        self.started = started
        self.process_id = started.process_id
        self.confinement = confinement
        self._on_ended = on_ended
        self.wire_id = msgspec.json.encode(started.process_id)
        """The id as JSON, for the events."""
        self.number = started.number
        self.pid = started.pid
        self.tty = started.tty
        self.log = log
        self.exit_code: int | None = None
        self.cause: ExitCause | None = None
        self.exited_seq: int | None = None
        self.closed_seq: int | None = None
        self.subscribers: list[Subscriber] = []
        self.streams = _TERMINAL if self.tty else _PIPES
        self._context = context
        self._on_closed = on_closed
        self._tag = tag
        self._waiters: list[asyncio.Future[None]] = []
        self._write_ids: OrderedDict[str, None] = OrderedDict()
        self._others_write_ids: OrderedDict[str, None] | None = None
        """Those of other sessions; rare."""
        self._ending: ExitCause | None = None
        self._tree_ending = False
        """Whether the ledger says that all that came of it is about to be killed."""
        self.input_ended = False
        """Whether a client said that no input follows."""
        self._oom_kills: int | None = None
        self._deadline: Deadline | None = None
        self._enlarged: tuple[Stream, ...] = ()
        """The streams whose pipes were found full, and made larger."""
        self._batching: dict[Stream, OutputBatching] = {}
        """Of streams that brought a page at a time."""
        self._paused = False
        self._released = False
        self._expedited = False
        self._inherited = False
        self._exiting = False
        """Whether the end of the leader is being handled."""
        self._hung = False
        """Whether this is a terminal that nobody has open: the kernel would report that without end."""
        self._sandbox_stands = False
        self._judged: tuple[int, bool] | None = None
        self._evidence: tuple[int, dict[str, object]] | None = None
        self.failure: str | None = None
        """Why the command was never run: its sandbox could not be set up."""
        self._outputs: dict[Stream, Watch] = {}
        self._relay: TerminalRelay | None = None
        self._relay_ends: tuple[int, ...] = ()
        self.inside: sandboxed_child.SandboxedChild | None = None
        self._pidfd: Watch | None = None
        self.stdin: StdinWriter | None = None
        self._stdin_watch: Watch | None = None
        self._other_slots: list[int] = []
        """What the supervisor keeps beside our ends and the output, until the process is closed."""

    def begin(self, spawned: Spawned, slots: Iterable[int]) -> None:
        """Watch a child of ours; its descriptors belong to this object from now on. In `slots` is what else
        the supervisor keeps until it is closed.
        """
        self._other_slots += slots
        context = self._context
        self._oom_kills = context.oom_kills.before_start()
        if spawned.status is not None:
            self._look_inside(spawned.status)
        self._pidfd = context.poller.watch(spawned.pidfd, READABLE, self._on_exit)
        self._watch_ends(spawned)
        self._set_deadline()

    def inherit(self, state: ProcessState, spawned: Spawned | None, slots: Slots) -> None:
        """Go on with the child of a server before this one.

        Args:
            state: what the ledger says of it.
            spawned: its descriptors, which belong to this object from now on; None when it is closed.
            slots: what else was kept. What this object takes is removed.
        """
        context = self._context
        self._inherited = True
        self._other_slots += slots
        self._write_ids = OrderedDict.fromkeys(state.write_ids)
        if state.others_write_ids:
            self._others_write_ids = OrderedDict.fromkeys(state.others_write_ids)
        self._ending = cast("ExitCause | None", state.ending)
        self._tree_ending = state.tree_ending
        self.input_ended = state.stdin_closed
        if state.exited is not None:
            self.exit_code = state.exited.code
            self.cause = cast("ExitCause", state.exited.cause)
            self.failure = state.exited.failure
            # The server may have been killed between the ledger and the index.
            self.exited_seq = self.log.exited_seq or self.log.number_event("exited")
        elif self.log.closed_seq is not None:
            # That server could not write it down.
            self.exit_code, self.cause, self.exited_seq = _UNKNOWN_EXIT, "unknown", self.log.exited_seq
        self.closed_seq = self.log.closed_seq
        if spawned is None:
            if not self.closed:
                self.closed_seq = self.log.number_event("closed")
            return
        # Whoever waits for this process is its new parent; the pidfd is for signals only.
        self._pidfd = context.poller.watch(spawned.pidfd, 0, _ignore)
        if slots.get(STATUS):
            self._look_inside(slots.pop(STATUS)[0])
        self._watch_ends(spawned)
        if self._relay is not None and self._relay.held:
            # The terminal itself may have nothing more to wake anybody with.
            asyncio.get_running_loop().call_soon(self._take_again, self._outputs["pty"])
        if self.stdin is not None:
            self.stdin.restore(next(iter(slots.pop(INPUT, [])), None), state.accepted_end)
            if self.input_ended and self.running:
                self.stdin.close_when_delivered(self._end_input)
        if self.running:
            self._set_deadline()
        else:
            self._after_exit(by_signal=self.exit_code is not None and self.exit_code > _SIGNALLED)
            self._close_pidfd()

    def _look_inside(self, report: int) -> None:
        assert self.confinement is not None
        namespaces = self.confinement.namespaces
        self.inside = sandboxed_child.SandboxedChild(
            self.pid, report, namespaces, self._tag, self._context.poller
        )

    def _watch_ends(self, spawned: Spawned) -> None:
        context = self._context
        poller, recovery, number = context.poller, context.recovery, self.number
        journal = partial(recovery.written, number)
        if spawned.relay is not None:
            read, write, input_read, input_write = self._relay_ends = spawned.relay
            self._relay = TerminalRelay(self.log, spawned.outputs[0], read, write)
        for index, stream in enumerate(self.streams):
            fd = spawned.outputs[index]
            self._outputs[stream] = poller.watch(fd, READABLE, partial(self._on_ready, stream, fd))
        if self._relay is not None:
            master = self._outputs["pty"]
            self.stdin = StdinWriter(
                master.fd,
                context.input_budget,
                lambda wanted: master.want(WRITABLE, wanted and not self._hung),
                self._keep_input,
                journal,
                (input_read, input_write),
            )
        elif spawned.stdin is not None:
            watch = poller.watch(spawned.stdin, 0, lambda _events: self._flush_stdin())
            self._stdin_watch = watch
            self.stdin = StdinWriter(
                watch.fd,
                context.input_budget,
                lambda wanted: watch.want(WRITABLE, wanted),
                self._keep_input,
                journal,
            )

    def _keep_input(self, fd: int) -> None:
        self._other_slots.append(INPUT)
        self._context.recovery.keep_input(self.number, fd)

    def is_held_back(self) -> bool:
        """Whether the process is quiet because nobody takes its output; then its idle time begins anew."""
        if self._paused and self._deadline is not None:
            self._deadline.touch(self._context.deadlines.clock())
            self._context.deadlines.add(self.number, self._deadline)
        return self._paused

    def _set_deadline(self) -> None:
        started = self.started
        if started.timeout_at is not None or started.idle_timeout is not None:
            deadlines = self._context.deadlines
            self._deadline = Deadline(started.timeout_at, started.idle_timeout, deadlines.clock())
            deadlines.add(self.number, self._deadline)

    # -- state

    @property
    def running(self) -> bool:
        """Whether the leader has not been reaped."""
        return self.exit_code is None

    @property
    def closed(self) -> bool:
        """Whether the last event has happened."""
        return self.closed_seq is not None

    @property
    def released(self) -> bool:
        """Whether it is forgotten, and nothing of it can be read any more."""
        return self._released

    @property
    def followed(self) -> bool:
        """Whether anybody waits to hear of it."""
        return bool(self.subscribers or self._waiters)

    # -- reading

    def has_news(self, after_seq: int) -> bool:
        """Whether a read after this cursor has a reason to be answered now
        (`docs/protocol.md`, "Reading").
        """
        # Every number beyond the cursor is a chunk or an end, and either is an answer.
        return self.closed or after_seq < self.log.next_seq - 1

    def read(self, after_seq: int, max_bytes: int | None, page_bytes: int) -> Page:
        """Kept output after a cursor."""
        page = self.log.read(after_seq, max_bytes, page_bytes)
        if page.lost_bytes:
            measures.gap(page.lost_bytes)
        return page

    async def wait_for_news(self, after_seq: int, seconds: float) -> None:
        """Return when a read after this cursor would say something new, time is up, or the process is
        forgotten.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not (self.has_news(after_seq) or self._expedited or self._released):
            waiter: asyncio.Future[None] = loop.create_future()
            timer = loop.call_at(deadline, _resolve, waiter)
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if loop.time() >= deadline:
                return

    async def wait_closed(self, seconds: float) -> None:
        """Return when the process is closed, or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not (self.closed or self._expedited or self._released) and (left := deadline - loop.time()) > 0:
            await self.wait_for_news(self.log.next_seq - 1, left)

    def expedite(self) -> None:
        """Answer now whoever waits for news: this server is about to end."""
        self._expedited = True
        self._wake_waiters()

    # -- writing and signals

    def write(self, data: bytes, write_id: str, writer: str | None = None) -> WriteResult:
        """Queue input once per write id.

        Args:
            data: the input.
            write_id: the client's name for it.
            writer: the session that it comes from, when that is not the process's own: its ids are others.

        Raises:
            InternalError: the process is gone.
        """
        stdin = self.stdin
        if stdin is None and not (self.tty or self.started.pipe_stdin):
            return {"status": "stdinClosed"}
        ids = self._write_ids
        if writer is not None or write_id[0] == FOREIGN_MARK:
            write_id = stored_write_id(write_id, writer)
            ids = self._write_ids if writer is None else self._foreign_write_ids()
        if write_id in ids:
            return {"status": "accepted"}
        if self.input_ended:
            return {"status": "stdinClosed"}
        # There is none of a process that was closed when this server took it over.
        if stdin is None or stdin.closed:
            raise InternalError("failed to write to process stdin")
        try:
            self._write_in_any_case(stdin, data, write_id)
        except OSError as error:
            raise InternalError(f"nothing was written: {os_error_text(error)}") from None
        ids[write_id] = None
        if len(ids) > REMEMBERED_WRITE_IDS:
            ids.popitem(last=False)
        if self._deadline is not None:
            self._deadline.touch(self._context.deadlines.clock())
        measures.stdin_bytes += len(data)
        self._take_prompt_output(stdin)
        return {"status": "accepted"}

    def _take_prompt_output(self, stdin: StdinWriter) -> None:
        """Take what a child says to its input at once, so that it leaves together with the reply."""
        if not stdin.waiting and stdin.predictor.is_prompt():
            outputs = [watch for watch in self._outputs.values() if watch.events & READABLE]
            if outputs:
                look(stdin.predictor, outputs)

    def _foreign_write_ids(self) -> OrderedDict[str, None]:
        if self._others_write_ids is None:
            self._others_write_ids = OrderedDict()
        return self._others_write_ids

    def _write_in_any_case(self, stdin: StdinWriter, data: bytes, write_id: str) -> None:
        try:
            stdin.write(data, write_id)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._context.reserved.lent():
                stdin.write(data, write_id)

    def close_stdin(self) -> CloseStdinResult:
        """Accept no more input: what was accepted is delivered, then end of file.

        Raises:
            InvalidRequest: the input is a terminal.
            InternalError: no memory to write that down; nothing has changed.
        """
        if self.tty:
            raise InvalidRequest(
                f"process {self.process_id} is on a terminal: write 0x04 (end of file) at the start of a "
                "line instead",
                name="has_terminal",
                field="processId",
            )
        if not self.started.pipe_stdin:
            return {"status": "stdinClosed"}
        if self.running and not self.input_ended:
            try:
                self._context.recovery.stdin_closed(self.number)
            except OSError as error:
                raise InternalError(f"the input stays open: {os_error_text(error)}") from None
            self.input_ended = True
            if self.stdin is not None and not self.stdin.closed:
                self.stdin.close_when_delivered(self._end_input)
        return {"status": "accepted"}

    @property
    def terminal_size(self) -> tuple[int, int] | None:
        """Rows and columns of its terminal, which the program inside may change too; None without one, or
        when that is closed.
        """
        master = self._outputs.get("pty")
        return None if master is None else termios.tcgetwinsize(master.fd)

    def resize(self, rows: int, cols: int) -> bool:
        """Set the size of the terminal; the kernel sends SIGWINCH if it is another one. False when the
        leader has ended.

        Raises:
            InvalidRequest: there is no terminal.
        """
        if not self.tty:
            raise InvalidRequest(
                f"process {self.process_id} has no terminal: start it with `tty` to give it a size",
                name="no_terminal",
                field="processId",
            )
        master = self._outputs.get("pty")
        if not self.running or master is None:
            return False
        termios.tcsetwinsize(master.fd, (rows, cols))
        return True

    def end_for(self, cause: ExitCause, *, tree: bool = False) -> None:
        """Remember why we are about to kill the process, with `tree` also all that ever came of it; who says
        so first is believed. A successor goes on with it.
        """
        first = self.running and self._ending is None
        if first:
            self._ending = cause
        if first or (tree and not self._tree_ending):
            self._tree_ending = self._tree_ending or tree
            self._context.recovery.ending(self.number, cause, tree=tree)

    def signal_leader(self, number: int) -> bool:
        """Signal the leader alone; in a sandbox the command, and SIGKILL everything in there. False, and
        nothing happens, once it is reaped.

        Raises:
            PermissionError: it is another user's by now.
        """
        if number == signal.SIGKILL and self.inside is not None:
            return self.signal_group(number)
        if not self.running or self._pidfd is None:
            return False
        self._count_signal(number)
        if self.inside is not None:
            self.inside.signal(number, leader=True)
            return True
        try:
            signal.pidfd_send_signal(self._pidfd.fd, number)
        except ProcessLookupError:
            return False
        return True

    def _count_signal(self, number: int) -> None:
        kind = "kill" if number == signal.SIGKILL else "interrupt" if number == signal.SIGINT else "other"
        measures.signals[kind] += 1

    def signal_group(self, number: int) -> bool:
        """Signal the process group; in a sandbox that of the command, and SIGKILL everything in there. False,
        and nothing happens, once the leader is reaped: only until then is the group's number certainly ours.
        """
        if not self.running:
            return False
        self._count_signal(number)
        if self.inside is not None:
            if number != signal.SIGKILL:
                self.inside.signal(number)
                return True
            if not self.inside.namespaces:
                # No kernel kills what has left the group: it is looked for when the launcher has ended.
                self.end_for("signal", tree=True)
            self.inside.kill()
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # Some member changed its user; the others were signalled.
            pass
        return True

    # -- the sandbox

    @property
    def sandbox_denied(self) -> bool:
        """Whether the process failed and its sandbox seems to be why: the reference's guess."""
        if self.confinement is None or not self.exit_code or self.failure is not None:
            return False
        if self._judged is None or self._judged[0] != self.log.total:
            from execserver.sandbox.denial import denied  # with sandboxes only: its patterns take 0.3 MiB

            # The words that are looked for may come after the exit, from whoever holds the output.
            self._judged = (self.log.total, denied(self.exit_code, self.log.tail(_JUDGED_BYTES)))
        return self._judged[1]

    def denial(self) -> dict[str, object] | None:
        """What speaks for a denial; None while the process runs, or without a sandbox."""
        if self.confinement is None or self.exit_code is None or self.failure is not None:
            return None
        if self._evidence is not None and self._evidence[0] == self.log.total:
            return self._evidence[1]
        from execserver.sandbox.denial import evidence

        confinement = self.confinement
        found = evidence(
            confinement.policy,
            self.exit_code,
            self.log.tail(_EVIDENCE_BYTES),
            confinement.cwd,
            landlock=confinement.backend == "landlock",
        )
        self._evidence = self.log.total, found.as_json()
        return self._evidence[1]

    @property
    def sandbox_backend(self) -> Backend | Literal["none"]:
        """What confines it."""
        return "none" if self.confinement is None else self.confinement.backend

    def sandbox_ended(self) -> None:
        """Nothing of the sandbox is left, or nobody waits for that any longer."""
        if self._sandbox_stands:
            self._sandbox_stands = False
            self._close_when_over()

    def _leave_sandbox(self, by_signal: bool) -> None:
        """The launcher has ended. The process is closed when nothing of its sandbox is left, so that
        whoever looks then finds the workspace as it was.
        """
        if self.confinement is None:
            return
        self._sandbox_stands = True
        asyncio.get_running_loop().call_later(_SANDBOX_END_SECONDS, self.sandbox_ended)
        if self.inside is None:
            # What has no namespace of its own for its processes ends like what has one.
            self._on_ended(self, self.confinement.backend in ("landlock", "seatbelt"))
            return
        told = self.inside.launcher_ended(lambda: self._on_ended(self, False), whole=self._tree_ending)
        if not self.inside.set_up and not by_signal:
            self.failure = f"failed to prepare process sandbox: {_last_words(self.log)}"
        if not told:
            self._on_ended(self, True)

    # -- pacing

    def pause(self) -> None:
        """Take no output until `resume`."""
        if not self._paused:
            self._paused = True
            for watch in self._outputs.values():
                watch.want(READABLE, False)

    def resume(self) -> None:
        """Take output again, beginning with what is there."""
        if self._paused:
            self._paused = False
            for watch in list(self._outputs.values()):
                watch.want(READABLE, not self._hung)

    def release(self) -> None:
        """Forget the process: its output, its input and whoever follows it. A leader that still
        runs (somebody is about to kill it) is reaped when it ends.
        """
        self._released = True
        urgent = bool(self._outputs) or self.stdin is not None
        subscribers, self.subscribers = self.subscribers, []
        for subscriber in subscribers:
            subscriber.forget()
        self._context.deadlines.forget(self.number)
        self._close_stdin()
        for stream in tuple(self._outputs):
            self._close_output(stream)
        if self._inherited and self._pidfd is not None:
            # The supervisor reaps it, and tells nobody of a process that is forgotten.
            self._pidfd.callback = self._on_end_of_forgotten
            self._pidfd.set(READABLE)
        # What a server before this one had kept and dropped again is perhaps still there.
        kept = not self.closed or self.log.has_files or self._inherited
        self._context.recovery.forgotten(self.number, kept=kept, urgent=urgent)
        self.log.close()
        self._notify()
        # The callbacks are what holds this object in cycles; ten thousand dead processes should not
        # wait for the collector.
        self._on_closed = _ignore
        self.stdin = self._stdin_watch = self._relay = None

    # -- events

    def _on_ready(self, stream: Stream, fd: int, events: int) -> None:
        if events & WRITABLE and self.stdin is not None:
            self.stdin.flush()
            if events == WRITABLE:
                return
        if self._paused:
            return
        if events == HANGUP and self._relay is None and not self.log.carries:
            # Nobody writes any more, and there is nothing left.
            self._end(stream)
            return
        size = self._take(stream, fd)
        if size:
            if size == CHUNK_BYTES and stream not in self._enlarged and self._relay is None:
                self._enlarge(stream, fd)
            measures.output_bytes += size
            if self._deadline is not None:
                self._deadline.touch(self._context.deadlines.clock())
            self._notify()
            self.log.trim()
            if (size >= LEAST_BYTES or self._batching) and not self.tty:
                self._batch(stream, size)
        elif stream in self.log.ended:
            if self.tty and self.running:
                self._look_again_later()
            else:
                self._end(stream)

    def _batch(self, stream: Stream, size: int) -> None:
        watch = self._outputs.get(stream)
        if watch is None or self.log.expedited:
            return
        batching = self._batching.get(stream)
        if batching is None:
            batching = self._batching[stream] = OutputBatching()
        if batching.delays_after(size, time.monotonic()):
            self._context.poller.rest(watch)

    def _enlarge(self, stream: Stream, fd: int) -> None:
        """Its pipe was full."""
        if self._context.large_pipes.enlarge(fd):
            self._enlarged += (stream,)

    def _take(self, stream: Stream, fd: int) -> int:
        """Move what a descriptor has into the log: the number of bytes."""
        relay = self._relay
        try:
            return self.log.take(stream, fd) if relay is None else relay.take()
        except OSError as error:
            return self._take_in_need(stream, fd, error)

    def _take_in_need(self, stream: Stream, fd: int, error: OSError) -> int:
        """The table of descriptors is full, or there is no memory: what is not taken stays where it is."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            relay = self._relay
            with suppress(OSError), self._context.reserved.lent():
                return self.log.take(stream, fd) if relay is None else relay.take()
        log.warning("output cannot be taken now", process=self.process_id, reason=os_error_text(error))
        watch = self._outputs.get(stream)
        if watch is not None:
            watch.set(0)
            asyncio.get_running_loop().call_later(_TAKE_AGAIN_SECONDS, self._take_again, watch)
        return 0

    def _take_again(self, watch: Watch) -> None:
        if watch in self._outputs.values():
            watch.want(READABLE, not (self._paused or self._hung))
            watch.want(WRITABLE, self.tty and self.stdin is not None and self.stdin.waiting)
            if self.log.carries or (self._relay is not None and self._relay.held):
                watch.callback(READABLE)

    def _look_again_later(self) -> None:
        """Nobody has the terminal open, but the leader lives: it may be about to exit, or open it
        again. Closing our side now would hang it up.
        """
        self.log.ended.discard("pty")
        self._hung = True
        self._outputs["pty"].set(0)
        asyncio.get_running_loop().call_later(_TERMINAL_REOPEN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        watch = self._outputs.get("pty")
        if watch is not None:
            self._hung = False
            watch.want(READABLE, not self._paused)
            watch.want(WRITABLE, self.stdin is not None and self.stdin.waiting)

    def _end(self, stream: Stream) -> None:
        if stream in self._outputs:
            self._close_output(stream)
        self._close_when_over()

    def _close_output(self, stream: Stream) -> None:
        watch = self._outputs.pop(stream)
        if stream in self._enlarged:
            self._context.large_pipes.closed()
        if self.tty:
            self._close_stdin()
            for fd in self._relay_ends:
                os.close(fd)
            self._relay_ends = ()
        _close(watch)

    def _end_terminal(self) -> None:
        """The leader is gone for a while: take the last words, however far behind a reader is."""
        watch = self._outputs.get("pty")
        if watch is not None:
            for _ in range(_FINAL_TAKES):
                size = self._take("pty", watch.fd)
                if not size:
                    break
                measures.output_bytes += size
                self._notify()
            if not watch.events and not self._paused and not self._hung:
                # It could not be taken: later.
                asyncio.get_running_loop().call_later(_TERMINAL_END_SECONDS, self._end_terminal)
                return
            self._end("pty")
            self.log.trim()

    def _on_exit(self, _events: int) -> None:
        """The leader, our child, has ended: it is reaped when the ledger says so."""
        assert self._pidfd is not None
        fd = self._pidfd.fd
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return
        by_signal = result.si_code != os.CLD_EXITED
        self._pidfd.set(0)
        self._exited(128 + result.si_status if by_signal else result.si_status, by_signal=by_signal)
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
        reach("after-reap")
        self._close_pidfd()

    def inherited_end(self, status: int) -> None:
        """The leader, the supervisor's child, has ended with this status (as `os.waitpid` gives it)."""
        if self.running:
            code = os.waitstatus_to_exitcode(status)
            self._exited(128 - code if code < 0 else code, by_signal=code < 0)
        self._close_pidfd()
        self._context.recovery.reaped(self.number)

    def _on_end_of_forgotten(self, _events: int) -> None:
        self._exited(_UNKNOWN_EXIT, by_signal=True)
        self._close_pidfd()

    def check(self) -> None:
        """Find out whether an inherited leader is gone of whose end nobody has told."""
        if not self.running or self._pidfd is None:
            return
        try:
            signal.pidfd_send_signal(self._pidfd.fd, 0)
        except ProcessLookupError:
            # Somebody has reaped it. That of a zombie succeeds.
            self._exited(_UNKNOWN_EXIT, by_signal=False, cause="unknown")
            self._close_pidfd()
        except PermissionError:
            return

    def _exited(self, exit_code: int, *, by_signal: bool, cause: ExitCause | None = None) -> None:
        measures.process_exited(exit_code, by_signal=by_signal)
        if self._released:
            self.exit_code = exit_code
            self._leave_sandbox(by_signal)
            return
        # What the leader wrote is in the pipes by now; it comes before `exited` where possible.
        for stream in tuple(self._outputs):
            self._drain(stream)
        context = self._context
        context.deadlines.forget(self.number)
        self.exit_code = exit_code
        self._leave_sandbox(by_signal)
        self.cause = cause or self._find_cause(exit_code, by_signal)
        context.recovery.exited(self.number, exit_code, self.cause, self.failure)
        # It has one already if the server before this one could not write the exit down.
        self.exited_seq = self.log.exited_seq or self.log.number_event("exited")
        self._exiting = True
        self._after_exit(by_signal=None)
        self._exiting = False

    def _after_exit(self, *, by_signal: bool | None) -> None:
        """What follows the end of the leader. `by_signal` is None when the sandbox was left already."""
        if by_signal is not None:
            self._leave_sandbox(by_signal)
        self._close_stdin()
        reach("after-exited")
        self._close_when_over()
        if self._outputs and self._stdin_watch is not None:
            self._let_input_end()
        self._notify()
        if self.tty and not self.closed:
            asyncio.get_running_loop().call_later(_TERMINAL_END_SECONDS, self._end_terminal)

    def _end_input(self) -> None:
        """Everything was delivered: the child reads end of file when neither we nor the supervisor hold its
        input any longer.
        """
        if self._stdin_watch is not None:
            _close(self._stdin_watch)
            self._tell_end_of_input()

    def _tell_end_of_input(self) -> None:
        if self._stdin_watch is None or self._released or not self.running:
            return
        if self._let_input_end():
            self._stdin_watch = None
        else:
            asyncio.get_running_loop().call_later(_TAKE_AGAIN_SECONDS, self._tell_end_of_input)

    def _let_input_end(self) -> bool:
        """The supervisor holds the input open, too, and somebody who has its other end may wait for its end
        before he lets go of the output. False when it cannot be told.
        """
        assert self._pidfd is not None
        ends, ended = [self._pidfd.fd], []
        try:
            for stream in self.streams:
                watch = self._outputs.get(stream)
                if watch is None:
                    ended.append(_ended_pipe())
                ends.append(watch.fd if watch is not None else ended[-1])
            self._context.recovery.keep_ends(self.number, ends)
        except OSError as error:
            log.warning("the input cannot end now", process=self.process_id, reason=os_error_text(error))
            return False
        else:
            return True
        finally:
            for fd in ended:
                os.close(fd)

    def _find_cause(self, exit_code: int, by_signal: bool) -> ExitCause:
        counter = self._context.oom_kills
        return exit_cause(
            exit_code,
            by_signal=by_signal,
            ending=self._ending,
            oom_kills_before=self._oom_kills,
            oom_kills_now=counter.look() if may_be_out_of_memory(exit_code, self._ending) else None,
            launched=self.inside is not None,
        )

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            _close(self._pidfd)
            self._pidfd = None

    def _drain(self, stream: Stream) -> None:
        fd = self._outputs[stream].fd
        for _ in range(_FINAL_TAKES):
            # A subscriber that is behind would lose what the log has no room for.
            size = 0 if self._paused else self._take(stream, fd)
            if not size:
                break
            measures.output_bytes += size
            self._notify()
            self.log.trim()
        if stream in self.log.ended:
            self._close_output(stream)

    def _close_when_over(self) -> None:
        if self.exit_code is None or self._outputs or self.closed or self._released or self._sandbox_stands:
            return
        self.closed_seq = self.log.number_event("closed")
        # An urgent drop wakes the supervisor: somebody may wait for the terminal to be hung up.
        self._context.recovery.closed(self.number, self._other_slots, told=self._exiting, urgent=self.tty)
        self._notify()
        self._on_closed(self)

    def _notify(self) -> None:
        # A feed that sends its last event leaves the list.
        for subscriber in tuple(self.subscribers):
            subscriber.wake()
        if self._waiters:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _resolve(waiter)

    def _flush_stdin(self) -> None:
        if self.stdin is not None:
            self.stdin.flush()

    def _close_stdin(self) -> None:
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.close()
            if self._stdin_watch is not None:
                _close(self._stdin_watch)


def _last_words(log: OutputLog) -> str:
    """What the launcher said before it gave up."""
    lines = [line for line in log.tail(_LAUNCHER_BYTES).splitlines() if line.startswith(b"bwrap: ")]
    return lines[-1].decode("utf-8", "replace") if lines else "the launcher gave no reason"


def _ended_pipe() -> int:
    """The read end of a pipe that is at its end: what there was of an output that was closed."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.close(write)
    return read


def _close(watch: Watch) -> None:
    watch.set(0)
    watch.callback = _ignore
    os.close(watch.fd)


def _ignore(_: object) -> None:
    """Nothing."""


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

"""One process of a session: its state and its log.

    running ──leader reaped──▶ exited ──outputs at their end──▶ closed

`exited` and `closed` are two events: a background child may hold the output open long after
the leader is gone. A terminal closes with its leader. A failed start never gets this far.

Reading (`output_reader.py`), writing (`process_input.py`), the end of the leader (`exit.py`) and the sandbox
(`sandboxed_child.py`) are parts with a state of their own. `ManagedProcess` connects them and keeps the order
of events.

A process outlives the server: all that a new server has to know is in the ledger and with the supervisor
before a client is told of it (`recovery_state.py`). A process begins in one of two ways: `begin` for a child
that was just spawned, and `inherit` for a child of a previous server.

Nothing here waits for a reader. A subscriber that has fallen behind may ask that the child be read no faster
than the subscriber drains (`pause`). `sessions/event_stream.py` ends that when the subscriber makes no
progress: a stalled reader never holds a child back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from execserver.fault_points import reach
from execserver.processes.deadlines import Deadline, Deadlines
from execserver.processes.exit import UNKNOWN_EXIT, Leader
from execserver.processes.exit_cause import OomCounter
from execserver.processes.output_batching import LargePipes
from execserver.processes.output_log import OutputLog
from execserver.processes.output_reader import TERMINAL_END_SECONDS, OutputReader
from execserver.processes.poller import DescriptorPoller
from execserver.processes.process_input import ProcessInput
from execserver.processes.process_limits import ProcessLimits
from execserver.processes.process_proxy import ProcessProxy, begin_inherited
from execserver.processes.recovery_state import RecoveryState, Slots
from execserver.processes.reserved_descriptors import ReservedDescriptors
from execserver.processes.sandboxed_child import ProcessSandbox
from execserver.processes.spawn import Spawned
from execserver.processes.stdin import InputBudget
from execserver.processes.terminal_sizes import TerminalSizes
from execserver.spool.records import ProcessState, Started
from execserver.supervisor.fd_store_protocol import INPUT
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import ExitCause
    from execserver.sandbox.confinement import Confinement


_SIGNALLED = 128
"""Exit codes above this one are deaths by a signal, as a rule."""


def _ignore_end(_process: ManagedProcess, _unknown: bool) -> None:
    """Nothing."""


class Subscriber(Protocol):
    """Follows the log of a process by a cursor of its own."""

    def wake(self) -> None:
        """The log has something new."""

    def forget(self) -> None:
        """The process is forgotten."""


class ExecutorContext(msgspec.Struct, frozen=True):
    """The objects that all processes of the daemon share."""

    poller: DescriptorPoller
    input_budget: InputBudget
    recovery: RecoveryState
    deadlines: Deadlines
    oom_kills: OomCounter
    reserved: ReservedDescriptors
    large_pipes: LargePipes = msgspec.field(default_factory=LargePipes)


class NewsWaiters:
    """The requests that wait for news of one process."""

    __slots__ = ("_expedited", "waiters")

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[None]] = []
        self._expedited = False

    async def wait(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Return when a wake-up finds that the wait is over, or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not (is_over() or self._expedited) and loop.time() < deadline:
            waiter: asyncio.Future[None] = loop.create_future()
            timer = loop.call_at(deadline, _resolve, waiter)
            self.waiters.append(waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                if waiter in self.waiters:
                    self.waiters.remove(waiter)

    def wake(self) -> None:
        """There is news."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            _resolve(waiter)

    def expedite(self) -> None:
        """End all waits, also later ones."""
        self._expedited = True
        self.wake()


class ManagedProcess:
    """A process of a session.

    Args:
        started: its record.
        log: its output, which belongs to this object from now on.
        context: the objects that all processes share.
        on_closed: called once, when the process is closed.
        confinement: its sandbox.
        tag: the ownership tag of the child and its descendants; None without tags.
        on_sandbox_left: called once its sandbox is left; the flag says that the sandbox has to be searched.
        limits: of what it may use.
    """

    # A dictionary for so many attributes would take more than 1 KB of each process.
    __slots__ = (
        "_context",
        "_deadline",
        "_exiting",
        "_news",
        "_on_closed",
        "_on_sandbox_left",
        "_other_slots",
        "_tag",
        "cause",
        "closed_seq",
        "exit_code",
        "exited_seq",
        "failure",
        "input",
        "leader",
        "limits",
        "log",
        "number",
        "output",
        "pid",
        "process_id",
        "proxy",
        "released",
        "sandbox",
        "sizes",
        "started",
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
        on_sandbox_left: Callable[[ManagedProcess, bool], None] = _ignore_end,
        limits: ProcessLimits | None = None,
    ) -> None:
        self.started = started
        self.process_id = started.process_id
        self.wire_id = msgspec.json.encode(started.process_id)
        """The id as JSON, for the events."""
        self.number, self.pid, self.tty = started.number, started.pid, started.tty
        self.log = log
        self.exit_code: int | None = None
        self.cause: ExitCause | None = None
        self.exited_seq: int | None = None
        self.closed_seq: int | None = None
        self.failure: str | None = None
        """Why the command was never run: its sandbox could not be set up."""
        self.subscribers: list[Subscriber] = []
        self.proxy: ProcessProxy | None = None
        """Its network proxy, which ends with it."""
        self._context = context
        self._on_closed = on_closed
        self._on_sandbox_left = on_sandbox_left
        self._tag = tag
        self._news = NewsWaiters()
        self.released = False
        """Whether it is forgotten, and nothing of it can be read any more."""
        self._exiting = False
        """Whether the end of the leader is being handled."""
        self._other_slots: list[int] = []
        """The slots that the supervisor keeps beside our ends and the output, until the process is closed."""
        self._deadline: Deadline | None = None
        if started.timeout_at is not None or started.idle_timeout is not None:
            self._deadline = Deadline(started.timeout_at, started.idle_timeout, context.deadlines.clock())
        self.sandbox = None if confinement is None else ProcessSandbox(confinement)
        self.limits = limits
        self.output = OutputReader(
            self, log, context.poller, context.reserved, context.large_pipes, tty=started.tty
        )
        if started.paced:
            self.output.pace()
        self.streams = self.output.streams
        self.sizes = TerminalSizes(started, log, context.recovery) if started.tty else None
        self.input: ProcessInput | None = None
        """None for a process without a pipe or a terminal to write to."""
        if started.tty or started.pipe_stdin:
            self.input = ProcessInput(self, self.output, context.recovery, context.reserved, self._deadline)
        self.leader = Leader(self, context.poller, context.recovery, context.oom_kills)

    def begin(self, spawned: Spawned, slots: Iterable[int]) -> None:
        """Watch our own child, whose descriptors belong to this object from now on, until the process is
        closed; the supervisor keeps `slots` so long, too.
        """
        self._other_slots += slots
        if spawned.status is not None:
            self._watch_inside(spawned.status)
        self.leader.watch_child(spawned.pidfd)
        self.output.watch(spawned)
        if self.input is not None:
            self.input.connect(spawned, self._context.poller, self._context.input_budget)
        if self._deadline is not None:
            self._context.deadlines.add(self.number, self._deadline)

    def inherit(self, state: ProcessState, spawned: Spawned | None, slots: Slots) -> None:
        """Continue with the child of a previous server.

        Args:
            state: its state in the ledger.
            spawned: its descriptors, which belong to this object from now on; None when it is closed.
            slots: the other kept descriptors. This object removes those that it takes.

        Raises:
            OSError: the descriptors are not what they should be.
        """
        context = self._context
        self._other_slots += slots
        _restore_end(self, state)
        if self.sizes is not None:
            self.sizes.restore(state)
        self.leader.inherit(state, None if spawned is None else spawned.pidfd)
        if spawned is not None:
            self.proxy = begin_inherited(self, spawned, slots, self._tag)
            if spawned.status is not None:
                self._watch_inside(spawned.status)
            self.output.watch(spawned)
        if self.input is not None:
            self.input.ended = state.stdin_closed
            if spawned is not None:
                self.input.connect(spawned, context.poller, context.input_budget)
            file = next(iter(slots.pop(INPUT, [])), None) if self.input.writer is not None else None
            self.input.restore(file, state.accepted_end, state.write_ids, state.others_write_ids)
        if spawned is None:
            self.closed_seq = self.closed_seq or self.log.number_event("closed")
        elif not self.running:
            self._after_exit(by_signal=self.exit_code is not None and self.exit_code > _SIGNALLED)
            self.leader.close()
        elif self._deadline is not None:
            context.deadlines.add(self.number, self._deadline)

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
    def followed(self) -> bool:
        """Whether a client follows it or waits for news of it."""
        return bool(self.subscribers or self._news.waiters)

    @property
    def sandbox_backend(self) -> str:
        """The name of the backend of its sandbox; `none` without a sandbox."""
        return "none" if self.sandbox is None else self.sandbox.confinement.backend

    @property
    def sandbox_denied(self) -> bool:
        """Whether the process failed and its sandbox seems to be why: the reference's guess."""
        if self.sandbox is None or not self.exit_code or self.failure is not None:
            return False
        return self.sandbox.denied(self.exit_code, self.log)

    def denial(self) -> dict[str, object] | None:
        """The evidence for a denial; None while the process runs, or without a sandbox."""
        if self.sandbox is None or self.exit_code is None or self.failure is not None:
            return None
        return self.sandbox.evidence(self.exit_code, self.log)

    # -- reading

    def has_news(self, after_seq: int) -> bool:
        """Whether a read after this cursor has a reason to be answered now
        (`docs/protocol.md`, "Reading").
        """
        # Every number beyond the cursor is a chunk or an end, and either is an answer.
        return self.closed or after_seq < self.log.next_seq - 1

    async def wait_for_news(self, after_seq: int, seconds: float) -> None:
        """Return when a read after this cursor would say something new, time is up, or the process is
        forgotten.
        """
        await self._news.wait(lambda: self.released or self.has_news(after_seq), seconds)

    async def wait_closed(self, seconds: float) -> None:
        """Return when the process is closed or forgotten, or time is up."""
        await self._news.wait(lambda: self.released or self.closed, seconds)

    def expedite(self) -> None:
        """Answer waiting reads now: this server is about to end."""
        self._news.expedite()

    # -- control

    def pause(self) -> None:
        """Take no output until `resume`."""
        self.output.pause()

    def resume(self) -> None:
        """Take output again, beginning with what is there."""
        self.output.resume()

    def postpone_if_throttled(self) -> bool:
        """Whether the output is not taken, so that the process is quiet: then its idle time begins anew."""
        if self.output.paused and self._deadline is not None:
            self._deadline.touch(self._context.deadlines.clock())
            self._context.deadlines.add(self.number, self._deadline)
        return self.output.paused

    def release(self) -> None:
        """Forget the process: its output, its input and its subscribers. A leader that still runs is about to
        be killed, and reaped when it ends.
        """
        self.released = True
        urgent = self.output.open or (self.input is not None and self.input.writer is not None)
        subscribers, self.subscribers = self.subscribers, []
        for subscriber in subscribers:
            subscriber.forget()
        self._context.deadlines.forget(self.number)
        if self.input is not None:
            self.input.release()
        self.output.release()
        if self.proxy is not None:
            self.proxy.close()
        self.leader.release()
        # The supervisor may still keep what a previous server had kept and dropped again.
        kept = not self.closed or self.log.has_files or self.leader.inherited
        self._context.recovery.forgotten(self.number, kept=kept, urgent=urgent)
        self.log.close()
        self._notify()
        self._on_closed = _ignore
        self._break_cycle()

    def sandbox_ended(self) -> None:
        """Nothing of the sandbox is left, or its end took too long."""
        if self.sandbox is not None and self.sandbox.stands:
            self.sandbox.stands = False
            self._close_when_over()

    # -- for the parts

    def output_taken(self) -> None:
        """See `OutputOwner`."""
        if self._deadline is not None:
            self._deadline.touch(self._context.deadlines.clock())
        self._notify()

    def output_ended(self) -> None:
        """See `OutputOwner`."""
        self._close_when_over()

    def sandbox_left(self, unknown: bool) -> None:
        """See `SandboxOwner`."""
        self._on_sandbox_left(self, unknown)

    def keep_input(self, fd: int) -> None:
        """See `InputOwner`."""
        self._other_slots.append(INPUT)
        self._context.recovery.keep_input(self.number, fd)

    def leader_ended(self, exit_code: int, *, by_signal: bool, cause: ExitCause | None = None) -> None:
        """See `ExitOwner`."""
        measures.process_exited(exit_code, by_signal=by_signal)
        if self.released:
            self.exit_code = exit_code
            self._leave_sandbox(by_signal)
            self._break_cycle()
            return
        # The leader's output is in the pipes by now. It comes before `exited` where possible.
        self.output.drain()
        context = self._context
        if not self.leader.in_grace:
            context.deadlines.forget(self.number)
        self.exit_code = exit_code
        self._leave_sandbox(by_signal)
        launched = self.sandbox is not None and self.sandbox.child is not None
        cause = cause or self.leader.cause_of(exit_code, by_signal=by_signal, launched=launched)
        self.cause = cause if self.limits is None else self.limits.end(cause, exit_code)
        context.recovery.exited(self.number, exit_code, self.cause, self.failure, self.limits)
        # It has one already if the previous server could not write the exit down.
        self.exited_seq = self.log.exited_seq or self.log.number_event("exited")
        self._exiting = True
        self._after_exit(by_signal=None)
        self._exiting = False

    # -- inside

    def _watch_inside(self, report: int) -> None:
        assert self.sandbox is not None
        self.sandbox.watch(self.pid, report, self._tag, self._context.poller)

    def _after_exit(self, *, by_signal: bool | None) -> None:
        """Continue after the end of the leader. `by_signal` is None when the sandbox was left already."""
        self._leave_sandbox(by_signal)
        if self.input is not None:
            self.input.close()
        reach("after-exited")
        self._close_when_over()
        if self.output.open and self.input is not None and self.input.kept:
            self.input.drop_kept()
        self._notify()
        if self.tty and not self.closed:
            asyncio.get_running_loop().call_later(TERMINAL_END_SECONDS, self.output.end_terminal)

    def _leave_sandbox(self, by_signal: bool | None) -> None:
        if self.sandbox is not None and by_signal is not None:
            self.sandbox.leave(self, by_signal=by_signal, whole=self.leader.tree_ending)

    def _close_when_over(self) -> None:
        if self.exit_code is None or self.output.open or self.closed or self.released:
            return
        if self.sandbox is not None and self.sandbox.stands:
            return
        self.closed_seq = self.log.number_event("closed")
        if self.proxy is not None:
            self.proxy.close()
        # An urgent drop wakes the supervisor: a process may wait for the terminal to be hung up.
        self._context.recovery.closed(self.number, self._other_slots, recorded=self._exiting, urgent=self.tty)
        self._notify()
        self._on_closed(self)

    def _notify(self) -> None:
        # A stream that sends its last event leaves the list.
        for subscriber in tuple(self.subscribers):
            subscriber.wake()
        if self._news.waiters:
            self._news.wake()

    def _break_cycle(self) -> None:
        """Ten thousand dead processes should not wait for the garbage collector."""
        if not self.running:
            del self.leader


def _restore_end(process: ManagedProcess, state: ProcessState) -> None:
    if state.exited is not None:
        process.exit_code = state.exited.code
        process.cause = cast("ExitCause", state.exited.cause)
        process.failure = state.exited.failure
        # The previous server may have been killed between the ledger and the index.
        process.exited_seq = process.log.exited_seq or process.log.number_event("exited")
    elif process.log.closed_seq is not None:
        # The previous server could not write the exit down.
        process.exit_code, process.cause, process.exited_seq = UNKNOWN_EXIT, "unknown", process.log.exited_seq
    process.closed_seq = process.log.closed_seq


def _ignore(_: object) -> None:
    """Nothing."""


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

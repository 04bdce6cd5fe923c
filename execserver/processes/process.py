"""One managed process: its state, its descriptors and its log.

    running ──leader reaped──▶ exited ──outputs at their end──▶ closed

`exited` and `closed` are two events: a background child may hold the output open long after
the leader is gone. A terminal closes with its leader. A failed start never gets this far.

Nothing here waits for a reader. A subscriber that has fallen behind may ask that the child
be read no faster than it drains (`pause`), and the process forgets that wish by itself when
the subscriber makes no progress (`sessions/feed.py` decides; a stalled reader never holds a
child back).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from execserver.processes.inside import Inside
from execserver.processes.output_log import OutputLog, Page
from execserver.processes.poller import READABLE, WRITABLE, DescriptorPoller, Watch
from execserver.processes.spawn import Spawned
from execserver.processes.stdin import InputBudget, StdinWriter
from execserver.protocol.errors import InternalError
from execserver.protocol.limits import REMEMBERED_WRITE_IDS
from execserver.protocol.process import Stream, WriteResult
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.denial import denied, evidence
from execserver.telemetry.measures import measures

_TERMINAL_END_SECONDS = 0.2
"""How long a terminal may take to report its end after its leader was reaped. The kernel hangs
it up at once; a descendant that ignored the hang-up must not keep it open."""

_TERMINAL_REOPEN_SECONDS = 0.05
"""How often a terminal that nobody has open is looked at while its leader lives."""

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

_SANDBOX_END_SECONDS = 3.0
"""How long the end of a sandbox may take. It takes a millisecond, unless something in it hangs in the
kernel."""


def _ignore_end(_process: ManagedProcess, _unknown: bool) -> None:
    """Nothing."""


class Subscriber(Protocol):
    """Somebody who follows the log of a process by a cursor of their own."""

    def wake(self) -> None:
        """The log has something new."""


class ManagedProcess:
    """A process of a session.

    Args:
        process_id: the client's name for it.
        number: our own number, the low half of its membership tag.
        spawned: descriptors that belong to this object from now on.
        on_closed: called once, when the process is closed.
        confinement: its sandbox.
        tag: the membership tag of what it starts; None without tags.
        on_ended: called once for a process with a sandbox, when nothing is known to run in there any more;
            the flag says that it is not known, and that somebody has to look.
    """

    def __init__(
        self,
        process_id: str,
        number: int,
        spawned: Spawned,
        log: OutputLog,
        poller: DescriptorPoller,
        input_budget: InputBudget,
        on_closed: Callable[[ManagedProcess], None],
        confinement: Confinement | None = None,
        tag: int | None = None,
        on_ended: Callable[[ManagedProcess, bool], None] = _ignore_end,
    ) -> None:
        self.process_id = process_id
        self.confinement = confinement
        self._on_ended = on_ended
        self.wire_id = msgspec.json.encode(process_id)
        """The id as JSON, for the events."""
        self.number = number
        self.pid = spawned.pid
        self.tty = len(spawned.outputs) == 1
        self.log = log
        self.exit_code: int | None = None
        self.exited_seq: int | None = None
        self.closed_seq: int | None = None
        self.subscribers: list[Subscriber] = []
        self.streams = _TERMINAL if self.tty else _PIPES
        self._poller = poller
        self._on_closed = on_closed
        self._waiters: list[asyncio.Future[None]] = []
        self._write_ids: OrderedDict[str, None] = OrderedDict()
        self._paused = False
        self._released = False
        self._hung = False
        """Whether this is a terminal that nobody has open: the kernel would report that without end."""
        self._sandbox_stands = False
        self._judged: tuple[int, bool] | None = None
        self._evidence: tuple[int, dict[str, object]] | None = None
        self.failure: str | None = None
        """Why the command was never run: its sandbox could not be set up."""
        self._outputs: dict[Stream, Watch] = {}
        self.inside: Inside | None = None
        if spawned.status is not None and confinement is not None:
            self.inside = Inside(self.pid, spawned.status, confinement.namespaces, tag, poller)
        self._pidfd = poller.watch(spawned.pidfd, READABLE, self._on_exit)
        self.stdin: StdinWriter | None = None
        self._stdin_watch: Watch | None = None
        for index, stream in enumerate(self.streams):
            fd = spawned.outputs[index]
            self._outputs[stream] = poller.watch(fd, READABLE, self._reader(stream, fd))
        if self.tty:
            master = self._outputs["pty"]
            self.stdin = StdinWriter(
                master.fd, input_budget, lambda wanted: master.want(WRITABLE, wanted and not self._hung)
            )
        elif spawned.stdin is not None:
            watch = poller.watch(spawned.stdin, 0, lambda _events: self._flush_stdin())
            self._stdin_watch = watch
            self.stdin = StdinWriter(watch.fd, input_budget, lambda wanted: watch.want(WRITABLE, wanted))

    # -- state

    @property
    def running(self) -> bool:
        """Whether the leader has not been reaped."""
        return self.exit_code is None

    @property
    def closed(self) -> bool:
        """Whether the last event has happened."""
        return self.closed_seq is not None

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
        """Return when a read after this cursor would say something new, or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.has_news(after_seq):
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

    # -- writing and signals

    def write(self, data: bytes, write_id: str) -> WriteResult:
        """Queue input once per write id.

        Raises:
            InternalError: the process is gone.
        """
        stdin = self.stdin
        if stdin is None:
            return {"status": "stdinClosed"}
        if write_id in self._write_ids:
            return {"status": "accepted"}
        if stdin.closed:
            raise InternalError("failed to write to process stdin")
        self._write_ids[write_id] = None
        if len(self._write_ids) > REMEMBERED_WRITE_IDS:
            self._write_ids.popitem(last=False)
        stdin.write(data)
        measures.stdin_bytes += len(data)
        return {"status": "accepted"}

    def signal_group(self, number: signal.Signals) -> bool:
        """Signal the process group. False, and nothing happens, once the leader is reaped: only
        until then is the group's number certainly ours.
        """
        if not self.running:
            return False
        measures.signals["kill" if number == signal.SIGKILL else "interrupt"] += 1
        if self.inside is not None:
            if number != signal.SIGKILL:
                self.inside.interrupt()
                return True
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
            # The words that are looked for may come after the exit, from whoever holds the output.
            self._judged = (self.log.total, denied(self.exit_code, self.log.tail(_JUDGED_BYTES)))
        return self._judged[1]

    def denial(self) -> dict[str, object] | None:
        """What speaks for a denial; None while the process runs, or without a sandbox."""
        if self.confinement is None or self.exit_code is None or self.failure is not None:
            return None
        if self._evidence is not None and self._evidence[0] == self.log.total:
            return self._evidence[1]
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
        told = self.inside.launcher_ended(lambda: self._on_ended(self, False))
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
        self.subscribers.clear()
        self._close_stdin()
        for watch in self._outputs.values():
            _close(watch)
        self._outputs.clear()
        self.log.close()
        self._notify()
        # The callbacks are what holds this object in cycles; ten thousand dead processes should not
        # wait for the collector.
        self._on_closed = _ignore
        self.stdin = self._stdin_watch = None

    # -- events

    def _reader(self, stream: Stream, fd: int) -> Callable[[int], None]:
        take, ended = self.log.take, self.log.ended

        def on_ready(events: int) -> None:
            if events & WRITABLE and self.stdin is not None:
                self.stdin.flush()
                if events == WRITABLE:
                    return
            if self._paused:
                return
            size = take(stream, fd)
            if size:
                measures.output_bytes += size
                self._notify()
                self.log.trim()
            elif stream in ended:
                if self.tty and self.running:
                    self._look_again_later()
                else:
                    self._end(stream)

        return on_ready

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
        watch = self._outputs.pop(stream, None)
        if watch is not None:
            if self.tty:
                self._close_stdin()
            _close(watch)
        self._close_when_over()

    def _end_terminal(self) -> None:
        """The leader is gone for a while: take the last words, however far behind a reader is."""
        watch = self._outputs.get("pty")
        if watch is not None:
            for _ in range(_FINAL_TAKES):
                size = self.log.take("pty", watch.fd)
                if not size:
                    break
                measures.output_bytes += size
                self._notify()
            self._end("pty")
            self.log.trim()

    def _on_exit(self, events: int) -> None:
        result = os.waitid(os.P_PIDFD, self._pidfd.fd, os.WEXITED | os.WNOHANG)
        if result is None:
            return
        _close(self._pidfd)
        status = result.si_status
        by_signal = result.si_code != os.CLD_EXITED
        exit_code = 128 + status if by_signal else status
        measures.process_exited(exit_code, by_signal=by_signal)
        if self._released:
            self.exit_code = exit_code
            self._leave_sandbox(by_signal)
            return
        # What the leader wrote is in the pipes by now; it comes before `exited` where possible.
        for stream in tuple(self._outputs):
            self._drain(stream)
        self.exit_code = exit_code
        self._leave_sandbox(by_signal)
        self._close_stdin()
        self.exited_seq = self.log.number_event()
        self._close_when_over()
        self._notify()
        if self.tty and not self.closed:
            asyncio.get_running_loop().call_later(_TERMINAL_END_SECONDS, self._end_terminal)

    def _drain(self, stream: Stream) -> None:
        watch = self._outputs[stream]
        for _ in range(_FINAL_TAKES):
            # A subscriber that is behind would lose what the log has no room for.
            size = 0 if self._paused else self.log.take(stream, watch.fd)
            if not size:
                break
            measures.output_bytes += size
            self._notify()
            self.log.trim()
        if stream in self.log.ended:
            self._outputs.pop(stream)
            if self.tty:
                self._close_stdin()
            _close(watch)

    def _close_when_over(self) -> None:
        if self.exit_code is None or self._outputs or self.closed or self._released or self._sandbox_stands:
            return
        self.closed_seq = self.log.number_event()
        self._notify()
        self._on_closed(self)

    def _notify(self) -> None:
        # A feed that sends its last event leaves the list.
        for subscriber in tuple(self.subscribers):
            subscriber.wake()
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


def _close(watch: Watch) -> None:
    watch.set(0)
    watch.callback = _ignore
    os.close(watch.fd)


def _ignore(_: object) -> None:
    """Nothing."""


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

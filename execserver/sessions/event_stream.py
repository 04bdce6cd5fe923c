"""Event streams: a cursor in the log of a process, from which the events of a connection are made.

Rules kept in this file:

1. Events are made from the log, in the order of their numbers, each number exactly once.
2. At most `WINDOW_BYTES` of a connection's events are queued unsent; the log grows meanwhile.
3. Slow consumers throttle the child: one that empties its window within `GRACE_SECONDS` sets the pace, so
   that a log in memory loses no output. A slower one is *stalled*: the child runs freely, and output that the
   log drops meanwhile is reported to the consumer as a gap.
4. A stream that has fallen behind takes turns with the other streams of its connection (`send_one`).
   Otherwise an unthrottled child would fill the window each time before the turn of another stream.

`docs/protocol.md`, "Events" and "Output retention".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec
import pybase64

from execprotocol.limits import MAX_FILLED_GAP
from execserver.processes.output_log import Chunk, Page
from execserver.processes.process import ManagedProcess
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import Stream


WINDOW_BYTES = 256 << 10
"""Unsent bytes of a connection above which no event is made."""

GRACE_SECONDS = 2.0
"""How long a full window may throttle a child. A consumer of 128 KiB/s or more, with shorter pauses than this
(it parses a large reply, its TCP window reopens in steps), never loses output; a stopped one delays the child
once."""

HOLD_SECONDS = 0.25
"""How long events wait after a resume for the client's first read of the process: the stock client keeps at
most 1 MiB of events that arrive before that answer."""


def end_members(process: ManagedProcess) -> bytes:
    """The extension members of an exit: `,"cause":"…"`, of a sandboxed process `,"denial":{…}` and
    `,"endedWithSandbox":{…}`, and of a process with limits `,"limit":{…}` and `,"usage":{…}`.
    """
    members = b',"cause":"%b"' % (process.cause or "unknown").encode()
    denial = process.denial()
    if denial is not None:
        members += b',"denial":' + msgspec.json.encode(denial)
    ended = None if process.sandbox is None else process.sandbox.ended_with_sandbox()
    if ended is not None:
        members += b',"endedWithSandbox":' + msgspec.json.encode(ended)
    limits = process.limits
    if limits is not None and limits.hit is not None:
        members += b',"limit":' + msgspec.json.encode(limits.hit)
    return members if limits is None else members + b',"usage":' + msgspec.json.encode(limits.usage())


class Hold(Enum):
    """What a stream waits for before it sends events."""

    START = "the reply to the start of the process"
    RESUME = "the first read after a resume"


class Sink(Protocol):
    """The connection's side, called by event streams."""

    def may_queue_event(self) -> bool:
        """Whether another event may be queued."""

    def progress(self) -> int:
        """Bytes that the peer has taken so far."""

    def send_event(self, parts: Sequence[bytes]) -> None:
        """Queue a notification."""

    def fell_behind(self, stream: EventStream) -> None:
        """The stream has more to send: call `send_one` when an event may be queued."""


class EventStream:
    """The events of one process for one connection.

    Args:
        process: the process.
        sink: the connection.
        cursor: the last number that is not sent.
        on_finished: called once the last event is sent.
        hold: what to wait for before the first event.
        extensions: whether the connection asked for extension members.
        follower: the session of a connection that observes another session's process.
        interactive: whether such a connection may change the size of the terminal.
    """

    __slots__ = (
        "_behind",
        "_cursor",
        "_extensions",
        "_grace",
        "_members",
        "_offset",
        "_on_finished",
        "_prefixes",
        "_sink",
        "_stalled",
        "_taken_before",
        "follower",
        "hold",
        "interactive",
        "process",
    )

    def __init__(
        self,
        process: ManagedProcess,
        sink: Sink,
        cursor: int,
        on_finished: Callable[[], object],
        hold: Hold | None = None,
        *,
        extensions: bool = False,
        follower: str | None = None,
        interactive: bool = False,
    ) -> None:
        self._extensions = extensions
        self.follower = follower
        self.interactive = interactive
        self._members = b""
        """The members behind `processId` in every event."""
        if follower is not None:
            self._members = b',"sessionId":' + msgspec.json.encode(process.started.session)
        self.process = process
        self._on_finished = on_finished
        self._sink = sink
        self._cursor = cursor
        self._offset = process.log.offset_after(cursor) if cursor else 0
        """The bytes of output up to the cursor; a higher offset of the next chunk means lost bytes."""
        self.hold = hold
        """What the stream waits for; None once events are sent."""
        self._behind = False
        """Whether the stream waits for its turn."""
        # An observer is always stalled: it never throttles the child.
        self._stalled = follower is not None
        self._grace: asyncio.TimerHandle | None = None
        self._taken_before = 0
        """The bytes that the peer had taken when the grace began."""
        self._prefixes: dict[Stream, bytes] | None = None
        """The beginning of an event, by output stream. Made for the first event: many processes have no
        output."""
        process.subscribers.append(self)

    def wake(self) -> None:
        """The log has something new."""
        if self.hold is None:
            if not self._behind:
                self.pump()
        elif (
            self.process.log.total - self._offset > WINDOW_BYTES and self._grace is None and not self._stalled
        ):
            # Held events count as queued: they throttle the child in the same way.
            self.process.pause()
            self._begin_grace()

    def release(self) -> None:
        """Send the held events."""
        if self.hold is not None:
            self.hold = None
            self.pump()

    def answered(self, page: Page, next_seq: int) -> None:
        """A read without `maxBytes` was answered. The first one after a resume moves the cursor: events that
        it covered are not sent again, later ones are.
        """
        if self.hold is Hold.RESUME:
            self._cursor = next_seq - 1
            if page.chunks:
                last = page.chunks[-1]
                self._offset = last.offset + len(last.data)
            self.release()

    def pump(self) -> bool:
        """Send events while they may be queued; return whether the stream has caught up."""
        log = self.process.log
        while self._cursor < log.next_seq - 1:
            if not self._sink.may_queue_event():
                self._fall_behind()
                return False
            self._send_next()
        if self._sink.may_queue_event():
            self._set_caught_up()
        else:
            # Caught up, and the window is full: the next chunk has to wait.
            self._fall_behind()
        return True

    def send_one(self) -> bool:
        """Send one event, for taking turns; return whether the stream has caught up."""
        if self._cursor < self.process.log.next_seq - 1:
            self._send_next()
        if self._cursor < self.process.log.next_seq - 1:
            return False
        self._set_caught_up()
        return True

    def forget(self) -> None:
        """The process is forgotten. If it was closed before, its remaining events are still sent."""
        if self.process.closed_seq is None:
            self._set_caught_up()
            self._on_finished()

    def close(self) -> None:
        """Stop following the process."""
        if self in self.process.subscribers:
            self.process.subscribers.remove(self)
        self._set_caught_up()

    # -- pacing

    def _fall_behind(self) -> None:
        self._behind = True
        self._sink.fell_behind(self)
        if self._grace is None and not self._stalled:
            self.process.pause()
            self._begin_grace()

    def _begin_grace(self) -> None:
        self._taken_before = self._sink.progress()
        self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._grace_ended)

    def _grace_ended(self) -> None:
        """Stall the stream, unless the consumer has taken a window of bytes, of whatever stream."""
        self._grace = None
        if self._sink.progress() - self._taken_before >= WINDOW_BYTES:
            self._begin_grace()
            return
        self._stalled = True
        self.process.resume()

    def _set_caught_up(self) -> None:
        self._behind = False
        self._stalled = self.follower is not None
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
            self.process.resume()

    # -- events

    def _send_next(self) -> None:
        seq = self._cursor + 1
        process = self.process
        if seq == process.exited_seq:
            self._send_end(b"process/exited", seq, self._exit_members())
        elif seq == process.closed_seq:
            self._send_end(b"process/closed", seq, b"")
            self._cursor = seq
            self.close()
            self._on_finished()
            return
        else:
            chunk = process.log.chunk(seq)
            if chunk is None:
                self._skip(seq)
                return
            self._send_chunk(chunk)
        self._cursor = seq
        pacing = process.output.pacing
        if pacing is not None and self.follower is None:
            pacing.event_sent(seq)

    def _exit_members(self) -> bytes:
        process = self.process
        denied = b"true" if process.sandbox_denied else b"false"
        extensions = end_members(process) if self._extensions else b""
        return b',"exitCode":%d,"sandboxDenied":%b%b' % (process.exit_code or 0, denied, extensions)

    def _send_chunk(self, chunk: Chunk) -> None:
        lost = self._lost_before(chunk.offset, chunk.seq)
        self._offset = chunk.offset + len(chunk.data)
        at = b',"at":%d' % chunk.at_ms if self._extensions and chunk.at_ms else b""
        self._sink.send_event(
            (
                self._prefix(chunk.stream) + b'%d%b%b,"chunk":"' % (chunk.seq, at, lost),
                pybase64.b64encode(chunk.data),
                b'"}}',
            )
        )

    def _prefix(self, stream: Stream) -> bytes:
        if self._prefixes is None:
            self._prefixes = {
                each: b'{"method":"process/output","params":{"processId":%b%b,"stream":"%b","seq":'
                % (self.process.wire_id, self._members, each.encode())
                for each in self.process.streams
            }
        return self._prefixes[stream]

    def _send_end(self, method: bytes, seq: int, members: bytes) -> None:
        lost, log = b"", self.process.log
        if log.total > self._offset and log.first_kept() is None:
            lost = self._lost_before(log.total, seq)
            self._offset = log.total
        self._sink.send_event(
            (
                b'{"method":"%b","params":{"processId":%b%b,"seq":%d%b%b}}'
                % (method, self.process.wire_id, self._members, seq, members, lost),
            )
        )

    def _lost_before(self, offset: int, seq: int) -> bytes:
        lost = offset - self._offset
        if lost > 0:
            measures.gap(lost)
        return b',"lostBytes":%d,"firstSeq":%d' % (lost, seq) if lost > 0 else b""

    def _skip(self, seq: int) -> None:
        """Skip a dropped chunk. Its number is sent with an empty chunk, because the stock client would wait
        for a missing number for ever; only a very large gap is skipped at once.
        """
        last = self.process.log.evicted_through
        exited = self.process.exited_seq
        if last - seq >= MAX_FILLED_GAP and not (exited is not None and seq <= exited <= last):
            self._cursor = last
            return
        stream = self.process.streams[0]
        self._sink.send_event((self._prefix(stream) + b'%d,"chunk":""}}' % seq,))
        self._cursor = seq

"""The events of a process: each delivered once, in the order of their numbers.

Rules kept in this file:

1. Numbers are dense. An event at or before the cursor is dropped: it was delivered already.
2. While an inbox is held, after a lost connection, nothing is delivered: pushed events wait until a page from
   `process/read` has filled the gap before them.
3. Lost output becomes an `OutputGap` at its place.

No I/O. `docs/protocol.md`, "Output" and "Resuming".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from execclient.connection.connection import Json
from execclient.errors import ExecServerError, OutputGap
from execclient.results import Chunk, Page, exit_code_of

Key = tuple[str | None, str]
"""A process: its session, None for the client's own, and its id."""

Piece = Chunk | OutputGap
"""An element of a process's output."""


class Inbox:
    """The events of one process until they are taken.

    Args:
        process_id: the process.
        limit: bytes of output that may wait; beyond this the oldest are dropped, and reported as a gap. None
            for no limit.
        session_id: its session, unless that is the client's own.
        after_seq: the number after which to begin.
        sink: takes each piece at once, so that none waits here.
    """

    def __init__(
        self,
        process_id: str,
        limit: int | None,
        *,
        session_id: str | None = None,
        after_seq: int = 0,
        sink: Callable[[Piece], None] | None = None,
    ) -> None:
        self.id = process_id
        self.session_id = session_id
        self.key: Key = (session_id, process_id)
        self.started = False
        """Whether the process is known to exist."""
        self.attaching = False
        """Whether `Session.attach` fills it; the recovery then leaves it alone."""
        self.reports_losses = False
        """Whether the server reports lost output; other servers than execserver only skip numbers."""
        self.interactive = False
        """Whether the right to resize was requested."""
        self.last_seq = after_seq
        """The number of the last delivered event."""
        self.exit_code: int | None = None
        self.cause: str | None = None
        self.forced_cause: str | None = None
        """Why the client killed the process, for a server that does not report causes."""
        self.warned = False
        """Whether the client sent SIGTERM for that reason."""
        self.broken_sandbox: str | None = None
        self.denial: Mapping[str, Json] | None = None
        self.ended_with_sandbox: Mapping[str, Json] | None = None
        self.limit: Mapping[str, Json] | None = None
        self.usage: Mapping[str, Json] | None = None
        self.closed = False
        self.failure: ExecServerError | None = None
        self.clock: Callable[[], float] | None = None
        """If set, `active_at` is kept up to date."""
        self.active_at = 0.0
        """The time of the last event."""
        self._limit = limit
        self._waiting: deque[Piece] = deque()
        self._size = 0
        self._add = self._keep if sink is None else sink
        self._exit_passed = False
        """Whether the number of the exit is known to be at or before `last_seq`."""
        self._held = False
        self._ahead: dict[int, tuple[str, Json]] = {}
        self._waiters: list[asyncio.Future[None]] = []

    # -- events

    def push(self, method: str, params: Json) -> bool:
        """Process a notification.

        Returns:
            Whether earlier events are missing, and not reported as lost: nothing is delivered until `fill`
            and `release`. A stock executor sometimes sends the end of a process before its last output.
        """
        seq = params["seq"]
        if seq <= self.last_seq:
            return False
        missing = not self._held and self._leaves_out(seq) and not params.get("lostBytes")
        if missing:
            self.hold()
        if self._held:
            self._ahead[seq] = (method, params)
        else:
            self._deliver(method, params)
        return missing

    def _deliver(self, method: str, params: Json) -> None:
        if self.clock is not None:
            self.active_at = self.clock()
        seq = params["seq"]
        lost = params.get("lostBytes")
        if lost or self._leaves_out(seq):
            self._add(OutputGap(lost))
        if self._exit_unplaced and seq > self.last_seq + 1:
            self._exit_passed = True
        self.last_seq = seq
        if method == "process/output":
            chunk = Chunk.decode(params)
            if chunk.data:
                self._add(chunk)
            else:
                return  # stands for a lost number
        elif method == "process/exited":
            self._exited(params)
            self._exit_passed = True
        elif method == "process/closed":
            self.closed = True
        if self._waiters:
            self._wake()

    def hold(self) -> None:
        """Deliver nothing until `fill` and `release`."""
        self._held = True

    def fill(self, result: Mapping[str, Json]) -> Page:
        """Process the result of a `process/read` for everything after `last_seq`."""
        # Late events have arrived by now, and the server may have discarded their output.
        while (following := self._ahead.pop(self.last_seq + 1, None)) is not None:
            self._deliver(*following)
        chunks = [chunk for chunk in result["chunks"] if chunk["seq"] > self.last_seq]
        page = Page.decode({**result, "chunks": chunks})
        exit_is_new = result["exited"] and not self._exit_passed
        if page.lost_bytes:
            self._add(OutputGap(page.lost_bytes))
        elif chunks and not self.reports_losses and chunks[0]["seq"] - self.last_seq - 1 > exit_is_new:
            self._add(OutputGap(None))
        for chunk in page.chunks:
            self._add(chunk)
        last_seq = max(self.last_seq, page.next_seq - 1)
        if exit_is_new and last_seq - self.last_seq > len(chunks):
            self._exit_passed = True
        self.last_seq = last_seq
        self.update_state(result)
        return page

    def update_state(self, result: Mapping[str, Json]) -> None:
        """Process the state of the process in the result of `process/read` or `process/subscribe`."""
        if result["exited"]:
            self._exited(result)
        # Undelivered events, among them the closing, are delivered in order.
        if result["closed"] and self.last_seq >= result["nextSeq"] - 1:
            self.closed = True
        self._wake()

    @property
    def held(self) -> bool:
        """Whether delivery is stopped."""
        return self._held

    def has_gaps(self) -> bool:
        """Whether events are missing before, or between, the events pushed while it was held."""
        methods = [method for method, _ in self._ahead.values()]
        spare = self._exit_unplaced and "process/exited" not in methods
        last = self.last_seq
        for seq in sorted(self._ahead):
            missing = seq - last - 1
            if missing > spare and not self._ahead[seq][1].get("lostBytes"):
                return True
            if missing >= 0:
                spare, last = spare and not missing, seq
        return False

    def release(self) -> None:
        """Deliver the events pushed while it was held, and later events at once."""
        self._held = False
        ahead, self._ahead = self._ahead, {}
        for seq in sorted(ahead):
            if seq > self.last_seq and not self.closed:
                self._deliver(*ahead[seq])

    def fail(self, error: ExecServerError) -> None:
        """No more events will arrive, because of this error."""
        self.failure = error
        self._wake()

    # -- output

    async def take(self) -> Chunk:
        """The next chunk.

        Raises:
            StopAsyncIteration: the output has ended.
            OutputGap: output is missing here; later output can still be taken.
            ExecServerError: no more output will arrive, because of this error.
        """
        while not self._waiting:
            if self.closed:
                raise StopAsyncIteration
            await self._news()
        piece = self._waiting.popleft()
        if isinstance(piece, OutputGap):
            raise piece
        self._size -= len(piece.data)
        return piece

    def take_all(self) -> list[Piece]:
        """All waiting output, without waiting for more."""
        pieces = list(self._waiting)
        self._waiting.clear()
        self._size = 0
        return pieces

    def discard(self) -> list[Piece]:
        """All waiting output. Later output is dropped; the end of the process is still noticed."""
        self._add = _dropped
        return self.take_all()

    async def until_exited(self) -> int:
        """Wait for the end of the process; its exit code."""
        while self.exit_code is None:
            await self._news()
        return self.exit_code

    async def exits_within(self, seconds: float) -> bool:
        """Wait at most so long for the end of the process; whether it has exited."""
        try:
            async with asyncio.timeout(seconds):
                await self.until_exited()
        except ExecServerError:
            raise
        except TimeoutError:
            return False
        return True

    async def until_closed(self) -> None:
        """Wait for the end of the process and of its output."""
        while not self.closed:
            await self._news()

    async def _news(self) -> None:
        if self.failure is not None:
            raise self.failure
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():  # else its task was cancelled
                waiter.set_result(None)

    # -- delivery

    def _leaves_out(self, seq: int) -> bool:
        """Whether output is missing before the event of this number."""
        return seq - self.last_seq - 1 > self._exit_unplaced

    @property
    def _exit_unplaced(self) -> bool:
        """Whether a page reported the exit, so that one missing number may be that of the exit."""
        return self.exit_code is not None and not self._exit_passed

    def _exited(self, params: Mapping[str, Json]) -> None:
        code, cause = params["exitCode"], params.get("cause")
        # The process may have exited by itself just before the client killed it.
        if self.forced_cause and (code or self.warned):
            cause = self.forced_cause
        self.limit = params.get("limit") or self.limit
        self.usage = params.get("usage") or self.usage
        self.exit_code, self.cause = exit_code_of(code, cause, self.limit), cause
        self.denial = params.get("denial") or self.denial
        self.ended_with_sandbox = params.get("endedWithSandbox") or self.ended_with_sandbox
        self.broken_sandbox = params.get("failure") or self.broken_sandbox

    def _keep(self, piece: Piece) -> None:
        self._waiting.append(piece)
        if isinstance(piece, Chunk):
            self._size += len(piece.data)
            if self._limit is not None and self._size > self._limit:
                self._drop_oldest(self._limit)

    def _drop_oldest(self, limit: int) -> None:
        dropped: int | None = 0
        while self._size > limit or (self._waiting and isinstance(self._waiting[0], OutputGap)):
            piece = self._waiting.popleft()
            if isinstance(piece, Chunk):
                self._size -= len(piece.data)
            amount = len(piece.data) if isinstance(piece, Chunk) else piece.lost_bytes
            dropped = None if dropped is None or amount is None else dropped + amount
        self._waiting.appendleft(OutputGap(dropped))


def _dropped(piece: Piece) -> None:
    """Drop discarded output."""


class InboxTable:
    """The inboxes of a session, by process, and its watches. Several inboxes may be attached to one process.

    Args:
        on_missing: called with an inbox that an event has shown to be incomplete.
        on_other: called with the method and the params of each notification that is neither about a
            process's output and end nor about a watch.
        on_last: called with the id of a process of the client's own that has no inbox any more.
    """

    def __init__(
        self,
        on_missing: Callable[[Inbox], object],
        on_other: Callable[[str, Json], object],
        on_last: Callable[[str], object],
    ) -> None:
        self._on_missing = on_missing
        self._on_other = on_other
        self._on_last = on_last
        self._inboxes: dict[Key, list[Inbox]] = {}
        self.watches: dict[str, Callable[[Json | None], object]] = {}
        """By the id of a watch: called with its events, and with None when events may have been missed."""

    def __contains__(self, key: Key) -> bool:
        return key in self._inboxes

    def __getitem__(self, key: Key) -> list[Inbox]:
        return self._inboxes[key]

    def __iter__(self) -> Iterator[Inbox]:
        """All inboxes, as they are now: the table may change meanwhile."""
        return iter([inbox for inboxes in self._inboxes.values() for inbox in inboxes])

    def own_ids(self) -> list[str]:
        """The ids of the client's own processes."""
        return [process_id for session_id, process_id in self._inboxes if session_id is None]

    def add(self, inbox: Inbox) -> None:
        """Deliver the events of its process to an inbox, until the process is closed."""
        self._inboxes.setdefault(inbox.key, []).append(inbox)

    def forget(self, inbox: Inbox, *, returns: bool = False) -> None:
        """Deliver no more events to an inbox.

        Args:
            inbox: the inbox.
            returns: whether it is added again, so that questions about its process go on.
        """
        inboxes = self._inboxes.get(inbox.key)
        if inboxes is not None and inbox in inboxes:
            inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[inbox.key]
                if inbox.session_id is None and not returns:
                    self._on_last(inbox.id)

    def forget_closed(self, inboxes: list[Inbox] | None = None) -> None:
        """Deliver no more events to inboxes whose process is closed; by default among all."""
        for inbox in list(self) if inboxes is None else inboxes.copy():
            if inbox.closed:
                self.forget(inbox)

    def deliver(self, method: str, params: Json) -> None:
        """Process a notification of the connection."""
        if method == "fs/changed":
            if (receive := self.watches.get(params["watchId"])) is not None:
                receive(params)
            return
        if not method.startswith("process/"):
            # The watch of ports, of which a session has one, has the name of its event.
            self.watches.get(method, partial(self._on_other, method))(params)
            return
        inboxes = self._inboxes.get((params.get("sessionId"), params["processId"]))
        if inboxes is not None:
            for inbox in inboxes:
                if inbox.push(method, params):
                    self._on_missing(inbox)
            if method == "process/closed":
                self.forget_closed(inboxes)

    def hold(self) -> None:
        """The connection is lost: deliver nothing until events from that time have been read."""
        for inbox in self:
            inbox.hold()
        self._report_missed()

    def fail(self, error: ExecServerError) -> None:
        """No more events will arrive, because of this error."""
        for inbox in self:
            inbox.fail(error)
        self._report_missed()

    def _report_missed(self) -> None:
        for receive in self.watches.values():
            receive(None)

    def progress(self) -> int:
        """A number that grows with each delivered event."""
        return sum(inbox.last_seq for inbox in self)

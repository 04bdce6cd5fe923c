"""What arrives for one process: every event once, in the order of their numbers.

Rules kept in this file:

1. Numbers are dense. What is behind the cursor is dropped: it was seen already.
2. While the inbox is held, after a lost connection, nothing is delivered: pushed events wait
   until the page that a `process/read` gave has filled the gap before them.
3. What is missing for good becomes an `OutputGap` at its place, never a silence.

No I/O. `docs/protocol.md`, "Output" and "Resuming".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pybase64 import b64decode

from execclient.connection.connection import Json
from execclient.errors import ExecServerError, OutputGap

Key = tuple[str | None, str]
"""A process: its session, None for our own, and its id."""


class Chunk(NamedTuple):
    """A piece of output, cut anywhere, also within a character."""

    stream: str
    """`stdout`, `stderr`, or `pty`."""
    data: bytes


Piece = Chunk | OutputGap
"""What comes of a process's output, in its order."""


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a long poll: the output after a number, and the state of the process."""

    chunks: list[Chunk]
    next_seq: int
    """Read on with `after_seq=next_seq - 1`."""
    exited: bool
    exit_code: int | None
    closed: bool
    """The process has ended and so has its output."""
    lost_bytes: int
    """Output after `after_seq` that is not kept any more; it was before `chunks`."""
    cause: str | None = None
    """Why the process ended (`docs/protocol.md`, X8); None while it runs, and from another server."""
    failure: str | None = None
    """What broke the sandbox before the command began (`docs/protocol.md`, C35)."""
    denial: Mapping[str, Json] | None = None
    """Whether the sandbox was in the way of a command, with the evidence (`docs/protocol.md`, X7)."""

    @property
    def data(self) -> bytes:
        """All chunks in one, whatever their stream."""
        return b"".join(chunk.data for chunk in self.chunks)


def page_from(result: Mapping[str, Json]) -> Page:
    """The result of `process/read`. Empty chunks only stand for numbers that were lost."""
    chunks = [Chunk(chunk["stream"], b64decode(chunk["chunk"], validate=True)) for chunk in result["chunks"]]
    return Page(
        chunks=[chunk for chunk in chunks if chunk.data],
        next_seq=result["nextSeq"],
        exited=result["exited"],
        exit_code=result.get("exitCode"),
        closed=result["closed"],
        lost_bytes=result.get("lostBytes", 0),
        cause=result.get("cause"),
        failure=result.get("failure"),
        denial=result.get("denial"),
    )


class Inbox:
    """The events of one process until somebody takes them.

    Args:
        process_id: the process.
        limit: bytes of output that may wait; beyond it the oldest are dropped, and stated as a
            gap. None for no limit.
        session_id: its session, when that is not ours.
        after_seq: the number after which to begin.
        sink: takes every piece at once, instead of letting it wait here.
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
        """Whether the process is known to be there."""
        self.attaching = False
        """Whether somebody else than the recovery sees to it that it is filled."""
        self.states_losses = False
        """Whether the server says what it lost; of another than execserver only the numbers do."""
        self.interactive = False
        """Whether it was asked for the right to resize."""
        self.last_seq = after_seq
        """The number of the last event that was delivered."""
        self.exit_code: int | None = None
        self.cause: str | None = None
        self.forced_cause: str | None = None
        """Why we killed it, for a server that does not tell causes."""
        self.broken_sandbox: str | None = None
        self.denial: Mapping[str, Json] | None = None
        self.closed = False
        self.failure: ExecServerError | None = None
        self.clock: Callable[[], float] | None = None
        """Set by whoever wants to know `active_at`."""
        self.active_at = 0.0
        """When the last event came."""
        self._limit = limit
        self._waiting: deque[Piece] = deque()
        self._size = 0
        self._add = self._keep if sink is None else sink
        self._exit_passed = False
        """Whether the number of the exit is known to be one of those up to `last_seq`."""
        self._held = False
        self._ahead: dict[int, tuple[str, Json]] = {}
        self._waiters: list[asyncio.Future[None]] = []

    # -- in

    def push(self, method: str, params: Json) -> bool:
        """A notification came.

        Returns:
            Whether what comes before it did not come, and nobody says that it was lost: nothing is delivered
            until `fill` and `release`. A stock executor sends the end of a process before its last output now
            and then.
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
            data = b64decode(params["chunk"], validate=True)
            if data:
                self._add(Chunk(params["stream"], data))
            else:
                return  # stands for a number that was lost
        elif method == "process/exited":
            self._exited(params)
            self._exit_passed = True
        elif method == "process/closed":
            self.closed = True
        if self._waiters:
            self._wake()

    def hold(self) -> None:
        """Something is missing: deliver nothing until `fill` and `release`."""
        self._held = True

    def fill(self, result: Mapping[str, Json]) -> Page:
        """What `process/read` gave for everything after `last_seq`."""
        # What was only late is here by now, and the server may have no room for it any more.
        while (following := self._ahead.pop(self.last_seq + 1, None)) is not None:
            self._deliver(*following)
        chunks = [chunk for chunk in result["chunks"] if chunk["seq"] > self.last_seq]
        page = page_from({**result, "chunks": chunks})
        exit_is_new = result["exited"] and not self._exit_passed
        if page.lost_bytes:
            self._add(OutputGap(page.lost_bytes))
        elif chunks and not self.states_losses and chunks[0]["seq"] - self.last_seq - 1 > exit_is_new:
            self._add(OutputGap(None))
        for chunk in page.chunks:
            self._add(chunk)
        last_seq = max(self.last_seq, page.next_seq - 1)
        if exit_is_new and last_seq - self.last_seq > len(chunks):
            self._exit_passed = True
        self.last_seq = last_seq
        self.state(result)
        return page

    def state(self, result: Mapping[str, Json]) -> None:
        """What `process/read` or `process/subscribe` says of the process as it is now."""
        if result["exited"]:
            self._exited(result)
        # What was not delivered yet, the closing among it, comes in its turn.
        if result["closed"] and self.last_seq >= result["nextSeq"] - 1:
            self.closed = True
        self._wake()

    @property
    def held(self) -> bool:
        """Whether nothing is delivered now."""
        return self._held

    def lacks_some(self) -> bool:
        """Whether something is missing before, or among, what was pushed meanwhile."""
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
        """Deliver what was pushed meanwhile, and from now on at once."""
        self._held = False
        ahead, self._ahead = self._ahead, {}
        for seq in sorted(ahead):
            if seq > self.last_seq and not self.closed:
                self._deliver(*ahead[seq])

    def fail(self, error: ExecServerError) -> None:
        """Nothing more will come."""
        self.failure = error
        self._wake()

    # -- out

    async def take(self) -> Chunk:
        """The next chunk.

        Raises:
            StopAsyncIteration: the output has ended.
            OutputGap: some is missing here; what follows can still be taken.
            ExecServerError: nothing more will come, and this is why.
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

    def discard(self) -> list[Piece]:
        """All that waits; what comes from now on is dropped unseen, but for the end of the process."""
        self._add = _dropped
        return self.take_all()

    def take_all(self) -> list[Piece]:
        """All that waits, without waiting for more."""
        pieces = list(self._waiting)
        self._waiting.clear()
        self._size = 0
        return pieces

    async def until_exited(self) -> int:
        """Wait for the end of the process; its exit code."""
        while self.exit_code is None:
            await self._news()
        return self.exit_code

    async def exits_within(self, seconds: float) -> bool:
        """Wait for the end of the process, for so long; whether it came."""
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
        """Whether a page told of the exit, and one number that is left out may be its."""
        return self.exit_code is not None and not self._exit_passed

    def _exited(self, params: Mapping[str, Json]) -> None:
        self.exit_code = params["exitCode"]
        # It may have ended by itself, just before we killed it.
        self.cause = self.forced_cause if self.forced_cause and self.exit_code else params.get("cause")
        self.denial = params.get("denial") or self.denial
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
    """Takes output that nobody wants any more."""

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

from execclient.connection import Json
from execclient.errors import ExecServerError, OutputGap


class Chunk(NamedTuple):
    """A piece of output, cut anywhere, also within a character."""

    stream: str
    """`stdout`, `stderr`, or `pty`."""
    data: bytes


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
    )


class Inbox:
    """The events of one process until somebody takes them.

    Args:
        limit: bytes of output that may wait; beyond it the oldest are dropped, and stated as a
            gap. None for no limit.
    """

    def __init__(self, process_id: str, limit: int | None) -> None:
        self.id = process_id
        self.started = False
        """Whether the start was confirmed."""
        self.last_seq = 0
        """The number of the last event that was delivered."""
        self.exit_code: int | None = None
        self.closed = False
        self.failure: ExecServerError | None = None
        self._limit = limit
        self._waiting: deque[Chunk | OutputGap] = deque()
        self._size = 0
        self._held = False
        self._ahead: dict[int, tuple[str, Json]] = {}
        self._news = asyncio.Event()

    # -- in

    def push(self, method: str, params: Json) -> None:
        """A notification came."""
        seq = params["seq"]
        if seq <= self.last_seq:
            return
        if self._held:
            self._ahead[seq] = (method, params)
        else:
            self._deliver(seq, method, params)
            self._news.set()

    def hold(self) -> None:
        """The connection was lost: deliver nothing until `fill` or `release`."""
        self._held = True

    def fill(self, result: Mapping[str, Json]) -> Page:
        """What `process/read` gave for everything after `last_seq`."""
        page = page_from(result)
        if page.lost_bytes:
            self._add(OutputGap(page.lost_bytes))
        for chunk in page.chunks:
            self._add(chunk)
        if page.exited:
            self.exit_code = page.exit_code
        self.closed = self.closed or page.closed
        self.last_seq = max(self.last_seq, page.next_seq - 1)
        self._news.set()
        return page

    def release(self) -> None:
        """Deliver what was pushed meanwhile, and from now on at once."""
        self._held = False
        for seq in sorted(self._ahead):
            self.push(*self._ahead[seq])
        self._ahead.clear()

    def fail(self, error: ExecServerError) -> None:
        """Nothing more will come."""
        self.failure = error
        self._news.set()

    # -- out

    async def take(self) -> Chunk:
        """The next chunk.

        Raises:
            StopAsyncIteration: the output has ended.
            OutputGap: some is missing here; what follows can still be taken.
            ExecServerError: nothing more will come, and this is why.
        """
        await self._until(lambda: self._waiting or self.closed)
        if not self._waiting:
            raise StopAsyncIteration
        piece = self._waiting.popleft()
        if isinstance(piece, OutputGap):
            raise piece
        self._size -= len(piece.data)
        return piece

    def take_all(self) -> list[Chunk | OutputGap]:
        """All that waits, without waiting for more."""
        pieces = list(self._waiting)
        self._waiting.clear()
        self._size = 0
        return pieces

    async def until_exited(self) -> int:
        """Wait for the end of the process; its exit code."""
        await self._until(lambda: self.exit_code is not None)
        assert self.exit_code is not None
        return self.exit_code

    async def until_closed(self) -> None:
        """Wait for the end of the process and of its output."""
        await self._until(lambda: self.closed)

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition():
            if self.failure is not None:
                raise self.failure
            self._news.clear()
            await self._news.wait()

    # -- delivery

    def _deliver(self, seq: int, method: str, params: Json) -> None:
        lost = params.get("lostBytes")
        if lost or seq > self.last_seq + 1:
            self._add(OutputGap(lost))
        self.last_seq = seq
        if method == "process/output":
            data = b64decode(params["chunk"], validate=True)
            if data:
                self._add(Chunk(params["stream"], data))
        elif method == "process/exited":
            self.exit_code = params["exitCode"]
        elif method == "process/closed":
            self.closed = True

    def _add(self, piece: Chunk | OutputGap) -> None:
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

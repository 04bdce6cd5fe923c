"""Collects the output of a process for a model, with a limit, until the process ends.

    collecting ──exited──> lingering ──closed, or LINGER_SECONDS──> finished
        └──the session or the connection is lost for good, or `end`──> finished

Rules kept in this file:

1. The output is taken as it arrives, even if no caller asks for it: a model that never comes back blocks
   nothing, and costs only the buffer. Output after `finished` is dropped.
2. `take` returns output once, and lost output is counted.
3. A listener that raises is removed; the process and the other listeners are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from execclient.errors import ExecServerError, OutputGap
from execclient.process import Process
from execclient.session.inbox import Piece
from execclient.tools.truncation import HeadTailBuffer, Snapshot

log = logging.getLogger(__name__)

OutputListener = Callable[[str, bytes], None]
"""Called with each chunk: its stream and its bytes."""

KILLED_SECONDS = 1.0
"""For the remaining events of a process after a confirmed kill. On a lost connection they do not arrive."""


class Lost(NamedTuple):
    """Output that was dropped before it reached the client."""

    size: int
    """In bytes, as far as known."""
    more: bool
    """Whether an unknown amount was dropped, too."""


class ExecSession:
    """One process.

    Args:
        process: the process; all its output is taken.
        listener: called with output.
        split: whether to keep the streams separately, too.
        begin: the bytes at the beginning of the output that are not collected.
    """

    def __init__(
        self,
        process: Process,
        listener: OutputListener | None = None,
        *,
        split: bool = False,
        begin: int = 0,
    ) -> None:
        self.process = process
        self.position = begin
        """The bytes of output that `take` and `take_lost` have returned, or that were not collected."""
        self.both = HeadTailBuffer()
        """All output since the last `take`."""
        self.streams: dict[str, HeadTailBuffer] = {}
        """With `split`: all output of each stream."""
        self.failure: ExecServerError | None = None
        """Why the exit of the process will not be known."""
        self.ended: str | None = None
        """Why the process was ended by `end`."""
        self.finished = asyncio.Event()
        """Set when no more output is collected."""
        self._lost = Lost(0, False)
        self._listeners = [] if listener is None else [listener]
        self._split = split
        self._skip = begin
        self._pump = asyncio.create_task(self._collect())

    def listen(self, listener: OutputListener) -> None:
        """Call this listener from now on, instead of the one before, until `unlisten`."""
        self._listeners.append(listener)

    def unlisten(self, listener: OutputListener | None) -> None:
        """Remove a listener. Does nothing if it is not listening."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def exited(self) -> bool:
        """Whether the process has ended or is lost."""
        return self.process.exit_code is not None or self.finished.is_set()

    async def collect(self, seconds: float | None) -> bool:
        """Wait for so many seconds, or until the end; returns whether the session is finished."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.finished.wait()
        return self.finished.is_set()

    def take(self) -> Snapshot:
        """The output since the last call. While more may come, an incomplete character is held back."""
        taken = self.both.drain()
        half = b"" if self.finished.is_set() else half_character(taken.tail or taken.head)
        self.position += taken.total_bytes - len(half)
        if not half:
            return taken
        self.both.push(half)
        head, tail = taken.head, taken.tail
        if tail:
            return Snapshot(head, tail[: -len(half)], taken.omitted_bytes)
        return Snapshot(head[: -len(half)], tail, taken.omitted_bytes)

    def take_lost(self) -> Lost:
        """The output that was lost since the last call."""
        lost, self._lost = self._lost, Lost(0, False)
        self.position += lost.size
        return lost

    async def kill(self) -> None:
        """Kill the process with all its descendants, and wait for the rest of its output."""
        await self.process.kill()
        await self.collect(KILLED_SECONDS)

    async def end(self, reason: str) -> None:
        """Kill the process with all its descendants, if it still runs, and stop collecting."""
        try:
            if not self.finished.is_set():
                self.ended = reason
                # Continues in the background if this is cancelled.
                await self.kill()
        finally:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def _collect(self) -> None:
        process = self.process
        output = asyncio.create_task(self._take_all())
        try:
            await process.wait()
            try:
                # A child in the background may hold the output open for hours.
                await process.linger()
            except ExecServerError:
                self._lost = Lost(self._lost.size, True)
        except ExecServerError as error:
            self.failure = error
        finally:
            output.cancel()
            self._took(process.output.discard())
            self.finished.set()
            await asyncio.wait({output})

    async def _take_all(self) -> None:
        while True:
            try:
                async for chunk in self.process:
                    self._took((chunk,))
                return
            except OutputGap as gap:
                self._took((gap,))
            except ExecServerError:
                return  # `process.wait` raises the same error

    def _took(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, OutputGap):
                size, more = self._lost
                lost = self._beyond_begin(piece.lost_bytes or 0)
                self._lost = Lost(size + lost, more or piece.lost_bytes is None)
                continue
            stream, data = piece
            data = data[len(data) - self._beyond_begin(len(data)) :]
            if not data:
                continue
            self.both.push(data)
            if self._split:
                self.streams.setdefault(stream, HeadTailBuffer()).push(data)
            if self._listeners:
                self._tell(self._listeners[-1], stream, data)

    def _beyond_begin(self, size: int) -> int:
        """How many of the next bytes are collected."""
        skipped = min(size, self._skip)
        self._skip -= skipped
        return size - skipped

    def _tell(self, listener: OutputListener, stream: str, data: bytes) -> None:
        try:
            listener(stream, data)
        except Exception:
            log.exception("a listener to the output of %s failed and is removed", self.process.id)
            self.unlisten(listener)


def half_character(data: bytes) -> bytes:
    """The incomplete UTF-8 character at the end."""
    for size in range(1, min(4, len(data) + 1)):
        first = data[-size]
        if first & 0xC0 == 0x80:
            continue  # not the first of its character
        whole = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
        return data[-size:] if size < whole and first <= 0xF4 else b""
    return b""

"""A process whose output is collected for a model, bounded, from its start to its end.

    collecting ──exited──> lingering ──closed, or LINGER_SECONDS──> finished
        └──the session or the connection is lost for good, or `end`──> finished

Rules kept in this file:

1. The output is taken as it comes, whether or not somebody asks for it: a model that never comes back holds
   up nobody, and costs no more than the buffer. What comes after `finished` is dropped unseen.
2. What `take` has given is not given again, and what was lost on the way is counted.
3. A listener that raises hears no more; the process and the others do not notice.
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

Listener = Callable[[str, bytes], None]
"""Told of each chunk: its stream and its bytes."""

KILLED_SECONDS = 1.0
"""For the end of a process after its death was confirmed. On a connection that is away it does not come."""


class Lost(NamedTuple):
    """Output that was dropped before it came to us."""

    size: int
    """Bytes, as far as that is known."""
    more: bool
    """Whether there was some whose amount is not known."""


class ExecSession:
    """One process.

    Args:
        process: it; this takes all its output.
        listener: told of output.
        split: keep the two streams apart, too.
    """

    def __init__(self, process: Process, listener: Listener | None = None, *, split: bool = False) -> None:
        self.process = process
        self.both = HeadTailBuffer()
        """All output since the last `take`."""
        self.streams: dict[str, HeadTailBuffer] = {}
        """With `split`: that of each stream."""
        self.failure: ExecServerError | None = None
        """Why its end will not be known."""
        self.ended: str | None = None
        """Why we ended it, if we did."""
        self.finished = asyncio.Event()
        """Set when nothing more will come, or is waited for."""
        self._lost = Lost(0, False)
        self._listeners = [] if listener is None else [listener]
        self._split = split
        self._pump = asyncio.create_task(self._collect())

    def listen(self, listener: Listener) -> None:
        """Tell this one of output from now on, and who was told before not until `unlisten`."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener | None) -> None:
        """Tell this one no more. Does nothing to one that is not told."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def exited(self) -> bool:
        """Whether the process has ended, or will never be heard of again."""
        return self.process.exit_code is not None or self.finished.is_set()

    async def collect(self, seconds: float | None) -> bool:
        """Let output come for so many seconds, or until its end; whether it has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.finished.wait()
        return self.finished.is_set()

    def take(self) -> Snapshot:
        """The output since the last time. While more may come, half a character waits for its other half."""
        taken = self.both.drain()
        half = b"" if self.finished.is_set() else half_character(taken.tail or taken.head)
        if not half:
            return taken
        self.both.push(half)
        head, tail = taken.head, taken.tail
        if tail:
            return Snapshot(head, tail[: -len(half)], taken.omitted_bytes)
        return Snapshot(head[: -len(half)], tail, taken.omitted_bytes)

    def take_lost(self) -> Lost:
        """What was lost since the last time."""
        lost, self._lost = self._lost, Lost(0, False)
        return lost

    async def kill(self) -> None:
        """Kill the process with all that came of it, and wait for the rest of what it has printed."""
        await self.process.kill()
        await self.collect(KILLED_SECONDS)

    async def end(self, reason: str) -> None:
        """Kill the process with all that came of it, if it still runs, and collect no more."""
        try:
            if not self.finished.is_set():
                self.ended = reason
                # Goes on in the background if this is cancelled.
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
                return  # whoever waits for the process is told, too

    def _took(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, OutputGap):
                size, more = self._lost
                self._lost = Lost(size + (piece.lost_bytes or 0), more or piece.lost_bytes is None)
                continue
            stream, data = piece
            self.both.push(data)
            if self._split:
                self.streams.setdefault(stream, HeadTailBuffer()).push(data)
            if self._listeners:
                self._tell(self._listeners[-1], stream, data)

    def _tell(self, listener: Listener, stream: str, data: bytes) -> None:
        try:
            listener(stream, data)
        except Exception:
            log.exception("a listener to the output of %s failed, and hears no more", self.process.id)
            self.unlisten(listener)


def half_character(data: bytes) -> bytes:
    """The bytes at the end that are the beginning of a character of UTF-8, and not all of it."""
    for size in range(1, min(4, len(data) + 1)):
        first = data[-size]
        if first & 0xC0 == 0x80:
            continue  # not the first of its character
        whole = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
        return data[-size:] if size < whole and first <= 0xF4 else b""
    return b""

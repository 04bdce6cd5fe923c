"""A process whose output is collected for a model, bounded, from its start to its end.

    collecting ──exited──> lingering ──closed, or LINGER_SECONDS──> finished
        └──the session or the connection is lost for good──> failed

Rules kept in this file:

1. The output is taken as it comes, whether or not somebody asks for it: a model that never comes back holds
   up nobody, and costs no more than the buffer.
2. What `take` has given is not given again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from execclient.errors import ExecServerError, OutputGap
from execclient.process import Process
from execclient.run import LINGER_SECONDS
from execclient.tools.head_tail import HeadTailBuffer, Snapshot

Listener = Callable[[str, bytes], None]
"""Told of each chunk: its stream and its bytes."""


class ExecSession:
    """One process.

    Args:
        process: it; this takes all its output.
        listener: told of output, until `listen` names another.
        split: keep the two streams apart, too.
    """

    def __init__(self, process: Process, listener: Listener | None = None, *, split: bool = False) -> None:
        self.process = process
        self.both = HeadTailBuffer()
        """All output since the last `take`."""
        self.streams: dict[str, HeadTailBuffer] = {}
        """With `split`: that of each stream."""
        self.lost_bytes = 0
        """Output that was dropped before it came here, as far as that is known."""
        self.failure: ExecServerError | None = None
        """Why its end will not be known."""
        self.finished = asyncio.Event()
        """Set when nothing more will come, or is waited for."""
        self._listener = listener
        self._split = split
        self._pump = asyncio.create_task(self._collect())

    def listen(self, listener: Listener | None) -> None:
        """Tell another one of output from now on."""
        self._listener = listener

    @property
    def exited(self) -> bool:
        """Whether the process has ended, or will never be heard of again."""
        return self.process.exit_code is not None or self.failure is not None

    async def collect(self, seconds: float | None) -> bool:
        """Let output come for so many seconds, or until its end; whether it has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.finished.wait()
        return self.finished.is_set()

    def take(self) -> Snapshot:
        """The output since the last time."""
        return self.both.drain()

    async def end(self) -> None:
        """Kill the process with all that came of it, if it still runs, and collect no more."""
        try:
            if not self.exited:
                # Goes on in the background if this is cancelled.
                await self.process._session.kill(self.process._inbox)  # noqa: SLF001 - one package
        finally:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    def release(self) -> None:
        """Collect no more, and leave the process alone."""
        self._pump.cancel()

    async def _collect(self) -> None:
        try:
            output = asyncio.create_task(self._take_all())
            try:
                await self.process.wait()
                # A child in the background may hold the output open for hours.
                await asyncio.wait({output}, timeout=LINGER_SECONDS)
                if output.done():
                    output.result()
            finally:
                output.cancel()
                await asyncio.wait({output})
        except ExecServerError as error:
            self.failure = error
        finally:
            self.finished.set()

    async def _take_all(self) -> None:
        while True:
            try:
                async for stream, data in self.process:
                    self._took(stream, data)
                return
            except OutputGap as gap:
                self.lost_bytes += gap.lost_bytes or 0

    def _took(self, stream: str, data: bytes) -> None:
        self.both.push(data)
        if self._split:
            self.streams.setdefault(stream, HeadTailBuffer()).push(data)
        if self._listener is not None:
            self._listener(stream, data)

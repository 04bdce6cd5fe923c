"""A process that was started: its output, its input, its end. `docs/protocol.md`, "Processes"."""

from __future__ import annotations

import asyncio
import codecs
import itertools
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self

from pybase64 import b64encode

from execclient.connection import Caller
from execclient.errors import (
    ExecServerError,
    NoSuchProcess,
    OutputGap,
    Refused,
    StdinUnavailable,
    SystemFailure,
)
from execclient.inbox import Chunk, Inbox, Page, page_from

WRITE_BYTES = 1 << 20
"""Input goes out in pieces of this size: far below what a message holds, far above what a pipe does."""


class TextChunk(NamedTuple):
    """A piece of output, decoded; characters are whole."""

    stream: str
    text: str


class Process:
    """A process. Get one from `Executor.start`.

    Iterating gives its output in order, from its first byte, as `(stream, data)`, until both
    streams have ended; one task at a time. `async for` may be left and begun again: it goes on
    where it was. Leaving `async with process:` kills the process if it still runs.
    """

    def __init__(self, call: Caller, inbox: Inbox, pid: int | None, call_timeout: float) -> None:
        self.id = inbox.id
        """The session's name for it."""
        self.pid = pid
        """The process id at the daemon; None from a server that does not tell."""
        self._call = call
        self._call_timeout = call_timeout
        self._inbox = inbox
        self._write_ids = itertools.count(1)
        self._write_turn = asyncio.Lock()

    # -- output

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk.

        Raises:
            OutputGap: some output was dropped here; iterate again for what follows it.
            SessionLost, NoSuchProcess: nothing more will come.
        """
        return await self._inbox.take()

    def text(self, encoding: str = "utf-8", errors: str = "replace") -> TextStream:
        """The same iteration as text, each stream decoded by a decoder of its own."""
        return TextStream(self, encoding, errors)

    async def read(self, after_seq: int = 0, *, max_bytes: int | None = None, wait: float = 0.0) -> Page:
        """Long poll: the output that the daemon keeps after a number. Takes nothing from the iteration.

        Args:
            after_seq: 0 for all; then the `next_seq - 1` of the page before.
            max_bytes: stop before the chunk that would exceed it, but give at least one.
            wait: seconds to wait when there is nothing yet. A wait that ran out gives an empty page.

        Raises:
            NoSuchProcess: the daemon does not know it any more.
        """
        params = {"processId": self.id, "afterSeq": after_seq, "waitMs": round(wait * 1000)}
        if max_bytes is not None:
            params["maxBytes"] = max_bytes
        try:
            return page_from(await self._call("process/read", params, limit=wait + self._call_timeout))
        except Refused as error:
            raise NoSuchProcess(error.message) from error

    # -- input

    async def write(self, data: bytes | str) -> None:
        """Write to the standard input; text as UTF-8. Returns when the daemon has accepted all of it.

        What was accepted reaches the process once and in order, also over a lost connection.

        Raises:
            StdinUnavailable: the process has none, or has closed it by ending.
            NoSuchProcess: the daemon does not know it any more.
        """
        payload = data.encode() if isinstance(data, str) else data
        async with self._write_turn:
            for start in range(0, len(payload), WRITE_BYTES):
                await self._write(payload[start : start + WRITE_BYTES])

    async def _write(self, piece: bytes) -> None:
        params = {
            "processId": self.id,
            "chunk": b64encode(piece).decode(),
            "writeId": str(next(self._write_ids)),
        }
        try:
            status = (await self._call("process/write", params))["status"]
        except SystemFailure as error:
            raise StdinUnavailable(f"process {self.id} takes no input any more: {error.message}") from error
        if status == "unknownProcess":
            raise NoSuchProcess(f"unknown process id {self.id}")
        if status != "accepted":
            raise StdinUnavailable(f"process {self.id} was started without stdin=True or tty=True ({status})")

    # -- the end

    @property
    def exit_code(self) -> int | None:
        """What the process exited with, 128 + N for death by signal N; None while it runs."""
        return self._inbox.exit_code

    async def wait(self) -> int:
        """Wait until the process has exited; its exit code.

        Output may still follow, from a child that it left behind: iterate, or `wait_closed`.
        """
        return await self._inbox.until_exited()

    async def wait_closed(self) -> None:
        """Wait until the process has exited and nobody holds its output open any more."""
        await self._inbox.until_closed()

    async def interrupt(self) -> None:
        """Send SIGINT to the process group. Does nothing to a process that has exited."""
        await self._call("process/signal", {"processId": self.id, "signal": "interrupt"})

    async def terminate(self, scope: Literal["group", "tree"] = "group") -> bool:
        """Kill the process at once, with SIGKILL. Returns whether it was running.

        Args:
            scope: `group` for its process group; `tree` for every descendant, also those that
                went into a session of their own or outlived it.
        """
        result = await self._call("process/terminate", {"processId": self.id, "scope": scope})
        return bool(result["running"])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exit_code is not None:
            return
        try:
            await self.terminate()
        except ExecServerError:
            # The block's own error says more than that the process could not be killed after it.
            if error is None:
                raise


class TextStream:
    """The output of a process as text. Get one from `Process.text`.

    A character whose bytes come in different chunks is one character. Bytes that are cut off,
    by the end of the output or by a gap, are what `errors` makes of them.
    """

    def __init__(self, process: Process, encoding: str, errors: str) -> None:
        self._process = process
        self._new_decoder = partial(codecs.getincrementaldecoder(encoding), errors)
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._decoded: deque[TextChunk] = deque()
        self._gap: OutputGap | None = None

    def __aiter__(self) -> AsyncIterator[TextChunk]:
        return self

    async def __anext__(self) -> TextChunk:
        """The next piece of text; raises what iterating the process raises."""
        while not self._decoded:
            if self._gap is not None:
                gap, self._gap = self._gap, None
                raise gap
            try:
                stream, data = await anext(self._process)
            except StopAsyncIteration:
                self._flush()
                if not self._decoded:
                    raise
            except OutputGap as gap:
                self._flush()
                self._gap = gap
            else:
                decoder = self._decoders.setdefault(stream, self._new_decoder())
                self._add(stream, decoder.decode(data))
        return self._decoded.popleft()

    def _flush(self) -> None:
        for stream, decoder in self._decoders.items():
            self._add(stream, decoder.decode(b"", final=True))
        self._decoders.clear()

    def _add(self, stream: str, text: str) -> None:
        if text:
            self._decoded.append(TextChunk(stream, text))

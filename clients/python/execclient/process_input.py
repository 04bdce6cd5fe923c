"""The standard input of a process, and talking to a process until its end."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from execclient import arguments
from execclient.connection.connection import Json
from execclient.deadlines import Deadlines
from execclient.errors import (
    ExecServerError,
    LineTooLong,
    NoSuchProcess,
    OutputGap,
    Refused,
    StdinUnavailable,
    SystemFailure,
)
from execclient.results import Chunk
from execclient.run_output import RunOutput
from execclient.session.inbox import Inbox, Piece
from execclient.session.replay import reference
from execclient.session.session import Session

WRITE_BYTES = 1 << 20
"""Input is sent in pieces of this size: far below the limit of a message, far above that of a pipe."""

BEYOND_SEQ = 2**63 - 1
"""After every number: a read after it returns the state and no output."""


class ProcessInput:
    """The standard input of a process: writes in their order, each once.

    Args:
        session: the session of the process.
        inbox: its events.
        deadlines: the client's own time limits, which notice input.
    """

    def __init__(self, session: Session, inbox: Inbox, deadlines: Deadlines | None) -> None:
        self._session = session
        self._inbox = inbox
        self._deadlines = deadlines
        self._reference = reference(inbox.key)
        self._ids = _write_ids()
        self._turn = asyncio.Lock()

    async def write(self, data: bytes, *, checked: bool) -> None:
        """As `Process.write`; `checked`: the daemon refuses a line that the terminal would cut."""
        async with self._turn:
            for start in range(0, len(data), WRITE_BYTES):
                try:
                    await self._write(data[start : start + WRITE_BYTES], checked=checked)
                except LineTooLong as error:
                    if start:
                        error.args = (f"{error}; the {start} bytes before were written",)
                    raise

    async def close(self) -> None:
        """As `Process.close_stdin`."""
        self._session.require("process/closeStdin")
        async with self._turn:  # after a write under way
            self._check((await self._session.call("process/closeStdin", self._reference))["status"])

    async def _write(self, piece: bytes, *, checked: bool) -> None:
        params = {**self._reference, "chunk": piece, "writeId": next(self._ids)}
        if checked:
            params["wholeLines"] = True
        try:
            status = (await self._patiently("process/write", params))["status"]
        except SystemFailure as error:
            text = f"process {self._inbox.id} no longer takes input: {error.message}"
            raise StdinUnavailable(text) from error
        self._check(status)
        if self._deadlines is not None:
            self._deadlines.touch()

    async def _patiently(self, method: str, params: Mapping[str, Json]) -> Json:
        """A call that may wait for the process to read, as long as the daemon responds to other calls."""
        call = asyncio.ensure_future(self._session.call(method, params, limit=math.inf))
        try:
            while not (await asyncio.wait({call}, timeout=self._session.call_timeout))[0]:
                await self._check_daemon()
            return call.result()
        finally:
            # If both calls failed at once, the exception of this one has not been retrieved.
            if not call.cancel() and not call.cancelled():
                call.exception()

    async def _check_daemon(self) -> None:
        try:
            await self._session.call("process/read", {**self._reference, "afterSeq": BEYOND_SEQ, "waitMs": 0})
        except Refused as error:
            raise NoSuchProcess(error.message) from error

    def _check(self, status: str) -> None:
        if status == "unknownProcess":
            raise NoSuchProcess(f"unknown process id {self._inbox.id}")
        if status != "accepted":
            raise StdinUnavailable(
                f"process {self._inbox.id} has no standard input, or it was closed: "
                f"start it with stdin=True or tty=True ({status})"
            )


def _write_ids() -> Iterator[str]:
    """Ids of writes, unique among all clients of the process."""
    token = arguments.new_id()
    for number in itertools.count(1):
        yield f"{token}-{number}"


class Partner(Protocol):
    """A process to talk to."""

    output: Inbox
    tty: bool | None

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def write(self, data: bytes | str) -> None:
        """Write to the standard input."""

    async def close_stdin(self) -> None:
        """Close the standard input."""


def end_of_file(*, at_line_start: bool) -> bytes:
    """What ends a terminal's input: Ctrl-D, twice within a line, where the first only ends the read."""
    return b"\x04" if at_line_start else b"\x04\x04"


def sending(process: Partner, data: bytes) -> asyncio.Task[None]:
    """A task that writes an input and ends it. Its failure is that of the process's events."""

    def sent(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), ExecServerError):
            process.output.fail(error)

    task = asyncio.create_task(_send_whole(process, data))
    task.add_done_callback(sent)
    return task


async def _send_whole(process: Partner, data: bytes) -> None:
    # A process need not read its input, and may exit before its end.
    with suppress(StdinUnavailable, NoSuchProcess):
        if process.tty:
            at_line_start = not data or data.endswith(b"\n")
            await process.write(data + end_of_file(at_line_start=at_line_start))
        else:
            await process.write(data)
            await process.close_stdin()


class Communication:
    """What `Process.communicate` has sent and received. A call that was cut off can be continued.

    Args:
        process: the process.
        stdin: whether it has a standard input, besides a terminal; None if that is not known.
    """

    def __init__(self, process: Partner, stdin: bool | None) -> None:
        self._process = process
        self._stdin = stdin
        self._output = RunOutput(None)
        self._sending: asyncio.Task[None] | None = None
        self._begun = False

    async def begin(self, given: bytes | str | None) -> None:
        """Send the input in the background; without one, only end it.

        Raises:
            StdinUnavailable: there is no standard input for it.
            ValueError: an earlier call had an input.
        """
        if given is None:
            data = b"" if self._stdin and not self._process.tty and not self._begun else None
        elif self._sending is not None:
            raise ValueError("input was given to the first call: call communicate() without it for the rest")
        elif self._stdin is False and not self._process.tty:
            raise StdinUnavailable("the process has no standard input: start it with stdin=True or tty=True")
        else:
            data = arguments.data(given, "input")
        self._begun = True
        if data is not None:
            self._sending = sending(self._process, data)

    def add(self, piece: Piece) -> None:
        """Keep a piece of output."""
        self._output.add(piece)

    async def collect(self) -> None:
        """Keep all output, until its end."""
        while True:
            try:
                async for chunk in self._process:
                    self._output.add(chunk)
            except OutputGap as gap:
                self._output.add(gap)
            else:
                return

    async def result(self) -> tuple[bytes, bytes]:
        """The output, after its end and that of the process. Raises `OutputGap`."""
        code = await self._process.output.until_exited()
        result = self._output.result(code, 0.0, cause=self._process.output.cause)
        return result.stdout, result.stderr

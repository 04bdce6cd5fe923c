"""A process that was started: its output, its input, its end. `docs/protocol.md`, "Processes"."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import math
import signal as signals
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self

from pybase64 import b64encode

from execclient import arguments
from execclient.connection.connection import Json
from execclient.deadlines import Deadlines
from execclient.errors import (
    ExecServerError,
    NoSuchProcess,
    OutputGap,
    Refused,
    StdinUnavailable,
    SystemFailure,
    Unsupported,
    WaitTimeout,
)
from execclient.identifiers import new_id
from execclient.run import LINGER_SECONDS
from execclient.session.inbox import Chunk, Inbox, Page, page_from
from execclient.session.replay import reference
from execclient.session.session import Session

WRITE_BYTES = 1 << 20
"""Input goes out in pieces of this size: far below what a message holds, far above what a pipe does."""

BEYOND_SEQ = 2**63 - 1
"""Behind every number: a read after it gives the state and no output."""

Scope = Literal["group", "leader", "tree"]


class TextChunk(NamedTuple):
    """A piece of output, decoded; characters are whole."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What the daemon says of one process. `docs/protocol.md`, "Processes of other sessions"."""

    process_id: str
    session_id: str
    pid: int
    state: str
    """`running`, `exited` (but its output is held open), or `closed`."""
    tty: bool
    size: tuple[int, int] | None
    """Rows and columns of its terminal."""
    started_at_ms: int
    """Milliseconds since 1970."""
    age_ms: int
    """Milliseconds since the start, by a clock that nobody sets."""
    exit_code: int | None
    cause: str | None
    last_seq: int
    """The number of its last event."""
    retained_bytes: int
    """Output that can still be read."""
    cpu_seconds: float | None
    """Processor time of the process and its living descendants, like the next two."""
    rss_bytes: int | None
    process_count: int | None
    argv: tuple[str, ...] | None
    """None unless it was asked for, like `cwd`."""
    cwd: str | None

    @classmethod
    def decode(cls, item: Mapping[str, Json]) -> Self:
        """One item of the answer to `process/list`."""
        size = item.get("size")
        argv = item.get("argv")
        return cls(
            process_id=item["processId"],
            session_id=item["sessionId"],
            pid=item["pid"],
            state=item["state"],
            tty=item["tty"],
            size=(size["rows"], size["cols"]) if size else None,
            started_at_ms=item["startedAtMs"],
            age_ms=item["ageMs"],
            exit_code=item.get("exitCode"),
            cause=item.get("cause"),
            last_seq=item["lastSeq"],
            retained_bytes=item["retainedBytes"],
            cpu_seconds=item.get("cpuSeconds"),
            rss_bytes=item.get("rssBytes"),
            process_count=item.get("processCount"),
            argv=None if argv is None else tuple(argv),
            cwd=item.get("cwd"),
        )


class Process:
    """A process. Get one from `Executor.start` or `Executor.attach`.

    Iterating gives its output in order, from its first byte, as `(stream, data)`, until both
    streams have ended; one task at a time. `async for` may be left and begun again: it goes on
    where it was. Leaving `async with process:` kills the process if it still runs; another
    session's process is only left alone.
    """

    def __init__(
        self,
        session: Session,
        inbox: Inbox,
        *,
        pid: int | None = None,
        program: str | None = None,
        cwd: str | None = None,
        tty: bool | None = None,
        confined: bool = False,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.id = inbox.id
        """The session's name for it."""
        self.pid = pid
        """The process id at the daemon; None from a server that does not tell."""
        self.program = program
        """As it was given to `start`; None for one that was attached to."""
        self.cwd = cwd
        """Its working directory at the start, absolute; None likewise."""
        self.tty = tty
        """Whether it has a terminal; None for one that was attached to and whose server does not tell."""
        self._session = session
        self._inbox = inbox
        self._reference = reference(inbox.key)
        self._confined = confined
        self._deadlines = deadlines
        self._detached = False
        self._write_ids = _write_ids()
        self._write_turn = asyncio.Lock()

    @property
    def session_id(self) -> str:
        """The session that owns it."""
        return self._inbox.session_id or self._session.id

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
        wait = max(0.0, arguments.any_seconds(wait, "wait", "0 gives what there is"))
        params = {
            **self._reference,
            "afterSeq": arguments.count(after_seq, "after_seq"),
            "waitMs": round(min(wait, arguments.LONGEST_SECONDS) * 1000),
        }
        if max_bytes is not None:
            params["maxBytes"] = arguments.count(max_bytes, "max_bytes")
        limit = wait + self._session.call_timeout
        try:
            return page_from(await self._session.call("process/read", params, limit=limit))
        except Refused as error:
            raise NoSuchProcess(error.message) from error

    # -- input

    async def write(self, data: bytes | str) -> None:
        """Write to the standard input; text as UTF-8. Returns when the daemon has accepted all of it.

        The daemon keeps 64 MiB for a process that does not read; then this waits, as long as it takes.
        What was accepted reaches the process once and in order, also over a lost connection.

        Raises:
            StdinUnavailable: the process has none, or has closed it by ending.
            NoSuchProcess: the daemon does not know it any more.
        """
        payload = arguments.data(data, "data")
        async with self._write_turn:
            for start in range(0, len(payload), WRITE_BYTES):
                await self._write(payload[start : start + WRITE_BYTES])

    async def _write(self, piece: bytes) -> None:
        params = {**self._reference, "chunk": b64encode(piece).decode(), "writeId": next(self._write_ids)}
        try:
            status = (await self._patiently("process/write", params))["status"]
        except SystemFailure as error:
            raise StdinUnavailable(f"process {self.id} takes no input any more: {error.message}") from error
        self._check_input(status)
        if self._deadlines is not None:
            self._deadlines.touch()

    async def _patiently(self, method: str, params: Mapping[str, Json]) -> Json:
        """A call that may wait for the process to read, for as long as the daemon answers others."""
        call = asyncio.ensure_future(self._session.call(method, params, limit=math.inf))
        try:
            while not (await asyncio.wait({call}, timeout=self._session.call_timeout))[0]:
                await self.read(BEYOND_SEQ)
            return call.result()
        finally:
            # One that failed just as its question failed has told nobody.
            if not call.cancel() and not call.cancelled():
                call.exception()

    async def close_stdin(self) -> None:
        """End the standard input: the process reads what was written before, then end of file.

        May be called again. On a terminal write 0x04 at the start of a line instead.

        Raises:
            StdinUnavailable: the process was started without `stdin=True`.
            Refused: it has a terminal.
            NoSuchProcess: the daemon does not know it any more.
            Unsupported: the server does not serve `process/closeStdin`.
        """
        self._session.require("process/closeStdin")
        async with self._write_turn:  # behind a write that is under way
            self._check_input((await self._session.call("process/closeStdin", self._reference))["status"])

    def _check_input(self, status: str) -> None:
        if status == "unknownProcess":
            raise NoSuchProcess(f"unknown process id {self.id}")
        if status != "accepted":
            raise StdinUnavailable(
                f"process {self.id} has no standard input, or it was closed: "
                f"start it with stdin=True or tty=True ({status})"
            )

    async def resize(self, rows: int, cols: int) -> bool:
        """Tell the terminal its size, 1 to 65535 each; the process gets SIGWINCH.

        Returns:
            Whether the process still runs.

        Raises:
            Refused: it has no terminal, or the right to resize is somebody else's: it is the
                owner's and that of whoever attached last with `interactive=True`.
            Unsupported: the server does not serve `process/resize`.
        """
        size = arguments.terminal_size((rows, cols))
        self._session.require("process/resize")
        params = {**self._reference, "size": size}
        return bool((await self._session.call("process/resize", params))["running"])

    # -- the end

    @property
    def exit_code(self) -> int | None:
        """What the process exited with, 128 + N for death by signal N; None while it runs."""
        return self._inbox.exit_code

    @property
    def cause(self) -> str | None:
        """Why the process ended: `normal`, `signal`, `timeout`, … (`docs/protocol.md`, X8).

        None while it runs, and from a server that does not tell.
        """
        return self._inbox.cause

    @property
    def failure(self) -> str | None:
        """What broke the sandbox before the command began (C35), once `wait` has found that out."""
        return self._inbox.broken_sandbox

    @property
    def denial(self) -> Mapping[str, Json] | None:
        """Whether a sandbox was in the way, with evidence (X7); None while the process runs."""
        return self._inbox.denial

    async def wait(self, timeout: float | None = None) -> int:  # noqa: ASYNC109 - the process goes on
        """Wait until the process has exited; its exit code.

        Output may still follow, from a child that it left behind: iterate, or `wait_closed`.

        Args:
            timeout: seconds to wait, at most.

        Raises:
            WaitTimeout: it did not exit in that time, and goes on.
            SessionLost, NoSuchProcess: its end will not be known.
        """
        try:
            async with asyncio.timeout(arguments.waiting(timeout)):
                code = await self._inbox.until_exited()
                if code and self._confined and self._inbox.broken_sandbox is None:
                    await self._ask_for_failure()
                return code
        except ExecServerError as error:
            error.about(program=self.program, cwd=self.cwd)
            raise
        except TimeoutError:
            late = WaitTimeout(f"process {self.id} did not exit within {timeout:g} s")
            raise late.about(program=self.program, cwd=self.cwd) from None

    async def wait_closed(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the process goes on
        """Wait until the process has exited and nobody holds its output open any more.

        Args:
            timeout: seconds to wait, at most.

        Raises:
            WaitTimeout: that was not so in that time.
            SessionLost, NoSuchProcess: its end will not be known.
        """
        try:
            async with asyncio.timeout(arguments.waiting(timeout)):
                await self._inbox.until_closed()
        except ExecServerError as error:
            error.about(program=self.program, cwd=self.cwd)
            raise
        except TimeoutError:
            late = WaitTimeout(f"process {self.id} did not close within {timeout:g} s")
            raise late.about(program=self.program, cwd=self.cwd) from None

    async def signal(self, sig: str | int | signals.Signals, scope: Scope = "group") -> bool:
        """Send a signal. Returns whether there was a process to take it: False once it has exited.

        Args:
            sig: a name (`SIGHUP`, `HUP`, `SIGRTMIN+3`), or a number of this machine.
            scope: the process `group`, the `leader` alone, or the `tree`: all that came of it.

        Raises:
            ValueError: there is no such signal.
            NoSuchProcess: the daemon does not know it any more.
            Unsupported: the server sends nothing but interrupts to a group.
        """
        name = signal_name(sig)
        if "process/signal.scope" in self._session.capabilities:
            params = {**self._reference, "signal": name, "scope": scope}
        elif (name, scope) == ("SIGINT", "group"):
            params = {**self._reference, "signal": "interrupt"}
        else:
            raise Unsupported("process/signal.scope")
        told = "delivered" if self.exit_code is None else "alreadyExited"
        status = (await self._session.call("process/signal", params)).get("status", told)
        if status == "unknownProcess" and self.exit_code is None:
            raise NoSuchProcess(f"unknown process id {self.id}")
        return bool(status == "delivered")

    async def interrupt(self) -> None:
        """Send SIGINT to the process group. Does nothing to a process that has exited."""
        await self._session.call("process/signal", {**self._reference, "signal": "interrupt"})

    async def terminate(self, scope: Literal["group", "tree"] = "group") -> bool:
        """Kill the process at once, with SIGKILL. Returns whether it was running.

        Args:
            scope: `group` for its process group; `tree` for every descendant, also those that
                went into a session of their own or outlived it.

        Raises:
            Unsupported: the server knows no `tree`.
        """
        if scope == "tree":
            self._session.require("process/terminate.scope")
        result = await self._session.call("process/terminate", {**self._reference, "scope": scope})
        return bool(result["running"])

    async def detach(self) -> None:
        """Let go of it: no more output comes here, and neither leaving a block nor closing kills it.

        With a process of ours the session is kept, too: both live on until the daemon ends them, as with
        `connect(keep=True)`. What else was started there is killed at the end.
        """
        self._detached = True
        if self._inbox.session_id is None:
            self._session.let_go.add(self.id)
        self._cancel_deadlines()
        await self._session.detach(self._inbox)

    def _cancel_deadlines(self) -> None:
        """Stop keeping the time limits that the server does not keep."""
        if self._deadlines is not None:
            self._deadlines.cancel()

    async def _ask_for_failure(self) -> None:
        with suppress(NoSuchProcess):
            page = await self.read(BEYOND_SEQ)
            self._inbox.broken_sandbox = page.failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._detached or (self.exit_code is not None and self._inbox.session_id is None):
            return
        try:
            if self._inbox.session_id is None:
                await self.terminate()
            else:
                await self.detach()
        except ExecServerError:
            # The block's own error says more than that the process could not be killed after it.
            if error is None:
                raise
        except BaseException:
            # Cancelled, or interrupted, once more: it is killed all the same, only nobody waits for it.
            if self._inbox.session_id is None:
                self._session.terminate_soon(self.id, "group")
            raise


async def until_silent(session: Session, inbox: Inbox) -> None:
    """Wait for the rest of the output of a process that has exited, `LINGER_SECONDS` at most.

    Raises:
        SessionLost, ExecutorClosed: there is no session any more.
    """
    while not inbox.closed:
        connection = await session.connected()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await inbox.until_closed()
        except ExecServerError:
            raise
        except TimeoutError:
            pass
        else:
            return
        # One that was lost meanwhile may have had the rest on its way.
        if await session.connected() is connection:
            return


def _write_ids() -> Iterator[str]:
    """Ids of writes that no other client of the process gives, this one after a restart included."""
    token = new_id()
    for number in itertools.count(1):
        yield f"{token}-{number}"


def signal_name(sig: str | int | signals.Signals) -> str:
    """The POSIX name of a signal, as the wire has it.

    Raises:
        TypeError: it is neither a name nor a number.
        ValueError: this machine has no such signal.
    """
    if isinstance(sig, str):
        name = sig.upper()
        return name if name.startswith("SIG") else f"SIG{name}"
    if not isinstance(sig, int) or isinstance(sig, bool):
        raise TypeError(f"sig is a name as 'TERM' or a number, not {type(sig).__name__}")
    if signals.SIGRTMIN < sig < signals.SIGRTMAX:
        return f"SIGRTMIN+{sig - signals.SIGRTMIN}"
    try:
        return signals.Signals(sig).name
    except ValueError:
        raise ValueError(
            f"there is no signal {sig} on this machine: give a name as 'TERM', or its number"
        ) from None


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

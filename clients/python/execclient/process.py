"""A started process: its output, its input, its end. `docs/protocol.md`, "Processes"."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import math
import signal as signals
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, Self

from pybase64 import b64encode

from execclient import arguments
from execclient.connection.connection import Json
from execclient.errors import (
    ExecServerError,
    LineTooLong,
    NoSuchProcess,
    OutputGap,
    Refused,
    StdinUnavailable,
    SystemFailure,
    Unsupported,
    WaitTimeout,
)
from execclient.results import Chunk, Page, TextChunk
from execclient.session.inbox import Inbox
from execclient.session.replay import reference
from execclient.session.session import Session

WRITE_BYTES = 1 << 20
"""Input is sent in pieces of this size: far below the limit of a message, far above that of a pipe."""

BEYOND_SEQ = 2**63 - 1
"""After every number: a read after it returns the state and no output."""

LINGER_SECONDS = 0.5
"""How long to wait for the end of the output after the exit of the process. A background child may keep the
output open for hours."""

Scope = Literal["group", "leader", "tree"]


class Deadlines:
    """Kills a process and its descendants when it has run or been silent for too long.

    For a server that does not enforce the limits itself. A daemon that does enforces them also without a
    connection (`docs/protocol.md`, P17 and P18).

    Args:
        session: the session of the process.
        inbox: its events, from before the start.
        run: seconds that it may run, from `begin`.
        idle: seconds without output and without input.
    """

    def __init__(self, session: Session, inbox: Inbox, run: float | None, idle: float | None) -> None:
        self._session = session
        self._inbox = inbox
        self._clock = inbox.clock = asyncio.get_running_loop().time
        self._run = run
        self._end = math.inf
        self._idle = idle
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The process has started."""
        self.touch()
        if self._run is not None:
            self._end = self._clock() + self._run
        self._task = asyncio.create_task(self._enforce())

    def touch(self) -> None:
        """The process is not idle."""
        self._inbox.active_at = self._clock()

    def cancel(self) -> None:
        """Enforce the limits no longer."""
        if self._task is not None:
            self._task.cancel()

    async def _enforce(self) -> None:
        try:
            while not await self._inbox.exits_within(self._due()[0] - self._clock()):
                due, cause = self._due()
                if due <= self._clock():
                    self._inbox.forced_cause = cause
                    await self._session.kill(self._inbox)
                    return
        except ExecServerError:
            pass  # the end will not be known, and there is no caller to report this to

    def _due(self) -> tuple[float, str]:
        dues = [(self._end, "timeout")]
        if self._idle is not None:
            dues.append((self._inbox.active_at + self._idle, "idleTimeout"))
        return min(dues)


class Process:
    """A process. Get one from `Executor.start` or `Executor.attach`.

    Iterating yields the output in order, from its first byte, as `(stream, data)`, until both streams have
    ended; by one task at a time. `async for` may be left and begun again: it continues where it was. Leaving
    `async with process:` kills the process if it still runs, unless it belongs to another session.
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
        """Its name in the session."""
        self.pid = pid
        """The process id at the daemon; None if the server does not report it."""
        self.program = program
        """As given to `start`; None for an attached process."""
        self.cwd = cwd
        """Its working directory at the start, absolute; None for an attached process."""
        self.tty = tty
        """Whether it has a terminal; None for an attached process if the server does not report it."""
        self.output = inbox
        """The waiting output and the events. Internal: it may change between versions."""
        self._session = session
        self._reference = reference(inbox.key)
        self._confined = confined
        self._deadlines = deadlines
        self._detached = False
        self._write_ids = _write_ids()
        self._write_turn = asyncio.Lock()

    @property
    def session_id(self) -> str:
        """The session that owns it."""
        return self.output.session_id or self._session.id

    # -- output

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk.

        Raises:
            OutputGap: output was lost here; iterate again for the output that follows.
            SessionLost, NoSuchProcess: no more output will arrive.
        """
        return await self.output.take()

    def text(self, encoding: str = "utf-8", errors: str = "replace") -> TextStream:
        """The same iteration as text. Each stream has its own decoder."""
        return TextStream(self, encoding, errors)

    async def read(self, after_seq: int = 0, *, max_bytes: int | None = None, wait: float = 0.0) -> Page:
        """Long poll: the output that the daemon keeps after a number. The iteration is not affected.

        Args:
            after_seq: 0 for all; then `next_seq - 1` of the page before.
            max_bytes: stop before the chunk that would exceed it, but return at least one.
            wait: seconds to wait if there is no output yet. After that the page is empty.

        Raises:
            NoSuchProcess: the daemon has forgotten the process.
        """
        wait = max(0.0, arguments.any_seconds(wait, "wait", "0 does not wait"))
        params = {
            **self._reference,
            "afterSeq": arguments.count(after_seq, "after_seq"),
            "waitMs": round(min(wait, arguments.LONGEST_SECONDS) * 1000),
        }
        if max_bytes is not None:
            params["maxBytes"] = arguments.count(max_bytes, "max_bytes")
        limit = wait + self._session.call_timeout
        try:
            return Page.decode(await self._session.call("process/read", params, limit=limit))
        except Refused as error:
            raise NoSuchProcess(error.message) from error

    # -- input

    async def write(self, data: bytes | str, *, whole_lines: bool = True) -> None:
        """Write to the standard input; text as UTF-8. Returns when the daemon has accepted all data.

        The daemon buffers 64 MiB for a process that does not read; after that this call waits, without limit.
        Accepted data reaches the process once and in order, also after a lost connection.

        Args:
            data: the input.
            whole_lines: whether a line that a terminal would cut is an error. A terminal in canonical mode,
                in which `cat` and `read` get whole lines, takes 4,095 bytes of a line and drops the rest; the
                prompt of a shell has no such limit. Start the command with `stdin=True` instead of
                `tty=True`, write the text to a file, or break the line. False is for what a person types.

        Raises:
            LineTooLong: nothing was written, or, of more than 1 MiB, only what the message says.
            StdinUnavailable: the process has no standard input, or has exited.
            NoSuchProcess: the daemon has forgotten the process.
        """
        payload = arguments.data(data, "data")
        async with self._write_turn:
            checked = whole_lines and self.tty and "process/write.wholeLines" in self._session.capabilities
            for start in range(0, len(payload), WRITE_BYTES):
                try:
                    await self._write(payload[start : start + WRITE_BYTES], checked=bool(checked))
                except LineTooLong as error:
                    if start:
                        error.args = (f"{error}; the {start} bytes before were written",)
                    raise

    async def _write(self, piece: bytes, *, checked: bool) -> None:
        params = {**self._reference, "chunk": b64encode(piece).decode(), "writeId": next(self._write_ids)}
        if checked:
            params["wholeLines"] = True
        try:
            status = (await self._patiently("process/write", params))["status"]
        except SystemFailure as error:
            raise StdinUnavailable(f"process {self.id} no longer takes input: {error.message}") from error
        self._check_input(status)
        if self._deadlines is not None:
            self._deadlines.touch()

    async def _patiently(self, method: str, params: Mapping[str, Json]) -> Json:
        """A call that may wait for the process to read, as long as the daemon responds to other calls."""
        call = asyncio.ensure_future(self._session.call(method, params, limit=math.inf))
        try:
            while not (await asyncio.wait({call}, timeout=self._session.call_timeout))[0]:
                await self.read(BEYOND_SEQ)
            return call.result()
        finally:
            # If both calls failed at once, the exception of this one has not been retrieved.
            if not call.cancel() and not call.cancelled():
                call.exception()

    async def close_stdin(self) -> None:
        """Close the standard input: the process reads the data written before, then end of file.

        May be called again. On a terminal, write 0x04 at the start of a line instead.

        Raises:
            StdinUnavailable: the process was started without `stdin=True`.
            Refused: it has a terminal.
            NoSuchProcess: the daemon has forgotten the process.
            Unsupported: the server does not serve `process/closeStdin`.
        """
        self._session.require("process/closeStdin")
        async with self._write_turn:  # after a write under way
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
        """Set the size of the terminal, 1 to 65535 each; the process gets SIGWINCH.

        Returns:
            Whether the process still runs.

        Raises:
            Refused: the process has no terminal, or this client may not resize it: the owner may, and the
                client that attached last with `interactive=True`.
            Unsupported: the server does not serve `process/resize`.
        """
        size = arguments.terminal_size((rows, cols))
        self._session.require("process/resize")
        params = {**self._reference, "size": size}
        return bool((await self._session.call("process/resize", params))["running"])

    # -- the end

    @property
    def exit_code(self) -> int | None:
        """The exit code, 128 + N for death by signal N; None while the process runs."""
        return self.output.exit_code

    @property
    def cause(self) -> str | None:
        """Why the process ended: `normal`, `signal`, `timeout`, … (`docs/protocol.md`, X8).

        None while it runs, or if the server does not report causes.
        """
        return self.output.cause

    @property
    def failure(self) -> str | None:
        """Why the sandbox failed before the command began (C35); known after `wait`."""
        return self.output.broken_sandbox

    @property
    def denial(self) -> Mapping[str, Json] | None:
        """Whether the sandbox denied something, with evidence (X7); None while the process runs."""
        return self.output.denial

    @property
    def ended_with_sandbox(self) -> Mapping[str, Json] | None:
        """The processes that the command left running and its sandbox ended (X18): `count` and `names`.

        None while the process runs, and if there are none or the server does not report them.
        """
        return self.output.ended_with_sandbox

    async def wait(self, timeout: float | None = None) -> int:  # noqa: ASYNC109 - the process runs on
        """Wait until the process has exited; its exit code.

        Output may still follow, from a background child: iterate, or use `wait_closed`.

        Args:
            timeout: seconds to wait at most.

        Raises:
            WaitTimeout: the process did not exit in time, and runs on.
            SessionLost, NoSuchProcess: the end of the process will not be known.
        """
        try:
            async with asyncio.timeout(arguments.waiting(timeout)):
                code = await self.output.until_exited()
                if code and self._confined and self.output.broken_sandbox is None:
                    await self._ask_for_failure()
                return code
        except ExecServerError as error:
            error.about(program=self.program, cwd=self.cwd)
            raise
        except TimeoutError:
            late = WaitTimeout(f"process {self.id} did not exit within {timeout:g} s")
            raise late.about(program=self.program, cwd=self.cwd) from None

    async def wait_closed(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the process runs on
        """Wait until the process has exited and no process keeps its output open.

        Args:
            timeout: seconds to wait at most.

        Raises:
            WaitTimeout: that did not happen in time.
            SessionLost, NoSuchProcess: the end of the process will not be known.
        """
        try:
            async with asyncio.timeout(arguments.waiting(timeout)):
                await self.output.until_closed()
        except ExecServerError as error:
            error.about(program=self.program, cwd=self.cwd)
            raise
        except TimeoutError:
            late = WaitTimeout(f"process {self.id} did not close within {timeout:g} s")
            raise late.about(program=self.program, cwd=self.cwd) from None

    async def linger(self) -> None:
        """After the exit, wait for the rest of the output, at most 500 ms.

        Raises:
            SessionLost, ExecutorClosed: the session has ended.
        """
        await linger(self._session, self.output)

    async def signal(self, sig: str | int | signals.Signals, scope: Scope = "group") -> bool:
        """Send a signal. Returns whether it was delivered: False if the process has exited.

        Args:
            sig: a name (`SIGHUP`, `HUP`, `SIGRTMIN+3`), or a number of this machine.
            scope: the process `group`, the `leader` alone, or the `tree` of all descendants.

        Raises:
            ValueError: there is no such signal.
            NoSuchProcess: the daemon has forgotten the process.
            Unsupported: the server only sends interrupts to a group.
        """
        name = signal_name(sig)
        if "process/signal.scope" in self._session.capabilities:
            params = {**self._reference, "signal": name, "scope": scope}
        elif (name, scope) == ("SIGINT", "group"):
            params = {**self._reference, "signal": "interrupt"}
        else:
            raise Unsupported("process/signal.scope")
        default = "delivered" if self.exit_code is None else "alreadyExited"
        status = (await self._session.call("process/signal", params)).get("status", default)
        if status == "unknownProcess" and self.exit_code is None:
            raise NoSuchProcess(f"unknown process id {self.id}")
        return bool(status == "delivered")

    async def interrupt(self) -> None:
        """Send SIGINT to the process group. Does nothing to a process that has exited."""
        await self._session.call("process/signal", {**self._reference, "signal": "interrupt"})

    async def terminate(self, scope: Literal["group", "tree"] = "group") -> bool:
        """Kill the process at once, with SIGKILL. Returns whether it was running.

        Args:
            scope: `group` for its process group; `tree` for all descendants, including those with a session
                of their own and those that outlived the process.

        Raises:
            Unsupported: the server does not serve `tree`.
        """
        if scope == "tree":
            self._session.require("process/terminate.scope")
        result = await self._session.call("process/terminate", {**self._reference, "scope": scope})
        return bool(result["running"])

    async def kill(self) -> None:
        """Kill the process and all its descendants, even if the connection is lost at the moment.

        Waits for the daemon's response, some seconds at most, and raises no error. If cancelled, it continues
        in the background. A server without `process/terminate.scope` kills the group.
        """
        await self._session.kill(self.output)

    async def detach(self) -> None:
        """Detach from the process: no more output arrives, and leaving a block or closing does not kill it.

        If the process belongs to this session, the session is kept, too: both run on until the daemon ends
        them, as with `connect(keep=True)`. Other processes of the session are killed at its end.
        """
        self._detached = True
        if self.output.session_id is None:
            self._session.detached.add(self.id)
        if self._deadlines is not None:
            self._deadlines.cancel()
        await self._session.detach(self.output)

    async def _ask_for_failure(self) -> None:
        with suppress(NoSuchProcess):
            page = await self.read(BEYOND_SEQ)
            self.output.broken_sandbox = page.failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._detached or (self.exit_code is not None and self.output.session_id is None):
            return
        try:
            if self.output.session_id is None:
                await self.terminate()
            else:
                await self.detach()
        except ExecServerError:
            # The error of the block is more useful than the failure to kill the process after it.
            if error is None:
                raise
        except BaseException:
            # Cancelled or interrupted once more: the process is killed all the same, in the background.
            if self.output.session_id is None:
                self._session.terminate_soon(self.id, "group")
            raise


async def linger(session: Session, inbox: Inbox) -> None:
    """Wait for the rest of the output of an exited process, `LINGER_SECONDS` at most.

    Raises:
        SessionLost, ExecutorClosed: the session has ended.
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
        # If the connection was lost meanwhile, the rest may have been under way.
        if await session.connected() is connection:
            return


def _write_ids() -> Iterator[str]:
    """Ids of writes, unique among all clients of the process."""
    token = arguments.new_id()
    for number in itertools.count(1):
        yield f"{token}-{number}"


def signal_name(sig: str | int | signals.Signals) -> str:
    """The POSIX name of a signal, for the wire.

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

    Characters are whole, even if their bytes are in different chunks. `errors` says how to decode a character
    that is cut off by the end of the output or by a gap.
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
        """The next piece of text. Raises as iterating the process does."""
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

"""A started process: its output, its input, its end. `docs/protocol.md`, "Processes"."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Literal, Self

from execclient import arguments
from execclient.connection.connection import Json
from execclient.deadlines import Deadlines
from execclient.errors import ExecServerError, NoSuchProcess, Refused
from execclient.output_text import MAX_LINE, LineOptions, LineStream, TextStream, begun
from execclient.process_control import (
    Scope,
    check_scope,
    deprecated_scope,
    described,
    end_group,
    linger,
    send_signal,
    signal_name,
    within,
)
from execclient.process_input import BEYOND_SEQ, Communication, ProcessInput
from execclient.results import Chunk, Page
from execclient.session.inbox import Inbox
from execclient.session.replay import reference
from execclient.session.session import Session


class Process:
    """A process. Get one from `Executor.start` or `Executor.attach`.

    Iterating yields the output in order, from its first byte, as `(stream, data)`, until both streams have
    ended; by one task at a time. `async for` may be left and continued. Leaving `async with process:` kills
    the process if it runs, and waits for its exit, some seconds at most, unless it is of another session.
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
        stdin: bool | None = None,
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
        self.snapshot_obstacle: str | None = None
        """Why it runs in a login shell in spite of a `shell_snapshot`; None if it does not, or if unknown."""
        self.audit: int | None = None
        """The number of its start in the daemon's audit folder; None without one, or if attached."""
        self.output = inbox
        """The waiting output and the events. Internal: it may change between versions."""
        self._session = session
        self._reference = reference(inbox.key)
        self._confined = confined
        self._deadlines = deadlines
        self._detached = False
        self._input = ProcessInput(session, inbox, deadlines)
        self._stdin = stdin
        self._lines: tuple[LineStream, LineOptions] | None = None

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

    def lines(
        self, encoding: str = "utf-8", errors: str = "replace", *, max_line: int = MAX_LINE
    ) -> LineStream:
        """The same iteration as whole lines of text, without their ends (LF or CR LF).

        It may be left and begun again, with the same arguments. Other iterations do not see a begun line.

        Args:
            encoding: of the output; each stream has its own decoder.
            errors: what to do with bytes that are not text, as in `bytes.decode`.
            max_line: characters that wait for a line's end; a longer line comes in pieces, `ended` False.
        """
        options = (encoding, errors, max_line)
        self._lines = self._lines or (LineStream(self, *options), options)
        return begun(*self._lines, options)

    async def communicate(
        self,
        input: bytes | str | None = None,  # noqa: A002 - as in `subprocess`
        timeout: float | None = None,  # noqa: ASYNC109 - the process runs on
    ) -> tuple[bytes, bytes]:
        """Write the input, close the standard input, and read to the end; the standard output and error.

        With a terminal all output is in the first. Waits, like `subprocess`, until no process keeps the
        output open, and collects it without limit.

        Args:
            input: text as UTF-8; None only closes the standard input, if there is one.
            timeout: seconds to wait at most; a second call, without `input`, continues and returns it all.

        Raises:
            StdinUnavailable: there is an `input`, and the process was started without `stdin=True`.
            OutputGap: some output was lost; the exception has the `result`.
            WaitTimeout, SessionLost, NoSuchProcess: as for `wait`.
        """
        async with within(self, timeout, "end"):
            await self.communication.begin(input)
            await self.communication.collect()
            return await self.communication.result()

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
        times = {"waitMs": round(min(wait, arguments.LONGEST_SECONDS) * 1000)}
        params = {**self._reference, "afterSeq": arguments.count(after_seq, "after_seq"), **times}
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
            whole_lines: whether a line that a terminal would cut is an error: where `cat` or `read` waits for
                input, it takes 4,095 bytes of a line and drops the rest. `stdin=True` in place of `tty=True`
                has no such limit. False is for what a person types.

        Raises:
            LineTooLong: nothing was written, or, of more than 1 MiB, only what the message says.
            StdinUnavailable: the process has no standard input, or has exited.
            NoSuchProcess: the daemon has forgotten the process.
        """
        checked = whole_lines and bool(self.tty) and "process/write.wholeLines" in self._session.capabilities
        await self._input.write(arguments.data(data, "data"), checked=checked)

    async def close_stdin(self) -> None:
        """Close the standard input: the process reads the data written before, then end of file.

        May be called again. On a terminal, write 0x04 at the start of a line instead.

        Raises:
            StdinUnavailable: the process was started without `stdin=True`.
            Refused: it has a terminal.
            NoSuchProcess: the daemon has forgotten the process.
            Unsupported: the server does not serve `process/closeStdin`.
        """
        await self._input.close()

    async def resize(self, rows: int, cols: int) -> bool:
        """Set the size of the terminal, 1 to 65535 each; the process gets SIGWINCH.

        Returns:
            Whether the process still runs.

        Raises:
            Refused: the process has no terminal, or this client may not resize it: the owner may, and the
                client that attached last with `interactive=True`.
            Unsupported: the server does not serve `process/resize`.
        """
        params = {**self._reference, "size": arguments.terminal_size((rows, cols))}
        self._session.require("process/resize")
        return bool((await self._session.call("process/resize", params))["running"])

    # -- the end

    @property
    def exit_code(self) -> int | None:
        """128 + N for death by signal N, 124 after a time limit; None while the process runs."""
        return self.output.exit_code

    @property
    def returncode(self) -> int | None:
        """`exit_code`, under the name that `subprocess` has, where a death by signal N is -N."""
        return self.output.exit_code

    def poll(self) -> int | None:
        """The exit code if the process has exited, None otherwise, without waiting."""
        return self.output.exit_code

    @property
    def cause(self) -> str | None:
        """Why the process ended: `normal`, `signal`, `timeout`, … (X8); None while it runs, or if unknown."""
        return self.output.cause

    @property
    def limit(self) -> Mapping[str, Json] | None:
        """The one of its `limits` that ended the process: `which` (`memory`, `wall`) and its `value`."""
        return self.output.limit

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
        """The processes that the command left and its sandbox ended (X18); None if none is reported."""
        return self.output.ended_with_sandbox

    async def wait(self, timeout: float | None = None) -> int:  # noqa: ASYNC109 - the process runs on
        """Wait until the process has exited; its exit code. A background child may write more output.

        Args:
            timeout: seconds to wait at most.

        Raises:
            WaitTimeout: the process did not exit in time, and runs on.
            SessionLost, NoSuchProcess: the end of the process will not be known.
        """
        async with within(self, timeout, "exit"):
            code = await self.output.until_exited()
            if code and self._confined and self.output.broken_sandbox is None:
                with suppress(NoSuchProcess):
                    self.output.broken_sandbox = (await self.read(BEYOND_SEQ)).failure
            return code

    async def wait_closed(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the process runs on
        """Wait until the process has exited and no process keeps its output open.

        Args:
            timeout: seconds to wait at most.

        Raises:
            WaitTimeout: that did not happen in time.
            SessionLost, NoSuchProcess: the end of the process will not be known.
        """
        async with within(self, timeout, "close"):
            await self.output.until_closed()

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
        return await send_signal(self._session, self.output, signal_name(sig), scope)

    async def interrupt(self) -> None:
        """Send SIGINT to the process group. Does nothing to a process that has exited."""
        await self._session.call("process/signal", {**self._reference, "signal": "interrupt"})

    async def send_signal(self, sig: str | int | signals.Signals, scope: Scope = "group") -> bool:
        """`signal`, under the name that `subprocess` has."""
        return await self.signal(sig, scope)

    async def terminate(self, scope: Literal["group", "tree"] | None = None) -> bool:
        """Send SIGTERM to the process group. Returns whether it was delivered: False after the exit.

        Args:
            scope: deprecated: with it SIGKILL is sent, as in version 0.1. Use `kill(scope=…)`.

        Raises:
            NoSuchProcess: the daemon has forgotten the process.
            Unsupported: the server does not serve SIGTERM: use `kill`.
        """
        if scope is None:
            return await self.signal("SIGTERM")
        deprecated_scope(scope)
        running = self.exit_code is None
        await self.kill(scope)
        return running

    async def kill(self, scope: Scope = "tree") -> None:
        """Send SIGKILL, by default to the process and all its descendants, also after its exit.

        Waits some seconds at most, and raises no error, even if the connection is lost at the moment. If
        cancelled, it continues in the background.

        Args:
            scope: `tree` includes descendants with a session of their own and those that outlived the
                process; `group` is the process group, `leader` the process alone. A server without
                `process/terminate.scope` kills the group in place of the tree.

        Raises:
            ValueError, Unsupported: there is no such scope; the server cannot kill the `leader` alone.
        """
        check_scope(self._session, scope)
        await self._session.kill(self.output, scope)

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

    @cached_property
    def communication(self) -> Communication:
        """What `communicate` has sent and received. Internal: it may change between versions."""
        return Communication(self, self._stdin)

    def __repr__(self) -> str:
        return described(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own = self.output.session_id is None
        if self._detached or (own and self.exit_code is not None):
            return
        try:
            await (end_group(self._session, self.output) if own else self.detach())
        except ExecServerError:
            # The error of the block is more useful than the failure to kill the process after it.
            if error is None:
                raise

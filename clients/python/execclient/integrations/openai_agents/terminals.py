"""Commands that run beside the SDK's calls (`exec_command`, `write_stdin`), with or without a terminal.

The daemon keeps their output. A session only knows how far it has read, which is part of its saved state, so
that another process can resume the session and read on.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from agents.sandbox.errors import ExecTransportError, PtySessionNotFoundError
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    process_id_to_prune_from_meta,
)

from execclient.client import Executor
from execclient.errors import ExecServerError, NoSuchProcess, StdinUnavailable
from execclient.integrations.openai_agents.state import ExecServerSandboxSessionState, PtyPosition
from execclient.process import Process

PAGE_BYTES = 1 << 20
UPDATE_BYTES = 8 << 20
"""Output of one update; the rest waits at the daemon, which keeps 64 MiB by default."""

_NAME = re.compile(r"pty-([0-9]+)")


def name_of(number: int) -> str:
    """The name of a command in the daemon's session, by its number in the SDK."""
    return f"pty-{number}"


class Terminal:
    """One command, and how far its output was read."""

    def __init__(self, process: Process, position: PtyPosition) -> None:
        self.process = process
        self.last_used = time.monotonic()
        self.done = False
        """Whether all output was read, and no more will come."""
        self.exit_code: int | None = None
        self.rewind(position)

    def rewind(self, position: PtyPosition) -> None:
        """Read on from a position."""
        self._after_seq = position.after_seq
        self._chunks = deque([bytes.fromhex(position.held_back)] if position.held_back else ())
        self._taken = 0
        self.done = False

    @property
    def position(self) -> PtyPosition:
        """What the next update begins with."""
        return PtyPosition(after_seq=self._after_seq, held_back=b"".join(self._chunks).hex())

    async def take(self, *, yield_time_ms: int, max_output_tokens: int | None) -> tuple[bytes, int | None]:
        """The output until a time has passed or the command has ended, and its tokens before the limit."""
        self._taken = 0
        output, tokens, _ = await collect_pty_output(
            output_chunks=self._chunks,
            output_lock=asyncio.Lock(),
            output_notify=asyncio.Event(),
            is_done=lambda: self.done,
            yield_time_ms=yield_time_ms,
            max_output_tokens=max_output_tokens,
            settle_output=lambda: self._pull(0.0),
            wait_for_output=self._wait,
        )
        self.last_used = time.monotonic()
        return output, tokens

    async def _wait(self, seconds: float) -> None:
        # A long poll whose connection is lost begins again, so that the time must be kept here.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (self._pull(seconds) if self._taken < UPDATE_BYTES else asyncio.sleep(seconds))

    async def _pull(self, wait: float) -> None:
        if self.done or self._taken >= UPDATE_BYTES:
            return
        page = await self.process.read(self._after_seq, max_bytes=PAGE_BYTES, wait=wait)
        self._after_seq = page.next_seq - 1
        if page.lost_bytes:
            self._chunks.append(b"\n[%d bytes of output were dropped]\n" % page.lost_bytes)
        self._chunks += [chunk.data for chunk in page.chunks]
        self._taken += len(page.data)
        self.exit_code = page.exit_code
        # Not with chunks: there may be more of them than one page holds.
        self.done = page.closed and not page.chunks
        if self.done and page.failure:
            self._chunks.append(f"the sandbox failed before the command began: {page.failure}\n".encode())


class Terminals:
    """The running commands of a session.

    Args:
        executor: with the session at the daemon to which they belong.
        state: is kept up to date with what was read.
    """

    def __init__(self, executor: Executor, state: ExecServerSandboxSessionState) -> None:
        self._executor = executor
        self._state = state
        self._open: dict[int, Terminal] = {}
        self._earlier: set[int] = set()
        """Those that an earlier process started."""
        self._used: set[int] = set()
        """All numbers in the daemon's session: a name is not used twice."""

    async def find(self) -> None:
        """Find the commands that an earlier process started in the session."""
        for info in await self._executor.processes():
            if found := _NAME.fullmatch(info.process_id):
                self._earlier.add(int(found[1]))
        self._used |= self._earlier

    def new_number(self) -> int:
        """The number of a new command."""
        number = allocate_pty_process_id(self._used)
        self._used.add(number)
        return number

    async def add(self, number: int, process: Process) -> None:
        """Have a new command read, and end the one that was not used for longest if there are 64."""
        if len(self._open) >= PTY_PROCESSES_MAX:
            meta = [(each, found.last_used, found.done) for each, found in self._open.items()]
            if (oldest := process_id_to_prune_from_meta(meta)) is not None:
                await self.end(oldest)
        self._open[number] = Terminal(process, PtyPosition())

    async def update(
        self, number: int, *, yield_time_ms: int, max_output_tokens: int | None
    ) -> PtyExecUpdate:
        """The output since the last update.

        Raises:
            PtySessionNotFoundError: there is no such command, or its end was reported.
        """
        terminal = await self._find(number)
        before = self._state.pty_positions.get(number, PtyPosition())
        try:
            output, tokens = await terminal.take(
                yield_time_ms=yield_time_ms, max_output_tokens=max_output_tokens
            )
        except NoSuchProcess as error:
            self._forget(number)
            raise PtySessionNotFoundError(session_id=number, cause=error) from error
        except BaseException as error:
            terminal.rewind(before)  # the next update has this output
            if isinstance(error, ExecServerError):
                raise failed("read the output", error) from error
            raise
        if terminal.done:
            self._forget(number)
        else:
            self._state.pty_positions[number] = terminal.position
        live = None if terminal.done else number
        code = terminal.exit_code if terminal.done else None
        return PtyExecUpdate(process_id=live, output=output, exit_code=code, original_token_count=tokens)

    async def write(self, number: int, chars: str) -> None:
        """Type into the terminal of a command; does nothing if it has ended.

        Raises:
            PtySessionNotFoundError: there is no such command, or its end was reported.
            RuntimeError: it has no terminal.
            ExecTransportError: the input was refused; the message says what to do.
        """
        terminal = await self._find(number)
        if not terminal.process.tty:
            # `WriteStdinTool` knows this text, and tells the model to use `tty=true`.
            raise RuntimeError("stdin is not available for this process")
        try:
            with suppress(StdinUnavailable, NoSuchProcess):
                await terminal.process.write(chars)
        except ExecServerError as error:
            raise failed("write_stdin", error) from error

    async def end(self, *numbers: int) -> None:
        """Kill commands with all their descendants; by default all commands."""
        ending = numbers or (*self._open, *self._earlier)
        await self._executor.kill_trees({name_of(number) for number in ending})
        for number in ending:
            self._forget(number)

    async def _find(self, number: int) -> Terminal:
        if number not in self._open:
            if number not in self._earlier:
                raise PtySessionNotFoundError(session_id=number)
            try:
                process = await self._executor.attach(name_of(number), buffer_bytes=0)
            except NoSuchProcess as error:
                raise PtySessionNotFoundError(session_id=number, cause=error) from error
            position = self._state.pty_positions.get(number, PtyPosition())
            self._open[number] = Terminal(process, position)
        return self._open[number]

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)
        self._earlier.discard(number)
        self._state.pty_positions.pop(number, None)


def failed(command: str | Sequence[str], error: ExecServerError) -> ExecTransportError:
    """The SDK's error for one of the client library."""
    argv = (command,) if isinstance(command, str) else command
    again = isinstance(error, ConnectionError | TimeoutError)
    return ExecTransportError(
        command=argv, message=str(error), context={"code": error.code}, cause=error, retryable=again
    )

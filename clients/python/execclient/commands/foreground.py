"""A remote process in the foreground: its streams are this program's, which ends with the process."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from signal import Signals as SignalNumber

from execclient import (
    Executor,
    NoSuchProcess,
    OutputGap,
    Process,
    Refused,
    StdinUnavailable,
    Unsupported,
)
from execclient.commands.failures import FAILED, CommandExit, print_message
from execclient.commands.signals import Signalled, Signals
from execclient.commands.streams import OutputWriter, StandardInput
from execclient.commands.values import amount, chosen_duration
from execclient.process_input import end_of_file
from execclient.session.session import cancel
from execprotocol.command_line import OUTPUT_CLOSED

LINGER_SECONDS = 0.5
"""How long the output may be silent after the exit, as in `Executor.run`: a child in the background may hold
it open for hours."""

_CAUSE_TEXTS = {
    "idleTimeout": "it was silent for longer than its limit",
    "sessionExpired": "its session ended",
    "serviceStop": "the daemon was stopped",
    "outOfMemory": "the machine ran out of memory",
    "limit": "it ran into a resource limit",
}
"""Texts for the causes of an exit that the exit code does not tell (`docs/protocol.md`, X8)."""

_LIMIT_TEXTS = {
    "memory": lambda value: f"it needed more than {amount(value)} of memory",
    "wall": lambda value: f"it ran for {chosen_duration(value / 1000)}",
}
"""The same for its own limits (X20)."""

Background = Coroutine[None, None, None]
AtEnd = Callable[[bool], Awaitable[None]]


class Detached(Exception):
    """The user typed the detach keys."""


class DetachKeys:
    """Finds the detach keys in typed input.

    Input that may be the beginning of the keys is held back until the next key.
    """

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Returns the input to forward, and whether the keys came. Nothing after the keys is forwarded."""
        if not self._keys:
            return typed, False
        passed = bytearray()
        for key in typed:
            self._held += bytes([key])
            while not self._keys.startswith(self._held):
                passed += self._held[:1]
                self._held = self._held[1:]
            if self._held == self._keys:
                return bytes(passed), True
        return bytes(passed), False


class Foreground:
    """A process whose output this program prints.

    Args:
        executor: the session with the daemon.
        process: the process.
        owned: whether this program started it. Then signals are forwarded to it, and it is killed when its
            output cannot be printed any more.
        as_json: print a line of JSON for each chunk of output.
    """

    def __init__(self, executor: Executor, process: Process, *, owned: bool, as_json: bool = False) -> None:
        self._executor = executor
        self._process = process
        self._owned = owned
        self._as_json = as_json
        self._output = OutputWriter()
        self._chunks = 0
        self._has_gap = False

    async def run_until_exit(self, signals: Signals, *background: Background) -> int:
        """Print the output until the process ends; returns the exit status.

        Args:
            signals: the signals to forward.
            background: work to do meanwhile. Its first exception ends everything.

        Raises:
            CommandExit: a signal ended this program, or the output cannot be written.
            ExecServerError: the process is out of reach.
        """
        over = asyncio.create_task(self._copy_output())
        failed = asyncio.create_task(self._output.failed.wait())
        others = {asyncio.create_task(signals.forward(self._signal)), *map(asyncio.create_task, background)}
        try:
            await _first(over, failed, others)
            if not self._output.failed.is_set():
                await self._output.settled()
        finally:
            await cancel({over, failed, *others})
        if self._output.failure is not None:
            return await self._give_up(self._output.failure)
        return self._status()

    async def print_json(self, **members: object) -> None:
        """Print a line of JSON between the lines of output."""
        self._output.put(1, json.dumps(members).encode() + b"\n")
        await self._output.settled()

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the process's terminal."""
        # Only the client that attached last may set the size; for any other client that is no error.
        with suppress(Refused, NoSuchProcess):
            await self._process.resize(rows, columns)

    async def forward_input(self, at_end: AtEnd, keys: DetachKeys | None = None) -> None:
        """Forward stdin until EOF or until the process takes no more, no faster than it is accepted.

        Args:
            at_end: called at EOF, with whether that is at the beginning of a line.
            keys: the detach keys.

        Raises:
            Detached: the keys were typed.
        """
        source = StandardInput()
        # A person sees that a terminal cuts what is typed; a file must arrive whole.
        whole_lines = not os.isatty(0)
        last = b"\n"
        with suppress(StdinUnavailable, NoSuchProcess):  # like a pipe whose reader is gone
            while data := await source.read():
                last = data[-1:]
                passed, is_detached = keys.feed(data) if keys else (data, False)
                await self._process.write(passed, whole_lines=whole_lines)
                if is_detached:
                    raise Detached
            await at_end(last == b"\n")

    async def close_input(self, _: bool) -> None:
        """Close the process's stdin."""
        try:
            await self._process.close_stdin()
        except Unsupported as error:
            print_message(f"stdin has ended, but the process's stdin cannot be closed: {error}")

    async def type_end_of_file(self, at_line_start: bool) -> None:
        """Send Ctrl-D to the process's terminal; twice within a line, where the first only ends the read."""
        await self._process.write(end_of_file(at_line_start=at_line_start))

    async def leave_input_open(self, _: bool) -> None:
        """Do nothing at EOF: other clients may go on writing."""

    # -- inside

    async def _copy_output(self) -> None:
        copying = asyncio.create_task(self._copy_until_closed())
        exited = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({copying, exited}, return_when=asyncio.FIRST_COMPLETED)
            while not copying.done() and await self._more_came(copying):
                pass
            if copying.done():
                await copying
            await exited
        finally:
            await cancel({copying, exited})

    async def _copy_until_closed(self) -> None:
        while True:
            try:
                async for stream, data in self._process:
                    self._show(stream, data)
            except OutputGap as gap:
                self._has_gap = True
                print_message(str(gap))
            else:
                return

    async def _more_came(self, copying: asyncio.Task[None]) -> bool:
        before = self._chunks
        await asyncio.wait({copying}, timeout=LINGER_SECONDS)
        if self._chunks == before and not copying.done():
            # The connection may be slow or interrupted: an answer arrives after all output sent before it.
            await self._executor.call("environment/status", {})
            await asyncio.sleep(0)
        return self._chunks != before

    def _show(self, stream: str, data: bytes) -> None:
        self._chunks += 1
        if self._as_json:
            line = json.dumps({"stream": stream, "chunk": base64.b64encode(data).decode()})
            self._output.put(1, line.encode() + b"\n")
        else:
            self._output.put(2 if stream == "stderr" else 1, data)

    async def _signal(self, number: SignalNumber) -> None:
        if not self._owned or self._process.exit_code is not None:
            raise Signalled(number)
        try:
            if not await self._process.signal(number):
                raise Signalled(number)
        except Unsupported as error:
            print_message(f"{number.name} cannot be forwarded, so the process is killed: {error}")
            await self._process.kill("group")

    async def _give_up(self, failure: OSError) -> int:
        if self._owned:
            await self._process.kill()
        if self._output.is_closed:
            return OUTPUT_CLOSED
        raise CommandExit(f"output cannot be written: {failure.strerror}")

    def _status(self) -> int:
        assert self._process.exit_code is not None
        if self._process.failure is not None:
            raise CommandExit(f"the sandbox failed before the command began: {self._process.failure}")
        cause = self._process.cause
        limit = self._process.limit
        if limit is not None:
            print_message(f"{self._process.id} was killed: {_LIMIT_TEXTS[limit['which']](limit['value'])}")
        elif cause in _CAUSE_TEXTS:
            print_message(f"{self._process.id} was killed: {_CAUSE_TEXTS[cause]}")
        if self._has_gap:
            return FAILED
        return self._process.exit_code


async def _first(
    over: asyncio.Task[None], failed: asyncio.Task[bool], others: set[asyncio.Task[None]]
) -> None:
    """Wait until the process is over or printing failed; raises the first exception of any task."""
    running: set[asyncio.Task[None]] = set(others)
    while not over.done() and not failed.done():
        done, _ = await asyncio.wait({over, failed, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & running:
            running.discard(task)
            task.result()
    if over.done():
        over.result()
